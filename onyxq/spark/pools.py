"""Shares of one session: a pool of the fair scheduler for each job, weighted by its slots."""

from __future__ import annotations

import logging
from typing import Any

from onyxq.spark import java

_log = logging.getLogger(__name__)


def enter(session: Any, job: str, slots: int) -> None:
    """Run whatever this thread starts in the job's pool, with this weight."""
    share(session, job, slots)
    session.sparkContext.setLocalProperty("spark.scheduler.pool", name_of(job))


def share(session: Any, job: str, slots: int) -> None:
    """Set the weight of the job's pool, which is made if it does not exist.

    Spark reads weights from a file when it starts and has no call to change them, so this sets the private field. The
    scheduler reads it whenever a core is free.
    """
    root = java.root_pool(session)
    pool = root.getSchedulableByName(name_of(job))
    if pool is None:
        scala = java.packages(session).org.apache.spark.scheduler
        root.addSchedulable(scala.Pool(name_of(job), scala.SchedulingMode.FIFO(), 0, slots))
    elif pool.weight() != slots:
        weight = pool.getClass().getDeclaredField("weight")
        weight.setAccessible(True)
        weight.setInt(pool, slots)


def leave(session: Any, job: str) -> None:
    """Remove the job's pool once it is empty: the job has ended."""
    root = java.root_pool(session)
    pool = root.getSchedulableByName(name_of(job))
    if pool is not None and pool.schedulableQueue().isEmpty():
        root.removeSchedulable(pool)


def weight(session: Any, job: str) -> int:
    """Return the weight of the job's pool."""
    return int(java.root_pool(session).getSchedulableByName(name_of(job)).weight())


def name_of(job: str) -> str:
    """Return the name of the job's pool."""
    return f"job-{job}"
