"""Record that the due runs of a periodic task are enqueued, and set the time of the next run.

Submitted by the ring's first peer after it has enqueued the runs. Their ids follow from name, time
and count alone, so a repeat enqueues the same tasks. Applies only if ``fired_ms`` is the time at
which the next run was due. So each time is passed exactly once, even if several peers fire.
"""

from __future__ import annotations

from attrs import evolve, frozen

from onyxq.core.entry import APPLIED, Stamp, Verdict
from onyxq.core.replica import RUNS_MAX, Replica

VERSION = 1


@frozen
class Args:
    """``fired_ms``: when the next run was due; ``next_ms``: when it is due now; ``count``: number of enqueued runs."""

    name: str
    fired_ms: int
    next_ms: int
    count: int


def apply(replica: Replica, args: Args, stamp: Stamp) -> tuple[Replica, Verdict]:
    """Move the task to its next time."""
    found = replica.periodic.get(args.name)
    if found is None:
        return replica, "no such periodic task"
    if found.next_ms != args.fired_ms:
        return replica, "already fired"
    if args.next_ms <= args.fired_ms or not 0 <= args.count <= RUNS_MAX:
        return replica, "bad number"
    new = evolve(found, next_ms=args.next_ms, fired=found.fired + args.count)
    return evolve(replica, periodic=replica.periodic.set(args.name, new)), APPLIED
