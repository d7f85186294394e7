"""Planted bugs of moves of partitions, which the search of moves finds by the members' disks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

from onyxq.core.facts import Row
from onyxq.core.replica import Partition, majority
from onyxq.leader.cohort.replication import Vote
from onyxq.leader.leader import PartitionLeader
from onyxq.store.interface import Batch
from simulation.planted.planted import Planted
from simulation.planted.seams import Fault, instead, returning


async def _kept_for_members(leader: PartitionLeader, node: str, rows: Sequence[Row]) -> None:
    """Store found rows as if a majority of the members sufficed during a move."""
    found: AbstractContextManager[None] = nullcontext()
    if not majority(leader.placed.members, {leader._host.node_id, node}):
        found = leader._storing_found(node, rows)
    with found:
        written = await leader._host.store.write(Batch(rows=rows))
    leader._host.pieces_added(written.pieces)


def _members_are_complete(leader: PartitionLeader, placed: Partition) -> bool:
    return majority(placed.members, leader.current) and not leader._storing


def _target_only(partition: Partition) -> tuple[str, ...]:
    return partition.target


def _members_only(original: Callable[..., Vote]) -> Callable[..., Vote]:
    def vote(*, members: Sequence[str], target: Sequence[str], **others: object) -> Vote:
        return original(members=members, target=members, **others)

    return vote


def _of_members(original: Callable[[PartitionLeader, str], None]) -> Callable[[PartitionLeader, str], None]:
    """Count a copy that lacks rows as incomplete only if its node is a member."""

    def lacks_rows(leader: PartitionLeader, node: str) -> None:
        if node in leader.placed.members:
            original(leader, node)

    return lacks_rows


def _planted(name: str, seam: str, fault: Fault, breaks: str) -> Planted:
    return Planted(name, seam, fault, breaks, "facts_moves", runs=200)


MOVE_BUGS: tuple[Planted, ...] = (
    _planted(
        "a new copy gets no rows",
        "onyxq.leader.leader:PartitionLeader._synchronize",
        returning(None),
        "a partition settles on nodes that have none of its tasks",
    ),
    _planted(
        "a partition settles once its old members are complete",
        "onyxq.leader.leader:PartitionLeader._may_settle",
        instead(_members_are_complete),
        "members change to nodes whose copies have not arrived",
    ),
    _planted(
        "a copy is dropped before its partition has settled",
        "onyxq.node.moved_copies:holders",
        instead(_target_only),
        "an acknowledged task loses its majority while the new copies are made",
    ),
    _planted(
        "during a move a write needs the old members only",
        "onyxq.leader.leader:Vote",
        _members_only,
        "a task is acknowledged, and the partition settles on nodes that the write has not reached",
    ),
    _planted(
        "found rows that two members have are not copied again",
        "onyxq.leader.leader:PartitionLeader.keep",
        instead(_kept_for_members),
        "a partition settles on copies that were compared before the leader found a row",
    ),
    _planted(
        "a new copy that lacks found rows counts as complete",
        "onyxq.leader.leader:PartitionLeader._lacks_rows",
        _of_members,
        "a partition settles on copies that lack rows",
    ),
)
"""The planted bugs of moves."""
