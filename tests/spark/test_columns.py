"""Jobs with columns: another job reads exactly what a job wrote, and nothing is lost silently."""

from __future__ import annotations

import datetime
import decimal
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from onyxq.jobs.model import Function, Input, Job, Output
from onyxq.jobs.options import INPUTS
from onyxq.spark import java
from onyxq.spark.failures import of_exception
from tests.spark.job_world import HERE, run, written

WHEN = datetime.datetime(2027, 1, 15, 8, 0, tzinfo=datetime.UTC)
WHEN_MS = 1_800_000_000_000


def lines(folder: Path, *files: list[Any]) -> Path:
    """Files of JSON, each with these rows."""
    folder.mkdir()
    for place, found in enumerate(files):
        (folder / f"{place}.json").write_text("".join(json.dumps(row) + "\n" for row in found))
    return folder


def job_of(folder: Path, output: Output, *functions: Function, **more: Any) -> Job:
    """A job from the JSON texts of lines under ``folder / "in"`` to an output."""
    names = ["in", "parsed", *(one.name for one in functions), output.name]
    catalog = [Input("in", format="text", path=str(folder / "in")), Function("parsed", f"{HERE}:parsed"), *functions]
    return Job(id="j", workflow=list(zip(names, names[1:], strict=False)), catalog=[*catalog, output], **more)


def failed(spark: Any, job: Job, folder: Path) -> str:
    """Run a job that must fail; its error."""
    with pytest.raises(Exception, match=r".") as caught:
        run(spark, job, folder)
    return of_exception(caught.value).error


def parquet_of(folder: Path, **options: str) -> Output:
    """An output of Parquet."""
    return Output("out", format="parquet", path=str(folder / "out"), options=options)


def test_columns_are_those_of_all_rows_of_a_batch(spark: Any, tmp_path: Path) -> None:
    """Ten rows have one field and 290 have two, in several files; each output file has both columns."""
    everything = [{"a": n} if n < 10 else {"a": n, "b": n} for n in range(300)]
    lines(tmp_path / "in", everything[:10], everything[10:20], everything[20:])
    run(spark, job_of(tmp_path, parquet_of(tmp_path)), tmp_path)
    found = sorted(written(tmp_path / "out", "parquet"), key=lambda row: row["a"])
    assert found == [{"b": None} | row for row in everything]
    assert {tuple(row) for row in found} == {("a", "b")}


@pytest.mark.long
def test_columns_stay_from_batch_to_batch(spark: Any, tmp_path: Path) -> None:
    """A later batch without one has None there; a batch with a new one fails the job by name."""
    job = job_of(tmp_path, parquet_of(tmp_path))
    lines(tmp_path / "in", [{"a": 1, "b": "x"}, {"a": 2.5}])
    run(spark, job, tmp_path)
    (tmp_path / "in" / "late.json").write_text('{"a": 3}\n')
    run(spark, job, tmp_path, version=2, batch=0)
    found = sorted(written(tmp_path / "out", "parquet"), key=lambda row: row["a"])
    assert found == [{"a": 1.0, "b": "x"}, {"a": 2.5, "b": None}, {"a": 3.0, "b": None}]
    (tmp_path / "in" / "later.json").write_text('{"a": 4, "c": 1}\n')
    with pytest.raises(Exception, match="output out: c: is not one of the columns: a, b") as caught:
        run(spark, job, tmp_path, version=3, batch=1)
    assert "the output's first batch. Name the columns" in of_exception(caught.value).error


def test_two_types_of_one_field_in_two_files_fail_the_job(spark: Any, tmp_path: Path) -> None:
    """Each file alone would have one type."""
    lines(tmp_path / "in", [{"n": 1}], [{"n": "one"}])
    said = failed(spark, job_of(tmp_path, parquet_of(tmp_path)), tmp_path)
    assert "output out: n: is a" in said and "in one segment and" in said
    assert written(tmp_path / "out", "parquet") == []


@pytest.mark.parametrize("kind", ["timestamp", "timestamp_ntz"])
def test_milliseconds_become_the_time_that_they_are(spark: Any, tmp_path: Path, kind: str) -> None:
    """Times are milliseconds everywhere; datetimes are unchanged."""
    lines(tmp_path / "in", [{"user": "a", "at": WHEN_MS}])
    run(spark, job_of(tmp_path, parquet_of(tmp_path, schema=f"user string, at {kind}")), tmp_path)
    wanted = WHEN if kind == "timestamp" else WHEN.replace(tzinfo=None)
    assert written(tmp_path / "out", "parquet") == [{"user": "a", "at": wanted}]


def test_a_field_that_no_column_is_for_fails_the_job_or_is_dropped_on_purpose(spark: Any, tmp_path: Path) -> None:
    """The error names output and field."""
    lines(tmp_path / "in", [{"user": "a", "typo_colum": 1}])
    said = failed(spark, job_of(tmp_path, parquet_of(tmp_path, schema="user string")), tmp_path)
    assert "output out: typo_colum: is not one of the columns: user" in said
    run(spark, job_of(tmp_path, parquet_of(tmp_path, schema="user string", other_fields="drop")), tmp_path, version=2)
    assert written(tmp_path / "out", "parquet") == [{"user": "a"}]


def test_refused_rows_go_to_the_errors_of_their_output(spark: Any, tmp_path: Path) -> None:
    """None is lost: each is in the output or among the errors, with output and column named."""
    rows = [{"n": n, "price": n / 4} if n % 3 else {"n": n, "price": "free"} for n in range(30)]
    lines(tmp_path / "in", rows[:20], rows[20:], [{"n": 1, "typo": 2}])
    out = evolve(parquet_of(tmp_path, schema="n bigint, price double"), errors="refused")
    job = job_of(tmp_path, out)
    refused = Output("refused", format="json", path=str(tmp_path / "refused"))
    run(spark, evolve(job, catalog=[*job.catalog, refused]), tmp_path)
    assert sorted(row["n"] for row in written(tmp_path / "out", "parquet")) == [n for n in range(30) if n % 3]
    found = sorted(written(tmp_path / "refused"), key=lambda row: json.loads(row["segment"])["n"])
    assert [json.loads(row["segment"]) for row in found] == [rows[0], {"n": 1, "typo": 2}, *rows[3::3]]
    assert found[0]["output"] == "out"
    assert found[0]["error"].startswith("output out: price: must be a float that 64 bits hold exactly, not the str")
    assert "typo: is not one of the columns" in found[1]["error"]


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("n bigit", r"catalog\[2\].options.schema of output out: .*BIGIT"),
        ("n interval year to month", r"catalog\[2\].options.schema of output out: .*YearMonthInterval"),
        ("n time", "output out: n: the type time64.* is not written"),
        ("n variant", "output out: n: the type variant is not written"),
    ],
)
def test_a_schema_that_cannot_be_written_is_named(spark: Any, tmp_path: Path, schema: str, said: str) -> None:
    """Before anything is read."""
    lines(tmp_path / "in", [{"n": 1}])
    with pytest.raises(Exception, match=said):
        run(spark, job_of(tmp_path, parquet_of(tmp_path, schema=schema)), tmp_path)


BROKEN = {"json": '{"n": 1}\n{"n": \n', "xml": "<o><n>1</n></o>\n<o><n>x</n></o>"}
"""Format -> text with a row and a broken row."""


@pytest.mark.long
@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_row_of_an_input_fails_the_job_unless_a_column_takes_it(spark: Any, tmp_path: Path, kind: str) -> None:
    """Spark would return a row of Nones."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text(BROKEN[kind])
    options = {"rowTag": "o"} if kind == "xml" else {}
    for schema, rows_found in (("n bigint", 0), ("n bigint, _corrupt_record string", 2)):
        job = Job(
            id=f"j{rows_found}",
            workflow=[("in", "out")],
            catalog=[
                Input("in", format=kind, path=str(tmp_path / "in"), schema=schema, options=options),
                Output("out", format="json", path=str(tmp_path / f"out{rows_found}")),
            ],
        )
        if not rows_found:
            said = failed(spark, job, tmp_path)
            assert "/in/a.txt" in said and "Malformed" in said and "STREAM_FAILED" not in said
        else:
            run(spark, job, tmp_path)
        assert len(written(tmp_path / f"out{rows_found}")) == rows_found


def unhexed_line(line: str) -> Any:
    """The segment of such a line."""
    from onyxq.jobs.values import unpack

    return unpack(bytes.fromhex(line))


def test_types_pass_between_tasks_and_through_state(spark: Any, tmp_path: Path) -> None:
    """A join uses a decimal and a datetime in two zones, and the values of both sides."""
    from onyxq.jobs.model import Join

    lines(tmp_path / "in", [{"n": n} for n in range(3)])
    job = Job(
        id="typed",
        workflow=[("in", "l"), ("in", "r"), ("l", "pairs"), ("r", "pairs"), ("pairs", "hexed"), ("hexed", "out")],
        catalog=[
            Input("in", format="json", path=str(tmp_path / "in"), schema="n bigint"),
            Function("l", f"{HERE}:typed"),
            Function("r", f"{HERE}:typed", {"elsewhere": True}),
            Join("pairs", left="l", right="r", on="key"),
            Function("hexed", f"{HERE}:hexed"),
            Output("out", format="text", path=str(tmp_path / "out")),
        ],
        key_groups=2,
    )
    run(spark, job, tmp_path)
    found = [unhexed_line(line) for line in written(tmp_path / "out", "text")]
    assert sorted(one["left"]["n"] for one in found) == [0, 1, 2]
    for one in found:
        assert one["left"]["n"] == one["right"]["n"]
        assert one["left"]["key"] == one["right"]["key"] == [decimal.Decimal("1.5") + one["left"]["n"], WHEN]
        assert one["left"]["pair"] == (1, {2, 3})


def test_options_of_inputs_are_all_that_spark_has(spark: Any) -> None:
    """This holds for Spark's own formats; a missing option would be refused wrongly."""
    packages = {
        "csv": "catalyst.csv.CSVOptions",
        "json": "catalyst.json.JSONOptions",
        "parquet": "execution.datasources.parquet.ParquetOptions",
        "orc": "execution.datasources.orc.OrcOptions",
        "text": "execution.datasources.text.TextOptions",
        "xml": "catalyst.xml.XmlOptions",
    }
    named: Callable[[Any, str], Any] = getattr
    for kind, name in packages.items():
        found: Any = java.packages(spark).org.apache.spark.sql
        for part in name.split("."):
            found = named(found, part)
        assert set(found.getAllOptions().mkString(",").split(",")) <= set(INPUTS[kind]), kind
