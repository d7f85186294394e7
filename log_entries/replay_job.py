"""Submit a job whose inputs begin where those of another job were before one of its batches.

Submitted by any peer for a client, which names the other job and the batch. The peer finds ``begin`` in the log: what
`commit_batch` recorded with the batch before. A replica has such a record for the last batch of a job only. The
rest is as for `submit_job`. The record becomes the job's offsets, and the job has no batch yet. So its driver
starts there, and a new driver does too until the first batch is committed.
"""

from __future__ import annotations

from attrs import evolve, frozen

from log_entries import submit_job
from onyxq.core.entry import APPLIED, Stamp, Verdict
from onyxq.core.jobs.lifetime import with_job
from onyxq.core.limits import OFFSETS_BYTES_MAX
from onyxq.core.replica import Replica

VERSION = 1


@frozen
class Args(submit_job.Args):
    """See `log_entries.submit_job`; ``begin``: the record of a batch of another job; the digest covers it too."""

    begin: bytes = b""


def apply(replica: Replica, args: Args, stamp: Stamp) -> tuple[Replica, Verdict]:
    """Add the job, unless its id is taken."""
    if not 1 <= len(args.begin) <= OFFSETS_BYTES_MAX:
        return replica, f"begin must have 1 to {OFFSETS_BYTES_MAX} bytes"
    if args.resume:
        return replica, "begin is for a job that does not resume another"
    after, verdict = submit_job.apply(replica, args, stamp)
    if verdict != APPLIED:
        return replica, verdict
    return with_job(after, evolve(after.jobs[args.id], offsets=args.begin)), APPLIED
