"""The runs of a periodic task that were due are enqueued: the next one is due later.

Submitted by the ring's first peer behind the enqueueing, which is done under ids that follow
from name, time and count alone: whoever does it again enqueues the same tasks.  Applies only if
``fired_ms`` is when the next run was due, so every time is passed exactly once, whoever fires.
"""

from __future__ import annotations

from attrs import evolve, frozen

from onyxq.core.entry import APPLIED, Stamp, Verdict
from onyxq.core.replica import RUNS_MAX, Replica

VERSION = 1


@frozen
class Args:
    """``fired_ms``: when the next run was due; ``next_ms``: when it is now; ``count``: how many runs were made."""

    name: str
    fired_ms: int
    next_ms: int
    count: int


def apply(replica: Replica, args: Args, stamp: Stamp) -> tuple[Replica, Verdict]:
    """Go on to the next time."""
    found = replica.periodic.get(args.name)
    if found is None:
        return replica, "no such periodic task"
    if found.next_ms != args.fired_ms:
        return replica, "already fired"
    if args.next_ms <= args.fired_ms or not 0 <= args.count <= RUNS_MAX:
        return replica, "bad number"
    new = evolve(found, next_ms=args.next_ms, fired=found.fired + args.count)
    return evolve(replica, periodic=replica.periodic.set(args.name, new)), APPLIED
