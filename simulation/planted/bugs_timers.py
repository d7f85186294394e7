"""Planted bugs of callbacks of timers."""

from __future__ import annotations

from onyxq.core.ids import partition_of
from onyxq.interfaces.callbacks.delivery import Delivering, _Attempt
from simulation.planted.planted import Planted
from simulation.planted.seams import instead, returning


def _whatever_is_left_of_the_lease(delivering: Delivering, attempt: _Attempt) -> bool:
    return partition_of(attempt.task) in delivering._node.leaders


TIMER_BUGS: tuple[Planted, ...] = (
    Planted(
        "a timer is delivered although it was replaced while it waited",
        "onyxq.interfaces.callbacks.delivery:Delivering._is_valid",
        returning(True),
        "a callback has replaced data, or belongs to a cancelled timer",
        "timers_changed",
        quick=1,
    ),
    Planted(
        "a callback starts although its lease may end before it",
        "onyxq.interfaces.callbacks.delivery:Delivering._may_begin",
        instead(_whatever_is_left_of_the_lease),
        "two callbacks of one timer run at the same time",
        "timers_late",
        quick=1,
    ),
)
"""The planted bugs of timers."""
