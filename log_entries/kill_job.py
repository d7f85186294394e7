"""Ends a job because somebody wants it to end.

Submitted by any peer for a client.  The job is killed, whatever it was doing: its driver stops,
what that has not committed by this record never counts, and its slots go to others.
"""

from __future__ import annotations

from attrs import frozen

from onyxq.core.entry import APPLIED, Stamp, Verdict
from onyxq.core.jobs.allocation import allocated
from onyxq.core.jobs.lifetime import KILLED, absence, ended
from onyxq.core.replica import Replica

VERSION = 1


@frozen
class Args:
    """The job."""

    job: str


def apply(replica: Replica, args: Args, stamp: Stamp) -> tuple[Replica, Verdict]:
    """Kill it, unless it has ended."""
    gone = absence(replica, args.job)
    if gone:
        return replica, gone
    return allocated(ended(replica, args.job, KILLED), stamp.position), APPLIED
