"""Create a periodic task, or change it.

Submitted by any peer for a client. The peer has read the schedule and sets the time of the next
run. Sets the record in ``periodic``. While schedule and zone stay the same, the next run does not
move. So an application that creates its periodic tasks at every start loses no run. The count of
runs continues, so their ids never repeat.
"""

from __future__ import annotations

from typing import get_args

from attrs import evolve, frozen

from onyxq.core.entry import APPLIED, Stamp, Verdict
from onyxq.core.limits import (
    NAME_CHARACTERS_MAX,
    PERIODIC_DATA_BYTES_MAX,
    PRIORITY_MAX,
    PRIORITY_MIN,
    Format,
    Missed,
)
from onyxq.core.queues import is_name
from onyxq.core.replica import Periodic, Replica

VERSION = 1

PERIODIC_MAX = 4_096
"""Maximum of periodic tasks in a cluster, because the replica holds them."""
PAYLOADS_BYTES_MAX = 16 << 20
"""Maximum of all payloads together, in bytes."""


@frozen
class Args:
    """See `onyxq.core.replica.Periodic`; ``next_ms``: the first run by the wall clock, if the schedule is new."""

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
    )
    problem = problem_of(replica, new)
    if problem:
        return replica, problem
    resumed = old is not None and old.paused and not args.paused
    if old is not None and (old.schedule, old.zone) == (new.schedule, new.zone) and not resumed:
        new = evolve(new, next_ms=old.next_ms)
    if new == old:
        return replica, "already so"
    return evolve(replica, periodic=replica.periodic.set(args.name, new)), APPLIED


def problem_of(replica: Replica, new: Periodic) -> str:
    """Return why the task is refused, as ``<field> <what is wrong>``; empty if it is not."""
    if not is_name(new.name) or not is_name(new.queue):
        return ("queue" if is_name(new.name) else "name") + f" must have 1 to {NAME_CHARACTERS_MAX} plain characters"
    for field, text in (("schedule", new.schedule), ("zone", new.zone)):
        if not 1 <= len(text) <= NAME_CHARACTERS_MAX:
            return f"{field} must have 1 to {NAME_CHARACTERS_MAX} characters"
    for field, text, known in (("format", new.format, get_args(Format)), ("missed", new.missed, get_args(Missed))):
        if text not in known:
            return f"{field} must be one of {', '.join(known)}"
    if not PRIORITY_MIN <= new.priority <= PRIORITY_MAX:
        return f"priority must be {PRIORITY_MIN} to {PRIORITY_MAX}"
    if new.next_ms < 0:
        return "next_ms must not be negative"
    return _too_much(replica, new)


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
