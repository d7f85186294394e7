"""Record how far a job has come: rows of its inputs, late rows, the times of its batches.

Submitted by the peer that drives the job under this version: after its first batch, from time to time
while it runs, and at its end. ``progress`` is for people and for the job's next driver, and decides nothing.
It stays with the job's outcome. A replaced driver cannot report: the verdict is ``superseded``.
"""

from __future__ import annotations

from attrs import evolve, frozen

from onyxq.core.entry import APPLIED, Stamp, Verdict
from onyxq.core.jobs.lifetime import PROGRESS_BYTES_MAX, SUPERSEDED, absence, with_job
from onyxq.core.replica import Replica

VERSION = 1


@frozen
class Args:
    """``version``: of the driver's allocation; ``progress``: at most 8 KiB, as its driver packs it."""

    job: str
    version: int
    progress: bytes


def apply(replica: Replica, args: Args, stamp: Stamp) -> tuple[Replica, Verdict]:
    """Store the progress, also of a job that has just ended."""
    if len(args.progress) > PROGRESS_BYTES_MAX:
        return replica, f"progress must have at most {PROGRESS_BYTES_MAX} bytes"
    found = replica.jobs.get(args.job)
    if found is None:
        return replica, absence(replica, args.job)
    if found.version != args.version:
        return replica, SUPERSEDED
    return with_job(replica, evolve(found, progress=args.progress)), APPLIED
