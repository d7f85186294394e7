"""Periodic tasks: which are due, which runs that means, and under which ids (design: periodic tasks).

The ring's first peer fires them: it enqueues the runs of a `plan` under ids that follow from
name and time alone and then appends ``fire_periodic``.  A peer that dies in between leaves
tasks that its successor enqueues once more under the same ids, which changes nothing.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple

from onyxq.core import cron
from onyxq.core.ids import TaskId, make_id
from onyxq.core.replica import RUNS_MAX, Periodic, Replica

ON_TIME_MS = 60_000
"""A run that is late by no more was not missed: it takes so long at most until somebody else is first."""
SKIP, ONCE, ALL = "skip", "once", "all"


class Plan(NamedTuple):
    """The times of the runs to enqueue now, and the next one."""

    fires: list[int]
    next_ms: int


def due(replica: Replica, now_ms: int) -> list[Periodic]:
    """Return the periodic tasks to fire now, by name."""
    found = replica.periodic
    return [found[name] for name in sorted(found) if not found[name].paused and found[name].next_ms <= now_ms]


def next_due_ms(replica: Replica) -> int | None:
    """Return when the next one is due; None if there is none."""
    return min((one.next_ms for one in replica.periodic.values() if not one.paused), default=None)


def plan(periodic: Periodic, now_ms: int) -> Plan:
    """Return what to fire of one that is due.

    Of times that passed meanwhile ``skip`` runs the last one if it is no more than a minute old,
    ``once`` the last one however old, ``all`` every one, up to the last 1,000.  Raises `BadRequest`
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


def task_id(periodic: Periodic, fired_ms: int, partitions: int) -> TaskId:
    """Return the id of a run, the same whoever enqueues it."""
    digest = blake2b(periodic.name.encode(errors="replace"), digest_size=16).digest()
    partition = int.from_bytes(digest[:8], "big") % partitions
    return make_id(fired_ms, partition, int.from_bytes(digest[8:], "big"), 0)
