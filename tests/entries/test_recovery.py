"""The replica with which a recovered log starts, and the choice among the nodes' copies of the log."""

from __future__ import annotations

import pytest
from attrs import evolve

from log_entries import hold_transactions
from onyxq.core import snapshot
from onyxq.core.invariants.replica import violations
from onyxq.core.log.interface import Record, segment_start
from onyxq.core.replica import EMPTY, HELD_MS, claim_of
from onyxq.core.transactions import Claim
from onyxq.errors import Conflict, Corrupt
from onyxq.history.recovery.findings import Found, newest_of
from onyxq.history.recovery.new_replica import EPOCHS_AHEAD, expected_nodes, new_replica, void_claims
from onyxq.leader.cohort.pending_facts import Part as PendingPart
from onyxq.leader.cohort.pending_facts import is_over, part_key
from tests.entries import generated
from tests.entries.queue_world import DEADLINE_MS, QueueWorld, commit, tasks
from tests.entries.world import CLUSTER_ID, World, created, joining

NEW = segment_start(2)
"""Start of the new log."""


def worked() -> tuple[QueueWorld, int, int]:
    """Claim tasks, some of a limited queue, and let a transaction hold some; return two tokens."""
    world = QueueWorld()
    world.limit(concurrency=5)
    world.done(world.limited(20, 3))
    one = world.granted(tasks(0, 4))
    other = world.granted(tasks(0, 2, partition=1))
    world.done(commit("t", Claim(1, other, (tasks(0, 2, partition=1),))))
    return world, one, other


def test_claims_are_void_and_what_a_transaction_holds_is_kept() -> None:
    """Workers' claims are gone, also from limits; a committed transaction must still be settled."""
    world, _, _ = worked()
    made = new_replica(world.replica, position=NEW, epochs={})
    assert void_claims(world.replica) == 7
    assert claim_of(made, tasks(0, 1).first) is None and not made.running and not made.limited
    held = claim_of(made, tasks(1, 1, partition=1).first)
    assert held is not None and held[4] == HELD_MS
    assert made.transactions == world.replica.transactions and set(made.transactions["t"].parts) == {1}
    assert made.void_below == made.position == NEW
    assert violations(made) == []


def test_nobody_is_in_the_ring_and_everything_else_stays() -> None:
    """Members, settings and log time continue; outbox numbers, collections and holds do not."""
    world, _, _ = worked()
    world.done(hold_transactions.Args("backup", "a backup", 60_000))
    before = world.replica
    made = new_replica(before, position=NEW, epochs={})
    assert not made.ring.members and not made.peers and not made.outbox and made.hold is None
    assert {node: (one.peer, one.latest_peer) for node, one in made.nodes.items()} == {"a": ("", "")}
    for number, placed in made.partitions.items():
        old = before.partitions[number]
        assert (placed.members, placed.target, placed.purged_ms) == (old.members, old.target, old.purged_ms)
        assert not placed.leader and not placed.ready
    assert (made.queues, made.settings, made.cluster) == (before.queues, before.settings, before.cluster)
    assert (made.log_time_ms, made.clock_ms, made.ctime_ms) == (before.log_time_ms, before.clock_ms, before.ctime_ms)
    assert made.snapshot.finished and made.digest != before.digest


def test_epochs_lie_far_above_those_that_any_store_promised() -> None:
    """They are also above promises of nodes in the lost part of the log."""
    world, _, _ = worked()
    before = world.replica.partitions
    made = new_replica(world.replica, position=NEW, epochs={0: before[0].epoch + 40, 1: 0})
    assert made.partitions[0].epoch == before[0].epoch + 40 + EPOCHS_AHEAD
    assert made.partitions[1].epoch == before[1].epoch + EPOCHS_AHEAD


def test_a_prepared_transaction_is_over_only_after_its_deadline() -> None:
    """Log time continues, so pending rows are deleted neither early nor never."""
    world, _, _ = worked()
    made = new_replica(world.replica, position=NEW, epochs={})
    key = part_key(PendingPart(DEADLINE_MS, b"d", "prepared"))
    assert not is_over(made, 0, key)
    assert is_over(evolve(made, log_time_ms=DEADLINE_MS + 1), 0, key)
    assert not is_over(made, 1, part_key(PendingPart(DEADLINE_MS, b"d", "t"))), "this one was committed"


def test_peers_join_the_new_log_and_lead_under_higher_epochs_and_tokens() -> None:
    """It is as after any stop of all peers."""
    old = created("p1", "p2", "p3")
    made = new_replica(old.now, position=NEW, epochs={})
    world = World(replicas=[made], records=Later(NEW + 1))
    for peer in ("q1", "q2"):
        world.submit(peer, joining(peer, f"node-p{peer[1]}"))
        world.settle(*sorted(world.now.peers))
    for number, placed in world.now.partitions.items():
        assert placed.leader in ("q1", "q2") and placed.epoch > EPOCHS_AHEAD
        assert placed.members == old.now.partitions[number].members
    assert world.now.position > NEW


class Later(list[Record]):
    """Records of a log whose first position is not 0."""

    def __init__(self, first: int) -> None:
        super().__init__()
        self._first = first

    def __len__(self) -> int:
        return self._first + super().__len__()


@pytest.mark.long
@pytest.mark.parametrize("seed", range(8))
def test_any_replica_can_be_recovered(seed: int) -> None:
    """For a generated log with every kind of entry, invariants hold, and equal replicas give equal bytes."""
    world = generated.generated_world(seed=seed, records=300)
    for replica in world.replicas[20::40]:
        if replica.cluster is None:
            continue
        made = new_replica(replica, position=NEW, epochs={0: 3})
        assert violations(made) == []
        assert snapshot.unpack(snapshot.pack(made)) == made
        assert all(job.driver == "" for job in made.jobs.values() if job.ended_ms < 0)
        again = new_replica(snapshot.unpack(snapshot.pack(replica)), position=NEW, epochs={0: 3})
        assert snapshot.pack(again) == snapshot.pack(made)


# --- what nodes have


def found(
    world: World, node: str, upto: int, *, since: int = 0, cluster_id: str = CLUSTER_ID, **changes: object
) -> Found:
    """Return what a node knows that has read ``upto`` records; its copy starts with the replica after ``since``."""
    replica = world.replicas[upto]
    plain = Found(
        source=f"/data/{node}",
        node=node,
        cluster_id=cluster_id,
        position=replica.position,
        digest=replica.digest,
        epochs={},
        start=world.replicas[since] if since else EMPTY,
        records=tuple(world.records[since:upto]),
    )
    return evolve(plain, **changes)


def three() -> World:
    """A world with three nodes."""
    return created("p1", "p2", "p3")


def test_the_replica_of_the_node_that_read_furthest_is_built_again() -> None:
    """It is built from a snapshot or from the log's beginning; the highest epochs of all nodes count."""
    world = three()
    last = len(world.records)
    for since in (0, 5):
        newest = newest_of(
            [
                found(world, "node-p1", last - 2, epochs={0: 9, 1: 1}),
                found(world, "node-p2", last, since=since, epochs={0: 2, 1: 4}),
                found(world, "node-p3", 1),
            ]
        )
        assert newest.of.node == "node-p2" and newest.replica == world.now
        assert newest.epochs == {0: 9, 1: 4}
        assert newest.missing == {} and newest.without_majority == 0


def test_missing_nodes_are_named_with_what_they_hold() -> None:
    """Two of three copies are a majority of every partition."""
    world = three()
    newest = newest_of([found(world, "node-p2", len(world.records))])
    assert newest.missing == {"node-p1": 4, "node-p3": 4} and newest.without_majority == 4
    assert expected_nodes(world.now).keys() == {"node-p1", "node-p2", "node-p3"}


def other_world() -> World:
    """Return the same cluster with other records after a position."""
    world = created("p1", "p2")
    world.join("p9")
    return world


@pytest.mark.parametrize("upto", ["as far", "less far"])
def test_nodes_that_read_different_logs_contradict_each_other(upto: str) -> None:
    """Both directories are named."""
    world, other = three(), other_world()
    most = min(len(world.records), len(other.records))
    second = found(other, "node-p2", most if upto == "as far" else most - 1)
    with pytest.raises(Conflict, match="/data/node-p1 and /data/node-p2 contradict each other"):
        newest_of([found(world, "node-p1", most), second])


def test_directories_of_different_clusters_are_refused() -> None:
    """Both are named."""
    world = three()
    other = found(world, "node-p2", 3, cluster_id="c2")
    with pytest.raises(Conflict, match="/data/node-p1 belongs to cluster c1, /data/node-p2 to c2"):
        newest_of([found(world, "node-p1", 3), other])


def test_two_directories_of_one_node_are_refused() -> None:
    """One of them is a copy, and it is unknown which one is older."""
    world = three()
    with pytest.raises(Conflict, match="/data/x and /data/node-p1 are both of node node-p1"):
        newest_of([found(world, "node-p1", 3, source="/data/x"), found(world, "node-p1", 4)])


def test_a_position_that_nobody_keeps_the_log_up_to_is_refused() -> None:
    """The replica at that position cannot be built."""
    world = three()
    ahead = found(world, "node-p2", 6, records=())
    with pytest.raises(Conflict, match="/data/node-p2 has read the log up to position 5"):
        newest_of([found(world, "node-p1", 4), ahead])


def test_a_copy_that_does_not_lead_to_its_digest_is_refused() -> None:
    """A record of it is missing."""
    world = three()
    copy = found(world, "node-p1", 6)
    with pytest.raises(Corrupt, match="/data/node-p1"):
        newest_of([evolve(copy, records=(*copy.records[:2], *copy.records[3:]))])
