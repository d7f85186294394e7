"""Give a job a new version at the peer that drives it.

Submitted by that peer before another process serves as the job's Spark host, if the process before may still
run: a program that a user has started ends on its own, or not. Sets ``version``, above all earlier ones, and
resets ``ready``. What the process before still writes is refused as that of a replaced driver.
"""

from __future__ import annotations

from attrs import evolve, frozen

from onyxq.core.entry import APPLIED, Stamp, Verdict
from onyxq.core.jobs.lifetime import refusal, with_job
from onyxq.core.replica import Replica

VERSION = 1


@frozen
class Args:
    """``version``: of the driver's allocation."""

    job: str
    version: int


def apply(replica: Replica, args: Args, stamp: Stamp) -> tuple[Replica, Verdict]:
    """Raise the version of the job."""
    refused = refusal(replica, args.job, args.version)
    if refused:
        return replica, refused
    version = max(stamp.position, args.version + 1)
    return with_job(replica, evolve(replica.jobs[args.job], version=version, ready=False)), APPLIED
