"""Planted bugs about callbacks of timers."""

from __future__ import annotations

from onyxq.core.ids import partition_of
from onyxq.interfaces.callbacks.delivery import Delivering, _Attempt
from simulation.planted.planted import Planted
from simulation.planted.seams import instead, returning


def _whatever_is_left_of_the_lease(delivering: Delivering, attempt: _Attempt) -> bool:
    return partition_of(attempt.task) in delivering._node.leaders


TIMER_BUGS: tuple[Planted, ...] = (
    Planted(
        "a timer that was replaced while it waited is delivered",
        "onyxq.interfaces.callbacks.delivery:Delivering._stands",
        returning(True),
        "a callback comes with data that was replaced, or of a timer that was cancelled",
        "timers_changed",
        quick=1,
    ),
    Planted(
        "a callback begins though its lease may end meanwhile",
        "onyxq.interfaces.callbacks.delivery:Delivering._may_begin",
        instead(_whatever_is_left_of_the_lease),
        "two callbacks of one timer are under way together",
        "timers_late",
        quick=1,
    ),
)
"""Bugs that scenes about timers must find."""
