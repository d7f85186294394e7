"""Every kind of input by 1, 2 and 4 branches by every kind of task: each function is called once for each segment."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from onyxq.client import Client
from onyxq.jobs.job_check import check
from onyxq.jobs.model import Function, Job, Output, Reduce, Trigger
from tests.interfaces.batches_world import JobsCluster
from tests.spark.branch_world import (
    FRAMES,
    KINDS,
    TASKS,
    Started,
    calls,
    check_calls,
    check_outputs,
    filled,
    job_of,
    noting,
    started,
    window,
)
from tests.spark.job_world import HERE, run, written

NUMBERS = range(20)
BRANCHES = (1, 2, 4)
SAMPLE = (("queue", "BatchFunction"), ("json", "Reduce"), ("parquet", "Sql"), ("text", "Function"))
"""What the default layer runs."""
PRODUCT = [
    pytest.param(kind, task, marks=() if (kind, task) in SAMPLE else pytest.mark.long)
    for kind in KINDS
    for task in TASKS
]


def begun(spark: Any, cluster: JobsCluster, job: Job, folder: Path) -> Started:
    """Start a job of the cluster."""
    return started(spark, job, folder, version=cluster.start_job(job.id).version, connect=cluster.connect)


def finished(found: Started, cluster: JobsCluster, kind: str, *, times: int = 1) -> range:
    """Wait until a job has read all that its input has, and return the numbers; each was read that many times."""
    found.finish(1 if kind == "rate" else len(NUMBERS))
    cluster.kill(found.job.id)
    assert [use.count for use in found.uses if use.name] == [times]
    rows, name = found.rows() // times, found.job.catalog[0].name
    assert found.inputs() == {name: rows}
    assert rows == len(NUMBERS) or kind == "rate"
    return range(rows)


@pytest.mark.parametrize(("kind", "task"), PRODUCT)
def test_each_function_is_called_once_for_each_segment(
    spark: Any, cluster: JobsCluster, client: Client, tmp_path: Path, kind: str, task: str
) -> None:
    """Jobs with 1, 2 and 4 branches run side by side. Each reads its input once, and completes."""
    jobs = {}
    for branches in BRANCHES:
        folder = tmp_path / str(branches)
        folder.mkdir()
        source = filled(spark, client, kind, folder, NUMBERS, columns=task in FRAMES)
        jobs[branches] = begun(spark, cluster, job_of(task, branches, source, kind, folder), folder)
    for branches, found in jobs.items():
        numbers = finished(found, cluster, kind)
        folder, last = tmp_path / str(branches), found.reports()[-1]["batchId"]
        check_calls(calls(folder / "notes", last=last), numbers, dict.fromkeys(noting(task, branches), 1))
        check_outputs(task, branches, folder, numbers)


# --- where a function is called more often


WAYS = {"Function": 1, "Reduce": 1, "Join": 2, "Frame": 1, "Sql": 1, "BatchFunction": 1}
"""Kind of a task -> on how many ways to each such task a function before it is called."""


@pytest.mark.long
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("kind", ["queue", "json"])
def test_a_function_before_several_tasks_is_called_on_each_way(
    spark: Any, cluster: JobsCluster, client: Client, tmp_path: Path, kind: str, task: str
) -> None:
    """Functions share a way. Windows, sides of joins and frame tasks have ways of their own; the input is read once."""
    source = filled(spark, client, kind, tmp_path, NUMBERS)
    found = begun(spark, cluster, job_of(task, 2, source, kind, tmp_path, before=True), tmp_path)
    numbers = finished(found, cluster, kind)
    times = 1 if task == "Function" else 2 * WAYS[task]
    check_calls(calls(tmp_path / "notes"), numbers, dict.fromkeys(noting(task, 2), 1) | {"f": times})
    check_outputs(task, 2, tmp_path, numbers)


@pytest.mark.long
def test_a_batch_function_is_called_once_although_its_result_has_several_uses(
    spark: Any, cluster: JobsCluster, client: Client, tmp_path: Path
) -> None:
    """Outputs, functions and windows use it. The input is read once, too."""
    source, notes = filled(spark, client, "json", tmp_path, NUMBERS), str(tmp_path / "notes")
    job = job_of("BatchFunction", 1, source, "json", tmp_path)
    job = evolve(
        job,
        workflow=[*job.workflow, ("t0", "again"), ("t0", "g"), ("g", "g-out"), ("t0", "w"), ("w", "w-out")],
        catalog=[
            *job.catalog,
            Function("g", f"{HERE}:noted_number", {"folder": notes, "task": "g"}),
            Reduce("w"),
            *(Output(name, format="json", path=str(tmp_path / name)) for name in ("again", "g-out", "w-out")),
        ],
        windows=[window("w", notes)],
        triggers=[Trigger("w", on="batch")],
    )
    check(job)
    numbers = finished(begun(spark, cluster, job, tmp_path), cluster, "json")
    check_calls(calls(tmp_path / "notes"), numbers, {"t0": 1, "g": 1, "w": 1})
    for name in ("t0", "again", "g-out"):
        assert Counter(one["n"] for one in written(tmp_path / name)) == Counter(numbers)


@pytest.mark.long
def test_a_job_with_bounds_reads_its_input_for_each_stage(
    spark: Any, cluster: JobsCluster, client: Client, tmp_path: Path
) -> None:
    """Its progress still counts each row once, and its functions are called once."""
    source = filled(spark, client, "json", tmp_path, NUMBERS)
    job = evolve(job_of("Reduce", 2, source, "json", tmp_path), max_slots=2)
    finished(begun(spark, cluster, job, tmp_path), cluster, "json", times=2)
    check_calls(calls(tmp_path / "notes"), NUMBERS, {"t0": 1, "t1": 1})


@pytest.mark.long
@pytest.mark.parametrize("task", ["Function", "Reduce", "BatchFunction"])
def test_the_next_attempt_at_a_batch_calls_each_function_once(
    spark: Any, client: Client, tmp_path: Path, task: str
) -> None:
    """The first attempt fails at a segment, when some calls are made; the second one makes each call once."""
    job = job_of(task, 2, filled(spark, client, "json", tmp_path, NUMBERS), "json", tmp_path)
    job = evolve(
        job,
        workflow=[*job.workflow, ("in0", "bad"), ("bad", "bad-out")],
        catalog=[
            *job.catalog,
            Function("bad", f"{HERE}:fail_once", {"flag": str(tmp_path / "flag")}),
            Output("bad-out", format="json", path=str(tmp_path / "bad")),
        ],
    )
    with pytest.raises(Exception, match="the first time it fails"):
        run(spark, job, tmp_path)
    before = calls(tmp_path / "notes")
    assert set(before.values()) <= {1} and {batch for _, _, batch, _ in before} <= {0}
    run(spark, job, tmp_path, version=2)
    check_calls(calls(tmp_path / "notes") - before, NUMBERS, dict.fromkeys(noting(task, 2), 1))
    check_outputs(task, 2, tmp_path, NUMBERS)
    assert Counter(one["n"] for one in written(tmp_path / "bad")) == Counter(NUMBERS)
