"""Planted bugs of leaders: who leads, what majorities have, and which claims are granted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Any

from onyxq.core.entry import Stamp
from onyxq.core.errors import OnyxqError
from onyxq.core.ids import TaskId
from onyxq.core.placement import holders
from onyxq.core.replica import ClaimPiece, Partition, Replica, majority
from onyxq.leader.cohort.member import Cohort
from onyxq.leader.cohort.replication import Vote
from onyxq.leader.grants.grantable import Grantable
from onyxq.leader.leader import PartitionLeader
from onyxq.leader.task_updates import TaskUpdates
from onyxq.store.interface import Piece
from simulation.planted.planted import Planted
from simulation.planted.seams import instead, returning


def _with_incomplete(found: Partition, live: Collection[str]) -> bool:
    return majority(holders(found), live)


def _all_live(found: Partition, live: Sequence[str]) -> tuple[str, ...]:
    return tuple(live)


def _earlier_epochs_too(original: Callable[..., str]) -> Callable[..., str]:
    def refusal(replica: Replica, *, partition: int, epoch: int, stamp: Stamp) -> str:
        found = replica.partitions.get(partition)
        newest = max(epoch, found.epoch) if found is not None else epoch
        return original(replica, partition=partition, epoch=newest, stamp=stamp)

    return refusal


async def _not_waited_for(
    updates: TaskUpdates, task_id: TaskId, started: tuple[PartitionLeader, Vote] | OnyxqError, wanted: int | None
) -> int | dict[str, Any]:
    return started.to_map() if isinstance(started, OnyxqError) else 1


async def _promised_in_memory(cohort: Cohort, partition: int, epoch: int) -> None:
    await cohort._host.unflushed_writes.flushed()


def _half(cohort: Iterable[str], have: Collection[str]) -> bool:
    nodes = list(cohort)
    return not nodes or 2 * sum(node in have for node in nodes) + 1 >= len(nodes)


def _won_without_the_leader(vote: Vote) -> bool:
    return all(majority(cohort, vote.acks) for cohort in vote._cohorts)


def _promises_are_enough(leader: PartitionLeader) -> bool:
    return majority(leader.placed.members, leader._reached)


_Lookup = Callable[[Grantable, bytes], tuple[int, list[Piece]]]


def _finished_or_not(original: _Lookup) -> _Lookup:
    def taken_and_moved(grantable: Grantable, stretch: bytes) -> tuple[int, list[Piece]]:
        taken, moved = original(grantable, stretch)
        return taken & ~grantable._host.store.finished_bits(stretch), moved

    return taken_and_moved


def _uncounted(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, counted, final: original(*args, counted=False, final=final)


def _leads_anyway(original: Callable[..., Awaitable[bool]]) -> Callable[..., Awaitable[bool]]:
    async def leads(*args: object) -> bool:
        await original(*args)
        return True

    return leads


def _settles_at_once(leader: PartitionLeader, placed: Partition) -> bool:
    return bool(leader.current)


def _under_later_tokens_too(token: int) -> Callable[[ClaimPiece], bool]:
    return lambda piece: piece[2] >= token


LEADER_BUGS: tuple[Planted, ...] = (
    # --- who leads
    Planted(
        "incomplete copies count as a majority when a partition is forced",
        "log_entries.force_partition:_majority_lives",
        instead(_with_incomplete),
        "an operator cannot force a partition whose members are lost, or can force one whose members live",
        "explorer",
    ),
    Planted(
        "nodes without data are members of a forced partition",
        "log_entries.force_partition:_members",
        instead(_all_live),
        "nodes without data serve while the last complete copy is away, and no operator gave it up",
        "explorer",
    ),
    Planted(
        "a grant has no epoch check",
        "onyxq.core.claims:refusal",
        _earlier_epochs_too,
        "old grants of a deposed leader count when it leads again",
        "explorer",
    ),
    Planted(
        "epoch not stored before answering",
        "onyxq.leader.cohort.member:Cohort._keep_promise",
        instead(_promised_in_memory),
        "a restarted process forgets its promise",
        "promises",
        quick=6,
    ),
    Planted(
        "a follower accepts a write below its epoch",
        "onyxq.leader.cohort.member:Cohort.check",
        returning(None),
        "a deposed leader still gets majorities",
        "misled",
        quick=6,
    ),
    Planted(
        "a quorum is one node too small",
        "onyxq.core.replica:majority",
        instead(_half),
        "acknowledged rows are on one node of three",
        "misled",
    ),
    Planted(
        "updates are acknowledged before anybody has them",
        "onyxq.leader.task_updates:TaskUpdates._ack",
        instead(_not_waited_for),
        "a checkpoint that a worker relies on is lost with the leader",
        "disks",
    ),
    Planted(
        "a leader acknowledges before its own store has the rows",
        "onyxq.leader.cohort.replication:Vote.won",
        instead(_won_without_the_leader),
        "the leader does not know of a completion and grants the task again",
        "own_disk",
        quick=6,
    ),
    Planted(
        "a takeover does not read from a majority",
        "onyxq.leader.leader:PartitionLeader._has_read_majority",
        instead(_promises_are_enough),
        "a new leader serves without rows that it missed",
        "behind",
        quick=6,
    ),
    Planted(
        "a partition settles without a majority of the target",
        "onyxq.leader.leader:PartitionLeader._may_settle",
        instead(_settles_at_once),
        "members change to nodes that do not have the tasks",
        "moved",
        quick=6,
    ),
    # --- claims
    Planted(
        "a completion is accepted while a newer grant is in the outbox",
        "onyxq.leader.state.leader_state:LeaderState.blocked",
        returning(0),
        "completions of one task by two workers are both accepted",
        "late",
        quick=6,
    ),
    Planted(
        "a completed task is granted again after a takeover",
        "onyxq.leader.grants.grantable:Grantable._taken_and_moved",
        _finished_or_not,
        "a leader grants tasks of the ready index without checking whether they are finished",
        "leases",
    ),
    Planted(
        "expire_claims does not check deadlines",
        "log_entries.expire_claims:lapsed",
        returning(True),
        "a claim that was just renewed expires",
        "explorer",
    ),
    Planted(
        "a stale token renews a lease",
        "log_entries.renew_claims:under",
        instead(_under_later_tokens_too),
        "a worker that lost its claim extends the claim of another worker",
        "explorer",
    ),
    Planted(
        "failed attempts are not counted",
        "onyxq.leader.claim_updates:ClaimUpdates._failure_ends",
        _uncounted,
        "a task that always fails is retried for ever",
        "retries",
    ),
    Planted(
        "a long poll misses a wake-up",
        "onyxq.leader.grants.ready_heads:_QueueHeads.wake",
        instead(lambda heads: setattr(heads, "looked", None)),
        "a waiting claimer learns of a task only when it asks again",
        "prompt",
    ),
    Planted(
        "a deposed leader calls a valid claim stale",
        "onyxq.leader.token_check:_leads",
        _leads_anyway,
        "a worker with a valid claim stops",
        "unheard",
    ),
)
"""The planted bugs of leaders."""
