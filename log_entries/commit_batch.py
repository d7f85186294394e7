"""Commits a batch of a job: all that it completes and enqueues, and how far it has read, or nothing.

Submitted by the peer that the batch's driver asks, once the pending facts of every transaction
of the batch are kept by a majority of their partitions.  Applies only under the job's present
version, so a driver that was replaced commits nothing; only once per batch, in the order of
their numbers; and only if each of its transactions could be committed by itself, behind those
before it.  The job remembers the number and the offsets.  The first batch of a job may have any
number.  The same batch again changes nothing (``repeat``); with other offsets it is another
attempt at it, which came too late (``conflict``).

Without a job the transactions are a group that nothing fences: its first one names it, and a
repeat of that name changes nothing.
"""

from __future__ import annotations

from attrs import evolve, frozen

from log_entries import commit_transaction
from onyxq.core.entry import APPLIED, Stamp, Verdict
from onyxq.core.jobs.lifetime import refusal
from onyxq.core.replica import Replica
from onyxq.core.transactions import Prepared

VERSION = 1

REPEAT = commit_transaction.REPEAT
CONFLICT = "conflict"
OUT_OF_ORDER = "out of order"
NAME_TAKEN = "name taken"
"""A transaction of it was committed before."""
OFFSETS_BYTES_MAX = 64 * 1024


@frozen
class Args:
    """``version``: the one that the driver was given; ``offsets``: how far the batch has read, as its driver
    packs it; ``job`` may be empty, and then the others but ``transactions`` say nothing."""

    job: str
    version: int
    batch: int
    offsets: bytes
    transactions: tuple[Prepared, ...]


def apply(replica: Replica, args: Args, stamp: Stamp) -> tuple[Replica, Verdict]:
    """Commit the transactions one behind the other, if all can be."""
    problem = _problem(replica, args)
    if problem:
        return replica, problem
    after = replica
    for place, one in enumerate(args.transactions):
        after, verdict = commit_transaction.apply(after, commit_transaction.Args(*one), stamp)
        if verdict == REPEAT and (args.job or place):
            return replica, NAME_TAKEN
        if verdict != APPLIED:
            return replica, verdict
    if not args.job:
        return after, APPLIED
    job = evolve(after.jobs[args.job], batch=args.batch, offsets=args.offsets)
    return evolve(after, jobs=after.jobs.set(args.job, job)), APPLIED


def _problem(replica: Replica, args: Args) -> str:
    """Why it cannot be committed, whatever stands; empty if it may be."""
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
    """The transactions that an entry with these arguments commits where it applies."""
    if isinstance(args, commit_transaction.Args):
        return (args,)
    return args.transactions if isinstance(args, Args) else ()
