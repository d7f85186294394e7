"""Columns folded into the parts of a window, one Arrow batch at a time, with the result of segment by segment.

Numbers are counted, added and compared as whole columns, in the order of the rows. A window is folded so if its key,
time and field are columns of plain types, and its aggregation is a built-in one of numbers. It takes the segments of a
batch one by one if a value of the batch needs that: None, which fails the job; integers whose sum may exceed 64 bits;
and, for ``min`` and ``max``, NaN and minus zero, because there the order of the segments decides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy
from attrs import frozen
from pyarrow import types

from onyxq.jobs.aggregations import FOLDINGS
from onyxq.jobs.model import Window
from onyxq.jobs.values import pack_key
from onyxq.jobs.windows import NEVER, TIME_MAX, Parts, Windowing, is_field
from onyxq.spark.files.columns import TIMESTAMPS_US

Numbers: TypeAlias = "numpy.ndarray[Any, numpy.dtype[Any]]"
Fold: TypeAlias = Callable[[list[Any], Numbers, Any], list[Any]]
"""Function of states, of the place of each row's state among them, and of the rows' values; returns the new states."""

EXPANDED_MAX = 1 << 18
"""Most rows at once, each counted once for each extent that holds it."""
SUM_MAX = (1 << 63) - 1


@frozen
class _Columns:
    """Rows as a window needs them."""

    keys: list[bytes]
    """Packed keys."""
    codes: Numbers
    """For each row the place of its key."""
    times: Numbers
    values: Numbers | None
    """The values to aggregate; None if they are only counted."""

    def slice(self, first: int, last: int) -> _Columns:
        values = None if self.values is None else self.values[first:last]
        return _Columns(self.keys, self.codes[first:last], self.times[first:last], values)


def folded(windowing: Windowing, parts: Parts, batch: Any, now_ms: int) -> bool:
    """Add the rows of a batch to the parts of a window; return False, and add nothing, if it takes them one by one."""
    columns = _columns(windowing, batch, now_ms)
    if columns is None:
        return False
    at_once = max(1, EXPANDED_MAX // _extents_of_a_time(windowing.window))
    for first in range(0, batch.num_rows, at_once):
        _fold(windowing, parts, columns.slice(first, first + at_once))
    return True


def _extents_of_a_time(window: Window) -> int:
    """Return the largest number of extents that hold the same time."""
    if window.kind != "sliding" or not window.range_ms or not window.slide_ms:
        return 1
    return -(-window.range_ms // window.slide_ms)


# --- what columns give ------------------------------------------------------------


def _columns(windowing: Windowing, batch: Any, now_ms: int) -> _Columns | None:
    """Return the columns of a batch; None if the window cannot take them, or not the values of this batch."""
    window, name = windowing.window, windowing.window.aggregation
    if not windowing.parts or not isinstance(name, str) or name not in _FOLDS:
        return None
    found = {ref: _column(batch, ref) for ref in (window.key, window.time, window.field) if ref is not None}
    keys = ([pack_key(None)], numpy.zeros(batch.num_rows, "i8")) if window.key is None else _keys(found[window.key])
    times = numpy.full(batch.num_rows, now_ms) if window.time is None else _times(found[window.time])
    if keys is None or times is None:
        return None
    if name == "count":
        return _Columns(keys[0], keys[1], times, None)
    values = None if window.field is None else _values(found[window.field], name)
    if values is None or (window.kind == "session" and name in _ADDING and values.dtype.kind == "f"):
        return None  # A sum of floats depends on the order in which sessions become one.
    return _Columns(keys[0], keys[1], times, values)


def _column(batch: Any, ref: Any) -> Any:
    """Return a column; None if there is none of that name, or if the reference is a function."""
    place = batch.schema.get_field_index(ref) if is_field(ref) else -1
    return batch.column(place) if place >= 0 else None


def _keys(column: Any) -> tuple[list[bytes], Numbers] | None:
    """Return the packed keys of a column, and for each row the place of its key; None for other types than `_KEYS`."""
    if column is None or not any(is_kind(column.type) for is_kind in _KEYS):
        return None
    found = column.dictionary_encode(null_encoding="encode")
    return list(map(pack_key, found.dictionary.to_pylist())), found.indices.cast("int64").to_numpy()


def _times(column: Any) -> Numbers | None:
    """Return a column of times in milliseconds, rounded down; None if not all of them are times."""
    if column is None or column.null_count:
        return None
    if types.is_timestamp(column.type) and column.type.unit == "us":
        times = column.cast("int64").to_numpy()
        return times // 1_000 if ((times >= TIMESTAMPS_US[0]) & (times <= TIMESTAMPS_US[1])).all() else None
    numbers = _numbers(column)
    if numbers is None or not ((numbers > -TIME_MAX) & (numbers < TIME_MAX)).all():
        return None
    return numpy.floor(numbers).astype("i8")


def _values(column: Any, aggregation: str) -> Numbers | None:
    """Return a column of numbers; None if one of them needs the order or the exactness of Python."""
    values = None if column is None or column.null_count else _numbers(column)
    if values is None or not len(values):
        return values
    if values.dtype.kind == "i" and aggregation in _ADDING:
        largest = max(abs(int(values.min())), abs(int(values.max())))
        return values if largest * len(values) <= SUM_MAX else None
    if values.dtype.kind == "f" and aggregation not in _ADDING:
        odd = numpy.isnan(values) | (numpy.signbit(values) & (values == 0))
        return None if odd.any() else values
    return values


def _numbers(column: Any) -> Numbers | None:
    """Return a column without nulls as integers or floats of 64 bits; None for other types."""
    if types.is_signed_integer(column.type):
        return numpy.asarray(column.cast("int64").to_numpy())
    if types.is_float32(column.type) or types.is_float64(column.type):
        return numpy.asarray(column.cast("float64").to_numpy())
    return None


# --- what is folded ---------------------------------------------------------------


def _fold(windowing: Windowing, parts: Parts, columns: _Columns) -> None:
    window, init = windowing.window, windowing.folding.init
    fold = _FOLDS[str(window.aggregation)]
    parts.see(int(columns.times.max()))
    if window.kind == "session":
        codes, starts, ends, places = _sessions(columns, window.gap_ms or 0)
        values, size = columns.values, len(starts)
    else:
        kept, every = _extents(window, columns.times)
        codes, starts, places = _pieces(columns.codes[kept], every)
        values, size = None if columns.values is None else columns.values[kept], len(starts)
        ends = [NEVER] * size if window.kind == "global" else [one + (window.range_ms or 0) for one in starts]
    if not size:
        return
    counts = numpy.bincount(places, minlength=size).tolist()
    names = zip((columns.keys[code] for code in codes), starts, ends, strict=True)
    if window.kind == "session":
        merge = windowing.folding.merge
        assert merge is not None, "sessions need it"
        states = fold([init() for _ in range(size)], places, values)
        for name, state, count in zip(names, states, counts, strict=True):
            part = parts.part(*name)
            part[2] = merge(part[2], state)
            part[3] += count
        return
    found = [parts.part(*name) for name in names]
    states = fold([part[2] for part in found], places, values)
    for part, state, count in zip(found, states, counts, strict=True):
        part[2] = state
        part[3] += count


def _extents(window: Window, times: Numbers) -> tuple[Numbers, Numbers]:
    """Return the row and the start of each extent of each row, in the order of rows."""
    rows = numpy.arange(len(times))
    if window.kind == "global":
        return rows, numpy.zeros(len(times), "i8")
    size = window.range_ms or 1
    slide = window.slide_ms or size
    starts = (times - times % slide)[:, None] - slide * numpy.arange(_extents_of_a_time(window))
    holds = starts > times[:, None] - size
    return numpy.broadcast_to(rows[:, None], starts.shape)[holds], starts[holds]


def _pieces(codes: Numbers, starts: Numbers) -> tuple[list[int], list[int], Numbers]:
    """Return the key's code and the start of each extent, and for each row the place of its extent."""
    times, at = numpy.unique(starts, return_inverse=True)
    named, places = numpy.unique(codes * max(1, len(times)) + at, return_inverse=True)
    return (named // max(1, len(times))).tolist(), times[named % max(1, len(times))].tolist(), places


def _sessions(columns: _Columns, gap_ms: int) -> tuple[list[int], list[int], list[int], Numbers]:
    """Return the key, start and end of each session that the rows make alone, and for each row its place."""
    order = numpy.lexsort((columns.times, columns.codes))
    codes, times = columns.codes[order], columns.times[order]
    begins = numpy.ones(len(order), "?")
    begins[1:] = (codes[1:] != codes[:-1]) | (times[1:] - times[:-1] >= gap_ms)
    places = numpy.empty(len(order), "i8")
    places[order] = numpy.cumsum(begins) - 1
    lasts = numpy.append(begins[1:], True)
    return codes[begins].tolist(), times[begins].tolist(), (times[lasts] + gap_ms).tolist(), places


# --- aggregations -----------------------------------------------------------------


def _counted(states: list[Any], places: Numbers, values: Any) -> list[Any]:
    counts = numpy.bincount(places, minlength=len(states)).tolist()
    return [state + more for state, more in zip(states, counts, strict=True)]


def _summed(states: list[Any], places: Numbers, values: Any) -> list[Any]:
    if values.dtype.kind == "f":
        sums = numpy.array(states, "f8")
        with numpy.errstate(all="ignore"):
            numpy.add.at(sums, places, values)  # One after the other: the sum of floats depends on the order.
        return list(sums.tolist())
    sums = numpy.zeros(len(states), "i8")
    numpy.add.at(sums, places, values)
    return [state + more for state, more in zip(states, sums.tolist(), strict=True)]


def _averaged(states: list[Any], places: Numbers, values: Any) -> list[Any]:
    sums = _summed([total for total, _ in states], places, values)
    counts = _counted([count for _, count in states], places, values)
    return [list(one) for one in zip(sums, counts, strict=True)]


def _picked(name: str, pick: Any) -> Fold:
    """Return the fold of ``min`` or ``max``; ``pick`` is numpy's function of two values."""

    def fold(states: list[Any], places: Numbers, values: Any) -> list[Any]:
        found = numpy.empty(len(states), values.dtype)
        found[places] = values
        pick.at(found, places, values)
        return [FOLDINGS[name].fold(state, one) for state, one in zip(states, found.tolist(), strict=True)]

    return fold


_FOLDS: dict[str, Fold] = {
    "count": _counted,
    "sum": _summed,
    "average": _averaged,
    "min": _picked("min", numpy.minimum),
    "max": _picked("max", numpy.maximum),
}
_ADDING = ("sum", "average")
_KEYS = (types.is_string, types.is_large_string, types.is_binary, types.is_boolean, types.is_signed_integer)
"""Types of keys whose equal values are the same bytes."""
