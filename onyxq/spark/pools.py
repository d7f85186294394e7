"""Shares of one session: a pool of the fair scheduler for each job, weighted by its slots."""

from __future__ import annotations

import logging
from typing import Any

_log = logging.getLogger(__name__)


def enter(session: Any, job: str, slots: int) -> None:
    """What this thread starts runs in the job's pool, with this weight."""
    share(session, job, slots)
    session.sparkContext.setLocalProperty("spark.scheduler.pool", name_of(job))


def share(session: Any, job: str, slots: int) -> None:
    """Weigh the job's pool, made if it is not there.

    Spark reads weights from a file when it starts and has no call to change them; the field is set
    where it is. The scheduler looks at it whenever a core is free.
    """
    context = session.sparkContext
    root = context._jsc.sc().taskScheduler().rootPool()
    pool = root.getSchedulableByName(name_of(job))
    if pool is None:
        scala = context._jvm.org.apache.spark.scheduler
        root.addSchedulable(scala.Pool(name_of(job), scala.SchedulingMode.FIFO(), 0, slots))
    elif pool.weight() != slots:
        weight = pool.getClass().getDeclaredField("weight")
        weight.setAccessible(True)
        weight.setInt(pool, slots)


def leave(session: Any, job: str) -> None:
    """Nothing more of the job will run."""
    root = session.sparkContext._jsc.sc().taskScheduler().rootPool()
    pool = root.getSchedulableByName(name_of(job))
    if pool is not None and pool.schedulableQueue().isEmpty():
        root.removeSchedulable(pool)


def weight(session: Any, job: str) -> int:
    """The weight of the job's pool."""
    return int(session.sparkContext._jsc.sc().taskScheduler().rootPool().getSchedulableByName(name_of(job)).weight())


def name_of(job: str) -> str:
    """What the job's pool is called."""
    return f"job-{job}"
