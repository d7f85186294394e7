"""Ends a periodic task.

Submitted by any peer for a client.  Its record in ``periodic`` goes; runs that were enqueued stay.
"""

from __future__ import annotations

from attrs import evolve, frozen

from onyxq.core.entry import APPLIED, Stamp, Verdict
from onyxq.core.replica import Replica

VERSION = 1


@frozen
class Args:
    """Which one."""

    name: str


def apply(replica: Replica, args: Args, stamp: Stamp) -> tuple[Replica, Verdict]:
    """Forget it."""
    if args.name not in replica.periodic:
        return replica, "no such periodic task"
    return evolve(replica, periodic=replica.periodic.discard(args.name)), APPLIED
