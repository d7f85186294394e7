"""Replace a job: end an earlier job and submit another one that continues after its last batch, or change nothing.

Submitted by any peer for a client, once the peer has found that the new job fits the earlier one. The earlier job must
be waiting or running. It ends as `kill_job` ends it, so its driver commits no batch after this entry. The new job
begins after the last batch that was committed before, at the same peer if that peer has all that the new job needs. So
a waiting job does not take its slots, and the peer's disk has the earlier job's state. The rest is as for `submit_job`,
whose limits count without the earlier job. If any part is refused, the earlier job continues.

The new job under the same id again is a repeat, whatever has happened to the earlier job since. It is refused if it was
submitted without replacing a job that still runs. A job can be replaced once: for a second request it has ended.

If ``resume`` is empty, the driver of the new job takes over the earlier job's state. It finds the batch in the outcome
of the earlier job, which is therefore kept for at least a day.
"""

from __future__ import annotations

from attrs import evolve, frozen

from log_entries import submit_job
from onyxq.core.entry import APPLIED, Stamp, Verdict
from onyxq.core.jobs.allocation import allocated
from onyxq.core.jobs.lifetime import KILLED, RUNNING, absence, digest_of, ended, is_over, outcome_of, with_job
from onyxq.core.replica import Replica

VERSION = 1

BESIDE = "resume names a job that still runs: this job was submitted before, without replacing it"
CHANGED = "resume names a job that this job was not compared with: the log has changed meanwhile"
NO_STATE = "resume names a job that has committed no batch: there is nothing to take over"
KEEP_MS_MIN = 86_400_000
"""How long the outcome of a job is kept at least after another job has taken over its state, in ms."""


@frozen
class Args(submit_job.Args):
    """See `log_entries.submit_job`; ``replaces``: the earlier job; ``submitted``: its ``Job.submitted``.

    ``submitted`` identifies the job that the peer has compared the new job with; -1 if the peer has compared none.
    ``resume`` is the earlier job, or empty if the driver takes over its state and the places with it.
    """

    replaces: str = ""
    submitted: int = -1


def apply(replica: Replica, args: Args, stamp: Stamp) -> tuple[Replica, Verdict]:
    """End the earlier job and add the new one, unless one of them does not allow it."""
    known = digest_of(replica, args.id)
    if known is not None:
        repeat = BESIDE if _is_beside(replica, args) else submit_job.REPEAT
        return replica, repeat if known == args.digest else submit_job.CONFLICT
    problem = _refusal(replica, args)
    if problem:
        return replica, problem
    after = _without_earlier(replica, args)
    problem = submit_job.refusal(after, args)
    if problem:
        return replica, problem
    new, driver = submit_job.job_of(after, args, stamp), replica.jobs[args.replaces].driver
    if driver:
        new = evolve(new, state=RUNNING, driver=driver)
    after = allocated(with_job(after, new), stamp.position)
    new = after.jobs[args.id]
    if new.driver and new.version < 0:  # It keeps the inherited driver, to which `allocated` gives no version.
        after = with_job(after, evolve(new, version=stamp.position))
    return after, APPLIED


def _refusal(replica: Replica, args: Args) -> str:
    """Return why the earlier job cannot be replaced by a job whose id is free, or an empty string."""
    if args.resume not in ("", args.replaces):
        return "resume must be the job that is replaced"
    gone = absence(replica, args.replaces)
    if gone:
        return gone
    earlier = replica.jobs[args.replaces]
    if earlier.submitted != args.submitted:
        return CHANGED
    return NO_STATE if not args.resume and (earlier.batch < 0 or not earlier.offsets) else ""


def _without_earlier(replica: Replica, args: Args) -> Replica:
    """Return the replica after the end of the earlier job, before its slots are allocated."""
    after = ended(replica, args.replaces, KILLED, f"replaced by job {args.id}")
    if args.resume:
        return after
    earlier = after.jobs[args.replaces]
    return with_job(after, evolve(earlier, keep_ms=max(earlier.keep_ms, KEEP_MS_MIN)))


def _is_beside(replica: Replica, args: Args) -> bool:
    """Return whether the earlier job runs although the new job, which is known, was submitted after it.

    A job that got the earlier job's id after that is another one.
    """
    earlier, new = replica.jobs.get(args.replaces), replica.jobs.get(args.id)
    if earlier is None or is_over(earlier):
        return False
    if new is not None:
        return earlier.submitted < new.submitted
    return bool(earlier.submitted_ms <= outcome_of(replica, args.id)["submitted_ms"])
