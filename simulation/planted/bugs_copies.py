"""Planted bugs about copies: who has them, who is looked for, and what may be answered before they are on disks."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

from attrs import evolve

from onyxq.core.queue_settings import Queue
from onyxq.core.replica import Partition, Replica, majority
from onyxq.leader.cohort.member import Cohort
from onyxq.leader.cohort.replication import Sender
from onyxq.leader.grants.grantable import Grantable
from onyxq.leader.leader import PartitionLeader
from onyxq.store.index.stretches import State
from onyxq.store.interface import Batch
from simulation.planted.planted import Planted
from simulation.planted.seams import instead, returning


def _strict_rides_along(original: Callable[[Sender], list[object]]) -> Callable[[Sender], list[object]]:
    def take(sender: Sender) -> list[object]:
        early = sender._waiting[0].early
        sender._waiting = deque(one._replace(early=early) for one in sender._waiting)
        return original(sender)

    return take


async def _promised_at_once(cohort: Cohort, partition: int, epoch: int) -> None:
    await cohort._host.store.write(Batch(epochs=((partition, epoch),)))


def _compared_copies(
    original: Callable[[PartitionLeader, Partition], list[str]],
) -> Callable[[PartitionLeader, Partition], list[str]]:
    return lambda leader, placed: [node for node in original(leader, placed) if node in leader.current]


def _never_strict(original: Callable[[Replica, str], Queue]) -> Callable[[Replica, str], Queue]:
    return lambda replica, queue: evolve(original(replica, queue), durability="opportunistic")


def _led_is_backed(available: Grantable, partition: int) -> bool:
    return partition in available._leaders


def _promised_is_backed(leader: PartitionLeader) -> bool:
    return majority(leader.placed.members, leader._reached)


def _reopened_only(state: State) -> int:
    return state.reopened


def _mere_majority(leader: PartitionLeader, placed: Partition) -> bool:
    return majority(placed.target, leader.current)


COPY_BUGS: tuple[Planted, ...] = (
    Planted(
        "rows of strict queues ride in messages that are answered early",
        "onyxq.leader.cohort.replication:Sender._take",
        _strict_rides_along,
        "tasks of a strict queue are acknowledged, and lost when all machines stop",
        "strict_beside_early",
    ),
    Planted(
        "a follower promises an epoch before its early answers are on disk",
        "onyxq.leader.cohort.member:Cohort._keep_promise",
        instead(_promised_at_once),
        "a new leader serves without acknowledged tasks",
        "early_and_deposed",
        quick=6,
    ),
    Planted(
        "a leader compares copies before its own early answers are on disk",
        "onyxq.leader.leader:PartitionLeader._until_flushed",
        returning(None),
        "a follower counts as up to date and lacks acknowledged tasks",
        "early_and_deposed",
        quick=4,
    ),
    Planted(
        "a key goes on before its head's end is backed",
        "onyxq.leader.grants.grantable:Grantable._is_backed",
        instead(_led_is_backed),
        "a task runs before the one ahead of it, which is run again by the next leader",
        "half_written",
        quick=3,
    ),
    Planted(
        "backed by a majority that promised only",
        "onyxq.leader.leader:PartitionLeader._is_backed",
        instead(_promised_is_backed),
        "a completion that only one node has lets the next task of its key run",
        "half_written",
    ),
    Planted(
        "a completion that was refused counts once it turns up",
        "onyxq.store.index.stretches:State.counts_from",
        instead(_reopened_only),
        "a task that everybody who worked on it was refused is completed, and dependents run",
        "turned_up",
        quick=3,
    ),
    Planted(
        "settled with a mere majority of whole copies",
        "onyxq.leader.leader:PartitionLeader._may_settle",
        instead(_mere_majority),
        "a node that leaves for good takes one of the full copies with it",
        "retired",
        quick=3,
    ),
    Planted(
        "a member that was not compared yet counts as no copy",
        "onyxq.leader.leader:PartitionLeader._whole_copies",
        _compared_copies,
        "a leader that is new gives up copies that it has not heard of",
        "retired",
    ),
    Planted(
        "copies are compared before the leader's own promise is on its disk",
        "onyxq.leader.leader:PartitionLeader._until_promised",
        returning(None),
        "a write that the leader took in an earlier epoch is acknowledged, and not on the copy that it made meanwhile",
        "under_way",
        quick=1,
    ),
    Planted(
        "a copy is dropped though a later epoch is promised",
        "onyxq.node.moved_copies:MovedAway._is_relied_on",
        returning(False),
        "a node that reads the log late drops what a new leader has just counted as one of its copies",
        "unread",
        quick=2,
    ),
    Planted(
        "nobody looks for who missed something",
        "onyxq.leader.cohort.replication:Sender.returned",
        returning(None),
        "a node that is back lacks for seconds what was written without it",
        "missed",
        quick=3,
    ),
    Planted(
        "silent nodes are not asked",
        "onyxq.node.liveness:Probing._probe",
        returning(None),
        "a leader that is cut off goes on leading as long as nothing is written",
        "unanswered",
        quick=2,
    ),
    Planted(
        "no window for what is answered early",
        "onyxq.leader.cohort.unflushed_writes:WINDOW_S",
        instead(math.inf),
        "when all machines stop everything is lost that disks had not taken for seconds",
        "stopped_at_once",
        quick=3,
    ),
    Planted(
        "answered early though the queue is strict",
        "onyxq.leader.enqueues:settings_of",
        _never_strict,
        "an acknowledged task is on no disk",
        "standard",
    ),
)
"""Planted bugs about these."""
