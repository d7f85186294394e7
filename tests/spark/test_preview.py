"""Previews of jobs on a real Spark session: frames, files of any format, and the same results as without Spark."""

from __future__ import annotations

import ast
import datetime
import decimal
import importlib
import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pyarrow
import pytest
from attrs import evolve

from onyxq import BatchFunction, Condition, Frame, Function, Input, Job, Join, Output, Reduce, Sql, Trigger, Window
from onyxq.errors import BadRequest, TaskFailed
from onyxq.testing import preview
from tests.jobs.test_jobs_page import DOCS, code
from tests.jobs.test_preview import LINES, divided
from tests.jobs.test_preview import job as words_job

pytestmark = pytest.mark.long

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebooks" / "preview_frames.ipynb"
CELL_S_MAX = 300
NINE = datetime.datetime(2027, 1, 1, 9, tzinfo=datetime.UTC)


HOURS = """
select window.start as hour, land, sum(amount) as amount
from with_lands group by window(at, '1 hour'), land
"""


def at(minute: int) -> datetime.datetime:
    """Return a time of that day."""
    return NINE + datetime.timedelta(minutes=minute)


def with_lands(orders: Any, users: Any) -> Any:
    """Join a stream with a table."""
    return orders.join(users, "user", "left")


def doubled(batch: Any) -> Any:
    """Double a column."""
    twice = [2 * n for n in batch.column("n").to_pylist()]
    return pyarrow.RecordBatch.from_pydict({"n": pyarrow.array(twice, pyarrow.int64())})


def hours(**orders: Any) -> Job:
    """Return a job that sums the amounts of orders by hour and land."""
    return Job(
        id="hours",
        workflow=[("orders", "with_lands"), ("users", "with_lands"), ("with_lands", "hours"), ("hours", "out")],
        catalog=[
            Input(
                "orders",
                schema="user string, amount double, at timestamp",
                time="at",
                watermark_ms=600_000,
                **{"format": "json", "path": "/no/such/orders", **orders},
            ),
            Input("users", format="parquet", path="/no/such/users", static=True),
            Frame("with_lands", with_lands),
            Sql("hours", HOURS),
            Output("out", format="parquet", path="/no/such/out"),
        ],
    )


ORDERS = [{"user": "ann", "amount": 5.0, "at": at(0)}, {"user": "bob", "amount": 2.0, "at": at(30)}]
USERS = [{"user": "ann", "land": "NO"}]


def test_frames_join_a_table_and_windows_end_with_the_inputs(spark: Any) -> None:
    """The thread's session runs the job; a job is as it was afterwards."""
    found = preview(hours(), {"orders": ORDERS, "users": USERS})
    assert sorted(found.outputs["out"], key=str) == sorted(
        [{"hour": NINE, "land": "NO", "amount": 5.0}, {"hour": NINE, "land": None, "amount": 2.0}], key=str
    )
    assert (found.late, found.letters, found.dropped) == ({}, {}, 0)
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"


def test_rows_of_a_later_batch_are_dropped_by_the_watermark(spark: Any) -> None:
    """The window is emitted when the watermark has passed its end, before the inputs end."""
    rows = [*ORDERS, {"user": "ann", "amount": 1.0, "at": at(75)}, {"user": "ann", "amount": 9.0, "at": at(-100)}]
    given = {"orders": rows, "users": [*USERS, {"user": "bob", "land": "NO"}]}
    found = preview(hours(), given, batch_rows=1, ended=False)
    assert found.outputs["out"] == [{"hour": NINE, "land": "NO", "amount": 7.0}]
    assert found.dropped == 1
    everything = preview(hours(), given, batch_rows=1)
    assert [one["amount"] for one in everything.outputs["out"]] == [7.0, 1.0]


def test_the_example_of_the_page_passes(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both files are those of docs/dataframes.rst; workers import what the test can import."""
    page = (DOCS / "dataframes.rst").read_text("utf-8")
    for name in ("shop.py", "test_shop.py"):
        (tmp_path / name).write_text(code(name, page))
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("shop", "test_shop"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    tests = importlib.import_module("test_shop")
    assert importlib.import_module("shop").__file__ == str(tmp_path / "shop.py")
    tests.test_taxes_are_summed_by_hour_and_land()


def test_functions_frames_and_queues_feed_each_other(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function in a module that only this process can import runs in the workers, and rows keep their order."""
    (tmp_path / "beside_the_test.py").write_text("def tripled(segment):\n    return {'n': 3 * segment['n']}\n")
    monkeypatch.syspath_prepend(tmp_path)
    job = Job(
        id="mixed",
        workflow=[
            *(("in", "odd"), ("odd", "double"), ("double", "triple"), ("triple", "again"), ("again", "rows")),
            *(("triple", "queue"), ("odd", "files")),
        ],
        catalog=[
            Input("in", queue="numbers", schema="n bigint"),
            Sql("odd", "select n from `in` where n % 2 = 1"),
            BatchFunction("double", doubled, returns="n bigint"),
            Function("triple", "beside_the_test:tripled"),
            Sql("again", "select cast(n as int) n from triple", schema="n bigint"),
            Output("rows", format="json", path="/no/such/rows"),
            Output("queue", queue="tripled"),
            Output("files", format="parquet", path="/no/such/files", options={"schema": "n decimal(20,0), m string"}),
        ],
    )
    found = preview(job, {"in": [{"n": n} for n in range(6)]}, spark=spark).outputs
    assert found["rows"] == found["queue"] == [{"n": 6}, {"n": 18}, {"n": 30}]
    assert found["files"] == [{"n": decimal.Decimal(n), "m": None} for n in (1, 3, 5)]


def pairs() -> Job:
    """Return a job with two sides of a join, dead letters, and an exception that goes to an output."""
    return Job(
        id="pairs",
        workflow=[
            *(("a", "divide"), ("divide", "j"), ("divide", "bad"), ("b", "j"), ("j", "out")),
            *(("b", "failing"), ("failing", "out")),
        ],
        catalog=[
            Input("a", format="json", path="/no/such/a", schema="n bigint, user string, at bigint"),
            Input("b", queue="b"),
            Function("divide", lambda one: {**one, **divided(one)}),
            Function("failing", lambda one: {"left": one["n"], "right": None}, dead_letters=True),
            Join("j", left="divide", right="b", on="user", how="left", within_ms=10, time="at"),
            *(Output(name, format="json", path=f"/no/such/{name}") for name in ("out", "bad")),
        ],
        flow_conditions=[
            Condition("divide", ["bad"], exceptions=True, short_circuit=True, transform=lambda old, error: old),
            Condition("divide", ["j"]),
        ],
    )


@pytest.mark.parametrize("batch_rows, ended", [(None, True), (2, True), (2, False)])
def test_a_preview_is_the_same_with_spark_and_without(spark: Any, batch_rows: int | None, ended: bool) -> None:
    """Windows, joins, conditions, exceptions, late segments and dead letters."""
    lines = [*LINES, {"value": "late", "at_ms": 200}]
    summed = Job(
        id="sums",
        workflow=[("in", "kept"), ("kept", "out")],
        catalog=[Input("in", queue="q"), Reduce("kept"), Output("out", queue="sums", ordering_key="value")],
        windows=[Window("all", "kept", field="n", aggregation="sum")],
        triggers=[Trigger("all", "segments", count=2)],
    )
    text = evolve(words_job(), catalog=[evolve(words_job().catalog[0], format="json"), *words_job().catalog[1:]])
    a = [{"n": n, "user": f"u{n % 2}", "at": 10 * n} for n in range(5)]
    b = [{"user": "u1", "at": 12, "n": 1}, {"user": "u0", "at": 38}, {"user": "u1", "at": 0, "n": 2}]
    for job, rows in ((text, {"lines": lines}), (summed, {"in": a}), (pairs(), {"a": a, "b": b})):
        alone = preview(job, rows, batch_rows=batch_rows, ended=ended)
        found = preview(job, rows, batch_rows=batch_rows, ended=ended, spark=spark)
        assert (found.late, found.letters) == (alone.late, alone.letters), job.id
        for name, segments in alone.outputs.items():
            assert Counter(map(repr, found.outputs[name])) == Counter(map(repr, segments)), (job.id, name)


def test_the_first_rows_of_files_of_any_format_are_read(spark: Any, tmp_path: Path) -> None:
    """The oldest file comes first, options count, and a preview moves or deletes no file."""
    for number, text in enumerate(("1;x\n2;y\n", "3;z\nbroken;z\n")):
        file = tmp_path / f"{9 - number}.csv"
        file.write_text(text)
        os.utime(file, (number + 1, number + 1))
    job = Job(
        id="csv",
        workflow=[("in", "big"), ("big", "out")],
        catalog=[
            Input(
                "in",
                format="csv",
                path=str(tmp_path),
                schema="n int, s string",
                options={"sep": ";", "cleanSource": "delete", "maxBytesPerTrigger": "1m"},
            ),
            Sql("big", "select n, upper(s) s from `in`"),
            Output("out", format="parquet", path="/no/such/out"),
        ],
    )
    assert job.preview(3).outputs["out"] == [{"n": 1, "s": "X"}, {"n": 2, "s": "Y"}, {"n": 3, "s": "Z"}]
    assert len(list(tmp_path.iterdir())) == 2
    with pytest.raises(TaskFailed, match="Malformed|MALFORMED|BAD_RECORD|broken"):
        job.preview(4)
    lenient = evolve(job.catalog[0], schema="n int, s string, _corrupt_record string")  # type: ignore[arg-type]
    kept = evolve(job, catalog=[lenient, Sql("big", "select n, _corrupt_record bad from `in`"), job.catalog[2]])
    assert kept.preview(4).outputs["out"][-1] == {"n": None, "bad": "broken;z"}


def test_a_table_beside_the_streams_is_read_as_a_whole(spark: Any, tmp_path: Path) -> None:
    """Rows that are given replace the files of one input only."""
    (tmp_path / "users.json").write_text("".join(json.dumps({"user": f"u{n}", "land": "NO"}) + "\n" for n in range(9)))
    users = Input("users", format="json", path=str(tmp_path), schema="user string, land string", static=True)
    job = hours()
    job = evolve(job, catalog=[job.catalog[0], users, *job.catalog[2:]])
    found = job.preview(1, {"orders": [{"user": "u8", "amount": 5.0, "at": at(0)}]})
    assert found.outputs["out"] == [{"hour": NINE, "land": "NO", "amount": 5.0}]


def raises(orders: Any) -> Any:
    """Raise an exception in the driver."""
    raise KeyError("rate")


def not_ours(batch: Any) -> Any:
    """Raise an exception in a worker."""
    raise ValueError("no such amount")


def single(task: Any) -> Job:
    """Return a job of one frame task."""
    source = Input("orders", format="json", path="/no/such/path", schema="n bigint")
    catalog = [source, task, Output("out", format="parquet", path="/no/such/out")]
    return Job(workflow=[("orders", task.name), (task.name, "out")], catalog=catalog)


@pytest.mark.parametrize(
    "task, rows, error, says",
    [
        (Frame("f", raises), [{"n": 1}], TaskFailed, "task f: KeyError: 'rate'"),
        (
            BatchFunction("f", not_ours, returns="n bigint"),
            [{"n": 1}],
            TaskFailed,
            "task f: ValueError: no such amount",
        ),
        (Sql("f", "select m from orders"), [{"n": 1}], BadRequest, r"catalog\[1\].sql of 'f'.*`m`"),
        (Sql("f", "select count(*) from orders"), [{"n": 1}], BadRequest, r"catalog\[1\] of 'f'.*cannot append"),
        (Sql("f", "select n from orders"), [{"n": 1}, {"n": "2"}], BadRequest, r"rows\['orders'\]\[1\]: n: must be an"),
        (Sql("f", "select n from orders"), [{"m": 1}], BadRequest, "m: is not one of the columns: n"),
    ],
)
def test_an_error_names_the_task_or_the_row(spark: Any, task: Any, rows: Any, error: Any, says: str) -> None:
    """A traceback is in the notes."""
    with pytest.raises(error, match=says) as raised:
        preview(single(task), {"orders": rows})
    if error is TaskFailed:
        assert any("tests/spark/test_preview.py" in note for note in raised.value.__notes__)


def test_inputs_that_a_preview_cannot_know_are_refused(spark: Any) -> None:
    """A queue is never claimed from, and columns are not guessed."""
    job = single(Sql("f", "select n from orders"))
    queue = evolve(job, catalog=[Input("orders", queue="orders", schema="n bigint"), *job.catalog[1:]])
    with pytest.raises(BadRequest, match="reads files, not the queue 'orders'") as refused:
        queue.preview(10)
    assert "job.preview(rows={'orders': [...]})" in refused.value.advice and "spark" not in refused.value.advice
    with pytest.raises(BadRequest, match=r"rows\['orders'\]\[0\].*JSON cannot hold"):
        preview(queue, {"orders": [{"n": NINE}]})
    bare = evolve(job, catalog=[Input("orders", format="json", path="/no/such/path"), *job.catalog[1:]])
    with pytest.raises(BadRequest, match="neither rows nor a schema, so 'f' does not know its columns"):
        preview(bare, {})
    assert preview(bare, {"orders": [{"n": 1, "tags": []}, {"n": 2}]}).outputs["out"] == [{"n": 1}, {"n": 2}]


def test_the_notebook_previews_frames(java: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It opens its own session, and is stored without outputs."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # A kernel may be killed before it has removed its files.
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs for cell in cells)
    client = nbclient.NotebookClient(notebook, timeout=CELL_S_MAX, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    *_, found, late = [
        ast.literal_eval(one.data["text/plain"])
        for cell in cells
        for one in cell.outputs
        if one.output_type == "execute_result"
    ]
    assert sorted(found) == [("NO", 9, 2.0), ("SE", 10, 4.0)]
    assert late == 1
