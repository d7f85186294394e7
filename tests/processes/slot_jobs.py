"""Random jobs with bounds on their slots, run by a peer, and counted by their own functions."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

from attrs import evolve

from onyxq.jobs.model import Job
from tests.processes.cluster import Cluster
from tests.processes.jobs_watched import STEP_S_MAX
from tests.spark.slot_world import check_bounds, functions, input_files, notes, random_job

SEED = int(os.environ.get("ONYXQ_TEST_SEED", "1"))


async def check_slots(cluster: Cluster, folder: Path, *, scheduler: str, count: int, slots: int) -> None:
    """Submit random jobs to a peer at once, with one that needs more slots than the peer has.

    Of twenty jobs, one has a Spark process of its own.
    """
    folder.mkdir()
    input_files(folder / "in")
    random = Random(f"{SEED} {scheduler}")

    def made(name: object, *, own_host: bool = False) -> Job:
        return random_job(random, f"{scheduler}-{name}", folder, scheduler=scheduler, slots=slots, own_host=own_host)

    jobs = [made(number, own_host=number % 20 == 19) for number in range(count)]
    large = made("large")
    large = evolve(large, min_slots=slots + 1, max_slots=None)
    async with cluster.client("a") as client:
        for job in (large, *jobs):
            await client.submit_job(job)
        for job in jobs:
            outcome = await client.wait_job(job.id, int(STEP_S_MAX * 1000) * (1 + count // 5))
            assert outcome.state == "completed", (job, outcome)
        found = await client.job(large.id)
        assert (found["state"], found["why"]) == ("waiting", f"needs {slots + 1} slots, peers offer {slots} at most")
        await client.kill_job(large.id)
    assert all(not list(notes(folder, large.id, task.name).iterdir()) for task in functions(large))
    most = check_bounds(jobs, folder, slots)
    assert count < 20 or max(most.values()) > 1, f"nothing ran at once: {most}"
