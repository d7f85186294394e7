"""Commit a batch of a job: all its completions, new tasks and offsets, or nothing.

Submitted by the peer that the batch's driver asks. By then a majority of each partition has stored
the pending facts of all its transactions. Applies only

* under the job's present version, so a replaced driver commits nothing,
* once per batch, in the order of batch numbers,
* if each of its transactions could be committed alone, after those before it.

The job stores the number and the offsets. The first batch of a job may have any number. The same
batch again changes nothing (``repeat``). The same number with other offsets is another attempt of
the batch, which is too late (``conflict``).

Without a job, the transactions are a group that is not fenced. The name of its first transaction
identifies the group, and a repeat of that name changes nothing.
"""

from __future__ import annotations

from attrs import evolve, frozen

from log_entries import commit_transaction
from onyxq.core.entry import APPLIED, Stamp, Verdict
from onyxq.core.jobs.lifetime import refusal
from onyxq.core.limits import OFFSETS_BYTES_MAX
from onyxq.core.replica import Replica
from onyxq.core.transactions import Prepared

VERSION = 1

REPEAT = commit_transaction.REPEAT
CONFLICT = "conflict"
OUT_OF_ORDER = "out of order"
NAME_TAKEN = "name taken"
"""A transaction of the batch was committed before."""


@frozen
class Args:
    """``version``: of the driver's allocation; ``offsets``: how far the batch has read, as its driver packs it.

    ``job`` may be empty. Then only ``transactions`` has a meaning.
    """

    job: str
    version: int
    batch: int
    offsets: bytes
    transactions: tuple[Prepared, ...]


def apply(replica: Replica, args: Args, stamp: Stamp) -> tuple[Replica, Verdict]:
    """Commit the transactions one after the other, if all can be committed."""
    problem = _problem(replica, args)
    if problem:
        return replica, problem
    after, verdict = _all_committed(replica, args, stamp)
    if verdict != APPLIED or not args.job:
        return after, verdict
    job = evolve(after.jobs[args.job], batch=args.batch, offsets=args.offsets)
    return evolve(after, jobs=after.jobs.set(args.job, job)), APPLIED


def _all_committed(replica: Replica, args: Args, stamp: Stamp) -> tuple[Replica, Verdict]:
    """Return the replica after all transactions; if one cannot be committed, the replica unchanged and why."""
    after = replica
    for place, one in enumerate(args.transactions):
        after, verdict = commit_transaction.apply(after, commit_transaction.Args(*one), stamp)
        if verdict == REPEAT and (args.job or place):
            return replica, NAME_TAKEN
        if verdict != APPLIED:
            return replica, verdict
    return after, APPLIED


def _problem(replica: Replica, args: Args) -> str:
    """Return why the batch cannot be committed, apart from its claims; empty if it can."""
    if not args.job:
        return "" if args.transactions else "nothing to commit"
    refused = refusal(replica, args.job, args.version)
    if refused:
        return refused
    if args.batch < 0 or len(args.offsets) > OFFSETS_BYTES_MAX:
        return "bad batch"
    job = replica.jobs[args.job]
    if args.batch <= job.batch:
        other = args.batch == job.batch and args.offsets != job.offsets
        return CONFLICT if other else REPEAT
    return OUT_OF_ORDER if job.batch >= 0 and args.batch != job.batch + 1 else ""


def committed_by(args: object) -> tuple[Prepared | commit_transaction.Args, ...]:
    """Return the transactions that an entry with these arguments commits if it applies."""
    if isinstance(args, commit_transaction.Args):
        return (args,)
    return args.transactions if isinstance(args, Args) else ()
