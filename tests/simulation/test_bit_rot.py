"""Rows that are damaged on a disk are found, never delivered, and repaired from another node."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, cast

import pytest
import trio
from attrs import evolve
from trio.testing import MockClock

from log_entries import yield_partition
from onyxq.client.claims import Claim
from onyxq.core.facts import COMPLETION, TASK, UPDATE, Mark, Row
from onyxq.core.ids import stretch_of
from onyxq.core.replica import EMPTY, Partition, claim_of
from onyxq.errors import TimedOut, Unavailable
from onyxq.leader.cohort.member import Cohort
from onyxq.leader.cohort.row_repair import SCRUB_PAUSE_S, Repair
from onyxq.leader.deadlines import TASKS_MAX
from onyxq.operations.table.claim import Fail, Failure, GivenUp, GiveUp
from onyxq.store.interface import Piece
from onyxq.store.memory import MemoryStore
from onyxq.system.metrics import Metrics
from simulation.scenes.copies import retire
from simulation.world.clients import RecordingClient
from simulation.world.disk import SimulatedDisk
from simulation.world.world import Options, SimulatedNode, World, simulate
from tests.conformance.store_world import NOW_MS, done, first_id, put, tasks

ONE = Options(partitions=1, clock_offset_ms=0)


def leader_of(world: World) -> SimulatedNode:
    """Return the node that leads the only partition, by the log."""
    leader = world.audit.replica.partitions[0].leader
    return next(node for node in world.nodes if node.peer_id == leader)


def rot(node: SimulatedNode, kind: bytes, *, bit: int, first: bytes = b"") -> list[bytes]:
    """Flip a bit in every row of a kind, or in those of the run that starts at ``first``; return the keys."""
    keys = [key for key in node.disk.row_keys() if key[2:3] == kind and key[3:].startswith(first)]
    assert keys
    for key in keys:
        assert node.disk.rot(key, bit=bit)
        assert not node.disk.sound(key)
    return keys


@pytest.mark.parametrize("bit", [3, 40, 200, 380])
def test_a_damaged_task_is_granted_with_its_payload_once_it_is_repaired(bit: int) -> None:
    """This holds for damage in any part of the row: lengths, header, checksums, payload."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            tasks = await client.enqueue("q", [b"payload %d" % number for number in range(8)])
            keys = rot(leader_of(world), TASK, bit=bit)
            claims = []
            while len(claims) < len(tasks):
                claims += await client.claim("q", maximum=8, wait_ms=10_000)
            for claim in claims:
                assert claim.data == world.history.enqueued[claim.id].data
                await client.complete(claim)
            assert all(leader_of(world).disk.sound(key) for key in keys)

    simulate(workload, seed=1, options=ONE)


def test_a_damaged_completion_is_read_from_the_others_and_repaired() -> None:
    """Readers get the result, and the row is soon repaired."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            (task,) = await client.enqueue("q", [b"x"])
            (claim,) = await client.claim("q", wait_ms=10_000)
            await client.complete(claim, b"result")
            await trio.sleep(1)
            keys = rot(leader_of(world), COMPLETION, bit=100)
            assert (await client.client.get(task)).result == b"result"
            await trio.sleep(3)
            assert all(leader_of(world).disk.sound(key) for key in keys)

    simulate(workload, seed=1, options=ONE)


async def until_scrubbed(world: World) -> None:
    """Return once no node will read its whole store for a minute, which would find what rots."""

    def scrubbed(node: SimulatedNode) -> bool:
        return node.inner is not None and node.inner.metrics.scrub_rounds.value() > 0

    await world.until(lambda: all(map(scrubbed, world.nodes)), "the first scrub is over")


async def until_failed(client: RecordingClient, task: bytes) -> None:
    """Return once a task has failed."""
    while (await client.client.get(task)).state != "failed":
        await trio.sleep(0.2)


@pytest.mark.parametrize(("nodes", "count"), [(1, TASKS_MAX), (3, 1)])
def test_damaged_tasks_that_expire_delay_no_other(nodes: int, count: int, caplog: pytest.LogCaptureFixture) -> None:
    """Even if they are as many as a leader fails together. They fail too once their row is repaired."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            await until_scrubbed(world)
            expires_ms = world.audit.true_ms() + 2_000
            damaged = await client.enqueue("q", [b"%d" % number for number in range(count)], expires_ms=expires_ms)
            (other,) = await client.enqueue("q", [b"other"], expires_ms=expires_ms + 1)
            (key,) = rot(leader_of(world), TASK, bit=-5, first=damaged[0])
            await until_failed(client, other)
            if nodes == 1:
                await trio.sleep(30)
                assert world.nodes[0].running is not None
                assert world.nodes[0].disk.rot(key, bit=-5)
            await until_failed(client, damaged[-1])
        (said,) = [one.getMessage() for one in caplog.records if f"{damaged[0].hex()} is damaged" in one.getMessage()]
        assert said.endswith("If no other node has one, restore this node's directory from a backup.")

    simulate(workload, seed=1, options=evolve(ONE, nodes=nodes))


@pytest.mark.parametrize("nodes", [1, 3])
def test_a_damaged_completion_of_a_claimed_task_delays_no_other_at_a_takeover(nodes: int) -> None:
    """The next task of its key waits for the repair."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            for queue, data, key in ("q", b"first", "k"), ("q", b"second", "k"), ("r", b"other", None):
                await client.enqueue(queue, [data], ordering_key=key)
            (first,) = await client.claim("q", wait_ms=10_000, lease_ms=5_000)
            (other,) = await client.claim("r", wait_ms=10_000, lease_ms=5_000)
            await client.complete(first)
            node = leader_of(world)
            rotten = [one for one in world.nodes if one is not node] or [node]
            await world.until(lambda: all(map(completed, rotten)), "it is stored")
            keys = [rot(one, COMPLETION, bit=-5) for one in rotten]
            assert claim_of(world.audit.replica, first.id) is not None, "its release is in the log already"
            epoch = world.audit.replica.partitions[0].epoch
            assert node.inner is not None
            await node.inner.verdicts([yield_partition.Args(0, epoch)])
            await world.until(lambda: any(serves(one, epoch) for one in rotten), "the partition is led again")
            if nodes == 1:  # nothing can repair it, so its directory is restored from a backup
                await world.crash_node(node)
                assert node.disk.rot(keys[0][0], bit=-5)
                world.start_node(node)
            assert (await claim_one(client, "r")).id == other.id
            assert (await claim_one(client, "q")).data == b"second"

    simulate(workload, seed=1, options=evolve(ONE, nodes=nodes))


def completed(node: SimulatedNode) -> bool:
    """Return whether a node's disk has the completion of a task."""
    return any(key[2:3] == COMPLETION for key in node.disk.row_keys())


def serves(node: SimulatedNode, epoch: int) -> bool:
    """Return whether a node grants the tasks of the only partition under a later epoch."""
    found = node.inner
    return found is not None and 0 in found.granter.led() and found.leaders[0].epoch > epoch


def test_a_damaged_task_whose_lease_lapses_delays_no_other() -> None:
    """In a second attempt, its attempts are known without its row, but not how many it may have."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            await until_scrubbed(world)
            (damaged,) = await client.enqueue("q", [b"damaged"])
            await client.fail(await claim_one(client, "q"), "broken", retry_in_ms=0)
            await client.claim("q", wait_ms=10_000, lease_ms=1_000)
            (other,) = await client.enqueue("q", [b"other"])
            await client.claim("q", wait_ms=10_000, lease_ms=2_000)
            (node,) = world.nodes
            (key,) = rot(node, TASK, bit=-5, first=damaged)
            (again,) = await client.claim("q", wait_ms=10_000)
            assert again.id == other
            await client.complete(again)
            assert not await client.claim("q", wait_ms=10_000)
            assert node.disk.rot(key, bit=-5)
            assert (await claim_one(client, "q")).id == damaged

    simulate(workload, seed=1, options=evolve(ONE, nodes=1))


def test_a_damaged_task_ends_with_its_dependency_once_it_is_repaired() -> None:
    """Its row rots after a round has read it. The round leaves the task out, and nothing else ends."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            await until_scrubbed(world)
            (first,) = await client.enqueue("q", [b"first"], retries=0)
            (last,) = await client.enqueue("q", [b"last"], depends=[first])
            (node,) = world.nodes
            assert node.inner is not None
            read = node.inner.store.waiting(0)
            (key,) = rot(node, TASK, bit=-5, first=last)
            await client.fail(await claim_one(client, "q"), "broken")
            await node.inner.operations.dependencies._resolve(read)
            assert node.disk.rot(key, bit=-5)
            await until_failed(client, last)

    simulate(workload, seed=1, options=evolve(ONE, nodes=1))


def test_a_failure_of_a_damaged_task_is_refused_until_the_repair() -> None:
    """Its row has the number of its retries. Nothing is recorded before, so the claim stays."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            await until_scrubbed(world)
            (damaged,) = await client.enqueue("q", [b"damaged"])
            claim = await claim_one(client, "q")
            (node,) = world.nodes
            assert node.inner is not None
            updates = node.inner.operations.claim_updates
            (key,) = rot(node, TASK, bit=-5, first=damaged)
            failed = await updates.fail(Fail(items=[Failure(damaged, 1, claim.token, "broken", 0)]))
            given_up = await updates.give_up(GiveUp(items=[GivenUp(damaged, 1, claim.token, "broken")]))
            for ((_, _, error),) in failed + given_up:
                assert error["code"] == "corrupt" and "was not recorded" in error["message"]
            assert node.disk.rot(key, bit=-5)
            await client.fail(claim, "broken", retry_in_ms=0)
            again = await claim_one(client, "q")
            assert (again.id, again.attempts) == (damaged, 1)

    simulate(workload, seed=1, options=evolve(ONE, nodes=1))


def test_a_damaged_traceback_refuses_no_failure() -> None:
    """The next failure of the task is recorded, and its answer agrees."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            await until_scrubbed(world)
            (task,) = await client.enqueue("q", [b"x"])
            await client.fail(await claim_one(client, "q"), "broken", retry_in_ms=0, traceback="first")
            claim = await claim_one(client, "q")
            (node,) = world.nodes
            assert node.inner is not None
            (key,) = rot(node, UPDATE, bit=-5, first=task)
            failure = Failure(task, 1, claim.token, "broken", 0, "second")
            assert await node.inner.operations.claim_updates.fail(Fail(items=[failure])) == [[]]
            assert claim_of(node.inner.replica, task) is None
            assert node.disk.rot(key, bit=-5)

    simulate(workload, seed=1, options=evolve(ONE, nodes=1))


async def claim_one(client: RecordingClient, queue: str) -> Claim:
    """Return a claim on a task of a queue, whose leader may change meanwhile."""
    while True:
        with suppress(Unavailable):
            for claim in await client.claim(queue, wait_ms=10_000):
                return claim


def test_a_damaged_completion_hides_no_other_outcome() -> None:
    """Tasks that depend on others run. The outcome of its task is known again once it is repaired."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            ids = [(await client.enqueue("q", [data]))[0] for data in (b"damaged", b"sound")]
            for _ in ids:
                await client.complete(await claim_one(client, "q"))
            (node,) = world.nodes
            assert node.inner is not None
            outcomes = node.inner.operations.dependencies.outcomes
            (key,) = rot(node, COMPLETION, bit=-5, first=ids[0])
            assert await outcomes(ids, node.node_id) == ["unfinished", "completed"]
            assert node.disk.rot(key, bit=-5)
            assert await outcomes(ids, node.node_id) == ["completed", "completed"]

    simulate(workload, seed=1, options=evolve(ONE, nodes=1))


def test_large_damaged_rows_are_repaired_together() -> None:
    """An answer has one megabyte of them. The rest is fetched at once, not at the next try."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            await client.enqueue("q", [bytes(400_000)] * 12)
            await trio.sleep(1)
            leader = leader_of(world)
            keys = rot(leader, TASK, bit=300)
            node = leader.running
            assert node is not None and node.node is not None
            node.node.store.damaged.update(keys)
            await trio.sleep(5)
            assert all(leader.disk.sound(key) for key in keys)

    simulate(workload, seed=1, options=ONE)


@pytest.mark.parametrize("seed", range(4))
def test_a_damaged_row_is_repaired_before_the_only_sound_copy_moves_away(seed: int) -> None:
    """The leader cannot copy the row to the new node, and finds the damage only then."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            await until_scrubbed(world)
            await client.enqueue("q", [b"payload"])
            leader = leader_of(world)
            placed = world.audit.replica.partitions[0]
            (going,) = [node for node in world.nodes if node.node_id in placed.members and node is not leader]
            await world.until(lambda: all(node.disk.row_keys() for node in (going, leader)), "both have it")
            rot(leader, TASK, bit=-5)
            await retire(world, going)
            with trio.fail_after(120):
                await going.ended.wait()
            world.nodes.remove(going)
            await world.settle()
            with trio.fail_after(60):
                assert (await claim_one(client, "q")).data == b"payload"

    simulate(workload, seed=seed, options=evolve(ONE, replicas=2, absent_after_ms=600_000))


def test_what_nobody_reads_is_found_by_scrubbing() -> None:
    """This includes a follower, whose digests do not show the damage."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            await client.enqueue("q", [b"%d" % number for number in range(8)])
            await trio.sleep(1)
            follower = next(node for node in world.nodes if node is not leader_of(world))
            keys = rot(follower, TASK, bit=300)
            await trio.sleep(SCRUB_PAUSE_S + 60)
            assert all(follower.disk.sound(key) for key in keys)

    simulate(workload, seed=1, options=ONE)


def test_a_row_whose_checksum_rots_is_repaired_too() -> None:
    """The last bits of a value are the checksum itself."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            await client.enqueue("q", [b"%d" % number for number in range(8)])
            node = leader_of(world)
            (key,) = {key for key in node.disk.row_keys() if key[2:3] == TASK}
            node.disk.rot(key, bit=-5)
            got = 0
            while got < 8:
                got += len(await client.claim("q", maximum=8, wait_ms=10_000))
            assert node.disk.sound(key)

    simulate(workload, seed=1, options=ONE)


@pytest.mark.parametrize("seed", range(1, 3))
def test_a_task_of_which_the_only_copy_that_is_up_is_damaged_is_not_said_to_be_absent(seed: int) -> None:
    """The next leader waits for the node with the undamaged row."""

    async def workload(world: World) -> None:
        led_by, peer = leader_of(world), world.audit.replica.partitions[0].leader
        missed, rotten = (node for node in world.nodes if node is not led_by)
        world.network.part([missed.name], [led_by.name, rotten.name])
        async with world.client(nodes=[led_by]) as client:
            (task,) = await client.enqueue("q", [b"x"])
        await world.until(lambda: bool(rotten.disk.row_keys()), "it has a copy")
        await world.crash_node(led_by)
        rot(rotten, TASK, bit=200)
        world.network.heal()
        async with world.client(nodes=[missed, rotten]) as client:
            await world.until(lambda: world.audit.replica.partitions[0].leader != peer, "somebody else is to lead")
            with trio.move_on_after(15):
                while True:
                    try:
                        await client.client.get(task)
                    except (Unavailable, TimedOut):
                        await trio.sleep(0.1)
            world.start_node(led_by)
            (claim,) = await client.claim("q", wait_ms=20_000)
            await client.complete(claim)

    simulate(workload, seed=seed, options=ONE)


@pytest.mark.parametrize("name", ["ready", "stretch", "counts", "leaves"])
def test_a_damaged_index_is_rebuilt_while_another_node_leads(name: str) -> None:
    """Every task is granted and completed once; the leader grants nothing until its index is complete."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            tasks = await client.enqueue("q", [b"%d" % number for number in range(40)])
            done = list(await client.claim("q", maximum=10, wait_ms=10_000))
            for claim in done:
                await client.complete(claim)
            node = leader_of(world)
            (_, key), *_ = [found for found in node.disk.index_keys() if found[0] == name]
            assert node.disk.rot(key, bit=77, name=name)
            before = world.audit.replica.partitions[0].epoch
            await world.until(lambda: world.audit.replica.partitions[0].epoch > before, "it gives the partition up")
            assert leader_of(world) is not node
            while len(done) < len(tasks):
                claims = await client.claim("q", maximum=3, wait_ms=10_000)
                for claim in claims:
                    await client.complete(claim)
                done += claims
            assert node.store is not None
            await world.until(lambda: node.store is not None and not node.store.unindexed(), "the index is rebuilt")
            assert node.disk.rot(key, bit=0, name=name) is (name != "ready")

    simulate(workload, seed=1, options=ONE)


def test_the_only_node_leads_again_once_its_index_is_rebuilt() -> None:
    """No other node can lead meanwhile."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            tasks = await client.enqueue("q", [b"%d" % number for number in range(8)])
            (node,) = world.nodes
            for name, key in node.disk.index_keys():
                assert node.disk.rot(key, bit=9, name=name)
            done = 0
            while done < len(tasks):
                for claim in await client.claim("q", maximum=8, wait_ms=20_000):
                    assert claim.data == world.history.enqueued[claim.id].data
                    await client.complete(claim)
                    done += 1

    simulate(workload, seed=1, options=evolve(ONE, nodes=1))


class Holder:
    """A node with a store, and other nodes that answer with their copy of one row."""

    def __init__(self, others: dict[str, Row]) -> None:
        self.node_id = "n"
        self.disk = SimulatedDisk()
        self.store = MemoryStore(self.disk, now_ms=lambda: NOW_MS)
        self.replica = evolve(EMPTY, partitions=EMPTY.partitions.set(3, Partition(members=("a", "b", "n"))))
        self.metrics = Metrics()
        self.quiet = self.is_known = True
        self._others = others

    async def call(self, node: str, method: str, args: dict[str, Any], *, timeout_s: float) -> Any:
        """Return the rows that a node has."""
        assert method == "cohort.rows"
        return [[*self._others[node]]]

    def reads_index(self, partition: int) -> bool:
        """Return False, because no partition is led here."""
        return False

    async def give_up(self, partition: int) -> None:
        """Nothing is led from here."""

    def pieces_added(self, pieces: Sequence[Piece]) -> None:
        """Ignore it: no claimer waits."""

    def repaired(self, partition: int) -> None:
        """Ignore it: no leader compares copies."""


def test_a_damaged_row_that_another_node_asks_for_is_not_given_and_is_repaired_next() -> None:
    """Otherwise the comparison of the copies would fail again and again until the scrub comes by."""

    async def main() -> None:
        host = Holder({})
        damaged, sound = (tasks(first_id(1_024 * number), 1) for number in range(2))
        await put(host.store, damaged, sound)
        assert host.disk.rot(damaged.key, bit=100)
        given = Cohort(cast(Any, host)).rows([damaged.key, sound.key])
        assert given == [list(sound)] and host.store.damaged == {damaged.key}

    trio.run(main, clock=MockClock(autojump_threshold=0))


@pytest.mark.parametrize("stale", ["a", "b"])
def test_a_row_is_repaired_with_the_value_that_counts(stale: str) -> None:
    """One of the other nodes missed a later leader's row and has not been compared yet."""
    old, new = (done(first_id(), 1, mark=Mark(epoch, 1)) for epoch in (1, 2))
    assert old.key == new.key

    async def main() -> None:
        host = Holder({"a": new, "b": new, stale: old})
        await put(host.store, tasks(first_id(), 1), new)
        assert host.disk.rot(new.key, bit=100) and not host.disk.sound(new.key)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Repair(host).run)
            while not host.disk.sound(new.key):
                await trio.sleep(1)
            nursery.cancel_scope.cancel()
        assert host.store.get(new.key) == new.value

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_scrubbing_leaves_the_machine_to_a_node_that_still_reads_the_log() -> None:
    """No client uses it then, but it is not idle: all wait for it."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            await client.enqueue("q", [b"x"])
            node = world.nodes[2]
            await world.restart_node(node)
            reading = 0
            while not node.peer_id:
                if node.running is not None and node.running.node is not None:
                    reading += 1
                    assert not node.running.node.quiet
                await trio.sleep(0.01)
            await world.settle()
            await trio.sleep(10)
            assert reading and node.running is not None and node.running.node is not None
            assert node.running.node.quiet

    simulate(workload, seed=1, options=Options(partitions=1, clock_offset_ms=0, read_delay_ms=(100, 200)))


def test_a_leader_whose_index_lost_a_waiting_task_does_not_tell_for_which_tasks_others_wait() -> None:
    """A failed task would be purged, and the task that waits for it would count it as completed."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            (first,) = await client.enqueue("q", [b"first"])
            await client.enqueue("q", [b"after"], depends=[first])
            leader = leader_of(world)
            assert leader.inner is not None
            dependents = leader.inner.operations.dependents
            stretch = stretch_of(first)
            assert await dependents.depended([stretch]) == {"partitions": [0], "depended": [stretch]}
            (key,) = [key for key, _ in leader.disk.tables.waiting.ascend(b"")]
            assert leader.disk.rot(key, bit=5, name="waiting")
            assert await dependents.depended([stretch]) == {"partitions": [], "depended": []}
            for _ in range(2):
                (claim,) = await client.claim("q", wait_ms=30_000)
                await client.complete(claim)

    simulate(workload, seed=1, options=ONE)
