"""Slots of jobs on real Spark: no more calls run at once than the job and its tasks allow."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.processes.cluster import Cluster, bounded
from tests.processes.jobs_watched import STEP_S_MAX
from tests.processes.slot_jobs import check_slots

pytestmark = [pytest.mark.anyio, pytest.mark.long]

JOBS = int(os.environ.get("ONYXQ_TEST_JOBS", "20"))
"""Jobs under each scheduler."""
SLOTS = 5


@bounded(8 * STEP_S_MAX)
async def test_no_more_calls_run_at_once_than_jobs_and_tasks_allow(cluster: Cluster, tmp_path: Path) -> None:
    """Random jobs share a peer under each scheduler; no job starts with fewer slots than it needs."""
    cluster.more_options("--spark", "--allow-local-code", "--slots", str(SLOTS))
    await cluster.start("a")
    await cluster.whole("a")
    for scheduler in ("greedy", "balanced", "percentage"):
        await check_slots(cluster, tmp_path / scheduler, scheduler=scheduler, count=JOBS, slots=SLOTS)
