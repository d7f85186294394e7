"""Submit a job, once: the same job again is a repeat, another job under its id is a conflict.

Submitted by any peer for a client, which has checked and packed the job. The arguments repeat the
parts of the packed form that peers must know. The job starts as waiting. It gets a driver in the
same entry if a peer has the slots that it needs. An id is taken as long as its job or its outcome
is known. ``resume`` names a job, ended or not: the new job continues from its last committed
offsets.
"""

from __future__ import annotations

from attrs import frozen

from onyxq.core.entry import APPLIED, Stamp, Verdict
from onyxq.core.jobs.allocation import allocated
from onyxq.core.jobs.lifetime import active, digest_of, is_id, outcome_of, with_job
from onyxq.core.jobs.slots import SCHEDULERS, SLOTS_MAX
from onyxq.core.limits import JOB_KEEP_MS_MAX
from onyxq.core.queues import is_name
from onyxq.core.replica import Job, Replica, TaskLimits

VERSION = 1

REPEAT = "repeat"
CONFLICT = "conflict"
BODY_BYTES_MAX = 192 << 10
DIGEST_BYTES = 16
JOBS_MAX = 4_096
"""Maximum of jobs in a cluster that have not ended, because the replica holds them."""
BODIES_BYTES_MAX = 64 << 20
"""Maximum of all packed jobs together, in bytes."""
NAMES_MAX = 64
"""Maximum of tags, and of zones, of a job."""
TASKS_MAX = 1_024
"""Maximum of tasks, and of inputs, of a job."""


@frozen
class Args:
    """See `onyxq.core.replica.Job`; ``resume``: a job whose committed offsets it starts from, or empty."""

    id: str
    body: bytes
    digest: bytes
    scheduler: str
    percentage: int
    min_slots: int
    max_slots: int
    tags: tuple[str, ...]
    zones: tuple[str, ...]
    beside: str
    inputs: tuple[str, ...]
    tasks: tuple[TaskLimits, ...]
    own_host: bool
    keep_ms: int
    resume: str = ""


def apply(replica: Replica, args: Args, stamp: Stamp) -> tuple[Replica, Verdict]:
    """Add the job, unless its id is taken."""
    known = digest_of(replica, args.id)
    if known is not None:
        return replica, REPEAT if known == args.digest else CONFLICT
    problem = refusal(replica, args)
    if problem:
        return replica, problem
    return allocated(with_job(replica, job_of(replica, args, stamp)), stamp.position), APPLIED


def job_of(replica: Replica, args: Args, stamp: Stamp) -> Job:
    """Return the job of arguments that are not refused, before it is allocated a driver."""
    batch, offsets = _resumed(replica, args.resume)
    return Job(
        id=args.id,
        body=args.body,
        digest=args.digest,
        submitted=max([stamp.position, *(job.submitted + 1 for job in active(replica))]),
        submitted_ms=replica.clock_ms,
        scheduler=args.scheduler,
        percentage=args.percentage,
        min_slots=args.min_slots,
        max_slots=args.max_slots,
        tags=tuple(sorted(set(args.tags))),
        zones=tuple(sorted(set(args.zones))),
        beside=args.beside,
        inputs=args.inputs,
        tasks=args.tasks,
        own_host=args.own_host,
        keep_ms=args.keep_ms,
        batch=batch,
        offsets=offsets,
    )


def refusal(replica: Replica, args: Args) -> str:
    """Return why a job whose id is free is refused, as ``<field> <what is wrong>``; empty if it is not."""
    return problem_of(args) or _misfit(replica, args)


def problem_of(args: Args) -> str:
    """Return what is wrong with the arguments alone, as ``<field> <what is wrong>``; empty if nothing is."""
    if not is_id(args.id):
        return "id must have 1 to 120 letters, digits, '.', '_' or '-', and begin with a letter or digit"
    if not 1 <= len(args.body) <= BODY_BYTES_MAX:
        return f"body must have 1 to {BODY_BYTES_MAX} bytes"
    if len(args.digest) != DIGEST_BYTES:
        return f"digest must have {DIGEST_BYTES} bytes"
    if not 0 <= args.keep_ms <= JOB_KEEP_MS_MAX:
        return f"keep_ms must be 0 to {JOB_KEEP_MS_MAX}"
    return _bad_slots(args) or _bad_names(args) or _bad_tasks(args)


def _bad_slots(args: Args) -> str:
    if args.scheduler not in SCHEDULERS:
        return f"scheduler must be one of: {', '.join(SCHEDULERS)}"
    if not (1 <= args.percentage <= 100 if args.scheduler == "percentage" else args.percentage == 0):
        return "percentage must be 1 to 100 with the scheduler of that name, and 0 without"
    if not 1 <= args.min_slots <= SLOTS_MAX:
        return f"min_slots must be 1 to {SLOTS_MAX}"
    if args.max_slots and not args.min_slots <= args.max_slots <= SLOTS_MAX:
        return f"max_slots must be 0 or {args.min_slots} to {SLOTS_MAX}"
    return ""


def _bad_names(args: Args) -> str:
    for field, names in (("tags", args.tags), ("zones", args.zones)):
        if len(names) > NAMES_MAX or not all(map(is_name, names)):
            return f"{field} must be at most {NAMES_MAX} names of 1 to 200 plain characters"
    if len(args.inputs) > TASKS_MAX or len(set(args.inputs)) < len(args.inputs) or not all(map(is_name, args.inputs)):
        return f"inputs must be at most {TASKS_MAX} different names of 1 to 200 plain characters"
    return ""


def _bad_tasks(args: Args) -> str:
    names = [name for name, *_ in args.tasks]
    if len(names) > TASKS_MAX or len(set(names)) < len(names) or not all(map(is_name, names)):
        return f"tasks must be at most {TASKS_MAX} with different names of 1 to 200 plain characters"
    for name, least, most, percentage in args.tasks:
        if not 0 <= least <= (args.max_slots or SLOTS_MAX):
            return f"tasks: {name} needs {least} slots, of {args.max_slots or SLOTS_MAX} at most"
        if most and not least <= most <= SLOTS_MAX:
            return f"tasks: {name} has a maximum of {most}, below its minimum or above {SLOTS_MAX}"
        if not 0 <= percentage <= 100:
            return f"tasks: {name} has a percentage of {percentage}, which must be 0 to 100"
    return ""


def _misfit(replica: Replica, args: Args) -> str:
    """Return why the job does not fit the replica; empty if it does."""
    for field, name in (("beside", args.beside), ("resume", args.resume)):
        if name and digest_of(replica, name) is None:
            return f"{field} names no job that is known"
    if args.resume and _resumed(replica, args.resume)[0] >= 0 and not _resumed(replica, args.resume)[1]:
        return "resume names a job whose offsets are not kept any more"
    others = active(replica)
    if len(others) >= JOBS_MAX:
        return f"id is one too many: there are {len(others)} jobs"
    if sum(len(job.body) for job in others) + len(args.body) > BODIES_BYTES_MAX:
        return f"body is too much: all jobs together may have {BODIES_BYTES_MAX} bytes"
    return ""


def _resumed(replica: Replica, name: str) -> tuple[int, bytes]:
    """Return the last batch and the offsets of a known job."""
    if not name:
        return -1, b""
    found = replica.jobs.get(name)
    if found is not None:
        return found.batch, found.offsets
    kept = outcome_of(replica, name)
    return kept["batch"], kept["offsets"]
