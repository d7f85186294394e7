"""A job that resumes another has its windows, its joins and the places of its inputs, and counts each segment once."""

from __future__ import annotations

import datetime
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from onyxq.errors import BadRequest, Incomplete
from onyxq.jobs.encoding import decode, encode
from onyxq.jobs.model import Frame, Function, Input, Job, Join, Output, Reduce, Sql, Trigger, Window
from onyxq.jobs.replays import places_in, replayed
from onyxq.spark import java
from onyxq.spark.checkpoint import Checkpoints, end_event_time, note_job, recorded, save
from onyxq.spark.job_run import Order, Place, Running
from onyxq.spark.plan import end_of_input
from onyxq.spark.plan.compile import Setting, compiled, sources
from onyxq.spark.plan.regions import streams
from onyxq.spark.state_copy import Resumed, resume
from tests.spark.job_world import HERE, run, written
from tests.spark.test_windows import Segment, added, last_batch, lines, say_the_rest

pytestmark = pytest.mark.long


def shop(folder: Path) -> Job:
    """Return a job with all kinds of cuts: windows, windows of windows, and a join whose input also feeds windows."""
    return Job(
        id="old",
        workflow=[
            ("clicks", "kept"), ("kept", "counts"), ("kept", "again"), ("again", "emitted"),
            ("clicks", "both"), ("users", "both"), ("both", "pairs"),
        ],
        catalog=[
            Input("clicks", format="json", path=str(folder / "clicks"), schema="user string, at bigint, n int"),
            Input("users", format="json", path=str(folder / "users"), schema="user string, name string"),
            Reduce("kept"),
            Reduce("again"),
            Join("both", left="clicks", right="users", on="user", how="left"),
            *(Output(name, format="json", path=str(folder / name)) for name in ("counts", "emitted", "pairs")),
        ],
        windows=[
            Window("second", "kept", "fixed", range_ms=1_000, key="user", time="at", watermark_ms=500,
                   aggregation="count"),
            Window("all", "kept", key="user", aggregation="sum", field="n"),
            Window("windows", "again", key="window", aggregation="count"),
        ],
        triggers=[
            Trigger("second", "watermark"), Trigger("all", "batch", refinement="discarding", emit_to="counts"),
            Trigger("windows"),
        ],
        key_groups=2,
    )  # fmt: skip


def upgraded(job: Job, folder: Path) -> Job:
    """Return a job that continues it: another workflow, more windows, other groups, and all in another order."""
    kept = [task for task in reversed(job.catalog) if task.name != "clicks"]
    return evolve(
        job,
        id="new",
        resume="old",
        workflow=(*job.workflow[::-1], ("users", "names"), ("names", "named")),
        catalog=(
            *kept,
            Function("names", f"{HERE}:same"),
            Output("named", format="json", path=str(folder / "named")),
            job.catalog[0],
        ),
        windows=(Window("any", "kept", aggregation="count"), *reversed(job.windows)),
        triggers=(Trigger("any", emit_to="counts"), *job.triggers),
        key_groups=3,
    )


def clicked(batch: int) -> list[Segment]:
    """Return the segments of a batch; each second is in two batches."""
    return [{"user": f"u{n % 9}", "at": 1_000 * batch + 37 * n, "n": n} for n in range(40)]


def ended(job: Job, at: Path, state: str = "killed") -> Resumed:
    """Return what the log knows of a job that has ended."""
    batch = last_batch(at)
    note_job(str(at), encode(job))
    return Resumed(job.id, state, batch, recorded(str(at), batch, "", streams(job)))


def resumed(spark: Any, job: Job, folder: Path, old: Resumed) -> None:
    """Give a job the state of another; its first batch is then still to come."""
    checkpoints = Checkpoints(str(folder / "checkpoints"))
    at = checkpoints.fit(job, version=7, batch=-1, recorded=b"", resumes=True)
    setting = Setting(version=7, slots=2, checkpoint=at, connect=None)
    resume(spark, job, encode(job), setting, old, checkpoints)


def check_refusals(spark: Any, job: Job, folder: Path, left: Resumed) -> None:
    """The error names the field, or what is missing, and nothing is written."""
    wrong = evolve(job, windows=tuple(evolve(one, aggregation="max", field="n") for one in job.windows))
    with pytest.raises(BadRequest, match=r"windows\[3\]\.aggregation is 'max', but 'count' in job old"):
        resumed(spark, wrong, folder, left)
    with pytest.raises(Incomplete, match="another peer kept its checkpoint"):
        resumed(spark, job, folder / "elsewhere", left)
    assert not (folder / "checkpoints" / "new").exists()


def test_windows_joins_and_places_continue_in_a_changed_job(spark: Any, tmp_path: Path) -> None:
    """Results of both jobs together are those of one job; files that were read are not read again."""
    old = shop(tmp_path)
    lines(tmp_path / "clicks", "0.json", clicked(0))
    lines(tmp_path / "users", "0.json", [{"user": f"u{n}", "name": f"n{n}"} for n in range(4)])
    at = run(spark, old, tmp_path)
    new, left = upgraded(old, tmp_path), ended(old, at)
    check_refusals(spark, new, tmp_path, left)
    (at / "commits" / str(left.batch)).unlink()  # The driver ended before Spark noted that the batch was done.
    resumed(spark, new, tmp_path, left)
    lines(tmp_path / "clicks", "1.json", clicked(1))
    lines(tmp_path / "users", "1.json", [{"user": f"u{n}", "name": f"n{n}"} for n in range(4, 8)])
    checkpoints = Checkpoints(str(tmp_path / "checkpoints"))
    assert checkpoints.fit(new, version=7, batch=-1, recorded=b"", resumes=True).endswith("new/7")
    at = run(spark, new, tmp_path, version=7, batch=0)
    assert last_batch(at) == 1
    say_the_rest(spark, new, tmp_path, at)
    segments = [*clicked(0), *clicked(1)]
    counts = [one for one in written(tmp_path / "counts") if one["window"] == "second"]
    expected = added(segments, lambda one: (one["user"], one["at"] // 1_000 * 1_000), lambda one: 1)
    assert {(one["key"], one["start_ms"]): one["value"] for one in counts} == expected and len(counts) == len(expected)
    sums = [one for one in written(tmp_path / "counts") if one["window"] == "all"]
    assert added(sums, lambda one: one["key"], lambda one: one["value"]) == added(
        segments, lambda one: one["user"], lambda one: one["n"]
    )
    assert [one["value"] for one in written(tmp_path / "counts") if one["window"] == "any"] == [len(clicked(1))]
    emitted = {one["key"]: one["value"] for one in written(tmp_path / "emitted")}
    assert emitted["second"] == len(expected)
    pairs = [(one["left"]["user"], one["left"]["at"], one["right"] and one["right"]["name"])
             for one in written(tmp_path / "pairs")]  # fmt: skip
    names = {f"u{n}": f"n{n}" for n in range(8)}
    assert sorted(pairs, key=str) == sorted(
        ((one["user"], one["at"], names.get(one["user"])) for one in segments), key=str
    )
    assert sorted(one["user"] for one in written(tmp_path / "named")) == [f"u{n}" for n in range(4, 8)]


def test_a_job_continues_the_inputs_of_one_that_has_completed(spark: Any, tmp_path: Path) -> None:
    """All its windows were emitted, so the new ones begin empty, and end with the new input."""
    lines(tmp_path / "in", "0.json", [{"user": "a"}] * 3)
    old = Job(
        id="old",
        workflow=[("in", "out")],
        catalog=[
            Input("in", format="json", path=str(tmp_path / "in"), schema="user string"),
            Output("out", format="json", path=str(tmp_path / "out")),
        ],
    )
    left = ended(old, run(spark, old, tmp_path), "completed")
    new = evolve(
        old,
        id="new",
        resume="old",
        workflow=[("in", "kept"), ("kept", "out")],
        catalog=(Reduce("kept"), *old.catalog),
        windows=[Window("all", "kept", key="user", aggregation="count")],
        triggers=[Trigger("all")],
    )
    resumed(spark, new, tmp_path, left)
    lines(tmp_path / "in", "1.json", [{"user": "b"}] * 2)
    say_the_rest(spark, new, tmp_path, run(spark, new, tmp_path, version=7, batch=0))
    assert [(one["key"], one["value"]) for one in written(tmp_path / "out") if "key" in one] == [("b", 2)]


def test_inputs_of_a_changed_query_continue_by_their_names(spark: Any, tmp_path: Path) -> None:
    """Frame tasks decide in which order Spark reads the inputs; another order, and a new input, mix up no places."""

    def union(*names: str, **more: Any) -> Job:
        text = " union all ".join(f"select n from {name}" for name in names)
        inputs = [Input(name, format="json", path=str(tmp_path / name), schema="n int") for name in sorted(names)]
        out = Output("out", format="json", path=str(tmp_path / "out"))
        edges = [*((name, "both") for name in names), ("both", "out")]
        return Job(workflow=edges, catalog=[*inputs, Sql("both", text), out], key_groups=2, **more)

    for name in ("first", "second", "third"):
        (tmp_path / name).mkdir()
    old, at = union("first", "second", id="old"), None
    for name, numbers in (("first", (1, 2)), ("second", (11,))):
        for batch, number in enumerate(numbers):
            lines(tmp_path / name, f"{batch}.json", [{"n": number}])
            at = run(spark, old, tmp_path, batch=-1 if at is None else last_batch(at))
    assert at is not None
    body, setting = encode(old), Setting(version=1, slots=2, checkpoint=str(at), connect=None)
    names = sources(java.frame_of(compiled(spark, decode(body), body, setting)))
    assert sorted({*names}) == ["first", "second"]
    note_job(str(at), body)
    left = Resumed("old", "killed", last_batch(at), recorded(str(at), last_batch(at), "", names))
    new = union("second", "third", "first", id="new", resume="old")
    resumed(spark, new, tmp_path, left)
    for name, number in (("first", 3), ("second", 12), ("third", 21)):
        lines(tmp_path / name, "9.json", [{"n": number}])
    run(spark, new, tmp_path, version=7, batch=0)
    assert sorted(one["n"] for one in written(tmp_path / "out")) == [1, 2, 3, 11, 12, 21]


def once(orders: Any) -> Any:
    """Return the first order of each user; its state stays until the job ends."""
    return orders.select("user").dropDuplicates(["user"])


def framed(folder: Path, outputs: Path, **more: Any) -> Job:
    """Return a job whose frame tasks keep state of each kind, beside windows of segments."""
    source: dict[str, Any] = {"format": "json", "options": {"maxFilesPerTrigger": "1"}}
    names = ("hours", "once", "paid", "counts")
    return Job(
        workflow=[
            *(("orders", "hours"), ("orders", "once"), ("orders", "paid"), ("payments", "paid"), ("orders", "kept")),
            *((name if name != "counts" else "kept", f"{name} out") for name in names),
        ],
        catalog=[
            Input("orders", path=str(folder / "orders"), schema="id long, user string, at timestamp", time="at",
                  watermark_ms=600_000, **source),
            Input("payments", path=str(folder / "payments"), schema="of long, paid_at timestamp", time="paid_at",
                  watermark_ms=600_000, **source),
            Sql("hours", "select window.start as hour, user, count(*) as n from orders group by window(at, '1 hour'), "
                "user"),
            Frame("once", f"{__name__}:once"),
            Sql("paid", "select id, paid_at from orders left join payments on id = of and paid_at between at and at + "
                "interval 90 minutes"),
            Reduce("kept"),
            *(Output(f"{name} out", format="json", path=str(outputs / name)) for name in names),
        ],
        windows=[Window("users", "kept", key="user", aggregation="count")],
        triggers=[Trigger("users")],
        key_groups=1,
        **more,
    )  # fmt: skip


def ordered(folder: Path, batch: int) -> None:
    """Write the orders and payments of a batch: an order each three minutes, and payments half an hour later."""
    numbers = range(40 * batch, 40 * batch + 40)
    at = [datetime.datetime(2027, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(minutes=3 * n) for n in numbers]
    made = list(zip(numbers, (when.isoformat() for when in at), strict=True))
    lines(folder / "orders", f"{batch}.json", [{"id": n, "user": f"u{n % 7}", "at": when} for n, when in made])
    paid = [{"of": n - 10, "paid_at": when} for n, when in made if (n - 10) % 3]
    lines(folder / "payments", f"{batch}.json", paid)


def driven(spark: Any, job: Job, folder: Path, left: Resumed | None = None) -> None:
    """Drive a job to its end, as a host does."""
    events: list[Any] = []
    order = Order(
        job=job.id, version=7, body=encode(job), slots=2, batch=-1, offsets=b"", sealed=frozenset(), resumed=left
    )
    place = Place(connect=None, slots=2, checkpoints=Checkpoints(str(folder / "checkpoints")))
    running = Running(spark, order, place=place, say=events.append)
    running.start()
    running.join()
    assert events[-1]["event"] == "completed", events[-1]


def check_outputs(folders: list[Path], batches: int) -> None:
    """Check that the outputs of `framed` have together what plain Python makes of these batches."""
    rows = {
        name: [row for folder in folders for row in written(folder / name)]
        for name in ("hours", "once", "paid", "counts")
    }
    orders = [(n, f"u{n % 7}", f"2027-01-01T{3 * n // 60:02d}") for n in range(40 * batches)]
    hours = Counter((hour, user) for _, user, hour in orders)
    assert sorted((row["hour"][:13], row["user"], row["n"]) for row in rows["hours"]) == sorted(
        (*key, count) for key, count in hours.items()
    )
    assert sorted(row["user"] for row in rows["once"]) == [f"u{n}" for n in range(7)]
    paid = [(n, bool(n % 3) and n + 10 < len(orders)) for n, _, _ in orders]
    assert sorted((row["id"], row["paid_at"] is not None) for row in rows["paid"]) == paid
    users = Counter(user for _, user, _ in orders)
    assert sorted((row["key"], row["value"]) for row in rows["counts"]) == sorted(users.items())


@pytest.mark.parametrize("end", ["noted", "not noted", "of event time", "saved"])
def test_the_state_of_frame_tasks_continues_in_a_job_with_the_same_plan(spark: Any, tmp_path: Path, end: str) -> None:
    """Results of both jobs together are those of one job, however the driver of the first one ended."""
    old, at = framed(tmp_path, tmp_path / "first", id="old"), None
    for batch in range(2):
        ordered(tmp_path, batch)
        at = run(spark, old, tmp_path, batch=-1 if at is None else last_batch(at))
    assert at is not None
    setting = Setting(version=1, slots=2, checkpoint=str(at), connect=None)
    names = sources(java.frame_of(compiled(spark, decode(encode(old)), encode(old), setting)))
    note_job(str(at), encode(old))
    batch = last_batch(at)
    left = Resumed("old", "killed", batch, recorded(str(at), batch, "", names))
    if end == "not noted":
        for name in (str(batch), f".{batch}.crc"):
            (at / "commits" / name).unlink()
    elif end == "of event time":
        end_event_time(str(at))
        end_of_input.note(str(at))
    elif end == "saved":
        save(str(at), batch, str(tmp_path / "saved"))
        shutil.rmtree(at)
        left = evolve(left, state="saved", place=str(tmp_path / "saved"))
    ordered(tmp_path, 2)
    driven(spark, framed(tmp_path, tmp_path / "second", id="new", resume="old"), tmp_path, left)
    check_outputs([tmp_path / "first", tmp_path / "second"], 3)
    assert all(written(tmp_path / "first" / name) for name in ("hours", "once", "paid"))


@pytest.mark.parametrize("kind", ["plain", "windows", "frames"])
def test_a_replay_begins_at_a_batch_of_its_job_with_empty_windows(spark: Any, tmp_path: Path, kind: str) -> None:
    """It reads the files that this batch and later ones have read, and those that came since, each once."""
    windows, frames = kind == "windows", kind == "frames"
    source = Input("in", format="json", path=str(tmp_path / "in"), schema="n int")
    first = [("in", "same"), ("same", "out")] if frames else [("in", "out")]
    old = Job(
        id="old",
        workflow=[*first, *([("in", "count"), ("count", "counts")] if windows else [])],
        catalog=[
            source,
            *([Sql("same", "select n from `in`")] if frames else []),
            Output("out", format="json", path=str(tmp_path / "out")),
            *([Reduce("count"), Output("counts", format="json", path=str(tmp_path / "counts"))] if windows else []),
        ],
        windows=[Window("all", "count", aggregation="count")] if windows else [],
        triggers=[Trigger("all", "batch")] if windows else [],
        key_groups=2,
    )
    at = tmp_path
    for batch in range(3):
        lines(tmp_path / "in", f"{batch}.json", [{"n": batch}] * 2)
        at = run(spark, old, tmp_path, batch=batch - 1)
    assert last_batch(at) == 2
    setting = Setting(version=1, slots=2, checkpoint=str(at), connect=None)
    names = streams(old) or sources(java.frame_of(compiled(spark, old, encode(old), setting)))
    begin = places_in(recorded(str(at), 0, "of files", names))
    lines(tmp_path / "in", "3.json", [{"n": 3}])
    outputs = {name: str(tmp_path / f"{name}-again") for name in ("out", "counts")}
    new = replayed(old, id="new", since_ms=None, outputs=outputs, begin=begin)
    if windows or frames:
        resumed(spark, new, tmp_path, Resumed("new", "completed", 0, begin))
        run(spark, new, tmp_path, version=7, batch=0)
    else:
        run(spark, new, tmp_path, version=7, recorded=begin)
    assert sorted(one["n"] for one in written(tmp_path / "out-again")) == [1, 1, 2, 2, 3]
    if windows:
        assert max(one["value"] for one in written(tmp_path / "counts-again")) == 5
