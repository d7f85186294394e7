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
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, TypeAlias

import attrs
from attrs import frozen
from pyrsistent import PMap, pmap

from onyxq.replica import Replica

APPLIED = "applied"

RECORD_BYTES_MAX = 512 * 1024
ENTRY_BYTES_MAX = 256 * 1024


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
def _fields(args: type) -> tuple[tuple[str, Any], ...]:
    hints = typing.get_type_hints(args)
    return tuple((f.name, hints[f.name]) for f in attrs.fields(args))


def encode_args(args: Any) -> list[Any]:
    """The fields of ``args`` in order, as msgpack can hold them."""
    return [_plain(getattr(args, name)) for name, _ in _fields(type(args))]


def decode_args(args: type, values: Any) -> Any:
    """``args`` built from what `encode_args` gave; raises `Malformed`."""
    fields = _fields(args)
    if not isinstance(values, (list, tuple)) or len(values) != len(fields):
        raise Malformed(f"{args.__module__}: {len(fields)} arguments expected")
    return args(**{name: _typed(kind, value, name) for (name, kind), value in zip(fields, values, strict=True)})


def _plain(value: Any) -> Any:
    if isinstance(value, (PMap, Mapping)):
        return {key: _plain(item) for key, item in sorted(value.items())}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def _typed(kind: Any, value: Any, name: str) -> Any:  # noqa: PLR0911
    origin = typing.get_origin(kind)
    if isinstance(kind, typing.NewType):
        return _typed(kind.__supertype__, value, name)
    if origin is tuple:
        return _typed_tuple(typing.get_args(kind), value, name)
    if origin is PMap:
        key_kind, item_kind = typing.get_args(kind)
        if not isinstance(value, dict):
            raise Malformed(f"{name}: a map expected")
        return pmap({_typed(key_kind, k, name): _typed(item_kind, v, name) for k, v in value.items()})
    if isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields"):
        hints = tuple(typing.get_type_hints(kind).values())
        return kind(*_typed_tuple(hints, value, name))
    if kind is Any:
        return value
    if type(value) is not kind:
        raise Malformed(f"{name}: {getattr(kind, '__name__', kind)} expected, not {type(value).__name__}")
    if kind is int and not -(1 << 63) <= value < 1 << 63:
        raise Malformed(f"{name}: the number is out of range")
    return value


def _typed_tuple(kinds: tuple[Any, ...], value: Any, name: str) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise Malformed(f"{name}: a list expected")
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        return tuple(_typed(kinds[0], item, name) for item in value)
    if len(value) != len(kinds):
        raise Malformed(f"{name}: {len(kinds)} items expected")
    return tuple(_typed(kind, item, name) for kind, item in zip(kinds, value, strict=True))
