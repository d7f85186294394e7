"""Planted bugs of claims ahead: tasks that workers have before they are due."""

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


AHEAD_BUGS: tuple[Planted, ...] = (
    Planted(
        "what was claimed ahead is begun at once",
        "onyxq.leader.grants.granter:_Pick.due_in_ms",
        returning(0),
        "timers fire before their time",
        "ahead_of_time",
        quick=3,
    ),
    Planted(
        "the lease of what was claimed ahead begins when it is claimed",
        "onyxq.leader.grants.granter:_Pick.granted_ms",
        instead(_lease_only),
        "somebody else is given a task whose worker was told that its lease runs",
        "ahead_of_time",
        quick=3,
    ),
    Planted(
        "tasks with keys are claimed ahead",
        "onyxq.leader.grants.ready_heads:Heads._may_go_ahead",
        instead(_with_or_without_key),
        "one that comes later and is due earlier waits for it",
        "ahead_of_time",
        quick=3,
    ),
    Planted(
        "tasks that are counted are claimed ahead",
        "onyxq.leader.grants.ready_heads:Heads._is_counted",
        returning(False),
        "they take the places of others that could run",
        "ahead_of_time",
        quick=3,
    ),
)
