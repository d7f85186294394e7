"""A job has done all that there was to do.

Submitted by the peer that drives it under this version, once all inputs are read to their end
and all that was made of them is committed.  Its slots go to others.  A driver that was replaced
cannot complete the job: the verdict is ``superseded``.
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
    """``version``: the one that the driver was given."""

    job: str
    version: int


def apply(replica: Replica, args: Args, stamp: Stamp) -> tuple[Replica, Verdict]:
    """Complete the job."""
    refused = refusal(replica, args.job, args.version)
    if refused:
        return replica, refused
    return allocated(ended(replica, args.job, COMPLETED), stamp.position), APPLIED
