"""Mark a job as running.

Submitted by the peer that drives the job under this version, once its query reads. Sets ``ready``,
which a change of driver resets.
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
    """Mark the job as ready."""
    refused = refusal(replica, args.job, args.version)
    if refused:
        return replica, refused
    found = replica.jobs[args.job]
    if found.ready:
        return replica, "already ready"
    return with_job(replica, evolve(found, ready=True)), APPLIED
