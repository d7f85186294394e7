"""Random jobs whose functions note when they run, and what their bounds allow."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

from attrs import evolve

from onyxq.jobs.job_check import problems
from onyxq.jobs.model import BatchFunction, Function, Input, Job, Join, Output, Reduce, Sql, Trigger, Window
from tests.spark.job_world import HERE

Span = tuple[int, int]
SHAPES = {
    "chain": "in-f f-g g-out",
    "branches": "in-f f-g f-h g-out h-out",
    "window": "in-f f-count count-g g-out",
    "windows": "in-f f-count f-more count-g more-h g-out h-out",
    "join": "in-f in-g f-pairs g-pairs pairs-h h-out",
    "frame": "in-f f-g f-h g-rows h-rows rows-out",
    "batches": "in-f f-batches batches-g g-out",
}
"""Edges of workflows: functions f, g and h, windows count and more, the join pairs, frame tasks rows and batches."""
WEIGHTS = (6, 4, 2, 1, 1, 1, 2)
OWN_HOST = ("frame", "batches")
"""Shapes of jobs with a Spark process of their own: no other host can bound the slots of a job with frame tasks."""
FILES, LINES = 6, 2


def input_files(folder: Path) -> Path:
    """Write the files that all jobs read."""
    folder.mkdir()
    for place in range(FILES):
        (folder / f"{place}.txt").write_text("".join(f"{line}\n" for line in range(LINES)))
    return folder


def random_job(random: Random, name: str, folder: Path, *, scheduler: str, slots: int, own_host: bool = False) -> Job:
    """Return a valid job that needs no more than these slots; ``folder`` has the files, and gets the notes.

    With ``own_host`` it has frame tasks and a bound, which need a Spark process of its own.
    """
    while True:
        shape = random.choice(OWN_HOST) if own_host else random.choices(list(SHAPES), WEIGHTS)[0]
        job = shaped(shape, name, folder, scheduler=scheduler, slots=slots, random=random)
        job = evolve(job, own_host=own_host)
        if not any(problems(job)) and (job.max_slots or not own_host):
            for task in functions(job):
                notes(folder, job.id, task.name).mkdir(parents=True)
            return job


def shaped(shape: str, name: str, folder: Path, *, random: Random, scheduler: str, slots: int) -> Job:
    """Return a job of a shape with random bounds, of its own and of its functions."""
    edges = [tuple(edge.split("-")) for edge in SHAPES[shape].split()]
    names = list(dict.fromkeys(name for edge in edges for name in edge))
    made: dict[str, Any] = {
        "in": Input("in", format="text", path=str(folder / "in")),
        "out": Output("out", format="json", path=str(folder / "out" / name)),
        "count": Reduce("count"),
        "more": Reduce("more"),
        "pairs": Join("pairs", left="f", right="g", on="value"),
        "rows": Sql("rows", "select * from g union all select * from h", schema="value string"),
    }
    params = {task: {"folder": str(notes(folder, name, task)), "ms": 10} for task in ("f", "g", "h", "batches")}
    for task in "fgh":
        made[task] = Function(task, f"{HERE}:busy", params[task], **_bounds(random, slots, percentage=True))
    columns: dict[str, Any] = {"returns": "value string", "schema": "value string"}
    made["batches"] = BatchFunction("batches", f"{HERE}:busy_batch", params["batches"], **columns)
    windows = [one for one in ("count", "more") if one in names]
    return Job(
        id=name,
        workflow=edges,
        catalog=[made[one] for one in names],
        windows=[Window(one, one, key="value", aggregation="count") for one in windows],
        triggers=[Trigger(one) for one in windows],
        scheduler=scheduler,
        percentage=random.randint(10, 60) if scheduler == "percentage" else 0,
        key_groups=6,
        **_bounds(random, slots),
    )


def _bounds(random: Random, most: int, *, percentage: bool = False) -> dict[str, Any]:
    """Return random bounds of a job or task; often none."""
    found: dict[str, Any] = {}
    if random.random() < 0.5:
        found["max_slots"] = random.randint(1, most)
    if random.random() < 0.3:
        found["min_slots"] = random.randint(1, found.get("max_slots", most))
    if percentage and random.random() < 0.3:
        found["percentage"] = random.randint(10, 40)
    return found


def functions(job: Job) -> list[Function | BatchFunction]:
    """Return the functions of a job, which note their calls."""
    return [task for task in job.catalog if isinstance(task, (Function, BatchFunction))]


def need(job: Job) -> int:
    """Return the fewest slots with which a job may start."""
    return max(job.min_slots, *(task.min_slots for task in job.catalog if isinstance(task, (Function, Reduce, Join))))


def bound_of_job(job: Job, slots: int) -> int:
    """Return how many of its calls may run at once."""
    return min(slots, job.max_slots or slots)


def bound_of_task(job: Job, task: Function | BatchFunction, slots: int) -> int:
    """Return how many calls of a function may run at once."""
    most = bound_of_job(job, slots)
    if isinstance(task, BatchFunction):
        return most
    share = max(1, task.min_slots, most * task.percentage // 100) if task.percentage else most
    return min(most, share, task.max_slots or most)


# --- what the functions noted ------------------------------------------------------------


def notes(folder: Path, job: str, task: str) -> Path:
    """Return the folder of a function's notes."""
    return folder / "notes" / job / task


def calls(folder: Path) -> list[Span]:
    """Return when each call began and ended, in ns, from a folder with a file of each process."""
    lines = [line.split() for file in folder.iterdir() for line in file.read_text().splitlines()]
    return [(int(began), int(ended)) for began, ended in lines]


def at_once(spans: Iterable[Span], weight: Iterable[int] | None = None) -> int:
    """Return the largest number, or the largest sum of weights, of spans at one moment."""
    spans = list(spans)
    weights = [1] * len(spans) if weight is None else list(weight)
    moments = [(began, each) for (began, _), each in zip(spans, weights, strict=True)]
    moments += [(ended, -each) for (_, ended), each in zip(spans, weights, strict=True)]
    running = most = 0
    for _, step in sorted(moments):
        running += step
        most = max(most, running)
    return most


def check_bounds(jobs: list[Job], folder: Path, slots: int) -> dict[str, int]:
    """Assert that no bound was exceeded, and return how many calls of each job ran at once.

    The jobs that had begun and not ended never needed more slots together than there are. Jobs that share a host never
    used more; the threads of a process of its own are beside those of that host.
    """
    found, whole, all_calls = {}, [], list[Span]()
    for job in jobs:
        spans = []
        for task in functions(job):
            own = calls(notes(folder, job.id, task.name))
            assert at_once(own) <= bound_of_task(job, task, slots), f"task {task.name} of {job}"
            spans += own
        assert len(spans) >= FILES * LINES, f"job {job.id} has not run"
        found[job.id] = at_once(spans)
        assert found[job.id] <= bound_of_job(job, slots), f"job {job}"
        whole.append((min(began for began, _ in spans), max(ended for _, ended in spans)))
        all_calls += [] if job.own_host else spans
    assert at_once(whole, map(need, jobs)) <= slots, "jobs were started with fewer slots than they need"
    assert at_once(all_calls) <= slots
    return found
