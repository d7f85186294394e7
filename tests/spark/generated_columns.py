"""Schemas in the form of users, and values that fit their columns, made by Hypothesis."""

from __future__ import annotations

import datetime
import decimal
import math
from typing import Any

import pyarrow
from attrs import frozen
from hypothesis import strategies as st

from tests.jobs.generated_values import OFFSETS, TEXTS, values


@frozen
class Type:
    """A type of columns: in Spark's SQL, in Arrow, and its values."""

    sql: str
    arrow: Any
    values: st.SearchStrategy[Any]


def _decimals(digits: int, scale: int) -> Type:
    low, high = -(10**digits) + 1, 10**digits - 1
    made = st.integers(low, high).map(lambda number: decimal.Decimal(number).scaleb(-scale, decimal.Context(prec=40)))
    return Type(f"decimal({digits},{scale})", pyarrow.decimal128(digits, scale), made)


SCALARS = (
    Type("bigint", pyarrow.int64(), st.integers(-(1 << 63), (1 << 63) - 1)),
    Type("int", pyarrow.int32(), st.integers(-(1 << 31), (1 << 31) - 1)),
    Type("double", pyarrow.float64(), st.floats()),
    Type("float", pyarrow.float32(), st.floats(width=32)),
    Type("string", pyarrow.string(), TEXTS),
    Type("boolean", pyarrow.bool_(), st.booleans()),
    Type("date", pyarrow.date32(), st.dates()),
    Type("timestamp_ntz", pyarrow.timestamp("us"), st.datetimes()),
    Type(
        "timestamp",
        pyarrow.timestamp("us", "UTC"),
        st.datetimes(datetime.datetime(1, 1, 2), datetime.datetime(9999, 12, 30), timezones=OFFSETS),
    ),
    _decimals(10, 2),
    _decimals(38, 20),
)
BINARY = Type("binary", pyarrow.binary(), st.binary(max_size=5))


def _struct(parts: list[Type]) -> Type:
    names = [f"f{place}" for place in range(len(parts))]
    pairs = list(zip(names, parts, strict=True))
    return Type(
        f"struct<{', '.join(f'{name}: {part.sql}' for name, part in pairs)}>",
        pyarrow.struct([(name, part.arrow) for name, part in pairs]),
        st.fixed_dictionaries({name: st.none() | part.values for name, part in pairs}),
    )


def types(*, nested: bool) -> st.SearchStrategy[Type]:
    """Types of columns; with ``nested`` those with parts, and binaries, as well."""
    if not nested:
        return st.sampled_from(SCALARS)
    return st.recursive(
        st.sampled_from((*SCALARS, BINARY)),
        lambda inside: st.one_of(
            inside.map(
                lambda one: Type(
                    f"array<{one.sql}>", pyarrow.list_(one.arrow), st.lists(st.none() | one.values, max_size=3)
                )
            ),
            inside.map(
                lambda one: Type(
                    f"map<string, {one.sql}>",
                    pyarrow.map_(pyarrow.string(), one.arrow),
                    st.dictionaries(TEXTS, st.none() | one.values, max_size=3),
                )
            ),
            st.lists(inside, min_size=1, max_size=3).map(_struct),
        ),
        max_leaves=3,
    )


@frozen
class Rows:
    """Rows of a schema; some values may not fit their columns."""

    sql: str
    arrow: Any
    rows: list[dict[str, Any]]


@st.composite
def rows(draw: st.DrawFn, *, nested: bool, least: int = 0, astray: bool = True) -> Rows:
    """Return rows that fit a schema; with ``astray``, some have a value of any type."""
    columns = draw(st.lists(types(nested=nested), min_size=1, max_size=4))
    named = {f"c{place}": one for place, one in enumerate(columns)}
    one_row = st.fixed_dictionaries({name: st.none() | one.values for name, one in named.items()})
    found = draw(st.lists(one_row, min_size=least, max_size=max(5, least)))
    if astray and found and draw(st.booleans()):
        row = draw(st.sampled_from(found))
        row[draw(st.sampled_from([*named, "c9"]))] = draw(values())
    return Rows(
        ", ".join(f"{name} {one.sql}" for name, one in named.items()),
        pyarrow.schema([(name, one.arrow) for name, one in named.items()]),
        found,
    )


def alike(one: Any, other: Any) -> bool:
    """Return whether a value is equal after reading; an int may be a whole float, and a None field may be missing."""
    if isinstance(one, dict) and isinstance(other, dict):
        return all(alike(one.get(key), other.get(key)) for key in [*one, *other])
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return (math.isnan(one) and math.isnan(other)) or one == other
    if isinstance(one, datetime.datetime) and isinstance(other, datetime.datetime):
        return one == other and (one.utcoffset() is None) == (other.utcoffset() is None)
    numbers = (int, float, decimal.Decimal)
    same = type(one) is type(other) or (type(one) in numbers and type(other) in numbers)
    return same and bool(one == other)
