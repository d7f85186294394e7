"""Partitioned outputs and files of bounded size: every row in its folder, none lost, names that Spark reads."""

from __future__ import annotations

import datetime
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("pyarrow")

import pyarrow
from pyarrow import parquet

from onyxq.errors import BadRequest
from onyxq.jobs.model import Function, Input, Job, Output
from onyxq.jobs.values import pack
from onyxq.spark import java
from onyxq.spark.files.file_sink import publish, stage
from onyxq.spark.files.formats import described
from onyxq.spark.files.partitions import NULL, escaped
from onyxq.spark.files.staging import OPEN_MAX, Folder, Staging
from tests.jobs.generated_values import TEXTS
from tests.spark.job_world import HERE, run

SCHEMA = pyarrow.schema(
    [("s", pyarrow.string()), ("n", pyarrow.int64()), ("b", pyarrow.bool_()), ("d", pyarrow.date32())]
)
ROWS = st.fixed_dictionaries(
    {
        "s": st.none() | TEXTS,
        "n": st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
        "b": st.none() | st.booleans(),
        "d": st.none() | st.dates(),
    }
)


def output(folder: Path, schema: Any = SCHEMA, kind: str = "parquet", **options: str) -> Folder:
    """An output of files."""
    return Folder("out", kind, str(folder), options, described(schema))


def batch(out: Folder, rows: list[Any], number: int = 0) -> int:
    """Write and publish a batch, and return the number of rows that were refused."""
    task = Staging({"out": out}, job="j", batch=number, part=0)
    refused = 0
    for row in rows:
        try:
            task.add("out", pack(row))
        except BadRequest as error:
            assert error.message.startswith("output out: ")
            refused += 1
    publish([out], job="j", batch=number, mark=stage([out], task.finish(), job="j", batch=number))
    return refused


def unescaped(text: str) -> str:
    """The text that a folder's name means, as Hive reads it."""
    first, *others = text.split("%")
    return first + "".join(chr(int(one[:2], 16)) + one[2:] for one in others)


READ: dict[str, Any] = {"s": str, "n": int, "b": lambda said: said == "true", "d": datetime.date.fromisoformat}


def read(folder: Path) -> list[Any]:
    """All rows, with the values of their folders."""
    found = []
    for place, _, names in os.walk(folder):
        if "_onyxq" in place:
            continue
        pairs = [name.split("=") for name in Path(place).relative_to(folder).parts]
        values = {unescaped(key): None if text == NULL else READ[key](unescaped(text)) for key, text in pairs}
        for name in names:
            rows = parquet.ParquetFile(Path(place) / name).read().to_pylist()
            found += [row | values for row in rows]
    return found


def counted(rows: list[Any]) -> Counter[Any]:
    """Rows, however they are ordered."""
    return Counter(tuple(sorted(row.items())) for row in rows)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    rows=st.lists(ROWS, max_size=8),
    names=st.lists(st.sampled_from(SCHEMA.names), min_size=1, max_size=3, unique=True),
    most=st.none() | st.integers(1, 3),
)
def test_every_row_is_in_the_folder_of_its_values_or_is_refused(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Any], names: list[str], most: int | None
) -> None:
    """Strings of all kinds, negative numbers and None."""
    folder = tmp_path_factory.mktemp("parted")
    sizes = {} if most is None else {"file_rows_max": str(most)}
    refused = batch(output(folder, partition_by=", ".join(names), **sizes), rows)
    found = read(folder)
    assert len(found) == len(rows) - refused
    assert not counted(found) - counted(rows)
    plain = [row for row in rows if row["s"] is None or row["s"].isalnum()]
    assert not counted(plain) - counted(found), "plain values are not refused"


@pytest.mark.parametrize("value", ["", NULL, "a\0b", "x" * 300, "a._COPYING_"])
def test_a_string_that_no_folder_can_have_as_its_name_is_refused(tmp_path: Path, value: str) -> None:
    """Spark would read it as None, or not at all."""
    task = Staging({"out": output(tmp_path, partition_by="s")}, job="j", batch=0, part=0)
    with pytest.raises(BadRequest, match="output out: s: "):
        task.add("out", pack({"s": value, "n": 1}))
    assert task.finish() == []


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ("s, x", "output out: x: partition_by names it, but the schema has s, n, b, d"),
        ("s, n, b, d", "output out: d: partition_by names every column"),
        (".day", "output out: .day: Spark does not read folders whose names begin with a full stop"),
        ("at", "output out: at: partition_by is for strings, integers, booleans and dates, not for timestamp"),
    ],
)
def test_partitions_that_cannot_be_are_refused_before_any_row(tmp_path: Path, names: str, said: str) -> None:
    """With the names of output and column."""
    schema = SCHEMA.append(pyarrow.field(".day", pyarrow.string()))
    schema = SCHEMA if names.startswith("s") else schema.append(pyarrow.field("at", pyarrow.timestamp("us")))
    with pytest.raises(BadRequest, match=said):
        output(tmp_path, schema, partition_by=names).of_files()


def test_more_partitions_than_open_files_lose_no_row(tmp_path: Path) -> None:
    """Files are closed for others, and rows of a closed file's partition begin another file."""
    rows = [{"s": "x", "n": n % (2 * OPEN_MAX), "b": True, "d": None} for n in range(6 * OPEN_MAX)]
    assert batch(output(tmp_path, partition_by="n"), rows) == 0
    assert counted(read(tmp_path)) == counted(rows)


@pytest.mark.parametrize("kind", ["parquet", "json"])
def test_files_are_as_large_as_the_output_allows(tmp_path: Path, kind: str) -> None:
    """By rows and by bytes; a file ends with the row that reaches the limit."""
    rows = [{"s": "x" * 50, "n": n, "b": True, "d": None} for n in range(100)]
    batch(output(tmp_path / "rows", kind=kind, file_rows_max="30"), rows)
    assert len(list((tmp_path / "rows").glob("part-*"))) == 4
    batch(output(tmp_path / "bytes", kind=kind, file_bytes_max="1000"), rows)
    found = list((tmp_path / "bytes").glob("part-*"))
    assert len(found) > 5
    if kind == "json":
        assert all(file.stat().st_size < 1_200 for file in found)


def test_names_of_folders_are_escaped_as_spark_does(spark: Any) -> None:
    """For all characters of Latin-1, and one beyond."""
    theirs = java.packages(spark).org.apache.spark.sql.catalyst.catalog.ExternalCatalogUtils
    text = "".join(map(chr, range(1, 256))) + "€"
    assert escaped(text) == theirs.escapePathName(text)
    assert unescaped(escaped(text)) == text


@pytest.mark.long
def test_spark_reads_what_a_job_has_partitioned(spark: Any, tmp_path: Path) -> None:
    """By a column of strings, with the schema of the output."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("a b/c d=é\nb/c 1\n")
    schema = "word string, size bigint"
    job = Job(
        id="parted",
        workflow=[("in", "f"), ("f", "out")],
        catalog=[
            Input("in", format="text", path=str(tmp_path / "in")),
            Function("f", f"{HERE}:words"),
            Output(
                "out",
                format="parquet",
                path=str(tmp_path / "out"),
                options={"schema": schema, "partition_by": "word", "file_rows_max": "1"},
            ),
        ],
    )
    run(spark, job, tmp_path)
    found = spark.read.schema(schema).parquet(str(tmp_path / "out")).collect()
    assert sorted((row.word, row.size) for row in found) == [("1", 1), ("a", 1), ("b/c", 3), ("b/c", 3), ("d=é", 3)]
