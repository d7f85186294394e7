"""Planted bugs of claims ahead: tasks that workers claim before they are due."""

from __future__ import annotations

from onyxq.leader.grants.granter import _Pick
from onyxq.leader.grants.ready_heads import Heads
from onyxq.store.interface import Piece
from simulation.planted.planted import Planted
from simulation.planted.seams import instead, returning


def _with_or_without_key(heads: Heads, piece: Piece, partition: int) -> bool:
    return partition in heads._leaders


def _lease_only(pick: _Pick) -> int:
    return pick.lease_ms


CLAIM_AHEAD_BUGS: tuple[Planted, ...] = (
    Planted(
        "tasks claimed ahead start at once",
        "onyxq.leader.grants.granter:_Pick.due_in_ms",
        returning(0),
        "timers fire before they are due",
        "ahead_of_time",
        quick=3,
    ),
    Planted(
        "the lease of a task claimed ahead begins at the claim",
        "onyxq.leader.grants.granter:_Pick.granted_ms",
        instead(_lease_only),
        "a second worker gets a task while the first one believes that its lease is valid",
        "ahead_of_time",
        quick=3,
    ),
    Planted(
        "tasks with ordering keys are claimed ahead",
        "onyxq.leader.grants.ready_heads:Heads._may_go_ahead",
        instead(_with_or_without_key),
        "a newer task of the key that is due earlier must wait",
        "ahead_of_time",
        quick=3,
    ),
    Planted(
        "tasks of limited queues are claimed ahead",
        "onyxq.leader.grants.ready_heads:Heads._is_counted",
        returning(False),
        "they use up the limit, and tasks that are due must wait",
        "ahead_of_time",
        quick=3,
    ),
)
