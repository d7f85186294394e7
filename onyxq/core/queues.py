"""Queues: their settings, and how many of their tasks may be granted now (design: scheduling rules).

Pure.  A queue needs no creation: it has the default settings until ``set_queue`` changes them.
Limits apply to the whole cluster.  The replica counts the claims that limits apply to
(``limited``, ``running``).  A rate is a bucket that fills with the log's clock.  It holds
the tasks of one second, or one task if that is more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from attrs import evolve

from onyxq.core import queue_settings
from onyxq.core.limits import NAME_CHARACTERS_MAX, is_plain
from onyxq.core.queue_settings import DEFAULTS, NO_LIMIT, SETTINGS, Queue, is_setting
from onyxq.core.replica import Rate, Replica

QUEUES_MAX = 16_384
"""Most queues with settings of their own, because the replica holds them."""

MILLIONTHS = 1_000_000
"""What one task takes from a bucket. A rate of 1 (one task in 1,000 s) adds 1 in each millisecond."""


def is_name(value: str) -> bool:
    """Return whether a text can name a queue: 1 to 200 characters without control characters."""
    return 1 <= len(value) <= NAME_CHARACTERS_MAX and is_plain(value)


def settings_of(replica: Replica, queue: str) -> Queue:
    """Return a queue's settings."""
    if queue in replica.queues:  # `get` of this map is slow for a missing key, which is the usual case
        return replica.queues[queue]
    return DEFAULTS


def problem_of(given: Mapping[str, int | str | bool], cleared: Iterable[str], version: int) -> str:
    """Return the first setting that is invalid in a version of ``set_queue``, as ``<field> <what is wrong>``, or ""."""
    known = {name: queue_settings.problem_of(name, given[name], version) for name in sorted(given)}
    for name in sorted(cleared):
        wrong = "is set and cleared" if name in known else ""
        known[name] = wrong if is_setting(name, version) else "is no setting"
    return next((f"{name} {known[name]}" for name in sorted(known) if known[name]), "")


def changed(queue: Queue, given: Mapping[str, int | str | bool], cleared: Iterable[str], *, by: str, why: str) -> Queue:
    """Return the settings with some of them set and others back at their defaults.

    The values must be valid according to `problem_of`.
    """
    new: dict[str, Any] = {name: getattr(DEFAULTS, name) for name in cleared}
    new.update({name: None if SETTINGS[name].nullable and given[name] == NO_LIMIT else given[name] for name in given})
    if "paused" in new:
        new["paused_by"], new["paused_why"] = (by, why) if new["paused"] else ("", "")
    return evolve(queue, **new)


def is_limited(settings: Queue) -> bool:
    """Return whether claims of the queue must be counted."""
    return settings.rate > 0 or settings.concurrency > 0


def room(replica: Replica, queue: str, *, since_ms: int = 0) -> int | None:
    """Return how many tasks of a queue may be granted now; None: any number.

    ``since_ms``: milliseconds since the replica's last record.
    """
    settings = settings_of(replica, queue)
    if settings.paused:
        return 0
    left = []
    if settings.concurrency:
        left.append(settings.concurrency - replica.running.get(queue, 0))
    if settings.rate:
        left.append(_level(replica, queue, settings.rate, replica.clock_ms + since_ms) // MILLIONTHS)
    return max(0, min(left)) if left else None


def wait_ms(replica: Replica, queue: str) -> int | None:
    """Return how long, in ms from the replica's last record, until the queue's rate permits one task.

    None if the queue has no rate.
    """
    rate = settings_of(replica, queue).rate
    if not rate:
        return None
    missing = MILLIONTHS - _level(replica, queue, rate, replica.clock_ms)
    return max(0, -(-missing // rate))


def taken(replica: Replica, queue: str, count: int) -> Rate | None:
    """Return what is left of the queue's rate after ``count`` tasks are granted now; None if it has no rate."""
    rate = settings_of(replica, queue).rate
    if not rate:
        return None
    return _level(replica, queue, rate, replica.clock_ms) - count * MILLIONTHS, replica.clock_ms


def _level(replica: Replica, queue: str, rate: int, now_ms: int) -> int:
    full = max(MILLIONTHS, rate * 1_000)
    left, at_ms = replica.rates.get(queue, (full, now_ms))
    return min(full, left + rate * max(0, now_ms - at_ms))
