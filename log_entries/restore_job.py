"""Submit a job that begins from a savepoint.

Submitted by any peer for a client, once the peer has found that the job's definition fits the savepoint. The rest is
as for `submit_job`. The savepoint's offsets become the job's, and the job has no batch yet. Its driver begins at these
places, and reads the state of windows and joins from the savepoint's files. So the savepoint cannot be dropped before
the job has committed its first batch, or has ended.
"""

from __future__ import annotations

from attrs import evolve, frozen

from log_entries import submit_job
from log_entries.begin_savepoint import savepoint_of, with_savepoint
from log_entries.drop_savepoint import waiting_from
from onyxq.core.entry import APPLIED, Stamp, Verdict
from onyxq.core.jobs.lifetime import digest_of, with_job
from onyxq.core.replica import Replica

VERSION = 1

GONE = "resume names a savepoint that does not exist any more"
BEGINS_MAX = 100
"""Maximum of jobs that have still to begin from one savepoint."""


@frozen
class Args(submit_job.Args):
    """See `log_entries.submit_job`; ``position``: of the entry that began the savepoint."""

    savepoint: str = ""
    position: int = -1


def apply(replica: Replica, args: Args, stamp: Stamp) -> tuple[Replica, Verdict]:
    """Add the job, unless its id is taken or the savepoint is another by now."""
    if args.resume:
        return replica, "savepoint is for a job that does not resume another"
    known, new = savepoint_of(replica, args.savepoint), digest_of(replica, args.id) is None
    if known is None or known.position != args.position or not known.complete:
        return (replica, GONE) if new else submit_job.apply(replica, args, stamp)
    begins = waiting_from(replica, known)
    if new and len(begins) >= BEGINS_MAX:
        return replica, f"resume names a savepoint from which {len(begins)} jobs have still to begin"
    after, verdict = submit_job.apply(replica, args, stamp)
    if verdict != APPLIED:
        return replica, verdict
    after = with_savepoint(after, args.savepoint, known._replace(begins=(*begins, args.id)))
    return with_job(after, evolve(after.jobs[args.id], offsets=known.offsets)), APPLIED
