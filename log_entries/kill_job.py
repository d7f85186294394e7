"""End a job on request.

Submitted by any peer for a client. Kills the job in any state, unless it has ended. Its driver
stops. Results that are not committed by this record never count. The job's slots go to other jobs.
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
    """Kill the job, unless it has ended."""
    gone = absence(replica, args.job)
    if gone:
        return replica, gone
    return allocated(ended(replica, args.job, KILLED), stamp.position), APPLIED
