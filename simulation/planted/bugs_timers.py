"""Planted bugs of callbacks, of timers and tasks."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from onyxq.core import facts
from onyxq.core.facts import Row
from onyxq.core.ids import TaskId, counter_of, with_counter
from onyxq.interfaces.callbacks.delivery import Delivering
from onyxq.leader.dependencies import Dependencies
from simulation.planted.planted import Planted
from simulation.planted.seams import returning

LONG_LEASE_MS = 20_000
SHIFT = 16
"""Bits of a counter that the planted ids of callbacks leave as they are."""


def _long(original: Callable[[Delivering], int]) -> Callable[[Delivering], int]:
    return lambda delivering: max(original(delivering), LONG_LEASE_MS)


def _another_each_time(original: Callable[[Dependencies, TaskId], Row]) -> Callable[[Dependencies, TaskId], Row]:
    counters = count(1)

    def row(dependencies: Dependencies, task_id: TaskId) -> Row:
        found = original(dependencies, task_id)
        first = facts.first_of(found.key)
        other = with_counter(first, counter_of(first) + (next(counters) << SHIFT))
        return facts.task_row(other, facts.unseal(found.key, found.value))

    return row


def _of_any(original: Callable[[TaskId], TaskId]) -> Callable[[TaskId], TaskId]:
    return lambda callback: with_counter(callback, counter_of(original(callback)) & ((1 << SHIFT) - 1))


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
    Planted(
        "a task is stored without its callback",
        "onyxq.leader.enqueues:Enqueues._calls_back",
        returning(False),
        "the end of a task is not reported",
        "ends_reported",
        quick=1,
    ),
    Planted(
        "the callback of a task that was cancelled before it was due waits for that time",
        "onyxq.leader.dependencies:Dependencies._begin_early",
        returning(None),
        "the end of a task is reported late",
        "ends_reported",
    ),
    Planted(
        "each request about a task makes a callback of its own",
        "onyxq.leader.dependencies:Dependencies.callback_row",
        _another_each_time,
        "the end of a task is reported twice",
        "ends_reported",
        more=(("onyxq.interfaces.callbacks.ended_tasks:callback_of", _of_any),),
    ),
)
"""The planted bugs of timers."""
