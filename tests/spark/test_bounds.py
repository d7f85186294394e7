"""The slots of a job and of its tasks bound how many calls of a function run at once."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from pyspark.sql import functions as of

from onyxq.jobs.encoding import encode
from onyxq.jobs.job_check import problems
from onyxq.jobs.model import Function, Input, Job, Join, Output, Reduce, Sql, Trigger, Window
from onyxq.jobs.slot_bounds import OUTPUTS, bounds
from onyxq.spark.plan import fused, rows
from onyxq.spark.plan.regions import stages
from tests.spark.job_world import HERE, run, written
from tests.spark.slot_world import at_once, calls

FILES = 12
LINES = 5


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder with files to read, and one for notes."""
    (tmp_path / "in").mkdir()
    (tmp_path / "notes").mkdir()
    for place in range(FILES):
        (tmp_path / "in" / f"{place}.txt").write_text("".join(f"{line}\n" for line in range(LINES)))
    yield tmp_path


def flat(folder: Path, own: dict[str, Any], **more: Any) -> Job:
    """A job of one function, with these bounds."""
    busy = Function("busy", f"{HERE}:busy", {"folder": str(folder / "notes")}, **own)
    catalog = [Input("in", format="text", path=str(folder / "in")), busy]
    out = Output("out", format="json", path=str(folder / "out"))
    return Job(id="flat", workflow=[("in", "busy"), ("busy", "out")], catalog=[*catalog, out], **more)


def joined(folder: Path, **more: Any) -> Job:
    """A job in which the function runs on both sides of a join, and after it."""
    params = {"folder": str(folder / "notes")}
    names = ("left", "right", "after")
    return Job(
        id="joined",
        workflow=[
            ("in", "left"),
            ("in", "right"),
            ("left", "pairs"),
            ("right", "pairs"),
            ("pairs", "after"),
            ("after", "out"),
        ],
        catalog=[
            Input("in", format="text", path=str(folder / "in")),
            *(Function(name, f"{HERE}:busy", params | {"ms": 5}) for name in names),
            Join("pairs", left="left", right="right", on="value"),
            Output("out", format="json", path=str(folder / "out")),
        ],
        key_groups=4,
        **more,
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("own", "more", "most"),
    [
        ({}, {}, 2),
        ({"max_slots": 1}, {}, 1),
        ({"percentage": 50}, {}, 1),
        ({"percentage": 50, "min_slots": 2}, {}, 2),
        ({}, {"max_slots": 1}, 1),
    ],
)
def test_no_more_calls_run_at_once(
    spark: Any, folder: Path, own: dict[str, Any], more: dict[str, Any], most: int
) -> None:
    """The session has two slots, and both are used by default."""
    run(spark, flat(folder, own, **more), folder)
    assert len(written(folder / "out")) == FILES * LINES
    assert at_once(calls(folder / "notes")) == most


@pytest.mark.long
def test_a_job_with_a_join_is_bounded_in_all_its_stages(spark: Any, folder: Path) -> None:
    """The bound holds while its sides are read, and in its groups."""
    run(spark, joined(folder, max_slots=1), folder)
    assert len(written(folder / "out")) == LINES * FILES**2
    assert at_once(calls(folder / "notes")) == 1


@pytest.mark.long
def test_rows_without_files_are_told_apart_in_one_task(spark: Any, tmp_path: Path) -> None:
    """One task may process several parts of a source; each row has a lineage of its own."""
    job = flat(tmp_path, {})
    (stage,) = stages(job)
    work = functools.partial(
        fused.run, fused.Place(encode(job), job.id, 1), stage.sides[0][0], rows.COLUMNS, ("id", rows.PLANNED, rows.PART)
    )
    (tmp_path / "notes").mkdir()
    frame = spark.range(0, 40, 1, 4).select(
        "id", of.lit(1).alias(rows.PLANNED), of.spark_partition_id().alias(rows.PART)
    )
    found = frame.mapInArrow(work, rows.SCHEMA).coalesce(1).collect()
    assert len({bytes(row.lineage) for row in found}) == len(found) == 40


def parallel(folder: Path, shared: dict[str, Any], **more: Any) -> Job:
    """A job in which a function leads to two windows, whose segments go to one output."""
    return Job(
        id="parallel",
        workflow=[("in", "f"), ("f", "a"), ("f", "b"), ("a", "out"), ("b", "out")],
        catalog=[
            Input("in", format="text", path=str(folder)),
            Function("f", f"{HERE}:same", **shared),
            Reduce("a"),
            Reduce("b"),
            Output("out", format="json", path=str(folder / "out")),
        ],
        windows=[Window("a", "a", aggregation="count"), Window("b", "b", aggregation="count")],
        triggers=[Trigger("a"), Trigger("b")],
        **more,
    )


def test_stages_that_run_side_by_side_share_a_bound(tmp_path: Path) -> None:
    """Each stage has a share, and the last one, which runs alone, has all."""
    assert bounds(parallel(tmp_path, {}, max_slots=5), 8) == {"a": 2, "b": 2, OUTPUTS: 5}
    assert bounds(parallel(tmp_path, {"max_slots": 4}), 8) == {"a": 2, "b": 2}
    assert bounds(parallel(tmp_path, {}, max_slots=5, own_host=True), 5) == {}
    assert bounds(flat(tmp_path, {"percentage": 25}), 8) == {OUTPUTS: 2}
    assert bounds(joined(tmp_path, max_slots=3), 8) == {"pairs": 3, OUTPUTS: 3}


def framed(folder: Path, own: dict[str, Any], *edges: tuple[str, str]) -> Job:
    """A job in which a function leads to a frame task through two others, and perhaps over more edges."""
    busy = {"folder": str(folder / "notes")}
    return Job(
        id="framed",
        workflow=[("in", "f"), ("f", "g"), ("f", "h"), ("g", "rows"), ("h", "rows"), *edges, ("rows", "out")],
        catalog=[
            Input("in", format="text", path=str(folder / "in")),
            Function("f", f"{HERE}:busy", busy, **own),
            Function("g", f"{HERE}:same"),
            Function("h", f"{HERE}:same"),
            *([Sql("first", "select * from f", schema="value string")] if edges else []),
            Sql("rows", "select * from g union all select * from h", schema="value string"),
            Output("out", format="json", path=str(folder / "out")),
        ],
        key_groups=4,
    )


def test_ways_to_a_frame_task_share_a_bound(tmp_path: Path) -> None:
    """Spark may run them at once, also if one of them leads through another frame task."""
    assert bounds(framed(tmp_path, {"max_slots": 2}), 8) == {"rows": 1}
    ((field, said),) = problems(framed(tmp_path, {"max_slots": 1}))
    assert field == "catalog[1].max_slots"
    assert said == "cannot be kept: 'f' runs for g to rows, h to rows side by side"
    further = framed(tmp_path, {"max_slots": 3}, ("f", "first"), ("first", "rows"))
    assert bounds(further, 8) == {"first": 1, "rows": 1}


@pytest.mark.long
def test_a_bound_holds_before_a_frame_task_that_is_used_twice(spark: Any, folder: Path) -> None:
    """Its query has the rows of the function twice, and two windows use its result; the function runs once."""
    busy = Function("f", f"{HERE}:busy", {"folder": str(folder / "notes")}, max_slots=1)
    twice = Sql("twice", "select * from f union all select * from f where value >= '0'", schema="value string")
    job = parallel(folder / "in", {})
    ends = {name: Output(name, format="json", path=str(folder / name)) for name in ("out-a", "out-b")}
    job = evolve(
        job,
        workflow=[("in", "f"), ("f", "twice"), ("twice", "a"), ("twice", "b"), ("a", "out-a"), ("b", "out-b")],
        catalog=[job.task("in"), busy, twice, Reduce("a"), Reduce("b"), *ends.values()],
        key_groups=2,
    )
    assert not list(problems(job))
    run(spark, job, folder)
    noted = calls(folder / "notes")
    assert (at_once(noted), len(noted)) == (1, FILES * LINES)


@pytest.mark.parametrize(
    ("shared", "more", "field", "said"),
    [
        ({}, {"max_slots": 1}, "max_slots", "is 1, but a, b run side by side and need a slot each"),
        ({"max_slots": 1}, {}, "catalog[1].max_slots", "cannot be kept: 'f' runs for a, b side by side"),
        ({"percentage": 50}, {}, "catalog[1].percentage", "cannot be kept: 'f' runs for a, b side by side"),
    ],
)
def test_a_bound_that_cannot_be_kept_is_refused(
    tmp_path: Path, shared: dict[str, Any], more: dict[str, Any], field: str, said: str
) -> None:
    """The error names it before the job is submitted."""
    found = list(problems(parallel(tmp_path, shared, **more)))
    assert [name for name, _ in found] == [field] and said in found[0][1]
    assert not list(problems(parallel(tmp_path, {}, max_slots=2)))
