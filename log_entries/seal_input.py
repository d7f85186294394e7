"""Seal an input of a job: no more tasks will arrive on it.

Submitted by any peer for a client. Adds the input to ``sealed``, for good. The job's driver
completes the job once it has read everything on all inputs.
"""

from __future__ import annotations

from attrs import evolve, frozen

from onyxq.core.entry import APPLIED, Stamp, Verdict
from onyxq.core.jobs.lifetime import absence, with_job
from onyxq.core.replica import Replica

VERSION = 1
NO_INPUT = "no such input"


@frozen
class Args:
    """``input``: one of the job's ``inputs``."""

    job: str
    input: str


def apply(replica: Replica, args: Args, stamp: Stamp) -> tuple[Replica, Verdict]:
    """Seal the input."""
    gone = absence(replica, args.job)
    if gone:
        return replica, gone
    found = replica.jobs[args.job]
    if args.input not in found.inputs:
        return replica, NO_INPUT
    if args.input in found.sealed:
        return replica, "already sealed"
    return with_job(replica, evolve(found, sealed=tuple(sorted({*found.sealed, args.input})))), APPLIED
