"""Schemas in the form of users, with the values that are easily changed, and values that fit, made by Hypothesis."""

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
    edges: tuple[Any, ...]
    """Values that are easily changed."""


def _decimal(digits: int, scale: int) -> Type:
    low, high = -(10**digits) + 1, 10**digits - 1
    context = decimal.Context(prec=40)

    def of(number: int) -> decimal.Decimal:
        return decimal.Decimal(number).scaleb(-scale, context)

    edges = (*map(of, (low, high, 0, 1, -1)), decimal.Decimal("-0E+3"))
    return Type(f"decimal({digits},{scale})", pyarrow.decimal128(digits, scale), st.integers(low, high).map(of), edges)


def _integer(sql: str, bits: int) -> Type:
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1
    kinds = {8: pyarrow.int8(), 16: pyarrow.int16(), 32: pyarrow.int32(), 64: pyarrow.int64()}
    return Type(sql, kinds[bits], st.integers(low, high), (low, high, 0, -1))


def _at(*parts: int, zone: datetime.tzinfo | None = None) -> datetime.datetime:
    return datetime.datetime(*parts, tzinfo=zone)  # type: ignore[misc, arg-type]


_NUMBERS = (math.nan, math.inf, -math.inf, 0.0, -0.0)
_DAYS = ((1, 1, 1), (1582, 10, 4), (1582, 10, 9), (1582, 10, 15), (1899, 12, 31), (1969, 12, 31), (2000, 2, 29))
_TIMES = (*((*day, 23, 59, 59, 999_999) for day in _DAYS), (1, 1, 2), (2026, 3, 29, 2, 30, 0, 1), (9999, 12, 30))
_ZONES = (datetime.UTC, datetime.timezone(datetime.timedelta(minutes=19, seconds=32)))
LONG = "größe " * 2_000
INTEGERS = (_integer("tinyint", 8), _integer("smallint", 16), _integer("int", 32), _integer("bigint", 64))
FLOATS = (
    Type(
        "double",
        pyarrow.float64(),
        st.floats(),
        (*_NUMBERS, 5e-324, 1.7976931348623157e308, 0.1, 1e16, -1e-7, 2.0**53 + 2),
    ),
    Type(
        "float",
        pyarrow.float32(),
        st.floats(width=32),
        (*_NUMBERS, 2.0**-149, 3.4028234663852886e38, 0.10000000149011612),
    ),
)
STRING = Type(
    "string",
    pyarrow.string(),
    TEXTS,
    (
        *(
            "",
            "two\nlines",
            "two\rlines",
            "\0",
            "a\0b",
            '\0"',
            '"\0',
            '"',
            '""',
            "\\",
            '\\"',
            ",",
            " a ",
            "\t",
            "'",
            "#a",
            "\\N",
            "a;b\\,",
        ),
        *("null", "NULL", "None", "NaN", "true", "1", "01", "\ufeffa", "é", "e\u0301", "😀", "\u2028", "\x85", "\x7f"),
        *("\x1f", "__HIVE_DEFAULT_PARTITION__", LONG),
    ),
)
BINARY = Type("binary", pyarrow.binary(), st.binary(max_size=5), (b"", b"\0", b"\xff\xfe", bytes(range(256))))
BOOLEAN = Type("boolean", pyarrow.bool_(), st.booleans(), (True, False))
DATE = Type(
    "date",
    pyarrow.date32(),
    st.dates(),
    (*(datetime.date(*day) for day in _DAYS), datetime.date(9999, 12, 31)),
)
LOCAL = Type(
    "timestamp_ntz",
    pyarrow.timestamp("us"),
    st.datetimes(),
    (*(_at(*time) for time in _TIMES), datetime.datetime.min, datetime.datetime.max),
)
INSTANT = Type(
    "timestamp",
    pyarrow.timestamp("us", "UTC"),
    st.datetimes(datetime.datetime(1, 1, 2), datetime.datetime(9999, 12, 30), timezones=OFFSETS),
    (
        *(_at(*time, zone=zone) for zone in _ZONES for time in _TIMES),
        datetime.datetime.min.replace(tzinfo=datetime.UTC),
        datetime.datetime.max.replace(tzinfo=datetime.UTC),
    ),
)
DECIMALS = tuple(_decimal(*one) for one in ((1, 0), (5, 5), (10, 2), (18, 0), (38, 0), (38, 20), (38, 38)))
SCALARS = (*INTEGERS, *FLOATS, STRING, BOOLEAN, DATE, LOCAL, INSTANT, *DECIMALS)
NAMES = (
    *(
        "a b",
        "a.b",
        "a`b",
        'a"b',
        "a'b",
        "a,b",
        "a;b",
        "a=b",
        "a\\b",
        "ä",
        "名",
        "select",
        "1",
        "_x",
        "$",
        "%41",
    ),
    *("a/b", "{a}", "(a)", "lineage", "payload", "value", "out", "c"),
)
"""Names of columns."""


def quoted(name: str) -> str:
    """Return a name as Spark's SQL takes any name."""
    return "`" + name.replace("`", "``") + "`"


def array(one: Type) -> Type:
    """Lists, empty ones and ones with None."""
    edges = ([], [None], list(one.edges), [None, *one.edges[:1]])
    return Type(f"array<{one.sql}>", pyarrow.list_(one.arrow), st.lists(st.none() | one.values, max_size=3), edges)


def mapping(one: Type, key: Type = STRING) -> Type:
    """Maps, with strings as keys unless another type is given."""
    edges = ({}, {key.edges[-1]: None}, dict(zip(key.edges, one.edges, strict=False)))
    made = st.dictionaries(key.values, st.none() | one.values, max_size=3)
    return Type(f"map<{key.sql}, {one.sql}>", pyarrow.map_(key.arrow, one.arrow), made, edges)


def struct(*parts: Type) -> Type:
    """Structs whose parts have names of all kinds."""
    names = [f"{NAMES[place % len(NAMES)]}{place}" for place in range(len(parts))]
    pairs = list(zip(names, parts, strict=True))
    empty: dict[str, Any] = dict.fromkeys(names)
    edges = (empty, *({name: part.edges[place % len(part.edges)] for name, part in pairs} for place in range(3)))
    return Type(
        f"struct<{', '.join(f'{quoted(name)}: {part.sql}' for name, part in pairs)}>",
        pyarrow.struct([(name, part.arrow) for name, part in pairs]),
        st.fixed_dictionaries({name: st.none() | part.values for name, part in pairs}),
        edges,
    )


def types(*, nested: bool) -> st.SearchStrategy[Type]:
    """Types of columns; with ``nested`` those with parts, and binaries, as well."""
    if not nested:
        return st.sampled_from(SCALARS)
    return st.recursive(
        st.sampled_from((*SCALARS, BINARY)),
        lambda inside: st.one_of(
            inside.map(array),
            inside.map(mapping),
            st.lists(inside, min_size=1, max_size=3).map(lambda parts: struct(*parts)),
        ),
        max_leaves=3,
    )


@frozen
class Rows:
    """Rows of a schema; some values may not fit their columns."""

    sql: str
    arrow: Any
    rows: list[dict[str, Any]]


def columns(named: dict[str, Type]) -> tuple[str, Any]:
    """Return columns as in Spark's SQL, and as an Arrow schema."""
    said = ", ".join(f"{quoted(name)} {one.sql}" for name, one in named.items())
    return said, pyarrow.schema([(name, one.arrow) for name, one in named.items()])


@st.composite
def rows(draw: st.DrawFn, *, nested: bool, least: int = 0, astray: bool = True) -> Rows:
    """Return rows that fit a schema; with ``astray``, some have a value of any type."""
    kinds = draw(st.lists(types(nested=nested), min_size=1, max_size=4))
    names = draw(st.lists(st.sampled_from(NAMES), min_size=len(kinds), max_size=len(kinds)))
    named = {f"{name}{place}": one for place, (name, one) in enumerate(zip(names, kinds, strict=True))}
    one_row = st.fixed_dictionaries({name: st.none() | one.values for name, one in named.items()})
    found = draw(st.lists(one_row, min_size=least, max_size=max(5, least)))
    if astray and found and draw(st.booleans()):
        row = draw(st.sampled_from(found))
        row[draw(st.sampled_from([*named, "c9"]))] = draw(values())
    return Rows(*columns(named), found)


def breaks_csv(value: Any) -> bool:
    """Return whether a value is a string that CSV cannot hold."""
    return isinstance(value, str) and any(sign in value for sign in "\n\r\0")


def without_nulls(value: Any) -> Any:
    """Return a value whose strings have no null character."""
    if isinstance(value, str):
        return value.replace("\0", "")
    if isinstance(value, list):
        return [*map(without_nulls, value)]
    if isinstance(value, dict):
        return {without_nulls(key): without_nulls(one) for key, one in value.items()}
    return value


def alike(one: Any, other: Any) -> bool:
    """Return whether a value is equal after reading; an int may be a whole float, and a None field may be missing."""
    if isinstance(one, dict) and isinstance(other, dict):
        return all(alike(one.get(key), other.get(key)) for key in [*one, *other])
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, float) and isinstance(other, float):
        same_sign = math.copysign(1, one) == math.copysign(1, other)
        return (math.isnan(one) and math.isnan(other)) or (one == other and same_sign)
    if isinstance(one, datetime.datetime) and isinstance(other, datetime.datetime):
        return one == other and (one.utcoffset() is None) == (other.utcoffset() is None)
    numbers = (int, float, decimal.Decimal)
    same = type(one) is type(other) or (type(one) in numbers and type(other) in numbers)
    return same and bool(one == other)
