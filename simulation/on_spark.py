"""Many runs on a Spark cluster: executors play seeds as the processes of `simulation.runs` do.

A seed does the same wherever it is played, so what Spark repeats after it lost an executor
is the same run.  Only values travel: a workload's name and seeds one way, results the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from attrs import asdict

from simulation.results import Result
from simulation.runs import Child

SEEDS_OF_TASK_MAX = 16
"""Seeds that one process plays before its results are sent."""
WAVES = 2
"""Jobs at a time: the next one's tasks fill in while the last of one are played."""


def run_on_spark(session: Any, workload: str, seeds: Sequence[int]) -> Iterator[Result]:
    """Play seeds on the executors of a session; results as they come, some at a time."""
    context = session.sparkContext
    slots = context.defaultParallelism
    of_task = max(1, min(SEEDS_OF_TASK_MAX, -(-len(seeds) // slots)))
    waves = [seeds[start : start + slots * of_task] for start in range(0, len(seeds), slots * of_task)]

    def wave(some: Sequence[int]) -> list[dict[str, Any]]:
        tasks = context.parallelize(some, -(-len(some) // of_task))
        found: list[dict[str, Any]] = tasks.mapPartitions(partial(play_all, workload)).collect()
        return found

    pool = ThreadPoolExecutor(WAVES)
    try:
        for results in pool.map(wave, waves):
            yield from (Result(**one) for one in results)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def play_all(workload: str, seeds: Iterable[int]) -> Iterator[dict[str, Any]]:
    """Play seeds one after the other in a process of their own."""
    child = Child(workload)
    try:
        for seed in seeds:
            if not child.alive:
                child.close()
                child = Child(workload)
            yield asdict(child.play(seed))
    finally:
        child.close()
