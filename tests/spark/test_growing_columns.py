"""Outputs whose columns grow from batch to batch: a new field is a column, another type is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

import pyarrow
from pyarrow import parquet

from onyxq.errors import BadRequest
from onyxq.jobs.values import pack
from onyxq.spark.files.file_sink import found_schemas, publish, stage
from onyxq.spark.files.formats import described
from onyxq.spark.files.staging import Folder, Staging, Written


def output(folder: Path, schema: Any = None, **options: str) -> Folder:
    """An output of Parquet that adds columns."""
    given = "" if schema is None else described(pyarrow.schema(schema))
    return Folder("out", "parquet", str(folder), {"other_fields": "add", **options}, given)


def task(out: Folder, number: int, rows: list[Any]) -> list[Written]:
    """Write the files of one task of a batch."""
    found = found_schemas([out], job="j", batch=number).get("out", "")
    made = Staging({"out": out}, job="j", batch=number, part=0, found=lambda _: found)
    try:
        for row in rows:
            made.add("out", pack(row))
    except BadRequest:
        made.discard()
        raise
    return made.finish()


def batch(out: Folder, number: int, *tasks: list[Any]) -> None:
    """Write a batch of several tasks and publish it."""
    files = [one for rows in tasks for one in task(out, number, rows)]
    publish([out], job="j", batch=number, mark=stage([out], files, job="j", batch=number))


def read(folder: Path, number: int) -> list[Any]:
    """The visible rows of a batch, without partitions."""
    files = sorted(folder.glob(f"part-{number:08d}-*"))
    return [row for file in files for row in parquet.ParquetFile(file).read().to_pylist()]


def test_a_new_field_in_a_later_batch_is_a_new_column(tmp_path: Path) -> None:
    """All files of a batch have it, and later batches keep it."""
    out = output(tmp_path)
    batch(out, 0, [{"a": 1, "later": None}])
    batch(out, 1, [{"a": 2}], [{"a": 3, "b": "x", "later": 2.5}])
    batch(out, 2, [{"c": True}])
    assert read(tmp_path, 0) == [{"a": 1, "later": None}]
    assert sorted(read(tmp_path, 1), key=lambda row: row["a"]) == [
        {"a": 2, "b": None, "later": None},
        {"a": 3, "b": "x", "later": 2.5},
    ]
    assert read(tmp_path, 2) == [{"a": None, "b": None, "later": None, "c": True}]


def test_columns_of_the_schema_come_first_and_keep_their_types(tmp_path: Path) -> None:
    """Also with partitions."""
    out = output(tmp_path, [("n", pyarrow.int32()), ("day", pyarrow.string())], partition_by="day")
    batch(out, 0, [{"n": 1, "day": "x", "more": 5}])
    batch(out, 1, [{"n": 2, "day": "y"}])
    found = [parquet.ParquetFile(file).schema_arrow for file in tmp_path.rglob("part-*")]
    assert [[(part.name, str(part.type)) for part in one] for one in found] == [[("n", "int32"), ("more", "int64")]] * 2
    with pytest.raises(BadRequest, match="output out: n: must be an integer of 32 bits, not the str 'one'"):
        task(out, 2, [{"n": "one", "day": "x"}])


@pytest.mark.parametrize("value", ["one", 1.5, [1], {"a": 1}])
def test_another_type_of_a_column_of_an_earlier_batch_is_refused_by_name(tmp_path: Path, value: Any) -> None:
    """The column was found, and its type stays."""
    out = output(tmp_path)
    batch(out, 0, [{"n": 1}])
    with pytest.raises(BadRequest, match="output out: n: must be an integer of 64 bits, not the"):
        task(out, 1, [{"n": value}])


def test_two_types_of_a_new_field_in_two_tasks_are_refused_by_name(tmp_path: Path) -> None:
    """Before the batch is committed."""
    out = output(tmp_path)
    with pytest.raises(BadRequest, match="output out: n: is an? (int|str) in one segment"):
        batch(out, 0, [{"n": 1}], [{"n": "one"}])
    assert read(tmp_path, 0) == []


def test_a_refused_segment_adds_no_column(tmp_path: Path) -> None:
    """The segments after it are written, and have the columns that they would have without it."""
    out = output(tmp_path, [("n", pyarrow.int64())])
    made = Staging({"out": out}, job="j", batch=0, part=0)
    for row in ({"n": "one", "x": 1}, {"x": "text", "y": 1j.real, 5: 1}):
        with pytest.raises(BadRequest, match="output out: "):
            made.add("out", pack(row))
    made.add("out", pack({"n": 1, "x": "text"}))
    publish([out], job="j", batch=0, mark=stage([out], made.finish(), job="j", batch=0))
    assert read(tmp_path, 0) == [{"n": 1, "x": "text"}]
