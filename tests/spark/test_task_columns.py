"""Columns of a stream that parses payloads and shows what is known of its tasks, without Spark."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow
import pytest
from attrs import define, field

from onyxq.core.facts import pack_task
from onyxq.core.ids import TaskId, make_id
from onyxq.errors import BadRequest
from onyxq.spark.queues.options import fail_options, read_options
from onyxq.spark.queues.queue_claims import Held
from onyxq.spark.queues.task_columns import TASK_FIELDS, TaskShape, shape_of

NOW_MS = 1_800_000_000_000
ARROW = {"binary": pyarrow.binary(), "string": pyarrow.string(), "bigint": pyarrow.int64(), "int": pyarrow.int32()}
TASK = pyarrow.struct([(name, ARROW[kind]) for name, kind in TASK_FIELDS.items()])
OWN = [("lineage", pyarrow.binary()), ("task", TASK)]


@define
class Refusing:
    """A connection that remembers what it is asked to fail."""

    calls: list[Any] = field(factory=list)

    def call(self, call: Any) -> None:
        """Take a call of a client."""
        self.calls.append(call)


def shape(*columns: tuple[str, Any], dead_letter: bool = False) -> TaskShape:
    """Return a shape with columns of a schema."""
    return TaskShape(pyarrow.schema([*columns, *OWN]), parsed=bool(columns), dead_letter=dead_letter)


def rows_of(one: TaskShape, payloads: Sequence[bytes], link: Any = None, **header: Any) -> list[dict[str, Any]]:
    """Return the rows of a run of tasks that was claimed under token 7 after two failed attempts."""
    first = make_id(NOW_MS, 1, 5, 10)
    body = pack_task(dict(sorted({"queue": "mail", **header}.items())), list(payloads))
    held = [Held(TaskId(make_id(NOW_MS, 1, 5, 0)), 10, 3), Held(first, len(payloads), 7, 2)]
    batches = one.batches([(first, body)], NOW_MS, held, link)
    return [row for batch in batches for row in batch.to_pylist()]


def test_payloads_become_columns_and_each_row_shows_its_task() -> None:
    """Fields that the schema lacks are left out, and missing ones are null."""
    payloads = [json.dumps(one).encode() for one in ({"user": "a", "n": 1, "x": 0}, {"user": "b"})]
    found = rows_of(shape(("user", pyarrow.string()), ("n", pyarrow.int64())), payloads, format="json", priority=4)
    assert [(row["user"], row["n"]) for row in found] == [("a", 1), ("b", None)]
    said = {"queue": "mail", "token": 7, "attempts": 2, "priority": 4, "ordering_key": None, "unique_key": None}
    ids = [bytes(make_id(NOW_MS, 1, 5, counter)) for counter in (10, 11)]
    assert [row["task"] for row in found] == [said | {"id": one, "format": "json"} for one in ids]
    assert len({row["lineage"] for row in found}) == 2


def test_a_row_that_does_not_fit_goes_into_its_column() -> None:
    """Its other columns are null, and it keeps its task."""
    bad = [b'{"n": "one"}', b"[1]", b"\xff", b'{"n": 1']
    found = rows_of(shape(("n", pyarrow.int64()), ("_corrupt_record", pyarrow.string())), [*bad, b'{"n": 5}'])
    assert [row["_corrupt_record"] for row in found] == [*(one.decode(errors="replace") for one in bad), None]
    assert [row["n"] for row in found] == [None] * 4 + [5]
    assert all(row["task"]["token"] == 7 for row in found)


def test_a_row_that_does_not_fit_is_refused_or_becomes_a_dead_letter() -> None:
    """The error names the task and the field; with dead letters the other rows remain."""
    column = ("n", pyarrow.int64())
    with pytest.raises(BadRequest, match=rf"{make_id(NOW_MS, 1, 5, 11).hex()}.*n: must be an integer") as error:
        rows_of(shape(column), [b'{"n": 1}', b'{"n": "one"}'])
    assert error.value.field == "schema" and "_corrupt_record" in error.value.advice
    link = Refusing()
    found = rows_of(shape(column, dead_letter=True), [b'{"n": 1}', b"nothing", b'{"n": 3}'], link)
    assert [row["n"] for row in found] == [1, 3] and len(link.calls) == 1
    assert rows_of(shape(column, dead_letter=True), [b"nothing"], Refusing()) == []


def test_the_columns_of_a_stream_follow_from_its_options() -> None:
    """A column of the schema must not have the name of one that every stream has."""
    assert shape_of("", headers=False) == "lineage binary, payload binary, format string, id binary"
    assert shape_of("n int", headers=True).startswith("n int, lineage binary, task struct<id: binary, ")
    with pytest.raises(BadRequest, match="lineage"):
        shape(("lineage", pyarrow.string()))
    with pytest.raises(BadRequest, match="bad_rows"):
        shape(("n", pyarrow.int64()), ("_corrupt_record", pyarrow.string()), dead_letter=True)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"bad_rows": "dead_letter"}, "bad_rows"),
        ({"schema": "n int", "bad_rows": "drop"}, "bad_rows"),
        ({"headers": "yes"}, "headers"),
        ({"schema": "n int", "job": "j", "version": "1"}, "schema"),
    ],
)
def test_options_of_a_stream_are_checked(options: dict[str, str], field: str) -> None:
    """The error names the option."""
    with pytest.raises(BadRequest) as error:
        read_options({"queue": "mail", **options}, streaming=True)
    assert error.value.field == field


def test_a_stream_may_have_several_queues_and_patterns() -> None:
    """A job's input is one queue, whatever its name is."""
    assert read_options({"queue": "a, b-*"}, streaming=True).queues == ("a", "b-*")
    assert read_options({"queue": "a,b", "job": "j", "version": "1"}, streaming=True).queues == ("a,b",)


def test_rows_fail_by_their_column_task() -> None:
    """Other columns are refused, because they would say nothing."""
    assert fail_options({"fail": "retry"}, ["task", "error"]).outcome == "retry"
    for options, columns, name in (({"fail": "x"}, ["task"], "fail"), ({"fail": "retry"}, ["task", "n"], "task")):
        with pytest.raises(BadRequest) as error:
            fail_options(options, columns)
        assert error.value.field == name
