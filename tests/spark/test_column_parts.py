"""Columns folded at once give the same parts of windows as their segments one by one."""

from __future__ import annotations

import datetime
import math
from typing import Any

import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onyxq.jobs.model import Job, Reduce, Trigger, Window
from onyxq.jobs.windows import Parts, Windowing, windowings
from onyxq.spark.files import columns
from onyxq.spark.functions import resolve
from onyxq.spark.plan import column_parts
from onyxq.spark.plan.column_parts import folded

NOW_MS = 1_234
HERE = "tests.spark.tasks"
KINDS: dict[str, dict[str, Any]] = {
    "fixed": {"range_ms": 7},
    "sliding": {"range_ms": 10, "slide_ms": 3},
    "session": {"gap_ms": 5},
    "global": {},
}


def windowing(**of_window: Any) -> Windowing:
    """Return a window with one trigger, as a worker has it."""
    job = Job(workflow=[], catalog=[Reduce("t")], windows=[Window("w", "t", **of_window)], triggers=[Trigger("w")])
    (found,) = windowings(job, "t", resolve)
    return found


def one_by_one(window: Windowing, parts: Parts, batch: Any) -> None:
    """Add the rows of a batch as segments."""
    for segment in columns.segments(batch):
        parts.add(segment, NOW_MS)


def at_once(window: Windowing, parts: Parts, batch: Any) -> None:
    """Add them as columns if the window can take them so."""
    if not folded(window, parts, batch, NOW_MS):
        one_by_one(window, parts, batch)


def result(add: Any, window: Windowing, batches: list[Any]) -> tuple[str, ...]:
    """Return everything that parts hold after the batches, or the error; floats to the last bit."""
    parts = Parts(window)
    try:
        for batch in batches:
            add(window, parts, batch)
    except (TypeError, ValueError, ArithmeticError) as error:
        return (repr(error),)
    count, pieces = len(parts), sorted(repr((key, *part)) for key, part in parts.take())
    assert len(pieces) == count
    return (repr(parts.newest), *pieces)


INTEGERS = st.one_of(st.integers(-9, 9), st.integers(-(1 << 63), (1 << 63) - 1))
FLOATS = st.one_of(st.sampled_from([0.0, -0.0, 0.1, 1e16, -1e16]), st.floats(width=32))
VALUES = {
    "int8": st.integers(-128, 127),
    "int64": INTEGERS,
    "float32": st.floats(width=32),
    "float64": FLOATS,
    "string": st.text("ab", max_size=2),
}
DAYS = st.datetimes(datetime.datetime(1969, 12, 31, 23, 59, 59), datetime.datetime(1970, 1, 1, 0, 0, 1))
TIMES = {
    pyarrow.int32(): st.integers(-30, 30),
    pyarrow.int64(): st.one_of(st.integers(-30, 30), st.integers(-30, 30), INTEGERS),
    pyarrow.float64(): st.one_of(st.floats(-30, 30), st.floats(-30, 30), FLOATS),
    pyarrow.timestamp("us"): DAYS,
    pyarrow.timestamp("us", "UTC"): DAYS.map(lambda one: one.replace(tzinfo=datetime.UTC)),
}
KEYS = {
    pyarrow.string(): st.sampled_from(["a", "b", "ä"]),
    pyarrow.int16(): st.integers(-1, 1),
    pyarrow.bool_(): st.booleans(),
    pyarrow.binary(): st.sampled_from([b"", b"\xff"]),
    pyarrow.float64(): st.sampled_from([0.0, -0.0, 1.0]),
}


@st.composite
def worlds(draw: st.DrawFn) -> tuple[Windowing, list[Any]]:
    """A window and batches with the columns ``key``, ``at`` and ``n``."""
    kind, number = draw(st.sampled_from(list(KINDS))), draw(st.sampled_from(list(VALUES)))
    time, key = draw(st.sampled_from(list(TIMES))), draw(st.sampled_from(list(KEYS)))
    window = windowing(
        kind=kind,
        key=draw(st.sampled_from([None, "key", "key", "key"])),
        time=draw(st.sampled_from([None, "at", "at", "at"])),
        aggregation=draw(st.sampled_from(["count", "sum", "min", "max", "average", "conj"])),
        field="n",
        **KINDS[kind],
    )
    schema = pyarrow.schema([("key", key), ("at", time), ("n", pyarrow.type_for_alias(number))])
    absent = draw(st.sampled_from(["", "", "", "at", "n"]))
    row = st.fixed_dictionaries(
        {
            "key": st.one_of(KEYS[key], st.none()),
            "at": st.one_of(TIMES[time], st.none()) if absent == "at" else TIMES[time],
            "n": st.one_of(VALUES[number], st.none()) if absent == "n" else VALUES[number],
        }
    )
    batches = draw(st.lists(st.lists(row, min_size=1, max_size=8), min_size=1, max_size=3))
    return window, [pyarrow.RecordBatch.from_pylist(rows, schema=schema) for rows in batches]


@pytest.mark.long
@settings(max_examples=200, deadline=None)
@given(worlds())
def test_columns_give_the_parts_that_segments_give(world: tuple[Windowing, list[Any]]) -> None:
    """Keys, times and values are random, with None, NaN, minus zero and integers whose sum exceeds 64 bits."""
    window, batches = world
    assert result(at_once, window, batches) == result(one_by_one, window, batches)


def batch_of(**of_columns: list[Any]) -> Any:
    """Return an Arrow batch with columns of found types."""
    return pyarrow.RecordBatch.from_pydict(of_columns)


PLAIN = {"key": ["a", None, "a", "b"], "at": [1, 9, -3, 4], "n": [4, 3, 2, 1], "x": [0.5, 0.1, 0.2, 1e9]}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("aggregation", ["count", "sum", "min", "max", "average"])
def test_plain_columns_are_folded_at_once(kind: str, aggregation: str) -> None:
    """Numbers by a name are never taken one by one, in any window; floats of sessions only if none are added."""
    for field in ("n", "x"):
        window = windowing(kind=kind, key="key", time="at", aggregation=aggregation, field=field, **KINDS[kind])
        at_once = not (kind == "session" and field == "x" and aggregation in ("sum", "average"))
        assert folded(window, Parts(window), batch_of(**PLAIN), NOW_MS) == at_once


@pytest.mark.parametrize(
    ("of_window", "changed"),
    [
        ({"aggregation": "conj"}, {}),
        ({"aggregation": "sum", "field": None}, {}),
        ({"aggregation": "count", "key": f"{HERE}:same"}, {}),
        ({"aggregation": "count", "key": "missing"}, {}),
        ({"aggregation": "count", "key": "x"}, {}),
        ({"aggregation": "sum"}, {"n": [1, None, 2, 3]}),
        ({"aggregation": "sum"}, {"n": [1 << 62, 1, 1, 1]}),
        ({"aggregation": "min"}, {"n": [1.0, math.nan, 2.0, 3.0]}),
        ({"aggregation": "max"}, {"n": [-0.0, 0.0, 0.0, 0.0]}),
        ({"aggregation": "max"}, {"n": ["a", "b", "c", "d"]}),
    ],
)
def test_other_segments_are_taken_one_by_one(of_window: dict[str, Any], changed: dict[str, Any]) -> None:
    """What numbers of fixed size cannot do exactly is left to Python, and nothing of the batch has been added."""
    window = windowing(**{"key": "key", "field": "n", **of_window})
    parts = Parts(window)
    assert not folded(window, parts, batch_of(**{**PLAIN, **changed}), NOW_MS)
    assert (len(parts), parts.newest) == (0, None)


def test_a_time_in_many_extents_is_folded_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch whose rows are in too many extents at once is split, with the same result."""
    monkeypatch.setattr(column_parts, "EXPANDED_MAX", 64)
    window = windowing(kind="sliding", range_ms=20, slide_ms=1, key="key", time="at", aggregation="sum", field="x")
    batches = [batch_of(key=["a", "b"] * 20, at=list(range(40)), x=[0.1 * place for place in range(40)])]
    assert result(at_once, window, batches) == result(one_by_one, window, batches)
