"""Create a periodic task, or change it.

Submitted by any peer for a client. The peer has read the schedule and sets the time of the next
run. Sets the record in ``periodic``. While schedule and zone stay the same, the next run does not
move. So an application that creates its periodic tasks at every start loses no run. The count of
runs continues, so their ids never repeat.

``options`` are the options of each run: ``retries`` (-1: no limit), ``backoff_ms`` and
``expires_after_ms``, which counts from the time at which the run is due. The settings of the queue
decide what is not in ``options``. Version 1 has no options.
"""

from __future__ import annotations

from attrs import evolve, field, fields, frozen
from pyrsistent import PMap, pmap

from log_entries import set_periodic_1
from onyxq.core.entry import APPLIED, Stamp, Verdict
from onyxq.core.limits import BACKOFF_MS_MAX, RETRIES_MAX, TIME_MS_MAX
from onyxq.core.queue_settings import NO_LIMIT
from onyxq.core.replica import Replica

VERSION = 2
EARLIER = (set_periodic_1,)

BOUNDS = {
    "backoff_ms": (0, BACKOFF_MS_MAX),
    "expires_after_ms": (1, TIME_MS_MAX),
    "retries": (NO_LIMIT, RETRIES_MAX),
}
"""Smallest and largest value of each option."""
ALREADY_SO = "already so"


@frozen
class Args(set_periodic_1.Args):
    """See `log_entries.set_periodic_1`; ``options``: option of each run -> number."""

    options: PMap[str, int] = field(factory=pmap)


def lowered(args: Args) -> set_periodic_1.Args | None:
    """Return the arguments of version 1; None with options, which version 1 does not have."""
    if args.options:
        return None
    return set_periodic_1.Args(*(getattr(args, one.name) for one in fields(set_periodic_1.Args)))


def apply(replica: Replica, args: Args, stamp: Stamp) -> tuple[Replica, Verdict]:
    """Create or change the task, if all its options are possible."""
    problem = problem_of(args.options)
    if problem:
        return replica, problem
    after, verdict = set_periodic_1.apply(replica, args, stamp)
    if verdict not in (APPLIED, ALREADY_SO):
        return replica, verdict
    new = evolve(after.periodic[args.name], options=args.options)
    if new == replica.periodic.get(args.name):
        return replica, ALREADY_SO
    return evolve(after, periodic=after.periodic.set(args.name, new)), APPLIED


def problem_of(options: PMap[str, int]) -> str:
    """Return the first option that is not possible, as ``<field> <what is wrong>``; empty if all are possible."""
    for name in sorted(options):
        if name not in BOUNDS:
            return f"options must be among {', '.join(sorted(BOUNDS))}"
        low, high = BOUNDS[name]
        if not low <= options[name] <= high:
            return f"{name} must be {low} to {high}"
    return ""
