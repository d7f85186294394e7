"""Periodic tasks: which are due, which runs to enqueue, and under which ids (design: periodic tasks).

The ring's first peer fires them.  It enqueues the runs of a `plan` under ids that depend on
name and time alone, and then appends ``fire_periodic``.  If it dies in between,
its successor enqueues the same tasks again under the same ids, which changes nothing.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple

from onyxq.core import cron
from onyxq.core.ids import TaskId, make_id, ms_of, partition_of
from onyxq.core.queue_settings import NO_LIMIT
from onyxq.core.replica import RUNS_MAX, Periodic, Replica

ON_TIME_MS = 60_000
"""A run that is at most this late, in ms, was not missed: another peer becomes first within this time."""
SKIP, ONCE, ALL = "skip", "once", "all"


class Plan(NamedTuple):
    """The times of the runs to enqueue now, and of the next run."""

    fires: list[int]
    next_ms: int


def due(replica: Replica, now_ms: int) -> list[Periodic]:
    """Return the periodic tasks to fire now, sorted by name."""
    found = replica.periodic
    return [found[name] for name in sorted(found) if not found[name].paused and found[name].next_ms <= now_ms]


def next_due_ms(replica: Replica) -> int | None:
    """Return when the next periodic task is due, in ms since the epoch; None if there is none."""
    return min((one.next_ms for one in replica.periodic.values() if not one.paused), default=None)


def plan(periodic: Periodic, now_ms: int) -> Plan:
    """Return which runs of a periodic task to fire now.

    Of the times that passed, ``skip`` runs the last one if it is at most a minute old.  ``once`` runs the last
    one of any age.  ``all`` runs every one, up to the last 1,000.  Raises `BadRequest`
    if this machine cannot read the schedule or does not know the zone.
    """
    schedule = cron.parse(periodic.schedule)
    if now_ms < periodic.next_ms:
        return Plan([], periodic.next_ms)
    most = RUNS_MAX if periodic.missed == ALL else 1
    fires = cron.last(schedule, periodic.zone, periodic.next_ms, now_ms, most)
    if periodic.missed == SKIP:
        fires = [time_ms for time_ms in fires if now_ms - time_ms <= ON_TIME_MS]
    return Plan(fires, cron.next_ms(schedule, periodic.zone, now_ms))


def run_options(periodic: Periodic) -> dict[str, int | None]:
    """Return the options of each run by name, sorted; None for no limit of retries."""
    found = periodic.options
    return {name: None if found[name] == NO_LIMIT else found[name] for name in sorted(found)}


def task_id(periodic: Periodic, fired_ms: int, partitions: int) -> TaskId:
    """Return the id of a run, which is the same for every peer that enqueues it."""
    digest = blake2b(periodic.name.encode(errors="replace"), digest_size=16).digest()
    partition = int.from_bytes(digest[:8], "big") % partitions
    return make_id(fired_ms, partition, int.from_bytes(digest[8:], "big"), 0)


def other_id(first: TaskId, secret: bytes) -> TaskId:
    """Return the id of a run whose own id ``first`` a task of another queue has.

    It has the same time and partition. It is the same for every peer with the secret, of at most 64 bytes.
    """
    maker = blake2b(first, digest_size=8, key=secret, person=b"other run").digest()
    return make_id(ms_of(first), partition_of(first), int.from_bytes(maker, "big"), 0)
