"""Distribution of a peer's slots to the jobs that it drives (design: jobs on Spark).

Pure integers; `onyxq.core.jobs.allocation` explains the rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from onyxq.core.replica import Job

GREEDY, BALANCED, PERCENTAGE = "greedy", "balanced", "percentage"
SCHEDULERS = (BALANCED, GREEDY, PERCENTAGE)
SLOTS_MAX = 1 << 16


def need(job: Job) -> int:
    """Return the fewest slots with which a job runs."""
    return max(1, job.min_slots, *(least for _, least, _, _ in job.tasks))


def most(job: Job) -> int:
    """Return the most slots that a job can use."""
    return max(job.max_slots, need(job)) if job.max_slots else SLOTS_MAX


def tasks_of(job: Job, slots: int) -> tuple[tuple[str, int], ...]:
    """Return the number of its slots in which each task of a job may run."""
    found = []
    for name, least, bound, percentage in job.tasks if slots else ():
        share = slots * percentage // 100 if percentage else slots
        found.append((name, min(slots, bound or slots, max(1, least, share))))
    return tuple(found)


def shares(jobs: Sequence[Job], slots: int, total: int) -> dict[str, int]:
    """Return the slots of each job that a peer drives; ``total``: all slots that peers offer."""
    given = {job.id: need(job) for job in jobs}
    left = slots - sum(given.values())
    kinds = {kind: [job for job in jobs if job.scheduler == kind] for kind in SCHEDULERS}
    for job in kinds[PERCENTAGE]:
        left -= _raise(given, job, min(left, total * job.percentage // 100 - given[job.id]))
    for job in kinds[GREEDY]:
        left -= _raise(given, job, left)
    left -= _level(given, kinds[BALANCED], left)
    for job in kinds[PERCENTAGE]:
        left -= _raise(given, job, left)
    return given


def _raise(given: dict[str, int], job: Job, by: int) -> int:
    """Give a job up to ``by`` more slots, as far as it can use them; return how many."""
    more = max(0, min(by, most(job) - given[job.id]))
    given[job.id] += more
    return more


def _level(given: dict[str, int], jobs: Sequence[Job], left: int) -> int:
    """Raise the jobs to one level, as far as ``left`` permits; return how many slots that took.

    A remainder too small for one more slot each goes to the first jobs.
    """
    low, high = 0, max(map(given.__getitem__, (job.id for job in jobs)), default=0) + left
    while low < high:  # the highest level that ``left`` is enough for
        level = (low + high + 1) // 2
        if sum(_lifts(given, jobs, level)) <= left:
            low = level
        else:
            high = level - 1
    spent = 0
    for job, lift in zip(jobs, list(_lifts(given, jobs, low)), strict=True):
        spent += _raise(given, job, lift)
    for job in jobs:
        if spent < left and given[job.id] == low:
            spent += _raise(given, job, 1)
    return spent


def _lifts(given: Mapping[str, int], jobs: Iterable[Job], level: int) -> list[int]:
    return [max(0, min(level, most(job)) - given[job.id]) for job in jobs]
