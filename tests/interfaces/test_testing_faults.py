"""Faults of the test kit, each with its effect on a user's code (design: interfaces)."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from onyxq import App
from onyxq.errors import BadRequest, OnyxqError, StaleToken
from onyxq.testing import Cluster, open_cluster


def unacknowledged(cluster: Cluster, method: str) -> list[str]:
    """Return the states of three tasks, each processed by hand, when one answer to ``method`` was lost."""
    client = cluster.client()
    cluster.lose_answers(method=method)
    for number in range(3):
        client.enqueue("q", b"%d" % number)
        [claim] = client.claim("q", lease_ms=5_000, wait_ms=30_000)
        client.update(claim, b"u")
        client.renew(claim)
        with suppress(StaleToken):  # the answer to a release or failure that had succeeded the first time
            if number == 0:
                client.release(claim)
            elif number == 1:
                client.fail(claim, "no", retry_in_ms=0)
            else:
                client.complete(claim)
    return [task.state for task in cluster.tasks("q")]


@pytest.mark.long
@pytest.mark.parametrize("method", ["enqueue", "claim", "update", "renew", "release", "fail", "complete"])
def test_a_lost_answer_is_asked_for_again(method: str) -> None:
    """Each request of the client has its effect once, as if the answer had come."""
    with open_cluster(seed=1) as cluster:
        states = unacknowledged(cluster, method)
        assert len(states) == 3
        cluster.advance(30)
        counts = cluster.counts()["q"]
        assert counts["completed"] == 1
        assert counts["ready"] == 2


def test_a_lost_claim_comes_back_when_its_lease_is_over() -> None:
    """No worker knows of the grant; the task is granted again with a higher token."""
    with open_cluster(seed=1) as cluster:
        client = cluster.client()
        task_id = client.enqueue("q", b"x")
        cluster.lose_answers(method="claim")
        [claim] = client.claim("q", lease_ms=10_000, wait_ms=60_000)
        found = client.get(task_id)
        assert [one.outcome for one in found.claims] == ["expired", None]
        assert found.claims[-1].token == claim.token


def test_a_lost_outcome_of_a_worker_is_told_again() -> None:
    """The worker asks again, so the handler does not run twice."""
    app = App()

    @app.task
    def note() -> None: ...

    with open_cluster(seed=1) as cluster:
        cluster.use(app)
        cluster.lose_answers(2, method="complete")
        note.enqueue()
        assert cluster.drain().runs == 1


def test_an_unknown_method_is_refused() -> None:
    """Only answers of changing requests can be lost."""
    with open_cluster(peers=1) as cluster, pytest.raises(BadRequest, match="'cluter' is not one of cancel, claim"):
        cluster.lose_answers(method="cluter")


def test_a_late_worker_is_refused_after_the_lease() -> None:
    """Time expires a claim that is not renewed; its token is stale then."""
    with open_cluster(seed=2) as cluster:
        client = cluster.client()
        client.enqueue("q", b"x")
        [late] = client.claim("q", lease_ms=10_000)
        cluster.advance(9)
        client.renew(late)
        cluster.advance(9)
        client.update(late, b"still mine")
        cluster.advance(10)
        [again] = client.claim("q")
        with pytest.raises(StaleToken):
            client.complete(late)
        client.complete(again)


def test_an_acknowledged_task_outlives_peers() -> None:
    """One peer after the other dies and returns; no task is missing."""
    with open_cluster(seed=3) as cluster:
        client = cluster.client()
        client.enqueue_many("q", [b"%d" % number for number in range(20)])
        killed = []
        for _ in range(3):
            killed.append(cluster.kill_peer())
            assert cluster.counts()
            cluster.advance(3)
            cluster.start_peer(killed[-1])
        assert set(killed) <= set(cluster.peers)
        assert len(cluster.tasks("q", "ready")) == 20
        assert len(client.claim("q", max=100, wait_ms=10_000)) == 20


@pytest.mark.parametrize("seed", range(3))
def test_a_cluster_comes_back_after_all_its_peers_were_killed(seed: int) -> None:
    """Peers start one after the other; the first one serves nothing alone, and at the end no task is missing."""
    with open_cluster(seed=seed) as cluster:
        client = cluster.client()
        task = client.enqueue("q", b"x")
        for name in cluster.peers:
            cluster.kill_peer(name)
        for name in reversed(cluster.peers):
            cluster.start_peer(name)
        assert client.get(task).state == "ready"
        client.complete(client.claim("q", wait_ms=10_000))
        assert client.get(task).state == "completed"


def test_a_peer_that_is_unknown_or_down_cannot_be_killed() -> None:
    """The message names the existing ones."""
    with open_cluster(seed=3) as cluster:
        with pytest.raises(BadRequest, match="no peer 'n7'; there are n0, n1, n2"):
            cluster.kill_peer("n7")
        cluster.kill_peer("n2")
        with pytest.raises(AssertionError, match="peer n2 does not run"):
            cluster.kill_peer("n2")


def test_a_parted_peer_is_done_without() -> None:
    """It loses its session too, so two of three continue; it returns when the network heals."""
    app = App()

    @app.task
    def note() -> None: ...

    with open_cluster(seed=4) as cluster:
        cluster.use(app)
        for _ in range(8):
            note.enqueue()
        cluster.partition_network(["n1"])
        assert cluster.drain().completed == 8
        cluster.heal_network()
        cluster.settle()
        assert len(cluster.tasks(state="completed")) == 8


def test_a_client_leaves_a_peer_that_lost_the_log() -> None:
    """The asked peer answers but cannot grant tasks: the next one is asked."""
    with open_cluster(seed=4) as cluster:
        client = cluster.client()
        for number in range(8):
            client.enqueue("q", b"%d" % number)
        for name in cluster.peers:
            cluster.partition_network([name], clients=False)
            cluster.advance(20)
            [claim] = client.claim("q", lease_ms=600_000, wait_ms=90_000)
            client.complete(claim)
            cluster.heal_network()
            cluster.settle()


def test_a_handler_that_is_cut_off_stops_with_its_lease() -> None:
    """It does not stop only at the next renewal: another worker may have the task from then on."""
    app = App()
    stopped_ms: list[int] = []

    @app.task
    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            stopped_ms.append(cluster.now_ms)
            raise

    with open_cluster(seed=4) as cluster:
        cluster.use(app)
        cluster.start_worker(lease_ms=30_000)
        slow.enqueue()
        cluster.until(lambda: cluster.runs(slow))
        began_ms = cluster.now_ms
        cluster.expire_leases()
        assert 29_000 < stopped_ms[0] - began_ms < 31_000


def test_a_minority_takes_no_work() -> None:
    """A client that reaches only one isolated peer of three gets an error."""
    with open_cluster(seed=4) as cluster:
        client = cluster.client()
        cluster.kill_peer("n0")
        cluster.kill_peer("n1")
        with pytest.raises(OnyxqError):
            client.enqueue("q", b"x", timeout_ms=5_000)
        cluster.start_peer("n0")
        client.enqueue("q", b"x")


def test_a_frozen_log_stops_claims_and_nothing_else() -> None:
    """Enqueues continue; a claim waits until the log is available again."""
    with open_cluster(seed=5) as cluster:
        client = cluster.client()
        client.enqueue("q", b"0")
        cluster.freeze_log(20)
        client.enqueue("q", b"1")
        with pytest.raises(OnyxqError):
            client.claim("q", timeout_ms=2_000)
        began_ms = cluster.now_ms
        assert client.claim("q", wait_ms=60_000)
        assert 10_000 < cluster.now_ms - began_ms < 25_000
        with pytest.raises(AssertionError, match="frozen already"):
            cluster.freeze_log(1) or cluster.freeze_log(1)


@pytest.mark.long
def test_leases_do_not_run_out_while_the_log_is_frozen() -> None:
    """No worker could have renewed; after the freeze the claim is still valid."""
    with open_cluster(seed=5) as cluster:
        client = cluster.client()
        client.enqueue("q", b"0")
        [claim] = client.claim("q", lease_ms=10_000)
        cluster.freeze_log(300)
        cluster.advance(301)
        client.renew(claim)
        client.complete(claim)


def test_a_peer_that_loses_its_session_begins_anew() -> None:
    """It becomes another member of the ring; its data is served again."""
    with open_cluster(seed=6) as cluster:
        client = cluster.client()
        client.enqueue("q", b"0")
        before = {member["peer"] for member in client.ring()["members"]}
        name = cluster.expire_session()
        assert name in cluster.peers
        cluster.advance(1)
        cluster.settle()
        after = {member["peer"] for member in client.ring()["members"]}
        assert len(after) == 3 and len(before & after) == 2
        assert client.claim("q", wait_ms=10_000)


@pytest.mark.long
def test_faults_may_come_together() -> None:
    """With a dead peer, a frozen log and a dying worker at once, all tasks are completed."""
    app = App()

    @app.task(queue="a", backoff_ms=10_000)
    def one(number: int) -> None:
        two.enqueue(number)

    @app.task(queue="b")
    async def two(number: int) -> int:
        return number

    with open_cluster(seed=7) as cluster:
        cluster.use(app)
        for number in range(10):
            one.enqueue(number)
        cluster.kill_peer()
        cluster.freeze_log(15)
        cluster.kill_worker(after=one)
        cluster.kill_worker(during=two)
        cluster.lose_answers(3)
        done = cluster.drain()
        assert done.completed >= 20
        assert {task.result for task in cluster.tasks("b")} == set(range(10))
