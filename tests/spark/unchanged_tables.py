"""The tables of docs/outputs.rst about values that stay unchanged, with what their rows mean."""

from __future__ import annotations

import datetime
import decimal
import math
import re
import uuid
from pathlib import Path
from typing import Any

import pyarrow
from hypothesis import strategies as st

from tests.jobs.generated_values import OFFSETS, TEXTS
from tests.spark import generated_columns as made
from tests.spark.generated_columns import Type, array, mapping, struct

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "outputs.rst").read_text("utf-8")
INSIDE = (*made.SCALARS, made.BINARY)
"""Types that lists, maps and structs are tried with."""
LOCAL_INSIDE = "``timestamp_ntz`` inside another type"


def _without_values(sql: str, arrow: Any) -> Type:
    return Type(sql, arrow, st.none(), (None,))


_MARKED = pyarrow.struct(
    [
        pyarrow.field("value", pyarrow.binary()),
        pyarrow.field("metadata", pyarrow.binary(), metadata={"variant": "true"}),
    ]
)
_PLAIN = [one for one in INSIDE if one is not made.LOCAL]
TYPES: dict[str, tuple[Type, ...]] = {
    "``boolean``": (made.BOOLEAN,),
    "``tinyint``, ``smallint``, ``int``, ``bigint``": made.INTEGERS,
    "``float``, ``double``": made.FLOATS,
    "``decimal(p,s)``": made.DECIMALS,
    "``string``": (made.STRING,),
    "``binary``": (made.BINARY,),
    "``date``": (made.DATE,),
    "``timestamp``": (made.INSTANT,),
    "``timestamp_ntz``": (made.LOCAL,),
    LOCAL_INSIDE: (array(made.LOCAL), mapping(made.LOCAL), struct(made.LOCAL)),
    "``array<...>``": (*map(array, _PLAIN), array(array(made.STRING)), array(struct(*_PLAIN))),
    "``map<string, ...>``": (*map(mapping, _PLAIN), mapping(mapping(made.STRING)), mapping(array(made.BINARY))),
    "``map`` with other keys": tuple(
        mapping(made.STRING, key=key) for key in (*made.INTEGERS, made.DATE, made.BINARY, made.DECIMALS[2])
    ),
    "``struct<...>``": (struct(*_PLAIN), struct(struct(made.STRING), array(made.FLOATS[0]), mapping(made.BOOLEAN))),
    "``struct<>``": (Type("struct<>", pyarrow.struct([]), st.just({}), ({},)),),
    "``variant``, ``time``, intervals": (
        _without_values("variant", _MARKED),
        _without_values("time", pyarrow.time64("ns")),
        _without_values("interval day to second", pyarrow.duration("us")),
    ),
}
"""First cell of a row of the table of columns -> the types that it means."""

_ZONED = st.datetimes(datetime.datetime(1, 1, 2), datetime.datetime(9999, 12, 30), timezones=OFFSETS)
_LIST = st.lists(TEXTS, max_size=3)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "None": st.none(),
    "bool": st.booleans(),
    "int of up to 64 bits": st.integers(-(1 << 63), (1 << 63) - 1),
    "a larger int": st.integers(1 << 64, 1 << 90) | st.integers(-(1 << 90), -(1 << 64)),
    "float": st.floats(allow_nan=False, allow_infinity=False),
    "NaN, infinity": st.sampled_from([math.nan, math.inf, -math.inf]),
    "str": TEXTS,
    "bytes": st.binary(max_size=5),
    "datetime, date": st.datetimes() | _ZONED | st.dates(),
    "Decimal": st.decimals(allow_nan=False, allow_infinity=False, places=3, min_value=-(10**9), max_value=10**9),
    "time, timedelta, UUID": st.times() | st.timedeltas() | st.uuids(),
    "list": _LIST | st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=3),
    "tuple, set, frozenset": _LIST.map(tuple) | st.sets(TEXTS, max_size=3) | st.frozensets(st.integers(), max_size=3),
    "dict whose keys are strings": st.dictionaries(st.sampled_from(made.NAMES), TEXTS, min_size=1, max_size=3),
    "dict with other keys": st.dictionaries(st.integers() | st.dates(), TEXTS, min_size=1, max_size=3),
}
"""First cell of a row of the table of values -> the values that it means."""
VALUE_EDGES: dict[str, list[Any]] = {
    "float": [0.0, -0.0, 5e-324, 1e308],
    "str": list(made.STRING.edges),
    "bytes": [b"", b"\0"],
    "datetime, date": [datetime.datetime.min, datetime.datetime.max, datetime.date.min, datetime.date.max],
    "Decimal": [decimal.Decimal("1.50"), decimal.Decimal("-0.001")],
    "time, timedelta, UUID": [datetime.time.max, datetime.timedelta(microseconds=-1), uuid.UUID(int=0)],
    "list": [[]],
}


def table(first: str) -> dict[str, dict[str, str]]:
    """Return row -> column -> cell of the table whose first column has this heading."""
    lines = PAGE.splitlines()
    start = next(place for place, line in enumerate(lines) if re.match(rf"{re.escape(first)}  +\S", line))
    edges = [match.span() for match in re.finditer("=+", lines[start - 1])]
    cut = [[line[begin:end].strip() for begin, end in edges] for line in lines[start:]]
    end = next(place for place, cells in enumerate(cut[2:], 2) if re.fullmatch("=+", cells[0]))
    heads, *body = cut[0], *cut[2:end]
    return {cells[0]: dict(zip(heads[1:], cells[1:], strict=True)) for cells in body}


COLUMN_CELLS = table("column")
VALUE_CELLS = table("value")


def kept(output: str) -> list[Type]:
    """Return the types of columns that an output of a kind keeps, as the page says."""
    return [one for row, cells in COLUMN_CELLS.items() if cells[output] == "yes" for one in TYPES[row]]


def refused(output: str) -> list[Type]:
    """Return the types of columns that an output of a kind refuses before a job starts, as the page says."""
    return [one for row, cells in COLUMN_CELLS.items() if cells[output] == "no" for one in TYPES[row]]
