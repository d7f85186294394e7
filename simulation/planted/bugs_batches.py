"""Planted bugs of jobs' batches: their version, their number, and their atomicity."""

from __future__ import annotations

from collections.abc import Callable

from attrs import evolve

from log_entries import commit_transaction
from log_entries.commit_batch import CONFLICT, OUT_OF_ORDER, REPEAT, Args
from onyxq.core.entry import APPLIED, Stamp, Verdict
from onyxq.core.errors import Conflict
from onyxq.core.jobs.batch_names import share_of
from onyxq.core.jobs.lifetime import with_job
from onyxq.core.replica import Replica
from onyxq.operations.checks.batches import Asked
from onyxq.operations.job_batches import JobBatches
from simulation.planted.planted import Planted
from simulation.planted.seams import instead, returning

_Problem = Callable[[Replica, Args], str]
_Commit = Callable[[Replica, Args, Stamp], tuple[Replica, Verdict]]
_Known = Callable[[JobBatches, Asked], int | None]
_IsVoid = Callable[[Replica, str], bool]


def _any_version(replica: Replica, name: str, version: int) -> str:
    return "" if name in replica.jobs else "no such job"


def _any_number(original: _Problem) -> _Problem:
    def problem(replica: Replica, args: Args) -> str:
        found = original(replica, args)
        return "" if found in (REPEAT, CONFLICT, OUT_OF_ORDER) else found

    return problem


def _as_far_as_possible(original: _Commit) -> _Commit:
    def committed(replica: Replica, args: Args, stamp: Stamp) -> tuple[Replica, Verdict]:
        after, verdict = original(replica, args, stamp)
        for one in args.transactions if verdict != APPLIED else ():
            after, said = commit_transaction.apply(after, commit_transaction.Args(*one), stamp)
            if said != APPLIED:
                break
        return after, verdict

    return committed


def _conflict_is_repeat(original: _Problem) -> _Problem:
    return lambda replica, args: REPEAT if (found := original(replica, args)) == CONFLICT else found


def _conflict_is_known(original: _Known) -> _Known:
    def known(batches: JobBatches, asked: Asked) -> int | None:
        try:
            return original(batches, asked)
        except Conflict:
            return batches._node.replica.position

    return known


def _next_batch_too(original: _IsVoid) -> _IsVoid:
    def is_void(replica: Replica, name: str) -> bool:
        share = share_of(name)
        job = replica.jobs.get(share.job) if share is not None else None
        ahead = replica if job is None else with_job(replica, evolve(job, batch=job.batch + 1))
        return original(ahead, name)

    return is_void


BATCH_BUGS: tuple[Planted, ...] = (
    Planted(
        "the version of a batch is not checked",
        "log_entries.commit_batch:refusal",
        instead(_any_version),
        "a replaced driver commits a batch that its successor does not know",
        "late_batches",
        quick=25,
    ),
    Planted(
        "the number of a batch is not checked",
        "log_entries.commit_batch:_problem",
        _any_number,
        "two attempts at one batch are both committed",
        "late_batches",
        quick=25,
    ),
    Planted(
        "a batch is committed in part",
        "log_entries.commit_batch:_all_committed",
        _as_far_as_possible,
        "the results of a batch are visible, and its input is processed again",
        "late_batches",
    ),
    Planted(
        "the input tasks of a batch are not completed",
        "onyxq.operations.job_batches:JobBatches._entry",
        lambda original: lambda batches, asked, done: original(batches, asked, ()),
        "they are processed again once their lease expires",
        "replaced_drivers",
        quick=3,
    ),
    Planted(
        "a different attempt at a batch counts as a repeat",
        "log_entries.commit_batch:_problem",
        _conflict_is_repeat,
        "its driver continues after a batch that was never committed",
        "late_batches",
        more=(("onyxq.operations.job_batches:JobBatches._known", _conflict_is_known),),
        quick=25,
    ),
    Planted(
        "pending rows of replaced drivers are kept",
        "onyxq.leader.cohort.pending_facts:is_void",
        returning(False),
        "the batch of each dead driver stays in the stores for an hour",
        "replaced_drivers",
        quick=2,
    ),
    Planted(
        "pending rows of the next batch are deleted",
        "onyxq.core.jobs.batch_names:is_void",
        _next_batch_too,
        "the batch is committed and its tasks are missing",
        "replaced_drivers",
    ),
)
"""The planted bugs of batches."""
