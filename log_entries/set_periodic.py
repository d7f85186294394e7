"""Create a periodic task, or change it.

Submitted by any peer for a client. The peer has read the schedule and sets the time of the next
run. Sets the record in ``periodic``. While schedule and zone stay the same, the next run does not
move. So an application that creates its periodic tasks at every start loses no run. The count of
runs continues, so their ids never repeat.

``options`` are the options of each run: ``retries`` (-1: no limit), ``backoff_ms`` and
``expires_after_ms``, which counts from the time at which the run is due. The settings of the queue
decide what is not in ``options``.
"""

from __future__ import annotations

from typing import get_args

from attrs import evolve, field, frozen
from pyrsistent import PMap, pmap

from onyxq.core.entry import APPLIED, Stamp, Verdict
from onyxq.core.limits import (
    BACKOFF_MS_MAX,
    NAME_CHARACTERS_MAX,
    PERIODIC_DATA_BYTES_MAX,
    PRIORITY_MAX,
    PRIORITY_MIN,
    RETRIES_MAX,
    TIME_MS_MAX,
    Format,
    Missed,
)
from onyxq.core.queue_settings import NO_LIMIT
from onyxq.core.queues import is_name
from onyxq.core.replica import Periodic, Replica

VERSION = 1

PERIODIC_MAX = 4_096
"""Maximum of periodic tasks in a cluster, because the replica holds them."""
PAYLOADS_BYTES_MAX = 16 << 20
"""Maximum of all payloads together, in bytes."""
BOUNDS = {
    "backoff_ms": (0, BACKOFF_MS_MAX),
    "expires_after_ms": (1, TIME_MS_MAX),
    "retries": (NO_LIMIT, RETRIES_MAX),
}
"""Smallest and largest value of each option."""
ALREADY_SO = "already so"


@frozen
class Args:
    """See `onyxq.core.replica.Periodic`; ``next_ms``: the first run by the wall clock, if the schedule is new.

    ``options``: option of each run -> number.
    """

    name: str
    queue: str
    schedule: str
    zone: str
    payload: bytes
    format: str
    priority: int
    missed: str
    paused: bool
    next_ms: int
    options: PMap[str, int] = field(factory=pmap)


def apply(replica: Replica, args: Args, stamp: Stamp) -> tuple[Replica, Verdict]:
    """Create or change the task."""
    old = replica.periodic.get(args.name)
    new = Periodic(
        name=args.name,
        queue=args.queue,
        schedule=args.schedule,
        zone=args.zone,
        payload=args.payload,
        format=args.format,
        priority=args.priority,
        missed=args.missed,
        paused=args.paused,
        next_ms=args.next_ms,
        fired=old.fired if old else 0,
        options=args.options,
    )
    problem = problem_of(replica, new)
    if problem:
        return replica, problem
    resumed = old is not None and old.paused and not args.paused
    if old is not None and (old.schedule, old.zone) == (new.schedule, new.zone) and not resumed:
        new = evolve(new, next_ms=old.next_ms)
    if new == old:
        return replica, ALREADY_SO
    return evolve(replica, periodic=replica.periodic.set(args.name, new)), APPLIED


def problem_of(replica: Replica, new: Periodic) -> str:
    """Return why the task is refused, as ``<field> <what is wrong>``; empty if it is not."""
    if not is_name(new.name) or not is_name(new.queue):
        return ("queue" if is_name(new.name) else "name") + f" must have 1 to {NAME_CHARACTERS_MAX} plain characters"
    for name, text in (("schedule", new.schedule), ("zone", new.zone)):
        if not 1 <= len(text) <= NAME_CHARACTERS_MAX:
            return f"{name} must have 1 to {NAME_CHARACTERS_MAX} characters"
    for name, text, known in (("format", new.format, get_args(Format)), ("missed", new.missed, get_args(Missed))):
        if text not in known:
            return f"{name} must be one of {', '.join(known)}"
    if not PRIORITY_MIN <= new.priority <= PRIORITY_MAX:
        return f"priority must be {PRIORITY_MIN} to {PRIORITY_MAX}"
    if new.next_ms < 0:
        return "next_ms must not be negative"
    return _bad_option(new.options) or _too_much(replica, new)


def _bad_option(options: PMap[str, int]) -> str:
    """Return the first option that is not possible, as ``<field> <what is wrong>``; empty if all are possible."""
    for name in sorted(options):
        if name not in BOUNDS:
            return f"options must be among {', '.join(sorted(BOUNDS))}"
        low, high = BOUNDS[name]
        if not low <= options[name] <= high:
            return f"{name} must be {low} to {high}"
    return ""


def _too_much(replica: Replica, new: Periodic) -> str:
    """Return why the replica has no room for the task; empty if it has."""
    if len(new.payload) > PERIODIC_DATA_BYTES_MAX:
        return f"data must have at most {PERIODIC_DATA_BYTES_MAX} bytes"
    others = [one for name, one in sorted(replica.periodic.items()) if name != new.name]
    if len(others) >= PERIODIC_MAX:
        return f"name is one too many: there are {len(others)} periodic tasks"
    if sum(len(one.payload) for one in others) + len(new.payload) > PAYLOADS_BYTES_MAX:
        return f"data is too much: all periodic tasks together may have {PAYLOADS_BYTES_MAX} bytes"
    return ""
