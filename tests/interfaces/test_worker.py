"""The loop of a worker: claims ahead, releases, renewals, and its end."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import pytest
import trio

from onyxq.client import AsyncClient, Claim
from onyxq.errors import BadRequest, LogUnavailable, OnyxqError, TooLarge, Unavailable
from onyxq.wire.server import Request
from onyxq.worker import Worker, context
from onyxq.worker.loop import HURRIED_S, REPORT_S
from onyxq.worker.pace import Pace
from simulation.world.network import SimulatedNetwork
from tests.interfaces.fake_service import FakeCluster, FakePeer, played
from tests.interfaces.worker_world import play_in_real_time, until, with_worker


def held_ids(cluster: FakeCluster) -> set[bytes]:
    """Return claimed and unfinished tasks."""
    return set(cluster.tokens) - set(cluster.outcomes)


# --- how far ahead


@played
async def test_nothing_is_claimed_ahead_while_it_is_not_known_how_long_tasks_take(
    cluster: FakeCluster, network: SimulatedNetwork
) -> None:
    """The same holds if they take long: a held task is unavailable to other workers."""
    running = most_running = most_held = 0

    async def work(claim: Claim) -> None:
        nonlocal running, most_running, most_held
        running += 1
        most_running, most_held = max(most_running, running), max(most_held, len(held_ids(cluster)))
        await anyio.sleep(5)
        running -= 1

    worker = Worker(work, queues=["q"], concurrency=4)

    async def body(client: AsyncClient, peer: FakePeer) -> None:
        await client.enqueue_many("q", [b""] * 30)
        await until(lambda: len(cluster.outcomes) == 30)
        worker.stop()

    await with_worker(cluster, network, worker, body)
    assert (most_running, most_held) == (4, 4)


@pytest.mark.parametrize(("ahead", "held"), [(None, 44), (6, 10)])
@played
async def test_short_tasks_are_claimed_ahead_up_to_a_limit(
    cluster: FakeCluster, network: SimulatedNetwork, ahead: int | None, held: int
) -> None:
    """So slots do not wait for grants; never more tasks run than requested."""
    most_running = most_held = 0

    async def work(claim: Claim) -> None:
        nonlocal most_running, most_held
        await anyio.sleep(0.01)
        most_running, most_held = max(most_running, worker.running), max(most_held, worker.held)

    worker = Worker(work, queues=["q"], concurrency=4, ahead=ahead)

    async def body(client: AsyncClient, peer: FakePeer) -> None:
        await client.enqueue_many("q", [b""] * 300)
        await until(lambda: len(cluster.outcomes) == 300)
        worker.stop()

    await with_worker(cluster, network, worker, body)
    assert most_running == 4
    assert held - 4 <= most_held <= held + 4  # tasks whose outcome is in flight count as well


@played
async def test_what_is_not_begun_in_time_is_given_back_in_one_request(
    cluster: FakeCluster, network: SimulatedNetwork
) -> None:
    """This is so when tasks suddenly take long; another worker can claim them a second later."""
    slow = trio.Event()

    async def work(claim: Claim) -> None:
        if claim.data == b"slow":
            slow.set()
            await anyio.sleep(60)

    worker = Worker(work, queues=["q"], concurrency=2)

    async def body(client: AsyncClient, peer: FakePeer) -> None:
        await client.enqueue_many("q", [b"quick"] * 10)
        await until(lambda: len(cluster.outcomes) == 10)
        await client.enqueue_many("q", [b"slow"] * 12)
        await slow.wait()
        assert len(held_ids(cluster)) > 2
        await anyio.sleep(1.1)
        assert len(held_ids(cluster)) == worker.held == worker.running == 2
        assert len(peer.methods("release")) == 1
        await anyio.sleep(20)
        assert worker.held == 2
        worker.stop()
        worker.stop()

    await with_worker(cluster, network, worker, body)


@played
async def test_a_slot_that_gets_free_does_not_wait_for_others(cluster: FakeCluster, network: SimulatedNetwork) -> None:
    """One short task after another runs although nine long ones are running."""

    async def work(claim: Claim) -> None:
        await anyio.sleep(1 if claim.data == b"short" else 1_000)

    worker = Worker(work, queues=["q"], concurrency=10)

    async def body(client: AsyncClient, peer: FakePeer) -> None:
        await client.enqueue_many("q", [b"long"] * 9)
        await client.enqueue_many("q", [b"short"] * 5)
        began = anyio.current_time()
        await until(lambda: len(cluster.outcomes) == 5)
        assert anyio.current_time() - began < 6
        worker.stop()
        worker.stop()

    await with_worker(cluster, network, worker, body)


def test_the_pace_follows_what_tasks_take() -> None:
    """It follows their mean, longer running ones, and claims that were held for nothing."""
    pace = Pace(4)
    assert pace.ahead(0.0) == 0
    pace.took(0.1)
    assert pace.ahead(0.0) == 20
    assert pace.ahead(1.0) == 2
    assert pace.ahead(10.0) == 0
    pace.stalled()
    assert pace.ahead(0.0) == 0
    for _ in range(50):
        pace.took(0.0)
    assert pace.ahead(0.0) == pace.limit == 40
    assert Pace(500).limit == 1_000
    assert Pace(4, limit=0).ahead(0.0) == 0


# --- the way out


@played
async def test_a_stopping_worker_finishes_what_runs_and_gives_back_the_rest(
    cluster: FakeCluster, network: SimulatedNetwork
) -> None:
    """It does so at once, in one request, and claims no more tasks."""

    async def work(claim: Claim) -> None:
        await anyio.sleep(0.05 if claim.data == b"quick" else 0.9)

    worker = Worker(work, queues=["q"], concurrency=2)

    async def body(client: AsyncClient, peer: FakePeer) -> None:
        await client.enqueue_many("q", [b"quick"] * 4)
        await until(lambda: len(cluster.outcomes) == 4)
        await client.enqueue_many("q", [b"slow"] * 8)
        await until(lambda: worker.held > worker.running == 2)
        unbegun = worker.held - 2
        worker.stop()
        await until(lambda: bool(peer.methods("release")))
        (args,) = peer.arguments("release")
        assert sum(item[1] for item in args["items"]) == unbegun
        assert worker.running == 2

    await with_worker(cluster, network, worker, body)
    assert len(cluster.outcomes) == 6
    assert held_ids(cluster) == set()
    assert worker.held == 0


@played
async def test_what_a_second_signal_stops_is_told_so(cluster: FakeCluster, network: SimulatedNetwork) -> None:
    """The running code is cancelled, and its context says so."""
    said: list[bool] = []

    async def work(claim: Claim) -> None:
        ctx = context()
        said.append(ctx.cancelled)
        try:
            await anyio.sleep_forever()
        finally:
            said.append(ctx.cancelled)

    worker = Worker(work, queues=["q"])

    async def body(client: AsyncClient, peer: FakePeer) -> None:
        await client.enqueue("q", b"")
        await until(lambda: bool(said))
        worker.stop()
        worker.stop()

    await with_worker(cluster, network, worker, body)
    assert said == [False, True]


# --- outcomes


@pytest.mark.parametrize(
    "error",
    [SystemExit(3), ValueError("boom"), ValueError("half of a pair: \ud800"), asyncio.CancelledError("something else")],
)
def test_whatever_a_body_raises_is_the_error_of_its_attempt(error: BaseException) -> None:
    """This includes exceptions that would end a process, and cancellations within the task."""

    async def scenario(cluster: FakeCluster, network: SimulatedNetwork) -> None:
        async def work(claim: Claim) -> None:
            raise error

        worker = Worker(work, queues=["q"])

        async def body(client: AsyncClient, peer: FakePeer) -> None:
            task_id = await client.enqueue("q", b"")
            await until(lambda: task_id in cluster.outcomes)
            said = str(error).replace("\ud800", "\\ud800")  # unchanged it could not be sent
            assert cluster.outcomes[task_id].message == f"{type(error).__name__}: {said}"
            worker.stop()

        await with_worker(cluster, network, worker, body)
        assert (worker.failed, worker.held) == (1, 0)

    play_in_real_time(scenario, "asyncio")


@played
async def test_a_result_that_is_not_taken_fails_the_task_at_once(
    cluster: FakeCluster, network: SimulatedNetwork
) -> None:
    """The function has run, and another attempt would only repeat what it did."""

    async def work(claim: Claim) -> bytes:
        return b"x" * 10

    worker = Worker(work, queues=["q"])

    async def body(client: AsyncClient, peer: FakePeer) -> None:
        def refuse(request: Request) -> bool:
            if request.method == "complete":
                request.fail(TooLarge("a result has at most 5 bytes", field="result"))
            return request.method == "complete"

        peer.intercept = refuse
        task_id = await client.enqueue("q", b"")
        await until(lambda: task_id in cluster.outcomes)
        assert peer.methods("fail", "give_up") == ["give_up"]
        assert cluster.outcomes[task_id].message == (
            "ResultRefused: a task of q has run, but its result cannot be stored: 10 bytes are too many. "
            "Store it elsewhere, and return where it is."
        )
        worker.stop()

    await with_worker(cluster, network, worker, body)
    assert (worker.finished, worker.failed) == (0, 1)


@pytest.mark.parametrize("result", [5, "text", {"a": 1}])
@played
async def test_a_result_that_is_not_bytes_fails_the_task(
    cluster: FakeCluster, network: SimulatedNetwork, result: Any
) -> None:
    """The error says what a result is. The worker continues."""

    async def work(claim: Claim) -> Any:
        return result

    worker = Worker(work, queues=["q"])

    async def body(client: AsyncClient, peer: FakePeer) -> None:
        task_id = await client.enqueue("q", b"")
        await until(lambda: task_id in cluster.outcomes)
        said = f"cannot be stored: a result is bytes or None, not {type(result).__name__}."
        assert said in cluster.outcomes[task_id].message
        worker.stop()

    await with_worker(cluster, network, worker, body)
    assert (worker.finished, worker.failed) == (0, 1)


# --- leases, trouble


@played
async def test_leases_are_renewed_while_work_goes_on(cluster: FakeCluster, network: SimulatedNetwork) -> None:
    """This happens every third of the lease, for all claims in one request."""

    async def work(claim: Claim) -> None:
        await anyio.sleep(100)
        assert claim.expires > anyio.current_time()

    worker = Worker(work, queues=["q"], concurrency=5, lease_ms=30_000)

    async def body(client: AsyncClient, peer: FakePeer) -> None:
        await client.enqueue_many("q", [b""] * 5)
        await until(lambda: len(cluster.outcomes) == 5)
        worker.stop()
        assert len(peer.methods("renew")) in (9, 10)
        assert all(args["items"][0][1] == 5 for args in peer.arguments("renew"))

    await with_worker(cluster, network, worker, body)
    assert worker.failed == 0


@played
async def test_work_whose_claim_went_stale_is_stopped(cluster: FakeCluster, network: SimulatedNetwork) -> None:
    """Nothing is reported for it; the others continue."""
    stopped: list[bytes] = []

    async def work(claim: Claim) -> None:
        try:
            await anyio.sleep(50)
        except anyio.get_cancelled_exc_class():
            stopped.append(claim.id)
            raise

    worker = Worker(work, queues=["q"], concurrency=3, lease_ms=30_000)

    async def body(client: AsyncClient, peer: FakePeer) -> None:
        ids = await client.enqueue_many("q", [b""] * 3)
        await until(lambda: worker.held == 3)
        cluster.steal(ids[1])
        await until(lambda: len(cluster.outcomes) == 2)
        worker.stop()
        assert stopped == [ids[1]]
        assert peer.methods("release", "fail") == []

    await with_worker(cluster, network, worker, body)


@pytest.mark.parametrize(("error", "stopped"), [(Unavailable("no quorum"), True), (LogUnavailable(), False)])
@played
async def test_work_is_stopped_when_its_lease_may_have_ended(
    cluster: FakeCluster, network: SimulatedNetwork, error: OnyxqError, stopped: bool
) -> None:
    """An unavailable log is different: then its time and the lease stop."""
    ended: list[bool] = []

    async def work(claim: Claim) -> None:
        try:
            await anyio.sleep(100)
            ended.append(False)
        except anyio.get_cancelled_exc_class():
            ended.append(True)
            raise

    worker = Worker(work, queues=["q"], lease_ms=30_000)

    async def body(client: AsyncClient, peer: FakePeer) -> None:
        def refuse(request: Request) -> bool:
            if request.method == "renew":
                request.fail(error)
            return request.method == "renew"

        peer.intercept = refuse
        await client.enqueue("q", b"")
        await until(lambda: bool(ended))
        worker.stop()

    await with_worker(cluster, network, worker, body)
    assert ended == [stopped]


@pytest.mark.parametrize("twice", [True, False], ids=["second signal", "drain time over"])
@played
async def test_work_that_does_not_end_is_stopped_and_given_back(
    cluster: FakeCluster, network: SimulatedNetwork, twice: bool
) -> None:
    """This happens at the second signal, or when the time of the drain is over."""
    worker = Worker(lambda claim: trio.sleep_forever(), queues=["q"], concurrency=2, drain_ms=10_000)

    async def body(client: AsyncClient, peer: FakePeer) -> None:
        await client.enqueue_many("q", [b""] * 2)
        await until(lambda: worker.held == 2)
        await anyio.sleep(1)
        worker.stop()
        if twice:
            worker.stop()

    start = anyio.current_time()
    await with_worker(cluster, network, worker, body)
    assert cluster.tokens == {}
    assert (anyio.current_time() - start < 5) is twice


@pytest.mark.parametrize(("twice", "most_s"), [(True, HURRIED_S), (False, 10 + REPORT_S)])
@played
async def test_an_outcome_that_no_peer_takes_does_not_keep_a_worker(
    cluster: FakeCluster, network: SimulatedNetwork, caplog: pytest.LogCaptureFixture, twice: bool, most_s: float
) -> None:
    """The cluster is gone: the worker ends soon after the drain time or the second signal, and says what follows."""

    async def work(claim: Claim) -> bytes:
        return b"ok"

    worker = Worker(work, queues=["q"], drain_ms=10_000)

    async def body(client: AsyncClient, peer: FakePeer) -> None:
        peer.intercept = lambda request: request.method == "complete"
        await client.enqueue("q", b"")
        await until(lambda: worker.reported == 1)
        worker.stop()
        if twice:
            worker.stop()

    start = anyio.current_time()
    await with_worker(cluster, network, worker, body)
    assert most_s <= anyio.current_time() - start < most_s + 1
    assert "the cluster does not answer: 1 task will run again when its lease ends" in caplog.text


@played
async def test_an_outcome_outlasts_a_takeover_at_the_end(cluster: FakeCluster, network: SimulatedNetwork) -> None:
    """A worker stops while a leader is replaced: the function that has run must not run again."""

    async def work(claim: Claim) -> bytes:
        return b"ok"

    worker = Worker(work, queues=["q"], drain_ms=0)

    async def body(client: AsyncClient, peer: FakePeer) -> None:
        def refuse(request: Request) -> bool:
            if request.method == "complete":
                request.fail(Unavailable("a leader takes over"))
            return request.method == "complete"

        peer.intercept = refuse
        await client.enqueue("q", b"")
        await until(lambda: worker.reported == 1)
        worker.stop()
        await anyio.sleep(10)
        peer.intercept = None

    await with_worker(cluster, network, worker, body)
    assert worker.finished == 1


@played
async def test_a_worker_goes_on_when_claiming_fails_for_a_while(
    cluster: FakeCluster, network: SimulatedNetwork
) -> None:
    """This is for every temporary error."""

    async def work(claim: Claim) -> bytes:
        return b"ok"

    worker = Worker(work, queues=["q"], wait_ms=1_000)

    async def body(client: AsyncClient, peer: FakePeer) -> None:
        def refuse(request: Request) -> bool:
            if request.method == "claim":
                request.fail(LogUnavailable())
            return request.method == "claim"

        peer.intercept = refuse
        await client.enqueue("q", b"")
        await anyio.sleep(20)
        peer.intercept = None
        await until(lambda: bool(cluster.outcomes))
        worker.stop()

    await with_worker(cluster, network, worker, body)


@played
async def test_a_worker_ends_with_an_error_that_no_retry_mends(network: SimulatedNetwork, peer: FakePeer) -> None:
    """Examples are a bad queue name and a missing permission."""

    def refuse(request: Request) -> bool:
        if request.method == "claim":
            request.fail(BadRequest("no such thing", field="queues"))
        return request.method == "claim"

    peer.intercept = refuse
    worker = Worker(lambda claim: trio.sleep_forever(), queues=["q"])
    async with AsyncClient("a:1", network=network.host("w")) as client:
        with pytest.raises(BadRequest, match="no such thing"):
            await worker.serve(client)
