"""What an entry is: a named pure transition with typed arguments, and its bytes.

A module of `log_entries` (or of an extension) describes one entry by

* ``Args``: a frozen attrs class of typed arguments (msgpack types: int, str, bytes,
  bool, None, and tuples and maps of them; annotations are checked on decoding),
* ``VERSION``: the version of its meaning, from 1,
* ``apply(replica, args, stamp) -> (replica, verdict)``: the transition. It never raises
  for anything an entry can hold. The verdict is ``APPLIED`` or a short reason why
  nothing changed,
* ``owed(replica, me) -> sequence of Args`` where peers owe it: what the peer ``me``
  owes now, from the replica alone.

The docstring says who owes or submits it, why, and what it changes.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeAlias

import attrs
from attrs import frozen
from pyrsistent import PMap, pmap

from onyxq.replica import Replica

APPLIED = "applied"

RECORD_BYTES_MAX = 512 * 1024
ENTRY_BYTES_MAX = 256 * 1024
INT_MIN, INT_MAX = -(1 << 63), (1 << 63) - 1


@frozen
class Stamp:
    """Where and when an entry stands in the log."""

    position: int
    index: int
    peer: str
    """The peer that wrote the record."""
    log_time_ms: int
    wall_ms: int
    """The writer's wall clock."""


Verdict: TypeAlias = str
Apply: TypeAlias = Callable[[Replica, Any, Stamp], tuple[Replica, Verdict]]
Owed: TypeAlias = Callable[[Replica, str], Sequence[Any]]
Reader: TypeAlias = Callable[[Any, str], Any]


@frozen
class Entry:
    """One kind of entry as the registry knows it."""

    name: str
    version: int
    args: type
    apply: Apply
    owed: Owed | None
    doc: str


class Malformed(Exception):
    """The arguments in a record do not fit the entry's types."""


def describe(module: types.ModuleType) -> Entry:
    """The `Entry` that a module of ``log_entries`` defines."""
    return Entry(
        name=module.__name__.rpartition(".")[2],
        version=module.VERSION,
        args=module.Args,
        apply=module.apply,
        owed=getattr(module, "owed", None),
        doc=module.__doc__ or "",
    )


@cache
def _fields(args: Any) -> tuple[tuple[str, Any], ...]:
    hints = typing.get_type_hints(args)
    return tuple((f.name, hints[f.name]) for f in attrs.fields(args))


@cache
def _readers(args: Any) -> tuple[tuple[str, Reader], ...]:
    return tuple((name, _reader(kind)) for name, kind in _fields(args))


def encode_args(args: Any) -> list[Any]:
    """The fields of ``args`` in order, for msgpack with `plain_map` as its ``default``."""
    kind: Any = type(args)
    return [getattr(args, name) for name, _ in _fields(kind)]


def decode_args(args: type, values: Any) -> Any:
    """``args`` built from what `encode_args` gave; raises `Malformed`."""
    readers = _readers(args)
    if not isinstance(values, (list, tuple)) or len(values) != len(readers):
        raise Malformed(f"{args.__module__}: {len(readers)} arguments expected")
    return args(*[read(value, name) for (name, read), value in zip(readers, values, strict=True)])


def plain_map(value: Any) -> dict[Any, Any]:
    """A persistent map as msgpack can hold it, in the order of its keys."""
    if not isinstance(value, PMap):
        raise TypeError(f"an entry cannot hold {type(value).__name__}")
    return dict(sorted(value.items()))


# --- readers: one per type, made once, because every record of the log passes through them ---


@cache
def _reader(kind: Any) -> Reader:
    """The function that checks a value from the log, of the argument ``name``, against a type."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if isinstance(kind, typing.NewType):
        return _reader(kind.__supertype__)
    if origin is tuple:
        many = len(arguments) == 2 and arguments[1] is Ellipsis
        return _list_reader(arguments[0]) if many else _tuple_reader(arguments, tuple)
    if origin is PMap:
        return _map_reader(*arguments)
    if isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields"):
        named: Any = kind
        return _tuple_reader(tuple(typing.get_type_hints(kind).values()), named._make)
    if kind is Any:
        return lambda value, name: value
    return _int_reader if kind is int else _plain_reader(kind)


def _int_reader(value: Any, name: str) -> Any:
    if type(value) is not int:
        raise Malformed(f"{name}: int expected, not {type(value).__name__}")
    if not INT_MIN <= value <= INT_MAX:
        raise Malformed(f"{name}: the number is out of range")
    return value


def _plain_reader(kind: Any) -> Reader:
    def read(value: Any, name: str) -> Any:
        if type(value) is not kind:
            raise Malformed(f"{name}: {getattr(kind, '__name__', kind)} expected, not {type(value).__name__}")
        return value

    return read


def _list_reader(kind: Any) -> Reader:
    item = _reader(kind)

    def read(value: Any, name: str) -> Any:
        if not isinstance(value, (list, tuple)):
            raise Malformed(f"{name}: a list expected")
        return tuple([item(part, name) for part in value])

    return read


def _tuple_reader(kinds: tuple[Any, ...], make: Callable[[list[Any]], Any]) -> Reader:
    readers = tuple(_reader(kind) for kind in kinds)

    def read(value: Any, name: str) -> Any:
        if not isinstance(value, (list, tuple)):
            raise Malformed(f"{name}: a list expected")
        if len(value) != len(readers):
            raise Malformed(f"{name}: {len(readers)} items expected")
        return make([item(part, name) for item, part in zip(readers, value, strict=True)])

    return read


def _map_reader(key_kind: Any, item_kind: Any) -> Reader:
    key, item = _reader(key_kind), _reader(item_kind)

    def read(value: Any, name: str) -> Any:
        if not isinstance(value, dict):
            raise Malformed(f"{name}: a map expected")
        return pmap({key(k, name): item(v, name) for k, v in value.items()})

    return read
