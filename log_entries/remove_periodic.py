"""Remove a periodic task.

Submitted by any peer for a client. Deletes its record in ``periodic``. Runs that were enqueued
remain.
"""

from __future__ import annotations

from attrs import evolve, frozen

from onyxq.core.entry import APPLIED, Stamp, Verdict
from onyxq.core.replica import Replica

VERSION = 1


@frozen
class Args:
    """The task's name."""

    name: str


def apply(replica: Replica, args: Args, stamp: Stamp) -> tuple[Replica, Verdict]:
    """Remove the task."""
    if args.name not in replica.periodic:
        return replica, "no such periodic task"
    return evolve(replica, periodic=replica.periodic.discard(args.name)), APPLIED
