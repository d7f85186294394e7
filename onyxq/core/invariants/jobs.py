"""Invariants of jobs in every replica: their states, drivers and slots.

Pure.  They complement the invariants of the ring and of placement: checked after every step
in tests and simulation, sampled in production.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from onyxq.core.jobs.allocation import allocated, offers
from onyxq.core.jobs.lifetime import ENDED, RUNNING, WAITING, active, is_id, is_over, outcome_of
from onyxq.core.jobs.placement import Plan
from onyxq.core.jobs.slots import most, need, tasks_of
from onyxq.core.replica import Job, Replica


def violations(replica: Replica) -> list[str]:
    """Return every broken invariant of jobs, in words."""
    return [*_of_each(replica), *_of_peers(replica), *_of_all(replica)]


def _of_each(replica: Replica) -> Iterator[str]:
    for name in sorted(replica.jobs):
        job = replica.jobs[name]
        problems = [*_of_record(job), *(_of_ended(job) if is_over(job) else _of_active(job))]
        if job.id != name or outcome_of(replica, name) is not None:
            problems.append("it has another id, or is remembered as ended")
        yield from (f"job {name}: {problem}" for problem in problems)


def _of_record(job: Job) -> Iterator[str]:
    if not is_id(job.id) or job.state not in (WAITING, RUNNING, *ENDED):
        yield f"it cannot have the state {job.state!r}, or its id"
    if list(job.sealed) != sorted(set(job.sealed)) or not set(job.sealed) <= set(job.inputs):
        yield f"sealed are {job.sealed} of its inputs {job.inputs}"
    if bool(job.driver) != (job.state == RUNNING):
        yield f"it is {job.state} with the driver {job.driver!r}"
    if job.task_slots != tasks_of(job, job.slots):
        yield f"its tasks have {job.task_slots} of {job.slots} slots"


def _of_ended(job: Job) -> Iterator[str]:
    if job.ended_ms < 0 or job.slots or job.ready:
        yield f"it has ended at {job.ended_ms} with {job.slots} slots"


def _of_active(job: Job) -> Iterator[str]:
    if job.ended_ms >= 0:
        yield "it has ended and continues"
    if job.state == WAITING and (job.slots or job.ready or not job.why):
        yield f"it waits with {job.slots} slots, for {job.why!r}"
    if job.state == RUNNING:
        if job.version < 0:
            yield "it runs without a version"
        if not need(job) <= job.slots <= most(job):
            yield f"it has {job.slots} slots, needs {need(job)} and can take {job.max_slots or 'any number'}"


def _of_peers(replica: Replica) -> Iterator[str]:
    """Yield where a driver is a peer that may not drive, or gives more slots than it offers."""
    running = [job for job in active(replica) if job.driver]
    plan = Plan(active(replica), offers(replica))
    used: Counter[str] = Counter()
    for job in running:
        plan.drivers[job.id] = job.driver
    for job in running:
        used[job.driver] += job.slots
        if not plan.fits(job, job.driver):
            yield f"job {job.id}: its driver {job.driver} does not fit it"
    for peer, slots in sorted(used.items()):
        if peer in plan.offers and slots > plan.offers[peer].slots:
            yield f"jobs have {slots} slots of {peer}, which offers {plan.offers[peer].slots}"


def _of_all(replica: Replica) -> Iterator[str]:
    """Yield jobs that were submitted at the same moment, and an allocation that is out of date."""
    moments = Counter(job.submitted for job in active(replica))
    yield from (f"{times} jobs were submitted at {at}" for at, times in sorted(moments.items()) if times > 1)
    if allocated(replica, replica.position) != replica:
        yield "jobs are not allocated as they should be"
