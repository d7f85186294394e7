"""Every kind of input in workflows with several cuts or inputs: each segment exactly once."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from attrs import evolve
from pyarrow import parquet

from onyxq.client import Client
from onyxq.jobs.encoding import decode, encode
from onyxq.jobs.model import Function, Input, Job, Join, Output, Reduce, Sql, Trigger, Window
from onyxq.spark import java, progress
from onyxq.spark.plan.compile import Setting, compiled
from onyxq.spark.plan.inputs import keeps_list
from tests.interfaces.batches_world import JobsCluster
from tests.spark.branch_world import KINDS, calls, check_calls, filled
from tests.spark.job_world import HERE, run, written

pytestmark = pytest.mark.long


NUMBERS = range(60)
INPUTS = tuple(kind for kind in KINDS if not kind.startswith("rate"))
SHAPES = {"a cut and an output": 2, "two cuts in a row": 2, "a join with itself": 3, "two inputs": 1}
"""Shape of a workflow -> on how many ways its function is called (`tests.spark.test_branches` has other shapes)."""
END_S = 120
_names = count(1)


def job_of(shape: str, sources: list[Input], folder: Path) -> Job:
    """Return a job of that shape; its outputs are JSON in folders of the same names."""
    notes = folder / "notes"
    notes.mkdir()
    edges = [(source.name, "f") for source in sources] + [("f", "rows")]
    catalog: list[Any] = [*sources, Function("f", f"{HERE}:noted_number", {"folder": str(notes), "task": "f"})]
    names, windows = ["rows"], []
    if "cut" in shape:
        edges += [("f", "sums"), ("sums", "summed")]
        catalog.append(Reduce("sums"))
        windows.append(Window("sum", "sums", aggregation="sum", field="n"))
        names.append("summed")
    if shape == "two cuts in a row":
        edges += [("sums", "counts"), ("counts", "counted")]
        catalog.append(Reduce("counts"))
        windows.append(Window("count", "counts", aggregation="count"))
        names.append("counted")
    if shape == "a join with itself":
        edges += [("f", "left"), ("f", "right"), ("left", "pairs"), ("right", "pairs"), ("pairs", "paired")]
        catalog += [Function(side, f"{HERE}:same") for side in ("left", "right")]
        catalog.append(Join("pairs", left="left", right="right", on="n"))
        names.append("paired")
    return Job(
        id=f"job-{next(_names)}",
        workflow=edges,
        catalog=[*catalog, *(Output(name, format="json", path=str(folder / name)) for name in names)],
        windows=windows,
        triggers=[Trigger(window.id, on="batch" if window.id == "sum" else "watermark") for window in windows],
        key_groups=2,
    )


def inputs(spark: Any, client: Client, kind: str, shape: str, folder: Path) -> list[Input]:
    """Return one input with all numbers, or two inputs with a part each."""
    parts = [NUMBERS[:20], NUMBERS[20:]] if shape == "two inputs" else [NUMBERS]
    return [filled(spark, client, kind, folder, part) for part in parts]


def run_queues(spark: Any, cluster: JobsCluster, client: Client, job: Job, folder: Path) -> None:
    """Drive a job until its queues are done."""
    version = cluster.start_job(job.id).version
    body = encode(job)
    setting = Setting(version=version, slots=2, checkpoint=str(folder / "checkpoint"), connect=cluster.connect)
    query = compiled(spark, decode(body), body, setting).start()
    queues = [str(task.queue) for task in job.catalog if isinstance(task, Input)]
    deadline = time.monotonic() + END_S
    while not all(client.count(queue)[queue]["completed"] == client.count(queue)[queue]["total"] for queue in queues):
        assert time.monotonic() < deadline, "the queues were not done in time"
        query.awaitTermination(0.1)
    query.stop()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", INPUTS)
def test_each_segment_arrives_once_on_every_branch(
    spark: Any, cluster: JobsCluster, client: Client, tmp_path: Path, kind: str, shape: str
) -> None:
    """A plan may use one source several times; its input is committed once."""
    job = job_of(shape, inputs(spark, client, kind, shape, tmp_path), tmp_path)
    if kind == "queue":
        run_queues(spark, cluster, client, job, tmp_path)
    else:
        run(spark, job, tmp_path)
    wanted = Counter(NUMBERS)
    assert Counter(one["n"] for one in written(tmp_path / "rows")) == wanted
    check_calls(calls(tmp_path / "notes"), NUMBERS, {"f": SHAPES[shape]})
    if "cut" in shape:
        assert max(one["value"] for one in written(tmp_path / "summed")) == sum(NUMBERS)
    if "join" in shape:
        assert Counter(one["left"]["n"] for one in written(tmp_path / "paired")) == wanted


def test_a_queue_is_read_as_columns_and_as_segments(
    spark: Any, cluster: JobsCluster, client: Client, tmp_path: Path
) -> None:
    """Its tasks are rows of a query and segments of a function in one batch, and each is completed once."""
    queue, out = f"queue-{next(_names)}", f"queue-{next(_names)}"
    client.enqueue_many(queue, [b'{"n": %d}' % number for number in NUMBERS], format="json")
    job = Job(
        id=f"job-{next(_names)}",
        workflow=[("in", "odd"), ("odd", "doubled"), ("odd", "queue"), ("in", "same"), ("same", "rows")],
        catalog=[
            Input("in", queue=queue, schema="n bigint"),
            Sql("odd", "select 2 * n as twice from `in` where n % 2 = 1"),
            Function("same", f"{HERE}:same"),
            Output("queue", queue=out),
            *(Output(name, format="json", path=str(tmp_path / name)) for name in ("doubled", "rows")),
        ],
        key_groups=2,
    )
    run_queues(spark, cluster, client, job, tmp_path)
    doubled = Counter(2 * number for number in NUMBERS if number % 2)
    assert Counter(one["n"] for one in written(tmp_path / "rows")) == Counter(NUMBERS)
    assert Counter(one["twice"] for one in written(tmp_path / "doubled")) == doubled
    assert Counter(json.loads(task.data)["twice"] for task in client.list_all(out)) == doubled


def test_a_preview_reads_files_as_spark_does(spark: Any, tmp_path: Path) -> None:
    """Lines, columns, types and Nones are the same, with a schema and without, for broken lines too."""
    lines = ['{"n": 1, "b": true, "s": "x y"}', "", '{"n": 2.5, "s": null}', "broken", '{"n": 3, "other": "o"}']
    catalog: list[Any] = []
    for name, kind, schema in (
        ("lines", "text", None),
        ("named", "json", "n double, b boolean, s string, _corrupt_record string"),
        ("found", "json", None),
    ):
        (tmp_path / name).mkdir()
        text = "\n".join(line for line in lines if name != "found" or line != "broken")
        (tmp_path / name / "a.json").write_text(text + "\n")
        catalog += [Input(name, format=kind, path=str(tmp_path / name), schema=schema)]
        catalog += [Output(f"{name}-out", format="json", path=str(tmp_path / f"{name}-out"))]
    (tmp_path / "columns").mkdir()
    row = {"n": 1, "s": "x", "l": [1.5, None], "d": {"k": None, "b": True}, "m": [("a", 2)]}
    kinds = {"n": pyarrow.int16(), "s": pyarrow.large_string(), "l": pyarrow.list_(pyarrow.float32())}
    kinds["d"] = pyarrow.struct({"k": pyarrow.string(), "b": pyarrow.bool_()})
    kinds["m"] = pyarrow.map_(pyarrow.string(), pyarrow.int64())
    table = pyarrow.Table.from_pylist([row, {"n": 2}], schema=pyarrow.schema(kinds))
    parquet.write_table(table, tmp_path / "columns" / "a.parquet")
    catalog += [Input("columns", format="parquet", path=str(tmp_path / "columns"))]
    catalog += [Output("columns-out", format="json", path=str(tmp_path / "columns-out"))]
    edges = [(task.name, f"{task.name}-out") for task in catalog if isinstance(task, Input)]
    job = Job(id="previewed", workflow=edges, catalog=catalog, key_groups=2)
    run(spark, job, tmp_path)
    for name, segments in job.preview().outputs.items():
        assert Counter(map(repr, segments)) == Counter(map(repr, written(tmp_path / name))), name


def test_an_input_of_files_begins_at_a_time(spark: Any, tmp_path: Path) -> None:
    """Files that were modified before are not even opened: their lines could not be read. A preview does the same."""
    job = Job(
        id="since",
        workflow=[("in", "out"), ("in", "counts"), ("counts", "counted")],
        catalog=[
            Input("in", format="json", path=str(tmp_path / "in"), schema="n bigint", since_ms=2_000_000),
            Reduce("counts"),
            *(Output(name, format="json", path=str(tmp_path / name)) for name in ("out", "counted")),
        ],
        windows=[Window("all", "counts", aggregation="count")],
        triggers=[Trigger("all", "batch")],
        key_groups=2,
    )
    (tmp_path / "in").mkdir()
    for name, text, modified_s in (("a", "broken", 1_999), ("b", '{"n": 2}', 2_000), ("c", '{"n": 3}', 2_001)):
        (tmp_path / "in" / f"{name}.json").write_text(text)
        os.utime(tmp_path / "in" / f"{name}.json", (modified_s, modified_s))
    run(spark, job, tmp_path)
    assert sorted(one["n"] for one in written(tmp_path / "out")) == [2, 3]
    assert [one["value"] for one in written(tmp_path / "counted")] == [2]
    assert job.preview().outputs["out"] == [{"n": 2}, {"n": 3}]


def test_a_batch_of_older_files_is_not_the_end_of_an_input(spark: Any, client: Client, tmp_path: Path) -> None:
    """It has no rows, but it moves the input's place: newer files are still to be read."""
    files = filled(spark, client, "json", tmp_path, NUMBERS)
    job = job_of("a cut and an output", [evolve(files, since_ms=253_402_300_799_000)], tmp_path)
    body = encode(job)
    query = compiled(spark, job, body, Setting(1, 2, str(tmp_path / "checkpoint"), None)).start()
    query.awaitTermination()
    (said,) = [json.loads(one) for one in java.reports(query)]
    assert said["numInputRows"] == 0 and not progress.is_empty(said)
    places = [{**source, "startOffset": source["endOffset"]} for source in said["sources"]]
    assert progress.is_empty({**said, "sources": places})


@pytest.mark.parametrize("trigger", [{"availableNow": True}, {"processingTime": "0 seconds"}])
def test_files_that_are_listed_and_not_read_are_counted(spark: Any, tmp_path: Path, trigger: dict[str, Any]) -> None:
    """Spark reports them nowhere."""
    (tmp_path / "in").mkdir()
    for second, name in enumerate("abcd"):
        (tmp_path / "in" / name).write_text(name)
        os.utime(tmp_path / "in" / name, (1_000 + second, 1_000 + second))
    files = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(tmp_path / "in"))
    found: list[list[int | None]] = []

    def look(batch: Any, number: int) -> None:
        (query,) = spark.streams.active
        found.append(java.unread_files(query))

    writer = files.writeStream.foreachBatch(look).trigger(**trigger)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    query.processAllAvailable()
    query.stop()
    assert found == [[3], [2], [1], [0]]


def test_a_job_reports_the_files_that_are_not_read() -> None:
    """Spark keeps no list of an input whose newest files come first."""
    files = Input("in", format="text", path="/data")
    assert keeps_list(files)
    assert not keeps_list(evolve(files, options={"LatestFirst": "true"}))
    assert not keeps_list(Input("topic", format="kafka")) and not keeps_list(Input("q", queue="q"))
