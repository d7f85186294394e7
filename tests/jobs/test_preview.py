"""Jobs on given rows in the test's process, without a cluster and without Spark."""

from __future__ import annotations

import datetime
import decimal
import gzip
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from onyxq.errors import BadRequest, Incomplete
from onyxq.jobs.model import Condition, Function, Input, Job, Join, Output, Reduce, Sql, Trigger, Window
from onyxq.testing import preview


def words(line: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the words of a line."""
    return [{"word": word, "at_ms": line["at_ms"]} for word in line["value"].split()]


def long(new: dict[str, Any], **_: Any) -> bool:
    """Whether a word has more than three letters."""
    return len(new["word"]) > 3


def divided(segment: dict[str, int]) -> dict[str, float]:
    """Divide 10 by ``n``."""
    return {"share": 10 / segment["n"]}


def job(**more: Any) -> Job:
    """Return a job that counts words in windows of a second, and puts long words out by themselves."""
    return Job(
        workflow=[("lines", "words"), ("words", "counts"), ("words", "long"), ("counts", "counted")],
        catalog=[
            Input("lines", format="text", path="/no/such/path", bounded=True),
            Function("words", words),
            Reduce("counts"),
            Output("counted", format="json", path="/no/such/counts"),
            Output("long", format="json", path="/no/such/long"),
        ],
        flow_conditions=[Condition("words", ["counts"]), Condition("words", ["long"], long)],
        windows=[Window("w", "counts", "fixed", range_ms=1_000, key="word", time="at_ms", aggregation="count", **more)],
        triggers=[Trigger("w")],
    )


LINES = [{"value": "a line", "at_ms": 100}, {"value": "a word", "at_ms": 900}, {"value": "a", "at_ms": 1_500}]


def test_functions_conditions_and_windows_run() -> None:
    """All windows are emitted at the end of the inputs."""
    found = preview(job(), {"lines": LINES})
    assert [one["word"] for one in found.outputs["long"]] == ["line", "word"]
    counted = {(one["key"], one["start_ms"]): one["value"] for one in found.outputs["counted"]}
    assert counted == {("a", 0): 2, ("line", 0): 1, ("word", 0): 1, ("a", 1_000): 1}
    assert found.late == {"counts": 0}


def test_a_window_of_endless_inputs_is_emitted_when_the_watermark_passes_it() -> None:
    """A segment for it that comes in a later batch is late."""
    late = {"value": "late", "at_ms": 200}
    found = preview(job(), {"lines": [*LINES, late]}, batch_rows=3, ended=False)
    assert {one["start_ms"] for one in found.outputs["counted"]} == {0}
    assert found.late == {"counts": 1}
    assert (
        preview(job(watermark_ms=5_000), {"lines": [*LINES, late]}, batch_rows=3, ended=False).outputs["counted"] == []
    )


def test_triggers_on_segments_emit_states_as_they_were() -> None:
    """A function after the window gets each state of a batch, although the window continues to change it."""
    total = Job(
        workflow=[("in", "kept"), ("kept", "values"), ("values", "out")],
        catalog=[
            Input("in", format="json", path="/i", bounded=True),
            Reduce("kept"),
            Function("values", lambda emitted: {"values": emitted["value"]}),
            Output("out", format="json", path="/o"),
        ],
        windows=[Window("all", "kept", field="n")],
        triggers=[
            Trigger("all", "segments", count=2),
            Trigger("all", "punctuation", predicate=lambda one: one["n"] == 3, refinement="discarding"),
        ],
    )
    rows = {"in": [{"n": n} for n in range(1, 6)]}
    for batch_rows in (None, 1):
        said = [one["values"] for one in preview(total, rows, batch_rows=batch_rows).outputs["out"]]
        assert said == [[1, 2], [1, 2, 3], [1, 2, 3, 4], [1, 2, 3, 4, 5], [4, 5]]


def test_joins_pair_segments_of_both_sides() -> None:
    """A left join emits segments without a partner at the end."""
    joined = Job(
        workflow=[("orders", "j"), ("users", "j"), ("j", "out")],
        catalog=[
            Input("orders", format="json", path="/o", bounded=True),
            Input("users", format="json", path="/u", bounded=True),
            Join("j", left="orders", right="users", on="user", how="left"),
            Output("out", format="json", path="/x"),
        ],
    )
    rows = {"orders": [{"user": 1, "n": 5}, {"user": 2, "n": 6}], "users": [{"user": 1, "name": "Ada"}]}
    assert preview(joined, rows).outputs["out"] == [
        {"left": {"user": 1, "n": 5}, "right": {"user": 1, "name": "Ada"}},
        {"left": {"user": 2, "n": 6}, "right": None},
    ]


def test_an_exception_goes_where_the_conditions_send_it_or_names_the_task() -> None:
    """So does a value that no segment can hold."""
    parts = {
        "workflow": [("in", "divide"), ("divide", "out"), ("divide", "bad")],
        "catalog": [
            Input("in", format="json", path="/i", bounded=True),
            Function("divide", divided),
            Output("out", format="json", path="/o"),
            Output("bad", format="json", path="/b"),
        ],
    }
    caught = Condition(
        "divide", ["bad"], exceptions=True, short_circuit=True, transform=lambda old, error: {**old, "why": str(error)}
    )
    found = preview(Job(**parts, flow_conditions=[caught]), {"in": [{"n": 5}, {"n": 0}]})  # type: ignore[arg-type]
    assert found.outputs == {"out": [{"share": 2.0}], "bad": [{"n": 0, "why": "division by zero"}]}
    with pytest.raises(ZeroDivisionError) as raised:
        preview(Job(**parts), {"in": [{"n": 0}]})  # type: ignore[arg-type]
    assert raised.value.__notes__ == ["task divide, segment {'n': 0}"]
    parts["catalog"][1] = Function("divide", lambda segment: object())  # type: ignore[index]
    with pytest.raises(BadRequest, match="object"):
        preview(Job(**parts), {"in": [{"n": 1}]})  # type: ignore[arg-type]


def test_bad_input_is_refused() -> None:
    """A job that a cluster would refuse, an input that it does not have, an impossible batch, a key of no task."""
    keyed = Job(workflow=[("in", "out")], catalog=[Input("in", queue="a"), Output("out", queue="b", ordering_key="k")])
    for call, name in (
        (lambda: preview(job(), {"line": []}), "rows"),
        (lambda: preview(job(), {}, batch_rows=0), "batch_rows"),
        (lambda: job().preview(0), "count"),
        (lambda: job().preview(rows={"line": [], "lines": []}), "rows"),
        (lambda: preview(keyed, {"in": [{"k": ""}]}), "ordering_key"),
        (lambda: preview(keyed, {"in": [{"k": "x" * 201}]}), "ordering_key"),
    ):
        with pytest.raises(BadRequest) as error:
            call()
        assert error.value.field == name
    with pytest.raises(BadRequest, match="no Input"):
        preview(Job(workflow=[("a", "b")], catalog=[]), {})


def test_an_ordering_key_is_checked_as_the_queue_gets_it() -> None:
    """A number of numpy is Python's by then."""
    numpy = pytest.importorskip("numpy")
    keyed = Job(workflow=[("in", "out")], catalog=[Input("in", queue="a"), Output("out", queue="b", ordering_key="k")])
    assert preview(keyed, {"in": [{"k": numpy.int64(7)}]}).outputs == {"out": [{"k": 7}]}


def test_the_example_of_the_documentation_passes(tmp_path: Path) -> None:
    """Both files are those of docs/jobs.rst."""
    page = (Path(__file__).parents[2] / "docs" / "jobs.rst").read_text("utf-8")
    for name in ("orders.py", "test_orders.py"):
        _, _, rest = page.partition(f"   :caption: {name}\n")
        block = re.match(r"(?:(?:   .*)?\n)+", rest)
        assert block is not None
        (tmp_path / name).write_text(textwrap.dedent(block[0]))
    subprocess.run(
        [sys.executable, "-c", "import test_orders as t; t.test_large_orders_are_passed_on()"], cwd=tmp_path, check=True
    )
    without = (tmp_path / "orders.py").read_text().replace('{"limit": 1_000})', '{"limit": 1_000}, ), exclude=["user"]')
    (tmp_path / "orders.py").write_text(without)
    failed = subprocess.run(
        [sys.executable, "-c", "import test_orders as t; t.test_large_orders_are_passed_on()"],
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
    )
    assert "'user', its ordering key" in failed.stderr


def filed(folder: Path, *files: str, **more: Any) -> Job:
    """Return a job that copies files of JSON; each text is one file, the first one the oldest."""
    for number, text in enumerate(files, start=1):
        (folder / f"{9 - number}.json").write_text(text, errors="surrogateescape")
        os.utime(folder / f"{9 - number}.json", (number, number))
    source = Input("in", path=str(folder), **{"format": "json", **more})
    return Job(workflow=[("in", "out")], catalog=[source, Output("out", queue="b")])


def test_a_job_is_tried_on_the_first_rows_of_its_files(tmp_path: Path) -> None:
    """The oldest file comes first; hidden files are passed over; a packed file is unpacked."""
    (tmp_path / "_half.json").write_text("x")
    with gzip.open(tmp_path / "old.json.gz", "wt") as file:
        file.write('{"n": 0}\n')
    os.utime(tmp_path / "old.json.gz", (0, 0))
    tried = filed(tmp_path, '{"n": 1}\n\n{"n": 2}\n', '{"n": 3}\n', schema="n double")
    assert tried.preview(3).outputs["out"] == [{"n": 0.0}, {"n": 1.0}, {"n": 2.0}]
    assert [one["n"] for one in tried.preview().outputs["out"]] == [0, 1, 2, 3]


def test_rows_that_are_given_replace_the_files() -> None:
    """All of them are used."""
    found = job().preview(1, {"lines": LINES})
    assert found == preview(job(), {"lines": LINES})


def test_columns_of_json_are_those_of_all_rows(tmp_path: Path) -> None:
    """With a schema only its columns are there, and broken lines are in their column."""
    text = '{"b": 1, "a": "x"}\nno\n{"b": 2.5}\n'
    schema = "b double, `a` string, _corrupt_record string"
    assert filed(tmp_path, text, schema=schema).preview().outputs["out"] == [
        {"b": 1.0, "a": "x", "_corrupt_record": None},
        {"b": None, "a": None, "_corrupt_record": "no"},
        {"b": 2.5, "a": None, "_corrupt_record": None},
    ]
    found = filed(tmp_path, text.replace("no\n", "")).preview().outputs["out"]
    assert found == [{"a": "x", "b": 1.0}, {"a": None, "b": 2.5}] and list(found[0]) == ["a", "b"]


@pytest.mark.parametrize(
    "text, more, why",
    [
        ("{}", {"format": "csv", "schema": "n int"}, "text, JSON and Parquet, not csv"),
        ("{}", {"format": "parquet"}, "cannot be read: Parquet"),
        ("{}", {"options": {"multiLine": "true"}}, "multiLine"),
        ("{}", {"schema": "n int, at timestamp"}, "the type of 'at timestamp'"),
        ('{"n": "1"}', {"schema": "n int"}, "line 1: n is '1', not a int"),
        ('{"n": true}', {"schema": "n int"}, "n is True"),
        ("{}\nno", {}, "line 2 is not a JSON object: 'no'"),
        ('{"n": 1}\n{"n": "1"}', {}, "cannot tell the type of 'n'"),
        ('{"n": [1]}', {}, "cannot tell the type of 'n'"),
        ("{}", {"path": "/no/such/path"}, "no files at /no/such/path"),
        ("{}", {"path": "s3a://bucket/in"}, "not on this machine"),
        ("{}\n\udcff", {}, "bytes that are not UTF-8"),
        ("{}", {"format": None, "queue": "orders", "path": None}, "text, JSON and Parquet, not the queue 'orders'"),
    ],
)
def test_what_only_spark_can_read_is_refused(tmp_path: Path, text: str, more: dict[str, Any], why: str) -> None:
    """The error says how to give rows instead; nothing is guessed."""
    place = {"path": more.pop("path")} if "path" in more else {}
    tried = filed(tmp_path, text, **more)
    if place:
        tried = evolve(tried, catalog=[evolve(tried.catalog[0], **place), tried.catalog[1]])  # type: ignore[arg-type]
    with pytest.raises(BadRequest, match=re.escape(why)) as refused:
        tried.preview()
    assert refused.value.field == "rows" and "job.preview(rows={'in': [...]})" in refused.value.advice
    assert tried.preview(rows={"in": [{"n": 1}]}).outputs["out"] == [{"n": 1}]


def test_the_first_rows_of_parquet_are_read(tmp_path: Path) -> None:
    """Values are those that Spark reads."""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    at = datetime.datetime(2027, 1, 1, 9, tzinfo=datetime.UTC)
    row = {"n": 1, "at": at, "price": decimal.Decimal("1.50"), "tags": ["a", None], "name": None, "by": {"k": 1}}
    types = [
        ("n", pyarrow.int32()),
        ("at", pyarrow.timestamp("us", "Europe/Oslo")),
        ("price", pyarrow.decimal128(9, 2)),
    ]
    types += [("tags", pyarrow.list_(pyarrow.string())), ("name", pyarrow.string())]
    types += [("by", pyarrow.map_(pyarrow.string(), pyarrow.int64()))]
    rows = [{**row, "by": [("k", 1)]}] * 3
    tried = filed(tmp_path, "", format="parquet")
    parquet.write_table(pyarrow.Table.from_pylist(rows, schema=pyarrow.schema(types)), tmp_path / "8.json")
    found = tried.preview(2).outputs["out"]
    assert found == [row, row] and found[0]["at"].tzinfo == datetime.UTC


def test_parquet_that_spark_may_read_otherwise_is_refused(tmp_path: Path) -> None:
    """The type or the file is named, and Spark is offered."""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    tried = filed(tmp_path, "", "", format="parquet")
    for file, table, why in (
        ("8.json", {"n": pyarrow.array([1], pyarrow.timestamp("ns"))}, "the type of 'n', timestamp[ns]"),
        ("8.json", {"n": [1]}, "7.json cannot be read"),
        ("7.json", {"m": [1]}, "has other columns than the file before it"),
    ):
        parquet.write_table(pyarrow.table(table), tmp_path / file)
        os.utime(tmp_path / "8.json", (1, 1))
        with pytest.raises(BadRequest, match=re.escape(why)) as refused:
            tried.preview()
        assert "job.preview(spark=session)" in refused.value.advice


def test_neither_spark_nor_pandas_is_loaded() -> None:
    """A preview works where only OnyxQ itself is installed."""
    program = """
import sys
from onyxq import Function, Input, Job, Output
from onyxq.testing import preview
job = Job(
    workflow=[("in", "f"), ("f", "out")],
    catalog=[Input("in", queue="q", bounded=False), Function("f", lambda n: n + 1), Output("out", queue="r")],
)
assert preview(job, {"in": [1, 2]}).outputs == {"out": [2, 3]}
assert not {"pyspark", "pandas", "pyarrow"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_task_that_only_spark_runs_says_what_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A query is not passed over as if it changed nothing; `tests.spark.test_preview` has the rest."""
    queried = Job(
        workflow=[("orders", "big"), ("big", "out")],
        catalog=[
            Input("orders", format="json", path="/no/such/path", schema="n long", bounded=True),
            Sql("big", "select n from orders where n > 3"),
            Output("out", format="json", path="/no/such/out"),
        ],
    )
    monkeypatch.setitem(sys.modules, "pyspark", None)  # Python then does not find it.
    for call in (lambda: preview(queried, {"orders": [{"n": 1}]}), queried.preview):
        with pytest.raises(Incomplete, match="'big' is a Sql, which only Spark can run: .*pyspark is not") as refused:
            call()
        assert "onyxq[spark]" in refused.value.advice
