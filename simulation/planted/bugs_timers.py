"""Planted bugs of callbacks of timers."""

from __future__ import annotations

from collections.abc import Callable

from onyxq.interfaces.callbacks.delivery import Delivering
from simulation.planted.planted import Planted
from simulation.planted.seams import returning

LONG_LEASE_MS = 20_000


def _long(original: Callable[[Delivering], int]) -> Callable[[Delivering], int]:
    return lambda delivering: max(original(delivering), LONG_LEASE_MS)


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
        "leases of callbacks are not renewed",
        "onyxq.interfaces.callbacks.delivery:Delivering._renew",
        returning(None),
        "two callbacks of one timer run at the same time",
        "timers_again",
    ),
    Planted(
        "a callback starts although its claim has ended",
        "onyxq.interfaces.callbacks.delivery:Delivering._may_begin",
        returning(True),
        "two callbacks of one timer run at the same time",
        "timers_cut_off",
        quick=1,
    ),
    Planted(
        "a callback has a lease that is longer than the session of its node",
        "onyxq.interfaces.callbacks.delivery:Delivering._lease_ms",
        _long,
        "callbacks of a dead node are made again late",
        "timers_again",
        quick=1,
    ),
)
"""The planted bugs of timers."""
