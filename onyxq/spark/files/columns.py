"""Columns of Arrow and values of Python: exact in both directions.

`reader` converts rows that Spark has read. `fitter` converts values for a column, and refuses each value that would
come back as another one. `Columns` finds the columns of segments without a schema.
"""

from __future__ import annotations

import datetime
import decimal
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import contains, itemgetter
from typing import Any, TypeAlias

import pyarrow
from pyarrow import types

from onyxq.jobs.values import Unfit, called

Convert: TypeAlias = Callable[[Any], Any]
Kind: TypeAlias = Any
"""The content of a column: a word, ``("list", kind)``, ``("struct", {name: kind})`` or ``("decimal", scale)``."""

DIGITS_MAX = 38
"""Digits of a decimal in Arrow and Spark."""
WRITTEN = "numbers, strings, binaries, booleans, dates, timestamps, decimals, and arrays, maps and structs of them"
_MARKS = ("variant", "geometry", "geography")
"""Types that Arrow has as structs with a mark in the metadata of a part."""
_NO_VALUE = (ValueError, OverflowError, pyarrow.ArrowException)
"""Errors of values that Arrow holds and Python does not."""
_EPOCH = datetime.datetime(1970, 1, 1)
_MICROSECOND = datetime.timedelta(microseconds=1)
_WHOLE_FLOAT_MAX = 1 << 53
INTEGERS = (-(1 << 63), (1 << 63) - 1)
"""The least and the greatest integer of 64 bits."""
TIMESTAMPS_US = (-62_135_596_800_000_000, 253_402_300_799_999_999)
"""The first and the last time of Python's calendar, in microseconds."""


# --- from columns to segments -----------------------------------------------------


def segments(batch: Any) -> Iterator[dict[str, Any]]:
    """Yield the rows of an Arrow batch as maps of Python's values; times with a zone are in UTC.

    Raises `Unfit` for a value that Python cannot hold, such as a time of the year 10000.
    """
    readers = {part.name: read for part in batch.schema if (read := reader(part.type)) is not None}
    for row in _python(batch):
        try:
            for name, read in readers.items():
                if row[name] is not None:
                    row[name] = read(row[name])
        except Unfit as error:
            raise Unfit(name, error.why) from None
        yield row


def _python(batch: Any) -> list[dict[str, Any]]:
    try:
        rows: list[dict[str, Any]] = batch.to_pylist()
    except _NO_VALUE:
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            try:
                column.to_pylist()
            except _NO_VALUE as error:
                raise Unfit(name, f"has a value that Python cannot hold: {error}") from error
        raise
    return rows


def check_readable(fields: Iterable[Any]) -> None:
    """Raise `Unfit` if segments cannot hold the columns of an Arrow schema."""
    check_names(fields, ignore_case=False)
    for part in fields:
        for kind in _kinds(part.type):
            word = _marked(kind)
            if types.is_map(kind) and types.is_nested(kind.key_type):
                word = f"map with keys of {kind.key_type}"
            if word:
                raise Unfit(part.name, f"a segment cannot hold the type {word}")


def check_names(fields: Iterable[Any], *, ignore_case: bool) -> None:
    """Raise `Unfit` if two columns of an Arrow schema, or two parts of a struct in it, have the same name."""
    structs = [kind for part in fields for kind in _kinds(part.type) if types.is_struct(kind)]
    for parts in (fields, *structs):
        seen: set[str] = set()
        for part in parts:
            name = part.name.lower() if ignore_case else part.name
            if name in seen:
                case = ", as Spark ignores the case of names" if ignore_case else ""
                raise Unfit(part.name, f"is the name of two columns{case}")
            seen.add(name)


def _kinds(kind: Any) -> Iterator[Any]:
    """Yield a type and the types in it."""
    yield kind
    if types.is_nested(kind):
        for place in range(kind.num_fields):
            yield from _kinds(kind.field(place).type)


def _marked(kind: Any) -> str:
    """Return the name of a type that Arrow only has as a struct; empty for other types."""
    marks = [key.decode() for part in kind for key in part.metadata or {}] if types.is_struct(kind) else []
    return next((mark for mark in marks if mark in _MARKS), "")


def reader(kind: Any) -> Convert | None:
    """Return a function from Arrow's value of a type to a segment's value; None if they are the same."""
    if types.is_timestamp(kind) and kind.tz is not None:
        return lambda value: value.astimezone(datetime.UTC)
    if types.is_map(kind):
        key, item = _or_none(reader(kind.key_type)), _or_none(reader(kind.item_type))
        return lambda value: _read_map(key, item, value)
    if types.is_list(kind) or types.is_large_list(kind):
        inside = reader(kind.value_type)
        return None if inside is None else lambda value: [None if one is None else inside(one) for one in value]
    if types.is_struct(kind):
        found = {part.name: read for part in kind if (read := reader(part.type)) is not None}
        return (lambda value: _read_struct(found, value)) if found else None
    return None


def _read_map(key: Convert, item: Convert, pairs: list[Any]) -> dict[Any, Any]:
    found = {key(one): item(other) for one, other in pairs}
    if len(found) < len(pairs):
        raise Unfit("", f"has a map with two equal keys: {pairs!r:.60}")
    return found


def _or_none(read: Convert | None) -> Convert:
    return (lambda value: value) if read is None else (lambda value: None if value is None else read(value))


def _read_struct(readers: Mapping[str, Convert], value: dict[str, Any]) -> dict[str, Any]:
    return {name: readers[name](one) if one is not None and name in readers else one for name, one in value.items()}


# --- from segments to columns -----------------------------------------------------


def fitter(kind: Any, *, nullable: bool = True) -> Convert:
    """Return a function from a value to the value that a column of an Arrow type takes.

    The function raises `Unfit` for a value that would come back as another one. This call raises `Unfit` for a
    type that is not written. Integers are milliseconds if the column is a timestamp.
    """
    convert = _fitter(kind)
    if nullable:
        return lambda value: None if value is None else convert(value)
    return lambda value: convert(value) if value is not None else _refuse(value, "must not be None")


def row_fitter(fields: Iterable[Any], *, drop_others: bool = False) -> Convert:
    """Return a function from a segment to the list of its columns' values; ``drop_others`` ignores other fields."""
    fitters = [(part.name, _plain(part.type), within(part.name, _of_part, part), part.nullable) for part in fields]
    names = frozenset(name for name, *_ in fitters)

    def fit(segment: Any) -> list[Any]:
        if type(segment) is not dict:
            segment = {"value": segment}
        if not drop_others and not segment.keys() <= names:
            other = next(name for name in segment if name not in names)
            raise Unfit(str(other), f"is not one of the columns: {', '.join(sorted(names))}")
        row: list[Any] = []
        try:
            for name, plain, convert, nullable in fitters:
                value = segment.get(name)
                if type(value) is plain or (value is None and nullable):
                    row.append(value)
                else:
                    row.append(convert(value))
        except Unfit as error:
            raise _placed(fitters[len(row)][0], error) from None
        return row

    return fit


def plain_rows(fields: Any) -> Callable[[Any], tuple[Any, ...] | None]:
    """Return a function from a segment to its columns' values, if the columns ``fields`` take these unchanged.

    The function returns None for a segment with other fields, or with a value that `row_fitter` has to look at.
    """
    names = fields.names
    pick: Convert = itemgetter(*names) if len(names) > 1 else lambda segment: tuple(segment[name] for name in names)
    integers = [place for place, part in enumerate(fields) if types.is_int64(part.type)]
    strings = [place for place, part in enumerate(fields) if types.is_string(part.type)]
    allowed = [_plain_types(part) for part in fields]

    def plain(segment: Any) -> tuple[Any, ...] | None:
        if type(segment) is not dict or len(segment) != len(names):
            return None
        try:
            row: tuple[Any, ...] = pick(segment)
        except KeyError:
            return None
        if not all(map(contains, allowed, map(type, row))):
            return None
        for place in integers:
            value = row[place]
            if value is not None and not INTEGERS[0] <= value <= INTEGERS[1]:
                return None
        for place in strings:
            value = row[place]
            if value is not None and not value.isascii() and not _is_unicode(value):
                return None
        return row

    return plain


def _is_unicode(text: str) -> bool:
    """Return whether a string has no half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _plain_types(part: Any) -> frozenset[type[Any] | None]:
    """Return the types of values that a column takes unchanged; integers must fit into 64 bits."""
    found = int if types.is_int64(part.type) else _plain(part.type)
    return frozenset({found, type(None)} if part.nullable else {found})


def _plain(kind: Any) -> type[Any] | None:
    """Return the type of Python whose values a column takes unchanged, each of them; None if there is none."""
    if types.is_float64(kind):
        return float
    return next((python for fits, python, _ in _PLAIN if fits(kind)), None)


def _of_part(part: Any) -> Convert:
    """Return the function for a column's values. It is not called for None if the column may have None."""
    return _fitter(part.type) if part.nullable else fitter(part.type, nullable=False)


def within(place: str, convert: Convert, value: Any) -> Any:
    """Convert a part; an error names the whole path."""
    try:
        return convert(value)
    except Unfit as error:
        raise _placed(place, error) from None


def _placed(place: str, error: Unfit) -> Unfit:
    """Return the error of a part with the whole path."""
    path = error.field if error.field != "segment" else ""
    dot = "." if path and not path.startswith("[") else ""
    return Unfit(f"{place}{dot}{path}", error.why)


def _refuse(value: Any, why: str) -> Any:
    shown = f"{value!r:.60}"
    raise Unfit("", f"{why}, not the {called(value)} {shown}" if value is not None else why)


def _fitter(kind: Any) -> Convert:
    for fits, make in _FITTERS:
        if fits(kind):
            return make(kind)
    raise Unfit("", f"the type {kind} is not written: columns are {WRITTEN}")


def _exactly(kind: type[Any], words: str) -> Callable[[Any], Convert]:
    return lambda _: lambda value: value if type(value) is kind else _refuse(value, f"must be {words}")


def _integers(kind: Any) -> Convert:
    bits = kind.bit_width
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1

    def fit(value: Any) -> Any:
        if type(value) is int and low <= value <= high:
            return value
        return _refuse(value, f"must be an integer of {bits} bits")

    return fit


def _floats(kind: Any) -> Convert:
    narrow = kind.bit_width == 32

    def fit(value: Any) -> Any:
        found = value
        if type(value) is int and (-_WHOLE_FLOAT_MAX <= value <= _WHOLE_FLOAT_MAX or _is_float(value)):
            found = float(value)
        if type(found) is not float or (narrow and not _is_narrow(found)):
            return _refuse(value, f"must be a float that {kind.bit_width} bits hold exactly")
        return found

    return fit


def _is_float(value: int) -> bool:
    try:
        return int(float(value)) == value
    except OverflowError:
        return False


def _is_narrow(value: float) -> bool:
    try:
        found: float = struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        return False
    return found == value or value != value


def _timestamps(kind: Any) -> Convert:
    zoned = kind.tz is not None
    words = "a datetime with a zone, or milliseconds" if zoned else "a datetime without a zone, or milliseconds"

    def fit(value: Any) -> Any:
        if type(value) is datetime.datetime and (value.utcoffset() is not None) == zoned:
            wall = (value.replace(tzinfo=None) - _EPOCH) // _MICROSECOND
            found = wall - (value.utcoffset() or datetime.timedelta()) // _MICROSECOND
        elif type(value) is int:
            found = value * 1_000
        else:
            return _refuse(value, f"must be {words}")
        if not TIMESTAMPS_US[0] <= found <= TIMESTAMPS_US[1]:
            return _refuse(value, "must be a time of the years 1 to 9999")
        return found

    return fit


def _decimals(kind: Any) -> Convert:
    words = f"a decimal of {kind.precision} digits, {kind.scale} of them after the point"

    def fit(value: Any) -> Any:
        found = decimal.Decimal(value) if type(value) is int else value
        if type(found) is not decimal.Decimal or not found.is_finite():
            return _refuse(value, f"must be {words}")
        sign, digits, exponent = found.as_tuple()
        assert isinstance(exponent, int)
        number = "".join(map(str, digits)).lstrip("0")
        kept = number.rstrip("0")
        if not kept:
            return decimal.Decimal(0)
        after = -(exponent + len(number) - len(kept))
        if after > kind.scale or len(number) + exponent > kind.precision - kind.scale:
            return _refuse(value, f"must be {words}")
        if -exponent > kind.scale:  # Arrow does not take any number of zeros after the point.
            return decimal.Decimal((sign, digits[: exponent + kind.scale], -kind.scale))
        return found

    return fit


def _lists(kind: Any) -> Convert:
    inside = fitter(kind.value_type, nullable=kind.value_field.nullable)

    def fit(value: Any) -> Any:
        if type(value) is not list:
            return _refuse(value, "must be a list")
        return [within(f"[{place}]", inside, one) for place, one in enumerate(value)]

    return fit


def _maps(kind: Any) -> Convert:
    key, item = fitter(kind.key_type, nullable=False), fitter(kind.item_type, nullable=kind.item_field.nullable)

    def fit(value: Any) -> Any:
        if type(value) is not dict:
            return _refuse(value, "must be a dict")
        found = [
            (within(f"[{one!r:.60}]", key, one), within(f"[{one!r:.60}]", item, two)) for one, two in value.items()
        ]
        if len({repr(one) for one, _ in found}) < len(found):
            return _refuse(value, "has two keys that the column cannot tell apart")
        return found

    return fit


def _structs(kind: Any) -> Convert:
    if word := _marked(kind):
        raise Unfit("", f"the type {word} is not written: columns are {WRITTEN}")
    names = [part.name for part in kind]
    fit_row = row_fitter(kind)

    def fit(value: Any) -> Any:
        if type(value) is not dict:
            return _refuse(value, "must be a dict")
        return dict(zip(names, fit_row(value), strict=True))

    return fit


_PLAIN: tuple[tuple[Callable[[Any], bool], type[Any], str], ...] = (
    (types.is_boolean, bool, "a bool"),
    (types.is_string, str, "a string"),
    (types.is_binary, bytes, "bytes"),
    (types.is_date32, datetime.date, "a date"),
)
"""Types of columns that take every value of a type unchanged, and no other value; what an error calls the type."""
_FITTERS: tuple[tuple[Callable[[Any], bool], Callable[[Any], Convert]], ...] = (
    (types.is_null, lambda _: lambda value: _refuse(value, "must be None")),
    *((fits, _exactly(python, words)) for fits, python, words in _PLAIN),
    (types.is_signed_integer, _integers),
    (lambda kind: types.is_float32(kind) or types.is_float64(kind), _floats),
    (types.is_timestamp, _timestamps),
    (types.is_decimal, _decimals),
    (types.is_list, _lists),
    (types.is_map, _maps),
    (types.is_struct, _structs),
)


def table(fields: Any, rows: Sequence[Sequence[Any]]) -> Any:
    """Return an Arrow table of rows in the form of `row_fitter`; ``fields``: its schema."""
    columns = zip(*rows, strict=True) if rows and len(fields) else [()] * len(fields)
    arrays = [pyarrow.array(values, part.type) for values, part in zip(columns, fields, strict=True)]
    return pyarrow.Table.from_arrays(arrays, schema=fields)


# --- columns that are found -------------------------------------------------------

_WORDS: dict[type[Any], Kind] = {
    type(None): "null",
    bool: "bool",
    int: "int",
    float: "float",
    str: "str",
    bytes: "bytes",
    datetime.date: "date",
}
_ARROW = {
    "null": pyarrow.null(),
    "bool": pyarrow.bool_(),
    "int": pyarrow.int64(),
    "float": pyarrow.float64(),
    "str": pyarrow.string(),
    "bytes": pyarrow.binary(),
    "date": pyarrow.date32(),
    "datetime": pyarrow.timestamp("us"),
    "instant": pyarrow.timestamp("us", "UTC"),
}


class Columns:
    """The columns of the segments seen so far, in the order of their first occurrence.

    Two kinds become one if no value changes: integers and floats, integers and decimals, None and anything.
    """

    def __init__(self) -> None:
        self._kinds: dict[str, Kind] = {}

    def start(self, known: Any) -> Any:
        """Begin with the columns of an Arrow schema that have no type yet, and return those that have one."""
        self._kinds = {part.name: "null" for part in known if types.is_null(part.type)}
        return pyarrow.schema([part for part in known if not types.is_null(part.type)])

    def add(self, segment: Any) -> None:
        """Add the fields of a segment; raises `Unfit`, and adds none, if a field had another type before."""
        kinds, changed = self._kinds, {}
        for name, value in (segment if type(segment) is dict else {"value": segment}).items():
            if type(name) is not str:
                raise Unfit(repr(name), f"the name of a column must be a string, not the {called(name)} {name!r:.60}")
            known, found = kinds.get(name), _WORDS.get(type(value))
            if known is None or found is None or known != found:
                changed[name] = _merged(name, "null" if known is None else known, _kind_of(name, value))
        if changed:
            kinds |= changed

    def add_columns(self, schema: Any) -> None:
        """Add the columns of another file; raises `Unfit` if one had another type before."""
        for part in schema:
            known = self._kinds.get(part.name, "null")
            self._kinds[part.name] = _merged(part.name, known, _kind_of_arrow(part.type))

    def schema(self, known: Any = ()) -> Any:
        """Return ``known`` with these columns as an Arrow schema.

        Raises `Unfit` for a field without a type, or if there are none.
        """
        found = [*known, *(pyarrow.field(name, _arrow(name, kind)) for name, kind in self._kinds.items())]
        if not found:
            raise Unfit("", "a file cannot hold rows without any column")
        schema = pyarrow.schema(found)
        check_names(schema, ignore_case=True)
        return schema


def united(known: Any, schemas: Iterable[Any]) -> Any:
    """Return the schema ``known`` with the other columns of all these; raises `Unfit` if a column has two types."""
    found = Columns()
    typed = found.start(known)
    for schema in schemas:
        found.add_columns([part for part in schema if part.name not in typed.names])
    return found.schema(typed)


def _kind_of(path: str, value: Any) -> Kind:
    kind = type(value)
    if kind in _WORDS:
        return _WORDS[kind]
    if kind is datetime.datetime:
        return "datetime" if value.utcoffset() is None else "instant"
    if kind is decimal.Decimal and value.is_finite():
        exponent = value.as_tuple().exponent
        return ("decimal", max(0, -int(exponent)))
    if kind is list:
        inside: Kind = "null"
        for place, one in enumerate(value):
            inside = _merged(f"{path}[]", inside, _kind_of(f"{path}[{place}]", one))
        return ("list", inside)
    if kind is dict:
        if not all(type(name) is str for name in value):
            raise Unfit(path, "has a key that is not a string: name the column in the schema, as a map")
        return ("struct", {name: _kind_of(f"{path}.{name}", one) for name, one in value.items()})
    raise Unfit(path, f"a column cannot hold the {called(value)} {value!r:.60}")


def _merged(path: str, one: Kind, other: Kind) -> Kind:
    """Return the kind that holds the values of both."""
    if other in (one, "null"):
        return one
    if one == "null":
        return other
    if isinstance(one, tuple) and isinstance(other, tuple) and one[0] == other[0]:
        return one[0], _MERGERS[one[0]](path, one[1], other[1])
    for kind, word in ((one, other), (other, one)):
        if word == "int" and (kind == "float" or kind[0] == "decimal"):
            return kind
    raise Unfit(path, f"is {_said(one)} in one segment and {_said(other)} in another")


def _merged_structs(path: str, one: dict[str, Kind], other: dict[str, Kind]) -> dict[str, Kind]:
    names = dict.fromkeys([*one, *other])
    return {name: _merged(f"{path}.{name}", one.get(name, "null"), other.get(name, "null")) for name in names}


_MERGERS: dict[str, Callable[[str, Any, Any], Any]] = {
    "decimal": lambda _, one, other: max(one, other),
    "list": lambda path, one, other: _merged(f"{path}[]", one, other),
    "struct": _merged_structs,
}


def _said(kind: Kind) -> str:
    words = {"int": "an int", "datetime": "a datetime without a zone", "instant": "a datetime with a zone"}
    if isinstance(kind, tuple):
        return "a dict" if kind[0] == "struct" else f"a {kind[0]}"
    return words.get(kind, kind if kind == "bytes" else f"a {kind}")


def _arrow(path: str, kind: Kind) -> Any:
    if isinstance(kind, str):
        return _ARROW[kind]
    word, inside = kind
    if word == "decimal":
        if inside > DIGITS_MAX:
            raise Unfit(path, f"a column cannot hold a decimal with {inside} digits after the point")
        return pyarrow.decimal128(DIGITS_MAX, inside)
    if word == "list":
        return pyarrow.list_(_arrow(f"{path}[]", inside))
    if not inside:
        raise Unfit(path, "a column cannot hold a dict without keys")
    return pyarrow.struct([(name, _arrow(f"{path}.{name}", one)) for name, one in inside.items()])


def _kind_of_arrow(kind: Any) -> Kind:
    """Return the kind of a column that was found before."""
    for word, found in _ARROW.items():
        if kind == found:
            return word
    if types.is_decimal(kind):
        return ("decimal", kind.scale)
    if types.is_list(kind):
        return ("list", _kind_of_arrow(kind.value_type))
    assert types.is_struct(kind), f"{kind} is not the type of a column that was found"
    return ("struct", {part.name: _kind_of_arrow(part.type) for part in kind})
