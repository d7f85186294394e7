"""Mark a job as failed.

Submitted by the peer that drives the job under this version, if restarts have not helped, or if the
job's own policy demands it. ``error`` is stored as the job's outcome: the task at fault, the
segment and the traceback, as text. The job's slots go to other jobs. A replaced driver cannot fail
the job: the verdict is ``superseded``.
"""

from __future__ import annotations

from attrs import frozen

from onyxq.core.entry import APPLIED, Stamp, Verdict
from onyxq.core.jobs.allocation import allocated
from onyxq.core.jobs.lifetime import ERROR_BYTES_MAX, FAILED, ended, refusal
from onyxq.core.replica import Replica

VERSION = 1


@frozen
class Args:
    """``version``: of the driver's allocation; ``error``: at most 8 KiB of UTF-8."""

    job: str
    version: int
    error: str


def apply(replica: Replica, args: Args, stamp: Stamp) -> tuple[Replica, Verdict]:
    """End the job with the error."""
    if len(args.error.encode(errors="replace")) > ERROR_BYTES_MAX:
        return replica, f"error must have at most {ERROR_BYTES_MAX} bytes"
    refused = refusal(replica, args.job, args.version)
    if refused:
        return replica, refused
    return allocated(ended(replica, args.job, FAILED, args.error), stamp.position), APPLIED
