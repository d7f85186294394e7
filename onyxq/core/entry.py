"""Entries: named pure transitions with typed arguments, each in one or several versions.

A module of `log_entries` (or of an extension, see `onyxq.system.extensions`) defines one entry by

* ``Args``: a frozen attrs class of typed arguments (int, str, bytes, bool, tuples of them, and
  maps with str or bytes as keys; annotations are checked on decoding),
* ``VERSION``: the version of its meaning, from 1,
* ``apply(replica, args, stamp) -> (replica, verdict)``: the transition. It never raises
  for anything that an entry can hold. The verdict is ``APPLIED`` or a short reason why
  nothing changed,
* ``owed(replica, me) -> sequence of Args``, if peers owe the entry: the entries that the peer ``me``
  owes now, computed from the replica alone,
* ``EARLIER`` and ``lowered``, once there are earlier versions: see `Form`.

The docstring of such a module states who owes or submits the entry, why, and what it changes.
"""

from __future__ import annotations

import typing
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from types import MappingProxyType
from typing import Any, TypeAlias

import attrs
from attrs import frozen
from pyrsistent import PMap, pmap

from onyxq.core.limits import INT_MAX, INT_MIN
from onyxq.core.replica import Replica

APPLIED = "applied"

RECORD_BYTES_MAX = 512 * 1024


@frozen
class Stamp:
    """Position and time of an entry in the log."""

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
Lowered: TypeAlias = Callable[[Any], Any]
Duties: TypeAlias = Callable[[Replica, str], Iterable[Hashable]]
Run: TypeAlias = Callable[[Any, Any], Awaitable[None]]
Reader: TypeAlias = Callable[[Any, str], Any]


@frozen
class Form:
    """One version of an entry.

    A version never changes once a cluster may have enabled it: logs contain it, and
    peers must agree on its effect.  A new meaning is a new version.  The module of the previous
    version moves to ``<name>_<version>``, and the new module lists it in ``EARLIER``.
    """

    version: int
    args: type
    apply: Apply
    lowered: Lowered | None
    """Turns the arguments into those of the previous version, for clusters that have not enabled this version.

    It returns None for arguments that the previous version cannot express. They cannot be used yet.
    """


@frozen(kw_only=True)
class Entry:
    """One kind of entry in the registry; ``version``, ``args``, ``apply`` belong to the newest form."""

    name: str
    version: int
    args: type
    apply: Apply
    owed: Owed | None
    doc: str
    forms: Mapping[int, Form]
    """All known versions."""
    extension: str = ""
    """The extension whose state in ``Replica.extensions`` is all that it may change; empty for OnyxQ's own entries."""
    submitted: bool = False
    """Whether clients may submit it."""
    duties: Duties | None = None
    run: Run | None = None


class Malformed(Exception):
    """The arguments in a record do not fit the entry's types."""


def describe(module: Any, *, name: str = "", extension: str = "") -> Entry:
    """Return the `Entry` that a module of ``log_entries`` (or an extension's object) defines."""
    forms = (*getattr(module, "EARLIER", ()), module)
    return Entry(
        name=name or module.__name__.rpartition(".")[2],
        version=module.VERSION,
        args=module.Args,
        apply=module.apply,
        owed=getattr(module, "owed", None),
        doc=module.__doc__ or "",
        forms=MappingProxyType({form.VERSION: _form(form) for form in forms}),
        extension=extension,
        submitted=bool(extension) and getattr(module, "SUBMIT", False) is True,
        duties=getattr(module, "duties", None) if extension else None,
        run=getattr(module, "run", None) if extension else None,
    )


def _form(module: Any) -> Form:
    return Form(module.VERSION, module.Args, module.apply, getattr(module, "lowered", None))


class Entries(Mapping[str, Entry]):
    """The entries that one program knows, by name, in the order in which owed entries are looked for."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        found = tuple(entries)
        self._by_name = {entry.name: entry for entry in found}
        self._by_args = {form.args: (entry, form) for entry in found for form in entry.forms.values()}
        self.versions: PMap[str, int] = pmap({entry.name: entry.version for entry in found})
        """What a peer of this program announces when it joins: name -> highest known version."""
        self.owing = tuple((entry, entry.owed) for entry in found if entry.owed is not None)
        self.doing = tuple((entry, entry.duties) for entry in found if entry.duties is not None)

    def __getitem__(self, name: str) -> Entry:
        return self._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    def named(self, name: str) -> Entry | None:
        """Return the entry of that name, or None; faster than ``get`` of mappings."""
        return self._by_name.get(name)

    def of(self, args: Any) -> Entry | None:
        """Return the entry to which these arguments belong, or None."""
        found = self._by_args.get(type(args))
        return found[0] if found else None

    def name_of(self, args: Any) -> str:
        """Return the name of the entry to which these arguments belong, for messages."""
        found = self.of(args)
        return found.name if found else type(args).__module__

    def enabled_form(self, args: Any, enabled: Mapping[str, int]) -> tuple[Entry, int, Any] | None:
        """Return the entry of ``args``, its highest enabled version, and the arguments in that version.

        None if the entry is not enabled, or if the arguments cannot be put into an enabled version.
        """
        entry, form = self._by_args[type(args)]
        most = enabled.get(entry.name, 0)
        while form.version > most:
            args = None if form.lowered is None else form.lowered(args)
            if args is None:
                return None
            form = self._by_args[type(args)][1]
        return entry, form.version, args

    def unknown(self, enabled: Mapping[str, int]) -> str:
        """Return a description of the first enabled entry that this program does not know; empty if it knows all."""
        for name in sorted(enabled):
            if enabled[name] > self.versions.get(name, 0):
                return told(name, enabled[name])
        return ""


def told(name: str, version: int) -> str:
    """Return the text by which messages name an entry and its version."""
    brought = f" of the extension {name.partition('.')[0]}" if "." in name else ""
    return f"entry {name}{brought}, version {version}"


@cache
def _fields(args: Any) -> tuple[tuple[str, Any], ...]:
    hints = typing.get_type_hints(args)
    return tuple((f.name, hints[f.name]) for f in attrs.fields(args))


@cache
def _readers(args: Any) -> tuple[tuple[str, Reader], ...]:
    return tuple((name, _reader(kind)) for name, kind in _fields(args))


def check_fields(args: Any) -> str:
    """Return which argument has a type that an entry cannot hold, in words; empty if all are fine."""
    for name, kind in _fields(args):
        if not _holdable(kind):
            return (
                f"{name} of Args is {kind!r}: an entry holds int, str, bytes, bool, and of these tuples and PMap,"
                " whose keys are str or bytes"
            )
    return ""


def _holdable(kind: Any) -> bool:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if isinstance(kind, typing.NewType):
        return _holdable(kind.__supertype__)
    if origin is PMap:
        return _is_key(arguments[0]) and _holdable(arguments[1])
    if origin is tuple:
        return all(argument is Ellipsis or _holdable(argument) for argument in arguments)
    if isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return all(map(_holdable, typing.get_type_hints(kind).values()))
    return kind in (int, str, bytes, bool)


def _is_key(kind: Any) -> bool:
    """Return whether a record can hold maps with keys of a type: msgpack refuses to decode any others."""
    return _plain(kind) in (str, bytes)


def encode_args(args: Any) -> list[Any]:
    """Return the fields of ``args`` in order, for msgpack with `plain_map` as its ``default``."""
    kind: Any = type(args)
    return [getattr(args, name) for name, _ in _fields(kind)]


def decode_args(args: type, values: Any) -> Any:
    """Return ``args`` built from the result of `encode_args`; raises `Malformed`."""
    return _args_reader(args)(values, "")


def named_args(args: Any, given: Mapping[str, Any]) -> Any:
    """Return ``args`` built from a map of its fields; raises `Malformed` naming the field.

    Fields with a default may be left out.
    """
    readers = dict(_readers(args))
    for name in sorted(given):
        if name not in readers:
            raise Malformed(f"{name}: is not one of {', '.join(readers) or 'no arguments'}")
    for item in attrs.fields(args):
        if item.name not in given and item.default is attrs.NOTHING:
            raise Malformed(f"{item.name}: is missing")
    return args(**{name: readers[name](value, name) for name, value in given.items()})


def plain_map(value: Any) -> dict[Any, Any]:
    """Return a persistent map as a dict in the order of its keys, for msgpack; raises `TypeError` for other types."""
    if not isinstance(value, PMap):
        raise TypeError(f"an entry cannot hold {type(value).__name__}")
    return dict(sorted(value.items()))


# --- readers: one per type, made once because every record of the log passes through them ---


@cache
def _args_reader(args: Any) -> Reader:
    """Return the function that builds ``args`` from a list. It names the fields in errors itself."""
    readers = _readers(args)

    def read(values: Any, _: str) -> Any:
        if not isinstance(values, (list, tuple)) or len(values) != len(readers):
            raise Malformed(f"{len(readers)} arguments expected")
        return args(*[read(value, name) for (name, read), value in zip(readers, values, strict=True)])

    return _quick(tuple(kind for _, kind in _fields(args)), readers, lambda parts: args(*parts), read)


def _quick(
    kinds: tuple[Any, ...],
    readers: tuple[tuple[str, Reader], ...],
    make: Callable[[list[Any]], Any],
    thorough: Reader,
) -> Reader:
    """Return a function that gives the same results as ``thorough``, faster for lists as msgpack makes them.

    It compares the types of all plain parts at once.  Only for other parts it calls their reader, with the
    reader's own name if it has one.
    """
    plain = tuple(map(_plain, kinds))
    types = tuple(list if kind is None else kind for kind in plain)
    numbers = tuple(at for at, kind in enumerate(plain) if kind is int)
    others = tuple((at, *readers[at]) for at, kind in enumerate(plain) if kind is None)

    def read(value: Any, name: str) -> Any:
        if type(value) is not list or tuple(map(type, value)) != types:
            return thorough(value, name)
        for at in numbers:
            if not INT_MIN <= value[at] <= INT_MAX:
                return thorough(value, name)
        if others:
            value = value.copy()
            for at, own_name, read_other in others:
                value[at] = read_other(value[at], own_name or name)
        return make(value)

    return read


def _plain(kind: Any) -> type | None:
    """Return the type of all values of this kind; None if the type alone does not prove that a value fits."""
    while isinstance(kind, typing.NewType):
        kind = kind.__supertype__
    return kind if kind in (int, str, bytes, bool) else None


@cache
def _reader(kind: Any) -> Reader:
    """Return the function that checks a value from the log against a type; ``name`` is the argument's name."""
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
        return _tuple_reader(tuple(typing.get_type_hints(kind).values()), partial(tuple.__new__, named))
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

    return _quick(kinds, tuple(("", reader) for reader in readers), make, read)


def _map_reader(key_kind: Any, item_kind: Any) -> Reader:
    key, item = _reader(key_kind), _reader(item_kind)

    def read(value: Any, name: str) -> Any:
        if not isinstance(value, dict):
            raise Malformed(f"{name}: a map expected")
        return pmap({key(k, name): item(v, name) for k, v in value.items()})

    return read
