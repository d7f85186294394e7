"""What plain queues promise, through clients of a cluster of three nodes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import trio
import trio.testing

from onyxq import AsyncClient
from onyxq.core.facts import pack_task
from onyxq.core.ids import TaskId, ids_of, ms_of
from onyxq.errors import AlreadyFinished, Conflict, SequenceGap, StaleToken
from onyxq.interfaces.local_cluster import LocalCluster
from onyxq.operations import claims
from onyxq.operations.checks.peers import HEAD_TIMEOUT_MS_MAX
from tests.interfaces.claims_world import World, in_cluster, refusal
from tests.interfaces.live_world import PATIENCE_MS, Wire, claim_of, fresh_id, running

LONG_AGO_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
TOLD_MS = HEAD_TIMEOUT_MS_MAX // 2
"""Time within which a claimer is notified of a task; its own check would come too late."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Three nodes for all tests of this module; every test has queues of its own."""
    with running(peers=3) as cluster:
        yield cluster


@pytest.fixture
def no_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes hear of tasks by being told: what they would only find by looking again comes too late."""
    monkeypatch.setattr(claims, "POLL_S", HEAD_TIMEOUT_MS_MAX / 1000)


class TestOrder:
    """Which task comes first."""

    @in_cluster
    async def test_the_highest_priority_comes_first_then_the_oldest(self, world: World) -> None:
        """Across partitions, and so across nodes."""
        kinds = [(0, 5), (5, 9), (0, 3), (-1, 0), (5, 7), (0, 4)]
        tasks = [(priority, fresh_id(10 + at, ms=LONG_AGO_MS + age)) for at, (priority, age) in enumerate(kinds)]
        for priority, task_id in tasks:
            await world.client.enqueue(world.queue, b"x", priority=priority, id=task_id)
        wanted = [task_id for _, task_id in sorted(tasks, key=lambda task: (-task[0], ms_of(task[1])))]
        assert [(await world.claim()).id for _ in tasks] == wanted

    @in_cluster
    async def test_a_claim_takes_from_all_its_queues_in_that_order(self, world: World) -> None:
        """And from no other."""
        low, high, other = (f"{world.queue}-{name}" for name in ("low", "high", "other"))
        first = await world.client.enqueue(low, b"x", id=fresh_id(3))
        second = await world.client.enqueue(high, b"x", priority=9, id=fresh_id(4))
        await world.client.enqueue(other, b"x", priority=99)
        got = [claim.id for _ in range(2) for claim in await world.client.claim([low, high], wait_ms=PATIENCE_MS)]
        assert got == [second, first]
        assert not await world.client.claim([low, high])

    @in_cluster
    async def test_a_claim_gives_no_more_than_its_maximum(self, world: World) -> None:
        """A run of tasks is cut where it must be."""
        ids = await world.client.enqueue_many(world.queue, [b"%d" % i for i in range(10)])
        sizes, got = [], []
        for most in (3, 1, 6, 5):
            batch = await world.client.claim([world.queue], max=most, wait_ms=500)
            sizes.append(len(batch))
            got += [(claim.id, claim.data) for claim in batch]
        assert sizes == [3, 1, 6, 0]
        assert got == [(task_id, b"%d" % i) for i, task_id in enumerate(ids)]

    @in_cluster
    async def test_a_delayed_task_is_not_given_before_its_time(self, world: World) -> None:
        """But then."""
        later = await world.client.enqueue(world.queue, b"x", delay_ms=HOUR_MS)
        assert await world.nothing()
        assert (await world.client.get(later)).state == "scheduled"
        started = trio.current_time()
        task_id = await world.client.enqueue(world.queue, b"x", delay_ms=300)
        assert (await world.claim()).id == task_id
        assert trio.current_time() - started >= 0.29


class TestWaiting:
    """Claims that wait for a task."""

    @pytest.mark.usefixtures("no_polls")
    def test_a_waiting_claim_is_answered_when_another_node_takes_an_enqueue(self, cluster: LocalCluster) -> None:
        """Every time, whichever nodes and partition, and without a poll's delay."""
        wires = [Wire(address) for address in cluster.addresses]
        for turn in range(50):
            queue = f"waiting-{turn % 7}"
            waiter, enqueuer = wires[turn % 3], wires[(turn + 1 + turn // 3 % 2) % 3]
            waiter.send([1_000 + turn, "claim", claim_of(queue, wait_ms=TOLD_MS)])
            if turn % 2:  # by now the claim is surely there
                enqueuer.call("health", {})
            first = fresh_id(turn)
            enqueuer.call("enqueue", {"runs": [[first, pack_task({"queue": queue}, [b"x"])]], "w": None})
            number, status, result = waiter.receive()
            assert (number, status) == (1_000 + turn, 0)
            ((token, _, _, got, _),) = result["claims"]
            assert got == first, turn
            assert waiter.call("complete", {"items": [[first, 1, token, None, None]]}) == {"results": [[]]}
        for wire in wires:
            wire.__exit__(None, None, None)

    @in_cluster
    async def test_a_claim_without_a_task_ends_after_its_wait(self, world: World) -> None:
        """Empty."""
        started = trio.current_time()
        assert not await world.client.claim([world.queue], wait_ms=300)
        assert trio.current_time() - started >= 0.29

    @in_cluster
    async def test_a_task_claimed_for_a_client_that_left_goes_to_another(self, world: World) -> None:
        """A waiting claim that was withdrawn holds nothing."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: world.client.claim([world.queue], wait_ms=PATIENCE_MS))
            await trio.testing.wait_all_tasks_blocked()
            await world.client.call("health", {})  # sent behind the claim, on the same connection
            nursery.cancel_scope.cancel()
        task_id = await world.clients[1].enqueue(world.queue, b"x")
        (claim,) = await world.clients[2].claim([world.queue], wait_ms=PATIENCE_MS)
        assert claim.id == task_id


class TestUpdates:
    """Updates of a claimed task."""

    @in_cluster
    async def test_updates_count_from_zero_without_gaps(self, world: World) -> None:
        """A repeat with the same data is fine; other data or a gap is not."""
        client = world.clients[1]
        task_id = await world.client.enqueue(world.queue, b"x")
        claim = await world.claim()
        here = (task_id, claim.token)
        assert await refusal(client, "update", *here, 1, b"b") == SequenceGap.code
        assert await refusal(client, "update", *here, 0, b"a") is None
        assert await refusal(client, "update", *here, 0, b"a") is None
        assert await refusal(client, "update", *here, 0, b"other") == Conflict.code
        assert await refusal(client, "update", *here, 2, b"c") == SequenceGap.code
        assert await refusal(client, "update", *here, 1, b"b") is None
        assert await refusal(client, "update", task_id, claim.token + 1, 2, b"c") == StaleToken.code
        assert [(one.seq, one.data) for one in await client.task_log(task_id)] == [(0, b"a"), (1, b"b")]
        assert (await client.get(task_id)).updates == 2

    @in_cluster
    async def test_a_completion_that_names_its_updates_must_name_all_of_them(self, world: World) -> None:
        """Else an update could be stored that the worker believes lost, or the other way round."""
        client = world.clients[1]
        task_id = await world.client.enqueue(world.queue, b"x")
        claim = await world.claim()
        for seq in range(2):
            await client.update(claim, b"%d" % seq)
        for seq in (0, 1, 3):
            assert await refusal(client, "complete", task_id, 1, claim.token, seq, []) == SequenceGap.code
        assert (await client.get(task_id)).state == "claimed"
        assert await refusal(client, "complete", task_id, 1, claim.token, 2, []) is None

    @in_cluster
    async def test_updates_sent_all_at_once_are_taken_in_order(self, world: World) -> None:
        """One that comes too early is a gap, and nothing is lost or taken twice."""
        task_id = await world.client.enqueue(world.queue, b"x")
        claim = await world.claim()
        items = [[task_id, claim.token, seq, b"%d" % seq] for seq in range(3)]
        assert await world.client.call("update", {"items": items}) == {"results": [None] * 3}
        taken: dict[int, bytes] = {}

        async def insist(client: AsyncClient, seq: int) -> None:
            data = b"%d by %d" % (seq, world.clients.index(client))
            while (code := await refusal(client, "update", task_id, claim.token, seq, data)) == SequenceGap.code:
                if seq in taken:
                    return
            assert code in (None, Conflict.code)
            if code is None:
                assert seq not in taken
                taken[seq] = data

        async with trio.open_nursery() as nursery:
            for seq in range(3, 30):
                for client in world.clients:
                    nursery.start_soon(insist, client, seq)
        log = await world.client.task_log(task_id)
        assert [one.seq for one in log] == list(range(30))
        assert [one.data for one in log[3:]] == [taken[seq] for seq in range(3, 30)]

    @in_cluster
    async def test_a_completion_may_name_how_many_updates_came_before(self, world: World) -> None:
        """It is refused while one is missing."""
        task_id = await world.client.enqueue(world.queue, b"x")
        claim = await world.claim()
        assert await world.client.update(claim, b"half way") == 0
        assert await refusal(world.client, "complete", task_id, 1, claim.token, 2, None) == SequenceGap.code
        assert await refusal(world.client, "complete", task_id, 1, claim.token, 1, [b"done"]) is None


class TestEnds:
    """How a claim ends."""

    @in_cluster
    async def test_a_completion_keeps_its_result_and_may_be_repeated(self, world: World) -> None:
        """Another token is refused before and after."""
        task_id = await world.client.enqueue(world.queue, b"x")
        claim = await world.claim()
        item = (task_id, 1, claim.token)
        assert await refusal(world.clients[2], "complete", task_id, 1, claim.token + 1, None, None) == StaleToken.code
        await world.clients[1].complete(claim, b"result")
        assert await refusal(world.clients[2], "complete", *item, None, [b"result"]) is None
        refused = await refusal(world.clients[2], "complete", task_id, 1, claim.token + 1, None, None)
        assert refused == AlreadyFinished.code
        task = await world.clients[2].get(task_id)
        assert (task.state, task.result, task.attempts) == ("completed", b"result", 0)
        assert await world.nothing()

    @in_cluster
    async def test_a_failed_attempt_is_given_again_after_its_pause(self, world: World) -> None:
        """And counted."""
        await world.client.enqueue(world.queue, b"x")
        claim = await world.claim()
        await world.clients[1].fail(claim, "no luck", retry_in_ms=HOUR_MS)
        assert await world.nothing()
        task = await world.client.get(claim.id)
        assert (task.state, task.attempts, task.error) == ("scheduled", 1, "no luck")
        task_id = await world.client.enqueue(world.queue, b"y")
        claim = await world.claim()
        started = trio.current_time()
        await world.clients[1].fail(claim, "no luck", retry_in_ms=400)
        again = await world.claim()
        assert trio.current_time() - started >= 0.39
        assert (again.id, again.attempts) == (task_id, 1) and again.token > claim.token

    @in_cluster
    async def test_a_task_without_retries_left_fails_for_good(self, world: World) -> None:
        """With the error's text."""
        task_id = await world.client.enqueue(world.queue, b"x", retries=0)
        await world.client.fail(await world.claim(), "broken – für immer")
        task = await world.client.get(task_id)
        assert (task.state, task.error, task.result) == ("failed", "broken – für immer", None)
        assert await world.nothing()
        assert await world.counts() == {"total": 1, "failed": 1}

    @in_cluster
    async def test_retries_are_used_up_one_by_one(self, world: World) -> None:
        """Two of them: three attempts."""
        task_id = await world.client.enqueue(world.queue, b"x", retries=2)
        for attempts in range(3):
            claim = await world.claim()
            assert claim.attempts == attempts
            await world.client.fail(claim, f"attempt {attempts}", retry_in_ms=0)
        task = await world.client.get(task_id)
        assert (task.state, task.error) == ("failed", "attempt 2")

    @pytest.mark.usefixtures("no_polls")
    @in_cluster
    async def test_a_released_task_is_given_again_at_once_and_uncounted(self, world: World) -> None:
        """The old token is refused from then on."""
        task_id = await world.client.enqueue(world.queue, b"x")
        claim = await world.claim()
        await world.clients[1].release(claim)
        again = await world.claim(wait_ms=TOLD_MS)
        assert (again.id, again.attempts) == (task_id, 0)
        with pytest.raises(StaleToken):
            await world.client.complete(claim)

    @in_cluster
    async def test_a_postponed_task_is_due_later_and_uncounted(self, world: World) -> None:
        """Without retries as well: it does not fail for good."""
        task_id = await world.client.enqueue(world.queue, b"x", retries=0)
        claim = await world.claim()
        began = trio.current_time()
        await world.clients[1].postpone(claim, 400, "not yet")
        await world.clients[1].postpone(claim, 400, "not yet")
        task = await world.client.get(task_id)
        assert (task.state, task.attempts) == ("scheduled", 0)
        again = await world.claim()
        assert trio.current_time() - began >= 0.39
        assert (again.id, again.attempts) == (task_id, 0) and again.token > claim.token
        await world.client.fail(again, "no luck")
        ends = [one.outcome for one in (await world.client.get(task_id)).claims]
        assert ends == ["released", "failed"]

    @in_cluster
    async def test_what_is_refused_of_a_batch_does_not_spoil_the_rest(self, world: World) -> None:
        """Parts of runs, too."""
        await world.client.enqueue_many(world.queue, [b"%d" % i for i in range(6)])
        batch = await world.client.claim([world.queue], max=6, wait_ms=PATIENCE_MS)
        first, token = batch[0].id, batch[0].token
        await world.client.complete(batch[2], b"mine")
        await world.client.release(batch[4])
        newer = await world.claim()
        assert newer.id == batch[4].id
        item = [first, 6, token, None, [b"%d" % i for i in range(6)]]
        answer = await world.client.call("complete", {"items": [item]})
        found = {first: error["code"] for first, _, error in answer["results"][0]}
        assert found == {newer.id: StaleToken.code, batch[2].id: AlreadyFinished.code}
        await world.client.complete(newer, b"newer")
        results = [(await world.client.get(task_id)).result for task_id in ids_of(first, 6)]
        assert results == [b"0", b"1", b"mine", b"3", b"newer", b"5"]


class TestLeases:
    """Claims whose lease ends."""

    @pytest.mark.long
    @in_cluster
    async def test_a_lapsed_claim_is_given_again_and_its_token_stands_until_then(self, world: World) -> None:
        """A renewed one stays: three tasks claimed together for a short time."""
        ids = await world.client.enqueue_many(world.queue, [b"renewed", b"lapsed", b"finished late"])
        batch = await world.client.claim([world.queue], max=3, lease_ms=2_000, wait_ms=PATIENCE_MS)
        renewed, lapsed, late = batch
        await world.clients[1].renew(renewed, lease_ms=60_000)
        for claim in (lapsed, late):
            await world.until(claim.id, lambda task: task.state == "ready")
        await world.clients[2].complete(late, b"in time")
        assert (await world.client.get(late.id)).result == b"in time"
        again = await world.claim()
        assert (again.id, again.attempts, again.data) == (lapsed.id, 1, b"lapsed")
        ends = {"complete": (None, None), "renew": (5_000,), "fail": ("e", None), "release": (), "postpone": ("", 0)}
        ends["give_up"] = ("e",)
        for method, rest in ends.items():
            assert await refusal(world.client, method, lapsed.id, 1, lapsed.token, *rest) == StaleToken.code
        assert await refusal(world.client, "update", lapsed.id, lapsed.token, 0, b"x") == StaleToken.code
        assert [(await world.client.get(task_id)).state for task_id in ids] == ["claimed", "claimed", "completed"]
        await world.client.complete(again)
        await world.client.complete(renewed)
        outcomes = [[claim.outcome for claim in (await world.client.get(task_id)).claims] for task_id in ids]
        assert outcomes == [["completed"], ["expired", "completed"], ["completed"]]

    @in_cluster
    async def test_a_lapsed_last_attempt_fails_the_task(self, world: World) -> None:
        """The reason names the worker, whose log may say more."""
        task_id = await world.client.enqueue(world.queue, b"x", retries=0)
        await world.claim(lease_ms=1_000, worker="vm:18994")
        task = await world.until(task_id, lambda task: task.state == "failed")
        assert task.error == "worker vm:18994 stopped answering in attempt 1 (its lease ended); no retry left"


class TestCancel:
    """Tasks that are no longer wanted."""

    @in_cluster
    async def test_a_ready_and_a_delayed_task_can_be_cancelled(self, world: World) -> None:
        """It may be repeated, as after a lost answer; the tasks are never granted."""
        ready = await world.client.enqueue(world.queue, b"x")
        later = await world.client.enqueue(world.queue, b"x", delay_ms=60_000)
        for task_id in (ready, later):
            for client in (world.clients[1], world.client):
                await client.cancel(task_id)
                assert (await client.get(task_id)).state == "cancelled"
        assert await world.nothing()
        assert await world.counts() == {"total": 2, "cancelled": 2}

    @in_cluster
    async def test_a_claimed_task_cannot_be_cancelled(self, world: World) -> None:
        """Until it is given back."""
        task_id = await world.client.enqueue(world.queue, b"x")
        claim = await world.claim()
        with pytest.raises(Conflict):
            await world.clients[1].cancel(task_id)
        await world.client.release(claim)
        await world.clients[1].cancel(task_id)
        assert (await world.client.get(task_id)).state == "cancelled"


class TestReading:
    """What one sees of tasks."""

    @in_cluster
    async def test_a_task_tells_its_claims_in_order(self, world: World) -> None:
        """Worker, times and outcome of each."""
        task_id = await world.client.enqueue(world.queue, b"payload", priority=3)
        await world.client.release(await world.claim(worker="anna"))
        await world.client.fail(await world.claim(worker="bert"), "e", retry_in_ms=0)
        await world.client.complete(await world.claim(worker="carl"), b"r")
        task = await world.clients[2].get(task_id)
        told = [(one.worker, one.outcome) for one in task.claims]
        assert told == [("anna", "released"), ("bert", "failed"), ("carl", "completed")]
        assert [one.token for one in task.claims] == sorted({one.token for one in task.claims})
        assert all(one.end_ms is not None and one.start_ms <= one.end_ms + 5 for one in task.claims)
        assert (task.queue, task.data, task.priority, task.attempts) == (world.queue, b"payload", 3, 1)

    @in_cluster
    async def test_counts_add_up_in_every_state(self, world: World) -> None:
        """The same through each node, and in the list of queues."""
        ids = await world.client.enqueue_many(world.queue, [b"x"] * 10, retries=0)
        await world.client.enqueue(world.queue, b"x", delay_ms=60_000)
        batch = await world.client.claim([world.queue], max=6, wait_ms=PATIENCE_MS)
        await world.client.complete(batch[0])
        await world.client.complete(batch[1])
        await world.client.fail(batch[2], "e")
        await world.client.cancel(ids[9])
        wanted = {"total": 11, "completed": 2, "failed": 1, "cancelled": 1, "scheduled": 1, "claimed": 3, "ready": 3}
        wanted["waiting"] = 0
        for client in world.clients:
            assert (await client.count(world.queue))[world.queue] == wanted
            (found,) = [one for one in await client.queues() if one["queue"] == world.queue]
            assert found["depth"] == wanted and 0 <= found["oldest_ready_ms"] < 60_000

    @in_cluster
    async def test_counts_tell_claims_of_neighbouring_tasks_of_two_queues_apart(self, world: World) -> None:
        """They may be one piece in the log."""
        other = f"{world.queue}-other"
        first = fresh_id(2)
        ids = ids_of(first, 3)
        await world.client.enqueue_many(world.queue, [b"x", b"x"], ids=ids[:2])
        await world.client.enqueue_many(other, [b"y"], ids=ids[2:])
        assert len(await world.client.claim([world.queue, other], max=3, wait_ms=PATIENCE_MS)) == 3
        assert await world.counts() == {"total": 2, "claimed": 2}
        assert await world.counts(other) == {"total": 1, "claimed": 1}

    @in_cluster
    async def test_lists_are_paged_in_order_of_ids_across_partitions(self, world: World) -> None:
        """Every task once, whatever the size of a page."""
        ids = [fresh_id(partition, ms=LONG_AGO_MS + partition % 3) for partition in range(20)]
        for task_id in ids:
            await world.client.enqueue(world.queue, b"x", id=task_id)
        ids += ids_of(fresh_id(21), 9)
        await world.client.enqueue_many(world.queue, [b"x"] * 9, ids=ids[-9:])
        for limit in (1, 4, 7, 29, 100):
            found: list[TaskId] = []
            after = None
            while True:
                page = await world.clients[limit % 3].list(world.queue, after=after, limit=limit)
                found += [task.id for task in page.tasks]
                after = page.after
                if after is None:
                    break
            assert found == sorted(ids), limit

    @in_cluster
    async def test_lists_can_be_of_one_state(self, world: World) -> None:
        """Page by page."""
        ids = await world.client.enqueue_many(world.queue, [b"x"] * 5)
        batch = await world.client.claim([world.queue], max=2, wait_ms=PATIENCE_MS)
        await world.client.complete(batch[0])
        states = {"completed": ids[:1], "claimed": ids[1:2], "ready": ids[2:], "failed": []}
        for state, wanted in states.items():
            assert [task.id for task in (await world.client.list(world.queue, state=state)).tasks] == wanted


class TestRepeats:
    """The same tasks enqueued again."""

    @in_cluster
    async def test_the_same_ids_are_the_same_tasks_however_they_are_cut(self, world: World) -> None:
        """The first data stays; what was missing is added."""
        first = fresh_id(8)
        ids = ids_of(first, 12)
        payloads = [b"%d" % i for i in range(12)]
        for client, start, end in zip(world.clients * 2, (0, 0, 3, 2, 5, 9), (10, 10, 5, 7, 12, 12), strict=True):
            kept = await client.enqueue_many(world.queue, payloads[start:end], ids=ids[start:end])
            assert kept == ids[start:end]
        await world.client.enqueue_many(world.queue, [b"other"] * 12, ids=ids)
        assert await world.counts() == {"total": 12, "ready": 12}
        got: dict[bytes, bytes] = {}
        while len(got) < 12:
            batch = await world.client.claim([world.queue], max=5, wait_ms=PATIENCE_MS)
            assert not got.keys() & {claim.id for claim in batch}
            got |= {claim.id: claim.data for claim in batch}
        assert got == dict(zip(ids, payloads, strict=True))

    @in_cluster
    async def test_a_finished_task_enqueued_again_stays_finished(self, world: World) -> None:
        """It is the same task."""
        task_id = await world.client.enqueue(world.queue, b"x", id=fresh_id(9))
        await world.client.complete(await world.claim())
        assert await world.clients[1].enqueue(world.queue, b"x", id=task_id) == task_id
        assert await world.nothing()
        assert await world.counts() == {"total": 1, "completed": 1}
