"""Windows and joins of jobs on Spark: their outputs are right, with their state in Spark's store."""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from onyxq.jobs.encoding import decode, encode
from onyxq.jobs.model import Aggregation, Function, Input, Job, Join, Output, Reduce, Trigger, Window
from onyxq.spark.checkpoint import PARTS
from onyxq.spark.failures import of_exception
from onyxq.spark.plan import end_of_input
from onyxq.spark.plan.compile import Setting, compiled
from onyxq.spark.plan.groups import labels
from onyxq.spark.progress import has_ended, report
from tests.spark.job_world import HERE, run, written

pytestmark = pytest.mark.long


Segment = dict[str, Any]
TIMEOUT_S = 180.0


def lines(folder: Path, name: str, segments: list[Segment]) -> None:
    """Write a file of JSON lines that appears completely or not at all."""
    folder.mkdir(exist_ok=True)
    whole = folder.parent / f"{name}.part"
    whole.write_text("".join(json.dumps(one) + "\n" for one in segments))
    order = 1_700_000_000 + len(list(folder.iterdir()))
    os.utime(whole, (order, order))  # files are read in the order of their times
    whole.rename(folder / name)


def last_batch(at: Path) -> int:
    """Return the number of the last committed batch; -1 without one."""
    return max((int(file.name) for file in (at / "commits").glob("[0-9]*")), default=-1)


def say_the_rest(spark: Any, job: Job, folder: Path, at: Path) -> None:
    """Run a job again whose input was all read, with the end of its inputs recorded."""
    end_of_input.note(str(at))
    run(spark, job, folder, version=int(at.name), batch=last_batch(at))


def clicks(folder: Path) -> tuple[Job, list[Segment]]:
    """Return a job that counts by second and user and sums by user, and its input in three batches."""
    rng = random.Random(5)
    batches = [
        [
            {"user": f"u{rng.randrange(30)}", "at": 1_000 * batch + rng.randrange(1_500), "n": rng.randrange(9)}
            for _ in range(100)
        ]
        for batch in range(3)
    ]
    for place, batch in enumerate(batches):
        lines(folder / "in", f"{place}.json", batch)
    options = {"maxFilesPerTrigger": "1"}
    job = Job(
        id="clicks",
        workflow=[("in", "kept"), ("kept", "counts"), ("kept", "sums")],
        catalog=[
            Input(
                "in", format="json", path=str(folder / "in"), schema="user string, at bigint, n int", options=options
            ),
            Reduce("kept"),
            Output("counts", format="json", path=str(folder / "counts")),
            Output("sums", format="json", path=str(folder / "sums")),
        ],
        windows=[
            Window(
                "second", "kept", "fixed", range_ms=1_000, key="user", time="at", watermark_ms=500, aggregation="count"
            ),
            Window("all", "kept", key="user", aggregation="sum", field="n"),
        ],
        triggers=[
            Trigger("second", "watermark", emit_to="counts"),
            Trigger("all", "batch", refinement="discarding", emit_to="sums"),
        ],
        key_groups=3,
    )
    return job, [one for batch in batches for one in batch]


def added(segments: list[Segment], key: Callable[[Segment], Any], value: Callable[[Segment], int]) -> Counter[Any]:
    """Return sums of values by key."""
    found: Counter[Any] = Counter()
    for one in segments:
        found[key(one)] += value(one)
    return found


def test_windows_of_files_over_several_batches(spark: Any, tmp_path: Path) -> None:
    """Each second of each user is output once, at the latest at the end of the input; parts of sums add up."""
    job, segments = clicks(tmp_path)
    at, body = tmp_path / "checkpoints" / job.id / "1", encode(job)
    setting = Setting(version=1, slots=2, checkpoint=str(at), connect=None)
    query = compiled(spark, decode(body), body, setting).start()
    query.awaitTermination()
    marks = [report(json.loads(one.json), [])["watermark_ms"] for one in query.recentProgress if one.numInputRows]
    assert marks == [max(one["at"] for one in segments[end - 100 : end]) - 500 for end in (100, 200, 300)]
    early = written(tmp_path / "counts")
    assert early and {one["start_ms"] for one in early} == {0, 1_000}, "the watermark is 500 ms behind 3499"
    say_the_rest(spark, job, tmp_path, at)
    counts = written(tmp_path / "counts")
    expected = added(segments, lambda one: (one["user"], one["at"] // 1_000 * 1_000), lambda one: 1)
    assert Counter((one["key"], one["start_ms"]) for one in counts) == dict.fromkeys(expected, 1)
    assert {(one["key"], one["start_ms"]): one["value"] for one in counts} == expected
    assert {one["end_ms"] - one["start_ms"] for one in counts} == {1_000}
    sums = written(tmp_path / "sums")
    assert added(sums, lambda one: one["key"], lambda one: one["value"]) == added(
        segments, lambda one: one["user"], lambda one: one["n"]
    )
    assert len(sums) > 30 and {one["window"] for one in sums} == {"all"}


def test_columns_and_segments_give_the_same_windows(spark: Any, tmp_path: Path) -> None:
    """Windows of an input fold its columns; with a function before them they take segments, and emit the same."""
    rng = random.Random(7)
    rows = [
        {"user": rng.choice(["a", "b", None]), "at": rng.randrange(9_000), "n": rng.randrange(99), "x": rng.random()}
        for _ in range(2_000)
    ]
    for place in range(4):
        lines(tmp_path / "in", f"{place}.json", rows[500 * place : 500 * place + 500])
    more = {"key": "user", "time": "at"}
    windows = [
        Window("fixed", "kept", "fixed", range_ms=1_000, aggregation="average", field="x", **more),
        Window("sliding", "kept", "sliding", range_ms=3_000, slide_ms=2_000, aggregation="sum", field="n", **more),
        Window("session", "kept", "session", gap_ms=5, aggregation="count", **more),
        Window("least", "kept", aggregation="min", field="x"),
        Window("all", "kept", key="user", field="n"),
    ]
    found = []
    for functions in ([], [Function("same", f"{HERE}:same")]):
        names = ["in", *(one.name for one in functions), "kept", "out"]
        folder = tmp_path / str(len(functions))
        job = Job(
            id="both",
            workflow=list(zip(names, names[1:], strict=False)),
            catalog=[
                Input("in", format="json", path=str(tmp_path / "in"), schema="user string, at bigint, n int, x double"),
                *functions,
                Reduce("kept"),
                Output("out", format="json", path=str(folder / "out")),
            ],
            windows=windows,
            triggers=[Trigger(window.id) for window in windows],
        )
        at = folder / "checkpoints" / job.id / "1"
        end_of_input.note(str(at))
        run(spark, job, folder)
        found.append(written(folder / "out"))
        body = encode(job)
        compiled(spark, job, body, Setting(version=2, slots=9, checkpoint=str(at), connect=None))
        assert spark.conf.get(PARTS) == "4", "the first driver had two slots, and state stays in two groups for each"
    assert len(found[0]) > 1_000
    assert Counter(map(repr, found[0])) == Counter(map(repr, found[1]))


def test_late_segments_are_counted(spark: Any, tmp_path: Path) -> None:
    """Each batch reports how many segments were late so far; late segments are dropped."""
    job, segments = clicks(tmp_path)
    at, body = tmp_path / "checkpoints" / job.id / "1", encode(job)
    late = [
        {"user": "slow", "at": 100, "n": 1},
        {"user": "slow", "at": 900, "n": 1},
        {"user": "u1", "at": 3_499, "n": 1},
    ]
    lines(tmp_path / "in", "3.json", late)
    query = compiled(spark, decode(body), body, Setting(version=1, slots=2, checkpoint=str(at), connect=None)).start()
    query.awaitTermination()
    said = [list(report(json.loads(one.json), [])["late"].values()) for one in query.recentProgress if one.numInputRows]
    newest = [max(one["at"] for one in segments[: 100 * (place + 1)]) - 500 for place in range(3)]
    so_far = [0, 0, 0, 0]
    for place in range(3):
        ends = [one["at"] // 1_000 * 1_000 + 1_000 for one in segments[100 * place : 100 * (place + 1)]]
        clock = newest[place - 1] if place else -1
        so_far[place] = so_far[place - 1] * bool(place) + sum(end <= clock for end in ends)
    so_far[3] = so_far[2] + 2
    assert said == [[count] for count in so_far[-len(said) :]] and len(said) > 1
    assert not [one for one in written(tmp_path / "counts") if one["key"] == "slow"]


def test_state_is_as_it_was_after_a_failure(spark: Any, tmp_path: Path) -> None:
    """A failed batch has changed nothing; the next version continues exactly from the copied checkpoint."""
    job, segments = clicks(tmp_path)
    own = Aggregation(f"{HERE}:nothing", f"{HERE}:sum_or_fail")
    path = str(tmp_path / "flag")
    failing = Job(
        id=job.id,
        workflow=job.workflow,
        catalog=job.catalog,
        windows=[Window("all", "kept", key="user", aggregation=own), job.windows[0]],
        triggers=[Trigger("all", "watermark", emit_to="sums"), job.triggers[0]],
        key_groups=3,
    )
    lines(tmp_path / "in", "3.json", [{"user": path, "at": 3_000, "n": -1}])
    with pytest.raises(Exception, match="the first time it fails") as caught:
        run(spark, failing, tmp_path)
    failure = of_exception(caught.value)
    assert (failure.task, failure.restart) == ("kept", False)
    at = tmp_path / "checkpoints" / "clicks" / "1"
    assert last_batch(at) == 2
    at = run(spark, failing, tmp_path, version=2, batch=2)
    say_the_rest(spark, failing, tmp_path, at)
    said = {one["key"]: one["value"] for one in written(tmp_path / "sums")}
    assert said.pop(path) == -1
    assert said == added(segments, lambda one: one["user"], lambda one: one["n"])


def test_triggers_on_segments_count_over_batches_and_kills(spark: Any, tmp_path: Path) -> None:
    """Every four segments of a user are summed once, also over a takeover, and free clicks emit all up to them."""
    clicked, segments = clicks(tmp_path)
    job = evolve(
        clicked,
        windows=[
            Window("all", "kept", key="user", aggregation="sum", field="n"),
            Window("free", "kept", key="user", aggregation="count"),
        ],
        triggers=[
            Trigger("all", "segments", count=4, refinement="discarding", emit_to="sums"),
            Trigger("free", "punctuation", predicate=f"{HERE}:is_free", emit_to="counts"),
        ],
    )
    run(spark, job, tmp_path)
    more = [{"user": f"u{place % 7}", "at": 9_000, "n": place % 3} for place in range(40)]
    lines(tmp_path / "in", "3.json", more)
    at = run(spark, job, tmp_path, version=2, batch=2)
    say_the_rest(spark, job, tmp_path, at)
    prices: dict[str, list[int]] = {}
    for one in [*segments, *more]:
        prices.setdefault(one["user"], []).append(one["n"])
    sums = [(user, sum(ns[at : at + 4])) for user, ns in prices.items() for at in range(0, len(ns), 4)]
    assert Counter((one["key"], one["value"]) for one in written(tmp_path / "sums")) == Counter(sums)
    ends = [
        (user, at) for user, ns in prices.items() for at in range(1, len(ns) + 1) if not ns[at - 1] or at == len(ns)
    ]
    assert Counter((one["key"], one["value"]) for one in written(tmp_path / "counts")) == Counter(ends)


def test_a_join_of_files(spark: Any, tmp_path: Path) -> None:
    """Each order is joined with its customer; orders without one are output at the end."""
    lines(tmp_path / "a", "0.json", [{"id": n, "customer": n % 7} for n in range(20)])
    lines(tmp_path / "b", "0.json", [{"customer": n, "name": f"c{n}"} for n in range(6)])
    job = Job(
        id="join",
        workflow=[("orders", "both"), ("customers", "both"), ("both", "out")],
        catalog=[
            Input("orders", format="json", path=str(tmp_path / "a"), schema="id int, customer int"),
            Input("customers", format="json", path=str(tmp_path / "b"), schema="customer int, name string"),
            Join("both", left="orders", right="customers", on="customer", how="left"),
            Output("out", format="json", path=str(tmp_path / "out")),
        ],
        key_groups=2,
    )
    at = run(spark, job, tmp_path)
    assert all(one["right"] for one in written(tmp_path / "out"))
    say_the_rest(spark, job, tmp_path, at)
    said = written(tmp_path / "out")
    found = {one["left"]["id"]: one["right"] and one["right"]["name"] for one in said}
    assert found == {n: f"c{n % 7}" if n % 7 < 6 else None for n in range(20)}
    assert len(said) == 20


def test_timers_fire_though_nothing_comes_and_an_endless_input_may_end(spark: Any, tmp_path: Path) -> None:
    """A timer's output needs no other segment; the output at the end comes once the end is recorded."""
    lines(tmp_path / "in", "0.json", [{"user": "a"}, {"user": "b"}, {"user": "a"}])
    job = Job(
        id="timers",
        workflow=[("in", "count"), ("count", "soon"), ("count", "last")],
        catalog=[
            Input("in", format="json", path=str(tmp_path / "in"), schema="user string", bounded=False),
            Reduce("count"),
            Output("soon", format="json", path=str(tmp_path / "soon")),
            Output("last", format="json", path=str(tmp_path / "last")),
        ],
        windows=[Window("counts", "count", key="user", aggregation="count")],
        triggers=[
            Trigger("counts", "timer", period_ms=500, emit_to="soon"),
            Trigger("counts", "watermark", emit_to="last"),
        ],
        key_groups=2,
    )
    body = encode(job)
    setting = Setting(version=1, slots=2, checkpoint=str(tmp_path / "checkpoint"), connect=None)
    query = compiled(spark, decode(body), body, setting).start()
    said = _waited(query, lambda: written(tmp_path / "soon"))
    assert {one["key"]: one["value"] for one in said} == {"a": 2, "b": 1}
    assert not written(tmp_path / "last")
    end_of_input.note(setting.checkpoint)
    _waited(query, lambda: any(has_ended(json.loads(one.json)) for one in query.recentProgress))
    shown = [report(json.loads(one.json), [])["watermark_ms"] for one in query.recentProgress]
    assert shown and set(shown) == {None}, "there is no time but the clock's"
    query.stop()
    assert {one["key"]: one["value"] for one in written(tmp_path / "last")} == {"a": 2, "b": 1}


def test_windows_of_the_clock_and_timers_work_on_bounded_inputs(spark: Any, tmp_path: Path) -> None:
    """All of the input exists, so no group waits for the clock: the end of the input emits what is left."""
    lines(tmp_path / "in", "0.json", [{"user": "a"}, {"user": "b"}, {"user": "a"}])
    job = Job(
        id="bounded",
        workflow=[("in", "count"), ("count", "days"), ("count", "totals")],
        catalog=[
            Input("in", format="json", path=str(tmp_path / "in"), schema="user string"),
            Reduce("count"),
            Output("days", format="json", path=str(tmp_path / "days")),
            Output("totals", format="json", path=str(tmp_path / "totals")),
        ],
        windows=[
            Window("day", "count", "fixed", range_ms=86_400_000, key="user", aggregation="count"),
            Window("all", "count", key="user", aggregation="count"),
        ],
        triggers=[
            Trigger("day", emit_to="days"),
            Trigger("all", "timer", period_ms=86_400_000, emit_to="totals"),
        ],
        key_groups=2,
    )
    at = run(spark, job, tmp_path)
    say_the_rest(spark, job, tmp_path, at)
    for name in ("days", "totals"):
        assert {one["key"]: one["value"] for one in written(tmp_path / name)} == {"a": 2, "b": 1}


@pytest.mark.parametrize("groups", [1, 7, 16])
def test_each_group_has_a_partition_of_its_own(spark: Any, groups: int) -> None:
    """For any hash of the groups' names, no two groups share a partition, so no slot has double work."""
    named = spark.createDataFrame([(label,) for label in labels(groups)], "grp int").repartition(groups, "grp")
    placed = {row["place"] for row in named.selectExpr("spark_partition_id() AS place").collect()}
    assert len(placed) == groups


def _waited(query: Any, look: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + TIMEOUT_S
    while not (found := look()):
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return found
