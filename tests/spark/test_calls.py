"""Functions of the user as outputs: each committed batch is given to them, again and with the same key if they fail."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import msgpack
import pytest
from attrs import evolve
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("pyarrow")

import pyarrow

from onyxq.errors import BadRequest, Unavailable
from onyxq.jobs import functions
from onyxq.jobs.encoding import decode, encode
from onyxq.jobs.job_check import check
from onyxq.jobs.model import Input, Job, Output
from onyxq.jobs.values import pack
from onyxq.spark.failures import TaskFailed, of_exception
from onyxq.spark.files import columns
from onyxq.spark.files.file_sink import publish, stage
from onyxq.spark.files.formats import described
from onyxq.spark.files.staging import Folder, Staging
from onyxq.spark.plan.compile import Setting, compiled, folders_of
from onyxq.spark.sinks import calls
from onyxq.spark.sinks.frame_calls import ask, serving
from onyxq.spark.state_copy import recover
from tests.jobs.generated_values import values
from tests.spark.generated_columns import Rows, alike, rows

CALLED: list[tuple[Any, dict[str, Any]]] = []


def note(rows: Any, facts: dict[str, Any]) -> None:
    """Note a call; an empty list of failures lets it succeed."""
    CALLED.append((rows, facts))
    if FAILURES:
        raise FAILURES.pop()


def note_frame(frame: Any, facts: dict[str, Any]) -> None:
    """Note a call with a DataFrame, whose rows are computed here."""
    note(sorted(row.value for row in frame.selectExpr("upper(value) value").collect()), facts)


FAILURES: list[Exception] = []


@pytest.fixture(autouse=True)
def fresh() -> None:
    """Each test sees its own calls."""
    CALLED.clear()
    FAILURES.clear()


def output(folder: Path) -> Folder:
    """An output that is a function."""
    return Folder("out", "foreach_batch", str(folder), {}, fn=calls.reference(f"{__name__}:note"))


def staged(out: Folder, number: int, *tasks: list[Any]) -> None:
    """Write and note a batch of several tasks."""
    files = []
    for part, found in enumerate(tasks):
        task = Staging({"out": out}, job="j", batch=number, part=part)
        for row in found:
            task.add("out", pack(row))
        files += task.finish()
    stage([out], files, job="j", batch=number, mark=f"m{number}")


def test_a_function_gets_the_segments_of_each_batch_with_its_key(tmp_path: Path) -> None:
    """Without a schema any segments, in one call for each batch that has some."""
    out = output(tmp_path)
    for number, tasks in enumerate(([[{1}, (2, 3)], ["x"]], [], [[4]])):
        staged(out, number, *tasks)
        publish([out], job="j", batch=number, mark=f"m{number}", version=3)
    facts = {"job": "j", "version": 3, "task": "out"}
    assert [
        ([{1}, (2, 3), "x"], {**facts, "batch": 0, "key": "onyxq/j/out/m0/0"}),
        ([4], {**facts, "batch": 2, "key": "onyxq/j/out/m0/2"}),
    ] == CALLED
    assert list((tmp_path / "_onyxq" / "j").glob("part-*")) == []


def test_with_a_schema_it_gets_a_table_of_arrow(tmp_path: Path) -> None:
    """Of all tasks of the batch."""
    schema = described(pyarrow.schema([("n", pyarrow.int32())]))
    out = evolve(output(tmp_path), schema=schema, options={"schema": "n int"})
    staged(out, 0, [{"n": 1}], [{"n": 2}, {}])
    publish([evolve(out, schema="")], job="j", batch=0, mark="m0")
    assert [rows.to_pylist() for rows, _ in CALLED] == [[{"n": 1}, {"n": 2}, {"n": None}]]


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(found=st.lists(values(), min_size=1, max_size=4), made=rows(nested=True, least=1, astray=False))
def test_values_come_back_unchanged(tmp_path_factory: pytest.TempPathFactory, found: list[Any], made: Rows) -> None:
    """Segments of any type, and columns of any type."""
    CALLED.clear()
    out = output(tmp_path_factory.mktemp("calls"))
    staged(out, 0, found)
    publish([out], job="j", batch=0, mark="m0")
    out = evolve(output(tmp_path_factory.mktemp("calls")), schema=described(made.arrow), options={"schema": made.sql})
    staged(out, 0, made.rows)
    publish([evolve(out, schema="")], job="j", batch=0, mark="m0")
    (segments, _), (table, _) = CALLED
    assert pack(segments) == pack(found)
    assert alike([row for batch in table.to_batches() for row in columns.segments(batch)], made.rows)


def test_a_call_that_fails_is_repeated_with_the_same_rows_and_key(tmp_path: Path) -> None:
    """The job is restarted, and its next driver makes the call before anything else."""
    out = output(tmp_path)
    staged(out, 0, [1, 2])
    FAILURES.append(ValueError("no room"))
    with pytest.raises(TaskFailed) as caught:
        publish([out], job="j", batch=0, mark="m0", version=1)
    assert caught.value.failure.restart and caught.value.failure.error == "task out: ValueError: no room"
    publish([out], job="j", batch=0, mark="m0", version=2)
    publish([out], job="j", batch=0, mark="m0", version=2)
    assert [(rows, facts["key"], facts["version"]) for rows, facts in CALLED] == [
        ([1, 2], "onyxq/j/out/m0/0", 1),
        ([1, 2], "onyxq/j/out/m0/0", 2),
    ]


def test_pickled_functions_are_called_too(tmp_path: Path) -> None:
    """As in the rest of a job."""
    marker = tmp_path / "called"
    pickled = functions.named_or_pickled(lambda rows, facts: marker.write_text(f"{rows} {facts['batch']}"))
    out = evolve(output(tmp_path / "out"), fn=calls.reference(pickled))
    staged(out, 0, [5])
    publish([out], job="j", batch=0, mark="m0")
    assert marker.read_text() == "[5] 0"


@pytest.mark.long
def test_a_function_may_ask_for_a_dataframe(spark: Any, tmp_path: Path) -> None:
    """The host calls it with its session, also for a batch that the driver before has not given to it."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("a\nb\nc\n")
    schema = {"schema": "value string", "rows": "frame"}
    out = Output("out", foreach_batch=f"{__name__}:note_frame", path=str(tmp_path / "o [1]"), options=schema)
    source = Input("in", format="text", path=str(tmp_path / "in"))
    job = Job(id="j", workflow=[("in", "out")], catalog=[source, out], key_groups=2)
    body = encode(job)
    FAILURES.append(ValueError("no room"))
    with serving(spark, job, calls.call_with_frame) as address:
        setting = Setting(version=3, slots=2, checkpoint=str(tmp_path / "checkpoint"), connect=None, calls=address)
        with pytest.raises(Exception, match="no room") as caught:
            compiled(spark, decode(body), body, setting).start().awaitTermination()
        failure = of_exception(caught.value)
        assert (failure.error, failure.restart) == ("task out: ValueError: no room", True)
        compiled(spark, decode(body), body, setting).start().awaitTermination()
    (first, facts), again = CALLED
    assert (first, facts["job"], facts["version"], facts["batch"]) == (["A", "B", "C"], "j", 3, 0)
    assert again == (first, facts)

    (folder,) = folders_of(job)
    columns = described(pyarrow.schema([("value", pyarrow.string())]))
    staged(evolve(folder, schema=columns), 1, [{"value": "d"}])
    recover(spark, job, 1, msgpack.packb({"mark": "m1"}), 4)
    rows, facts = CALLED[-1]
    assert (rows, facts["version"], facts["batch"]) == (["D"], 4, 1)
    staged(evolve(folder, schema=columns), 2, [{"value": "e"}])
    with pytest.raises(Unavailable, match="only the host"):
        publish([folder], job="j", batch=2, mark="m2")


class Reader:
    """A session whose frames are the paths that they read."""

    def __init__(self) -> None:
        self.sparkContext = self.read = self
        self.in_workers: list[Any] = []

    def parallelize(self, values: list[Any], slices: int) -> Reader:
        """Keep the values."""
        self.in_workers += values
        return self

    def foreach(self, call: Any) -> None:
        """Make the call of a worker."""
        call(self.in_workers[-1])

    def getLocalProperty(self, name: str) -> None:
        """Return nothing, as without a pool."""

    def setLocalProperty(self, name: str, value: Any) -> None:
        """Do nothing."""

    def parquet(self, *paths: str) -> tuple[str, ...]:
        """Return the paths."""
        return paths


def frame_job(path: str) -> Job:
    """A job whose function gets a DataFrame."""
    options = {"schema": "value string", "rows": "frame"}
    out = Output("out", foreach_batch=f"{__name__}:note", path=path, options=options)
    return Job(id="j", workflow=[("in", "out")], catalog=[Input("in", format="text", path="/in"), out])


def test_a_host_serves_calls_with_any_folder_for_temporary_files_and_any_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The address of a socket holds about 100 bytes, and the host's folder is in the data directory of its peer."""
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    monkeypatch.chdir(tmp_path)
    for path, start in (
        ("o [1]", f"file://{tmp_path}/o \\[1\\]"),
        ("s3a://bucket/o/?region=eu-central-1", "s3a://bucket/o"),
    ):
        job = frame_job(path)
        with serving(Reader(), job, calls.call_with_frame) as address:
            (out,) = folders_of(job, address)
            ask(out, [f"{out.system()[1]}/_onyxq/j/part"], {"fn": out.fn, "facts": {"task": "out"}})
        assert CALLED.pop() == ((f"{start}/_onyxq/j/part",), {"task": "out"})


def test_a_function_of_rows_gets_its_last_batch_in_a_worker_beside_one_of_a_dataframe(tmp_path: Path) -> None:
    """Only workers have the packages of the job's environment."""
    job = frame_job(str(tmp_path / "frame"))
    plain = Output("plain", foreach_batch=f"{__name__}:note", path=str(tmp_path / "plain"))
    job = evolve(job, workflow=[*job.workflow, ("in", "plain")], catalog=[*job.catalog, plain])
    folders = folders_of(job)
    columns = described(pyarrow.schema([("value", pyarrow.string())]))
    task = Staging({"out": evolve(folders[0], schema=columns), "plain": folders[1]}, job="j", batch=1, part=0)
    for out in ("out", "plain"):
        task.add(out, pack({"value": "a"}))
    stage(folders, task.finish(), job="j", batch=1, mark="m")
    session = Reader()
    recover(session, job, 1, msgpack.packb({"mark": "m"}), 4)
    (paths, _), (rows, facts) = CALLED
    assert paths[0].startswith("file:") and rows == [{"value": "a"}]
    assert [one.output for one in session.in_workers] == ["plain"] == [facts["task"]]
    recover(session, job, 1, msgpack.packb({"mark": "m"}), 5)
    assert len(CALLED) == 2


def test_a_dataframe_needs_columns() -> None:
    """The option is checked when the job is submitted."""
    for options, problem in (({"rows": "frame"}, "is missing: a DataFrame has columns"), ({"rows": "all"}, "arrow or")):
        out = Output("out", foreach_batch="builtins:print", path="/hidden", options=options)
        with pytest.raises(BadRequest, match=problem):
            check(Job(id="j", workflow=[("in", "out")], catalog=[Input("in", queue="a"), out]))
