"""Pause a periodic task, or resume it.

Submitted by any peer for a client. Times that pass during a pause do not count as missed runs. A
resumed task continues at ``next_ms``, the next future time of its schedule.
"""

from __future__ import annotations

from attrs import evolve, frozen

from onyxq.core.entry import APPLIED, Stamp, Verdict
from onyxq.core.replica import Replica

VERSION = 1


@frozen
class Args:
    """``next_ms``: the first run after a pause, by the wall clock."""

    name: str
    paused: bool
    next_ms: int


def apply(replica: Replica, args: Args, stamp: Stamp) -> tuple[Replica, Verdict]:
    """Pause or resume the task."""
    found = replica.periodic.get(args.name)
    if found is None:
        return replica, "no such periodic task"
    if found.paused == args.paused:
        return replica, "already so"
    if args.next_ms < 0:
        return replica, "next_ms must not be negative"
    new = evolve(found, paused=args.paused, next_ms=found.next_ms if args.paused else args.next_ms)
    return evolve(replica, periodic=replica.periodic.set(args.name, new)), APPLIED
