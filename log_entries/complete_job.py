"""Mark a job as completed.

Submitted by the peer that drives the job under this version, once all inputs are read to their end
and all results are committed. The job's slots go to other jobs. A replaced driver cannot complete
the job: the verdict is ``superseded``.
"""

from __future__ import annotations

from attrs import frozen

from onyxq.core.entry import APPLIED, Stamp, Verdict
from onyxq.core.jobs.allocation import allocated
from onyxq.core.jobs.lifetime import COMPLETED, ended, refusal
from onyxq.core.replica import Replica

VERSION = 1


@frozen
class Args:
    """``version``: of the driver's allocation."""

    job: str
    version: int


def apply(replica: Replica, args: Args, stamp: Stamp) -> tuple[Replica, Verdict]:
    """Complete the job."""
    refused = refusal(replica, args.job, args.version)
    if refused:
        return replica, refused
    return allocated(ended(replica, args.job, COMPLETED), stamp.position), APPLIED
