"""Planted bugs of copies: their completeness, lost contact to nodes, and early acknowledgements."""

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


def _all_answered_early(original: Callable[[Sender], list[object]]) -> Callable[[Sender], list[object]]:
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
        "rows of strict queues are sent in messages that are answered early",
        "onyxq.leader.cohort.replication:Sender._take",
        _all_answered_early,
        "acknowledged tasks of a strict queue are lost if all machines stop and one loses its disk",
        "strict_beside_early",
        quick=2,
    ),
    Planted(
        "a follower promises an epoch before acknowledged rows are on disk",
        "onyxq.leader.cohort.member:Cohort._keep_promise",
        instead(_promised_at_once),
        "a new leader serves without acknowledged tasks",
        "early_and_deposed",
        quick=6,
    ),
    Planted(
        "a leader compares copies before its own acknowledged rows are on disk",
        "onyxq.leader.leader:PartitionLeader._until_flushed",
        returning(None),
        "a follower counts as up to date and lacks acknowledged tasks",
        "early_and_deposed",
        quick=4,
    ),
    Planted(
        "a key continues before a majority has its last completion",
        "onyxq.leader.grants.grantable:Grantable._is_backed",
        instead(_led_is_backed),
        "the next leader runs an earlier task of the key again, after a later one",
        "half_written",
        quick=3,
    ),
    Planted(
        "promises count as copies of all completions",
        "onyxq.leader.leader:PartitionLeader._is_backed",
        instead(_promised_is_backed),
        "the next task of a key runs after a completion that only one node has",
        "half_written",
    ),
    Planted(
        "a refused completion counts once it is found",
        "onyxq.store.index.stretches:State.counts_from",
        instead(_reopened_only),
        "a task is completed although all its workers were refused, and its dependents run",
        "turned_up",
        quick=3,
    ),
    Planted(
        "a partition settles with only a majority of complete copies",
        "onyxq.leader.leader:PartitionLeader._may_settle",
        instead(_mere_majority),
        "a node that leaves for good takes a complete copy with it",
        "retired",
        quick=3,
    ),
    Planted(
        "a member that was not compared yet counts as incomplete",
        "onyxq.leader.leader:PartitionLeader._whole_copies",
        _compared_copies,
        "a new leader drops copies that it has not compared yet",
        "retired",
    ),
    Planted(
        "copies are compared before the leader's own promise is on its disk",
        "onyxq.leader.leader:PartitionLeader._until_promised",
        returning(None),
        "a write of an earlier epoch is acknowledged and missing on the copy that was made meanwhile",
        "under_way",
        quick=8,
    ),
    Planted(
        "a copy is dropped although a later epoch was promised",
        "onyxq.node.moved_copies:MovedAway._is_relied_on",
        returning(False),
        "a node that reads the log late drops a copy that a new leader counts on",
        "unread",
        quick=2,
    ),
    Planted(
        "a returning node is not brought up to date at once",
        "onyxq.leader.cohort.replication:Sender.returned",
        returning(None),
        "a returning node lacks rows for seconds",
        "missed",
        quick=3,
    ),
    Planted(
        "silent nodes are not probed",
        "onyxq.node.liveness:Probing._probe",
        returning(None),
        "a leader without contact keeps leading as long as nothing is written",
        "unanswered",
        quick=2,
    ),
    Planted(
        "early acknowledgements have no time limit",
        "onyxq.leader.cohort.unflushed_writes:WINDOW_S",
        instead(math.inf),
        "if all machines stop, acknowledged rows of many seconds are lost",
        "stopped_at_once",
        quick=3,
    ),
    Planted(
        "writes to strict queues are acknowledged early",
        "onyxq.leader.enqueues:settings_of",
        _never_strict,
        "an acknowledged task is on no disk",
        "standard",
    ),
)
"""The planted bugs of copies."""
