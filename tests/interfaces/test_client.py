"""The client: runs, grouping, and its behaviour when peers die, refuse or lag."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.to_thread
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onyxq.client import AsyncClient, Claim, Client
from onyxq.client.enqueues import cut_payloads, cut_with_ids
from onyxq.client.pool import CONNECT_TIMEOUT_MS, ROUTES_EVERY_S
from onyxq.core.facts import task_header, unpack_task
from onyxq.core.ids import RUN_TASKS_MAX, ids_of, make_id, partition_of
from onyxq.core.limits import RUN_BYTES_MAX
from onyxq.errors import (
    BadRequest,
    Corrupt,
    NotLeader,
    OnyxqError,
    StaleToken,
    TimedOut,
    TooLarge,
    Unavailable,
    Unknown,
)
from onyxq.wire.server import Request
from onyxq.wire.tcp import TcpNetwork
from simulation.world.network import SimulatedNetwork
from tests.interfaces.fake_service import (
    PARTITIONS,
    FakeCluster,
    FakePeer,
    client_of,
    led_by,
    partitions_of,
    played,
    refuse_once,
    together,
)

BACKENDS = pytest.mark.parametrize("backend", ["trio", "asyncio"])


# enqueueing


@BACKENDS
@played
async def test_a_batch_is_claimed_and_completed_as_runs(
    cluster: FakeCluster, network: SimulatedNetwork, peer: FakePeer, backend: str
) -> None:
    """A thousand tasks are sent as one run each way, and no claim object is made for them."""
    async with client_of(network) as client:
        ids = await client.enqueue_many("mail", [b"%d" % n for n in range(1000)], priority=5)
        claims = await client.claim(["mail"], max=1000, worker="w1")
        assert len(claims) == 1000
        await client.complete(claims)
        assert claims._claims == {}
    (request,) = peer.arguments("complete")
    assert request["items"] == [[ids[0], 1000, 1, None, None]]
    assert sorted(cluster.outcomes) == ids
    assert [len(args["runs"]) for args in peer.arguments("enqueue")] == [1]


@played
async def test_a_claim_shows_what_was_enqueued(client: AsyncClient) -> None:
    """Data, queue and priority belong to the right task."""
    ids = await client.enqueue_many("mail", [b"a", b"", b"ccc"], priority=-7)
    claims = await client.claim("mail", max=10)
    assert [claim.data for claim in claims] == claims.payloads == [b"a", b"", b"ccc"]
    assert [claim.id for claim in claims] == ids
    assert (claims[-1].queue, claims[-1].priority, claims[-1].token) == ("mail", -7, 1)
    assert claims[0] is claims[0]
    assert claims[1:] == [claims[1], claims[2]]


@played
async def test_a_payload_that_was_changed_is_not_handed_out(cluster: FakeCluster, client: AsyncClient) -> None:
    """The checksum made by the enqueuer is verified by the worker."""
    await client.enqueue("mail", b"right")
    ((first, body),) = cluster.rows.items()
    cluster.rows[first] = body.replace(b"right", b"wrong")
    with pytest.raises(Corrupt):
        _ = (await client.claim("mail"))[0].data


@played
async def test_only_what_differs_from_the_defaults_is_in_a_header(
    cluster: FakeCluster, network: SimulatedNetwork
) -> None:
    """Equal tasks have equal bytes as headers."""
    await cluster.start(network.host("a"), "a:1")
    async with client_of(network) as client:
        await client.enqueue_many("plain", [b""])
        await client.enqueue_many("odd", [b""], retries=None, format="json", priority=1, backoff_ms=5)
    headers = [task_header(body)[0] for body in cluster.rows.values()]
    odd = {"backoff_ms": 5, "format": "json", "priority": 1, "queue": "odd", "retries": None}
    assert [list(header.items()) for header in headers] == [[("queue", "plain")], list(odd.items())]


@played
async def test_a_delayed_task_has_its_due_time_in_the_id(cluster: FakeCluster, network: SimulatedNetwork) -> None:
    """Only the id shows when a task is due."""
    await cluster.start(network.host("a"), "a:1")
    async with client_of(network) as client:
        later = await client.enqueue("mail", b"x", delay_ms=500)
        at = await client.enqueue("mail", b"x", at_ms=77_000)
        now = await client.enqueue("mail", b"x", at_ms=5)
    assert [int.from_bytes(task_id[:6], "big") for task_id in (later, at, now)] == [1500, 77_000, 1000]


@given(sizes=st.lists(st.sampled_from([0, 1, 100, RUN_BYTES_MAX // 3, RUN_BYTES_MAX, RUN_BYTES_MAX + 1]), max_size=30))
def test_runs_are_as_long_as_the_limits_allow(sizes: list[int]) -> None:
    """No run exceeds the limits unless it is one task, and none has room for the next task."""
    payloads = [bytes(size) for size in sizes]
    cuts = list(cut_payloads(payloads))
    assert [place for start, end in cuts for place in range(start, end)] == list(range(len(payloads)))
    for start, end in cuts:
        assert end - start == 1 or sum(sizes[start:end]) <= RUN_BYTES_MAX
        assert end == len(sizes) or sum(sizes[start : end + 1]) > RUN_BYTES_MAX


def test_more_tasks_than_a_run_holds_become_several_runs() -> None:
    """1,024 at most."""
    assert [end - start for start, end in cut_payloads([b""] * 2500)] == [RUN_TASKS_MAX, RUN_TASKS_MAX, 452]


@given(gaps=st.lists(st.integers(1, 3), min_size=1, max_size=50), start=st.integers(1000, 1040))
def test_given_ids_are_cut_where_they_do_not_follow_or_cross_a_stretch(gaps: list[int], start: int) -> None:
    """Each part is a run of consecutive ids within one stretch."""
    counters = [start + sum(gaps[:place]) for place in range(len(gaps))]
    ids = [make_id(1, 2, 3, counter) for counter in counters]
    for begin, end in cut_with_ids([b"x"] * len(ids), ids):
        assert ids[begin:end] == ids_of(ids[begin], end - begin)
        assert counters[begin] // 1024 == counters[end - 1] // 1024


@played
async def test_repeating_a_call_with_its_ids_makes_no_second_task(
    cluster: FakeCluster, network: SimulatedNetwork, peer: FakePeer
) -> None:
    """The same ids are sent, cut the same way, to the same partitions."""
    async with client_of(network) as client:
        ids = await client.make_ids(1500)
        payloads = [b"%d" % n for n in range(1500)]
        assert await client.enqueue_many("mail", payloads, ids=ids) == ids
        first = [args["runs"] for args in peer.arguments("enqueue")]
        await client.enqueue_many("mail", payloads, ids=[task_id.hex() for task_id in ids])
        again = [args["runs"] for args in peer.arguments("enqueue")][len(first) :]
    assert again == first
    assert sorted(cluster.tasks()) == sorted(ids)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"queue": "", "payloads": [b""]}, BadRequest),
        ({"queue": "q" * 201, "payloads": [b""]}, BadRequest),
        ({"queue": "half of a pair: \ud800", "payloads": [b""]}, BadRequest),
        ({"queue": "q", "payloads": [b""], "unique_key": "\ud800"}, BadRequest),
        ({"queue": "q", "payloads": ["text"]}, BadRequest),
        ({"queue": "q", "payloads": [b""], "priority": 2**31}, BadRequest),
        ({"queue": "q", "payloads": [b""], "retries": -1}, BadRequest),
        ({"queue": "q", "payloads": [b""], "delay_ms": -1}, BadRequest),
        ({"queue": "q", "payloads": [b""], "format": "yaml"}, BadRequest),
        ({"queue": "q", "payloads": [b""], "ids": []}, BadRequest),
        ({"queue": "q", "payloads": [b""], "ids": [b"short"]}, BadRequest),
        ({"queue": "q", "payloads": [bytes(16 * 1024 * 1024 + 1)]}, TooLarge),
    ],
)
@played
async def test_bad_arguments_are_refused_before_anything_is_sent(
    network: SimulatedNetwork, peer: FakePeer, arguments: dict[str, Any], error: type[OnyxqError]
) -> None:
    """The error has the wrong field."""
    async with client_of(network) as client:
        with pytest.raises(error) as caught:
            await client.enqueue_many(**arguments)
        assert caught.value.field
    assert peer.arguments("enqueue") == []


@BACKENDS
@played
async def test_single_calls_that_come_together_leave_together(
    cluster: FakeCluster, peer: FakePeer, client: AsyncClient, backend: str
) -> None:
    """The first is sent at once; calls that come while it is in flight form one run."""
    await client.enqueue("mail", b"routes are known now")
    before = len(peer.arguments("enqueue"))
    ids = await together(*(client.enqueue("mail", b"%d" % n) for n in range(300)))
    sizes = [unpack_task(args["runs"][0][1]).count for args in peer.arguments("enqueue")[before:]]
    assert sum(sizes) == 300
    assert len(sizes) <= 3
    assert len(set(ids)) == 300
    claims = await client.claim("mail", max=1000)
    assert {claim.id: claim.data for claim in claims if claim.id in set(ids)} == {
        task_id: b"%d" % n for n, task_id in enumerate(ids)
    }
    await together(*(client.complete(claim, b"r%d" % n) for n, claim in enumerate(claims)))
    assert len(peer.arguments("complete")) <= 3
    assert [cluster.outcomes[claim.id] for claim in claims] == [b"r%d" % n for n in range(301)]


@played
async def test_calls_of_different_kinds_are_not_mixed(cluster: FakeCluster, network: SimulatedNetwork) -> None:
    """A run has one header."""
    await cluster.start(network.host("a"), "a:1")
    async with client_of(network) as client:
        calls = [client.enqueue("ab"[n % 2], b"x", priority=n % 3) for n in range(60)]
        ids = await together(*calls)
    kinds = {
        task_id: (header["queue"], header.get("priority", 0))
        for first, body in cluster.rows.items()
        for header, count in [task_header(body)]
        for task_id in ids_of(first, count)
    }
    assert [kinds[task_id] for task_id in ids] == [("ab"[n % 2], n % 3) for n in range(60)]


@played
async def test_a_bad_call_in_a_group_harms_nobody_else(cluster: FakeCluster, network: SimulatedNetwork) -> None:
    """The peer refuses the whole request; the other calls are sent again without it."""
    await cluster.start(network.host("a"), "a:1")
    async with client_of(network) as client:
        await client.enqueue_many("mail", [b"x"] * 5)
        claims = await client.claim("mail", max=5)
        leases = [5_000, 5_000, 1, 5_000, 5_000]
        found = await together(*(client.renew(claim, lease) for claim, lease in zip(claims, leases, strict=True)))
    assert [type(error) for error in found] == [type(None)] * 2 + [BadRequest] + [type(None)] * 2


# peers that die, lag and refuse


@played
async def test_a_name_that_cannot_be_sent_harms_no_other_call(cluster: FakeCluster, client: AsyncClient) -> None:
    """Foreign JSON may have half of a surrogate pair: that call fails, and the client continues."""
    for named in ({"queue": "\ud800"}, {"queue": "q", "unique_key": "\ud800"}):
        with pytest.raises(BadRequest, match="surrogate"):
            await client.enqueue(payload=b"x", **named)
    assert await client.enqueue("q", b"x") in cluster.tasks()


@BACKENDS
@played
async def test_a_client_given_one_peer_survives_its_death(
    cluster: FakeCluster, network: SimulatedNetwork, backend: str
) -> None:
    """It learns of the others in time, and continues with one of them."""
    first = await cluster.start(network.host("a"), "a:1")
    second = await cluster.start(network.host("b"), "b:1")
    async with client_of(network) as client:
        await client.enqueue("mail", b"1")
        first.stop()
        network.cut("a")
        await client.enqueue("mail", b"2")
        assert len(await client.claim("mail", max=2)) in (1, 2)
    assert second.methods("enqueue") == ["enqueue"]


@played
async def test_a_client_reports_that_it_found_another_peer(cluster: FakeCluster, network: SimulatedNetwork) -> None:
    """A worker then looks for what a new cluster lacks. While the connection lasts, there is nothing to report."""
    first = await cluster.start(network.host("a"), "a:1")
    await cluster.start(network.host("b"), "b:1")
    async with client_of(network) as client:
        reconnected = await client.reconnection()
        await client.enqueue("mail", b"1")
        assert not reconnected.is_set() and await client.reconnection() is reconnected
        first.stop()
        network.cut("a")
        await client.enqueue("mail", b"2")
        await reconnected.wait()
        assert not (await client.reconnection()).is_set()


@pytest.mark.parametrize("error", [Unavailable("the log is away"), TimedOut("late")])
@played
async def test_a_peer_that_refuses_a_call_is_not_a_lost_connection(
    cluster: FakeCluster, network: SimulatedNetwork, error: OnyxqError
) -> None:
    """The client asks another peer, or the same one again; a peer that is lost later is reported."""
    first = await cluster.start(network.host("a"), "a:1")
    async with client_of(network) as client:
        reconnected = await client.reconnection()
        refuse_once(first, "enqueue", error, times=3)
        await client.enqueue("mail", b"1")
        second = await cluster.start(network.host("b"), "b:1")
        await anyio.sleep(2 * ROUTES_EVERY_S)
        refuse_once(first, "enqueue", error)
        await client.enqueue("mail", b"2")
        assert second.methods("enqueue") == ["enqueue"]
        assert not reconnected.is_set()
        second.stop()
        network.cut("b")
        await client.enqueue("mail", b"3")
        await reconnected.wait()


@played
async def test_a_client_that_asks_for_nothing_follows_peers_that_come_back_elsewhere(
    cluster: FakeCluster, network: SimulatedNetwork
) -> None:
    """Each peer is restarted at another address in turn: at the end all first addresses are gone."""
    for name in "abc":
        await cluster.start(network.host(name), f"{name}:1")
    async with client_of(network) as client:
        await client.enqueue("mail", b"1")
        for name in "abc":
            old = next(peer for peer in cluster.peers if peer.address == f"{name}:1")
            old.stop()
            network.cut(name)
            cluster.peers.remove(old)
            await cluster.start(network.host(f"{name}2"), f"{name}2:1")
            await anyio.sleep(2 * ROUTES_EVERY_S)
        await client.enqueue("mail", b"2")
    assert sum(len(peer.methods("enqueue")) for peer in cluster.peers) == 1


@BACKENDS
@played
async def test_new_tasks_go_around_a_leader_that_died(
    cluster: FakeCluster, network: SimulatedNetwork, backend: str
) -> None:
    """The routes still name it, but an enqueue does not wait for the next leader."""
    first = await cluster.start(network.host("a"), "a:1")
    second = await cluster.start(network.host("b"), "b:1")
    led_by(cluster, first, second)
    async with client_of(network, "a:1") as client:
        while not second.methods("enqueue"):
            await client.enqueue("mail", b"before")
        second.stop()
        network.cut("b")
        await client.enqueue("mail", b"whoever finds out")
        known = len(first.arguments("enqueue"))
        for _ in range(2 * PARTITIONS):
            await client.enqueue("mail", b"later")
        used = {one for args in first.arguments("enqueue")[known:] for one in partitions_of(args)}
    assert used == {one for one, leader in cluster.leaders.items() if leader == first.address}


@played
async def test_a_request_cut_off_is_repeated_with_the_same_ids(cluster: FakeCluster, network: SimulatedNetwork) -> None:
    """The peer stored the tasks and died before its answer: the tasks are not stored twice."""
    first = await cluster.start(network.host("a"), "a:1")
    second = await cluster.start(network.host("b"), "b:1")

    def store_and_die(request: Request) -> bool:
        if request.method != "enqueue":
            return False
        cluster.do_enqueue(request.args)
        first.stop()
        network.cut("a")
        return True

    first.intercept = store_and_die
    async with client_of(network, "a:1", "b:1") as client:
        ids = await client.enqueue_many("mail", [b"x"] * 3)
    assert cluster.tasks() == ids
    assert second.arguments("enqueue") == first.arguments("enqueue")


@played
async def test_errors_that_pass_are_waited_out(network: SimulatedNetwork, peer: FakePeer) -> None:
    """Pauses become longer, up to the deadline."""
    refuse_once(peer, "enqueue", NotLeader(), times=5)
    async with client_of(network) as client:
        await client.enqueue("mail", b"x")
        assert peer.methods("enqueue") == ["enqueue"] * 6
        refuse_once(peer, "enqueue", NotLeader(), times=1000)
        start = anyio.current_time()
        with pytest.raises(NotLeader):
            await client.enqueue_many("mail", [b"x"], timeout_ms=3_000)
        assert 1 < anyio.current_time() - start <= 3


@pytest.mark.parametrize("method", ["enqueue", "complete", "fail", "renew", "release", "postpone", "give_up", "update"])
@played
async def test_a_call_whose_outcome_is_unknown_is_repeated_as_it_was(
    cluster: FakeCluster, peer: FakePeer, client: AsyncClient, method: str
) -> None:
    """The first request succeeded with an answer of unknown outcome: the repeat has no second effect."""
    await client.enqueue("other", b"x")
    (claim,) = await client.claim(["other"])
    peer.asked.clear()
    lost = []

    def lose_the_answer(request: Request) -> bool:
        if request.method == method and not lost:
            getattr(cluster, f"do_{method}")(request.args)
            request.fail(Unknown())
            lost.append(True)
            return True
        return False

    peer.intercept = lose_the_answer
    calls: dict[str, Callable[[], Awaitable[Any]]] = {
        "enqueue": lambda: client.enqueue("mail", b"y"),
        "complete": lambda: client.complete(claim),
        "fail": lambda: client.fail(claim, "no"),
        "renew": lambda: client.renew(claim),
        "release": lambda: client.release(claim),
        "give_up": lambda: client.give_up(claim, "no"),
        "postpone": lambda: client.postpone(claim, 1_000, "later"),
        "update": lambda: client.update(claim, b"half"),
    }
    try:
        await calls[method]()
    except StaleToken:
        assert method == "release"  # the fake peer forgets the claim
    first, second = peer.arguments(method)
    assert first == second
    assert len(cluster.tasks()) == (2 if method == "enqueue" else 1)


@played
async def test_a_run_that_was_refused_stays_in_its_partition_and_new_ones_avoid_it(
    cluster: FakeCluster, network: SimulatedNetwork, peer: FakePeer
) -> None:
    """A partition without a quorum delays only tasks that were already sent there."""
    led_by(cluster, peer)
    sick: list[int] = []

    def intercept(request: Request) -> bool:
        if request.method != "enqueue":
            return False
        (partition,) = partitions_of(request.args)
        if not sick:
            sick.append(partition)
        if partition == sick[0]:
            request.reply({"acks": [Unavailable("no quorum").to_map()]})
            return True
        return False

    peer.intercept = intercept
    async with client_of(network) as client:
        with pytest.raises(Unavailable, match="no quorum"):
            await client.enqueue_many("mail", [b"x"], timeout_ms=2_000)
        tried = [partitions_of(args) for args in peer.arguments("enqueue")]
        assert tried == [[sick[0]]] * len(tried)
        ids = [await client.enqueue("mail", b"x") for _ in range(8)]
    assert sick[0] not in map(partition_of, ids)


@played
async def test_tasks_go_straight_to_the_leader_of_their_partition(
    cluster: FakeCluster, network: SimulatedNetwork
) -> None:
    """This is so once there is a connection; until then the coordinator forwards them."""
    first = await cluster.start(network.host("a"), "a:1")
    second = await cluster.start(network.host("b"), "b:1")
    led_by(cluster, first, second)
    async with client_of(network) as client:
        for _ in range(8):
            await client.enqueue("mail", b"x")
            await anyio.sleep(0.1)
        first.asked.clear()
        second.asked.clear()
        await client.enqueue_many("mail", [b"x" * 1000] * 3000)
    for peer, wanted in ((first, 0), (second, 1)):
        sent = [partition for args in peer.arguments("enqueue") for partition in partitions_of(args)]
        assert sent
        assert {partition % 2 for partition in sent} == {wanted}


@played
async def test_a_peer_that_accepts_and_never_answers_is_left_for_another(
    cluster: FakeCluster, network: SimulatedNetwork
) -> None:
    """It is left after the time of one attempt, long before the deadline."""
    first = await cluster.start(network.host("a"), "a:1")
    second = await cluster.start(network.host("b"), "b:1")
    first.intercept = lambda request: True
    async with client_of(network, "a:1", "b:1") as client:
        assert await client.enqueue("mail", b"x")
    assert second.methods("enqueue") == ["enqueue"]


@played
async def test_nobody_there_is_unavailable_at_the_deadline(cluster: FakeCluster, network: SimulatedNetwork) -> None:
    """A plain call of the command line fails at once."""
    async with client_of(network) as client:
        start = anyio.current_time()
        with pytest.raises(Unavailable, match="nobody listens"):
            await client.call("cluster", {})
        assert anyio.current_time() - start < 0.1
        with pytest.raises(Unavailable, match="nobody listens"):
            await client.cluster()
        assert 28 < anyio.current_time() - start <= 30


@played
async def test_a_call_keeps_its_time_while_no_peer_answers_and_the_search_goes_on(
    cluster: FakeCluster, network: SimulatedNetwork
) -> None:
    """This holds for any time: a later call uses the peer that the search has found."""
    await cluster.start(network.host("a"), "a:1")
    await cluster.start(network.host("b"), "b:1")
    async with client_of(network, "a:1", "b:1") as client:
        network.part(["client"], ["a"])
        start = anyio.current_time()
        for _ in range(3):
            before = anyio.current_time()
            with pytest.raises(Unavailable, match="in time"):
                await client.enqueue("q", b"", id=bytes(20), timeout_ms=500)
            assert anyio.current_time() - before <= 0.6
        assert await client.enqueue("q", b"", timeout_ms=3_000)
        assert anyio.current_time() - start < 2.5


@pytest.mark.parametrize("options", [{}, {"ordering_key": "k"}])
@played
async def test_a_call_whose_time_ends_before_that_of_its_group_has_the_id_of_its_task(
    peer: FakePeer, client: AsyncClient, options: dict[str, Any]
) -> None:
    """The task may be stored, so that a repeat needs the id."""
    await client.make_ids(1)
    peer.intercept = lambda request: request.method == "enqueue"

    async def after(seconds: float, timeout_ms: int) -> None:
        await anyio.sleep(seconds)
        await client.enqueue("mail", b"x", timeout_ms=timeout_ms, **options)

    found = await together(after(0, 5_000), after(0.05, 1_000), after(0.2, 5_000))
    assert isinstance(found[1], TimedOut)
    assert found[1].ids == (peer.arguments("enqueue")[1]["runs"][0][0],)


@played
async def test_calls_that_fail_together_have_the_ids_of_their_own_tasks(
    cluster: FakeCluster, network: SimulatedNetwork
) -> None:
    """With the ids of another call, a repeat would count as a repeat of that call, and its tasks would be lost."""
    peer = await cluster.start(network.host("a"), "a:1")

    def die_with_two(request: Request) -> bool:
        if len(peer.methods("enqueue")) == 2:
            network.part(["client"], ["a"])
            network.cut("a")
        return True

    async with client_of(network) as client:
        await client.make_ids(1)
        peer.intercept = die_with_two
        limit_ms = CONNECT_TIMEOUT_MS + 40  # The search that both wait for ends just before it.
        calls = (client.enqueue_many(queue, [b""] * 2, timeout_ms=limit_ms) for queue in ("mail", "news"))
        mail, news = await together(*calls)
    assert mail is not news
    assert len(mail.ids) == len(news.ids) == 2
    assert not set(mail.ids) & set(news.ids)


# the blocking client


def test_the_blocking_client_does_the_same_from_threads() -> None:
    """This uses real TCP."""

    async def main() -> None:
        async with anyio.create_task_group() as group:
            cluster = FakeCluster(group)
            peer = await cluster.start(TcpNetwork(), "127.0.0.1:0")
            await anyio.to_thread.run_sync(use, peer.address)
            assert len(cluster.outcomes) == 3
            group.cancel_scope.cancel()

    def use(address: str) -> None:
        with Client(address) as client:
            client.enqueue_many("mail", [b"1", b"2", b"3"])
            claims = client.claim(["mail"], max=3, wait_ms=1_000, worker="w1")
            client.update(claims[0], b"half way")
            client.renew(claims)
            client.complete(claims)
            with pytest.raises(StaleToken):
                client.complete(Claim.of(claims[0].id, 99))
        with pytest.raises(Unavailable, match="not open"):
            client.count()

    anyio.run(main, backend="trio")
