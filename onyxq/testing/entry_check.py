"""A check of an extension's entries, for the tests of their authors.

It searches the source for results that may differ between peers. It also applies the entries thousands of times to
replicas of a small ring, with random arguments from a fixed seed.
"""

from __future__ import annotations

import ast
import inspect
import random
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any

import attrs
from attrs import evolve
from pyrsistent import PMap, pmap

from onyxq.core.cluster_settings import Settings
from onyxq.core.diff import plain
from onyxq.core.duties import duties
from onyxq.core.entry import Entries, Entry, Form, Stamp, decode_args, encode_args
from onyxq.core.errors import BadExtension, OnyxqError
from onyxq.core.replica import Cluster, Node, Partition, Peer, Replica, Ring
from onyxq.core.snapshot import misfits, pack, unpack
from onyxq.core.step import owed, trespass
from onyxq.system.extensions import entry_of, shared_args
from onyxq.testing import purity

RUNS = 30
STEPS = 40
TEXTS = ("", "a", "b", "peer-a", "x" * 300, "ü\n")
NUMBERS = (-1, 0, 1, 2, 7, 1_000, 65_536, 1 << 40, -(1 << 63), (1 << 63) - 1)


def check_extension(modules: Mapping[str, Any]) -> list[str]:
    """Return the problems found in an extension's entries, as sentences; empty if there are none.

    ``modules``: all modules by name, ``EXTENSION.ENTRY`` as in their entry points. The source is checked as well if
    a value is a module. An empty result does not prove that the entries are correct.
    """
    found: list[str] = []
    entries: list[Entry] = []
    for name, module in modules.items():
        found += [f"{name}: {what}" for what in _told_in_source(module)]
        try:
            entries.append(entry_of(name, module))
        except BadExtension as error:
            found.append(error.message)
    found += [f"{one.name}: it has no docstring that says who submits or owes it" for one in entries if not one.doc]
    if shared := shared_args(entries):
        return [*found, shared]
    try:
        for seed in range(RUNS):
            _History(Entries(entries), random.Random(seed)).run()
    except _Wrong as error:
        found.append(str(error))
    return found


class _Wrong(Exception):
    """An entry breaks a promise."""


def _told_in_source(module: Any) -> Iterator[str]:
    if not isinstance(module, types.ModuleType):
        return
    tree = ast.parse(inspect.getsource(module))
    for look in (purity.effects, purity.inexact, purity.unsorted):
        yield from (f"line {line}: {what}, which peers may not agree on" for line, what in look(tree))


class _History:
    """A short log with entries of one extension only."""

    def __init__(self, entries: Entries, generator: random.Random) -> None:
        self._entries = entries
        self._random = generator
        self._replica = _ring(entries)

    def run(self) -> None:
        """Apply one entry after the other; raise `_Wrong` if one breaks a promise."""
        for position in range(10, 10 + STEPS if self._entries else 0):
            before = self._replica
            log_time_ms = before.log_time_ms + self._random.choice((0, 1, 500, 5_000))
            replica = evolve(before, position=position, log_time_ms=log_time_ms)
            stamp = Stamp(position, self._random.randrange(3), self._random.choice("ab"), log_time_ms, 1 << 40)
            args = self._args(replica)
            entry = self._entries.of(args)
            assert entry is not None
            form = next(form for form in entry.forms.values() if form.args is type(args))
            self._replica = _applied(replica, args, stamp, entry, form)
            _lower(args, entry, form)

    def _args(self, replica: Replica) -> Any:
        """Return the arguments of an entry that a peer owes, or random ones."""
        try:
            debts = [args for peer in "ab" for args in owed(replica, peer, self._entries)]
            for peer in ("a", "b", "stranger"):
                duties(replica, peer, self._entries)
        except OnyxqError as error:
            raise _Wrong(error.message) from error
        if debts and self._random.random() < 1 / 2:
            return self._random.choice(debts)
        entry = self._random.choice(list(self._entries.values()))
        kind: Any = self._random.choice(list(entry.forms.values())).args
        hints = typing.get_type_hints(kind)
        make = _Maker(self._random, replica.extensions.get(entry.extension))
        return kind(**{item.name: make.value(hints[item.name]) for item in attrs.fields(kind)})


def _lower(args: Any, entry: Entry, form: Form) -> None:
    """Raise `_Wrong` unless ``lowered`` gives arguments of the version before, or None."""
    if form.lowered is None:
        return
    try:
        found = form.lowered(args)
    except Exception as error:
        raise _Wrong(f"{entry.name}: lowered({args}) raised {error!r}") from error
    if found is None:
        return
    earlier = [other for other in entry.forms.values() if other.version < form.version]
    if not earlier or type(found) is not max(earlier, key=lambda other: other.version).args:
        raise _Wrong(f"{entry.name}: lowered({args}) gave {found!r}, which is not of the version before")


def _applied(replica: Replica, args: Any, stamp: Stamp, entry: Entry, form: Form) -> Replica:
    shown = f"{entry.name}: apply({args}) at log time {stamp.log_time_ms}"
    if decode_args(type(args), _listed(encode_args(args))) != args:
        raise _Wrong(f"{args} does not come back from its bytes")
    try:
        after, verdict = form.apply(replica, args, stamp)
        again, verdict_again = form.apply(unpack(pack(replica)), args, stamp)
    except Exception as error:
        raise _Wrong(f"{shown} raised {error!r}; state {plain(replica.extensions)}") from error
    wrong = trespass(replica, after, verdict, entry)
    if wrong:
        raise _Wrong(f"{shown} {wrong.rstrip(',')}")
    wrong = misfits(after.extensions.get(entry.extension))
    if wrong:
        raise _Wrong(f"{shown} left a state that no snapshot can hold: {wrong}")
    if (pack(again), verdict_again) != (pack(after), verdict):
        raise _Wrong(f"{shown} gave another result from a replica that was packed and unpacked")
    checked: Replica = after
    return checked


def _listed(value: Any) -> Any:
    """Return a value as msgpack decodes it."""
    if isinstance(value, PMap):
        return {key: _listed(item) for key, item in value.items()}
    return [_listed(item) for item in value] if isinstance(value, (tuple, list)) else value


class _Maker:
    """Maker of random values of any type that an entry can hold; some come from the extension's state."""

    def __init__(self, generator: random.Random, state: Any) -> None:
        self._random = generator
        seen = list(_leaves(state))
        self._pools: dict[Any, list[Any]] = {
            int: [*NUMBERS, generator.randrange(100_000), *(one for one in seen if type(one) is int)],
            str: [*TEXTS, *(one for one in seen if type(one) is str)],
            bytes: [text.encode() for text in TEXTS] + [one for one in seen if type(one) is bytes],
            bool: [False, True],
        }

    def value(self, kind: Any) -> Any:
        """Return one value of a type."""
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        if isinstance(kind, typing.NewType):
            return self.value(kind.__supertype__)
        if origin is not None:
            return self._collection(origin, arguments)
        if kind in self._pools:
            return self._random.choice(self._pools[kind])
        named: Any = kind
        return named(*(self.value(one) for one in typing.get_type_hints(kind).values()))

    def _collection(self, origin: Any, arguments: tuple[Any, ...]) -> Any:
        if origin is PMap:
            pairs = [[self.value(argument) for argument in arguments] for _ in range(self._random.randrange(3))]
            return pmap(dict(pairs))
        if arguments[-1] is Ellipsis:
            arguments = arguments[:1] * self._random.randrange(4)
        return tuple(self.value(argument) for argument in arguments)


def _leaves(state: Any) -> Iterator[Any]:
    """Yield all keys of a state, and all values without parts."""
    if isinstance(state, PMap):
        for key in sorted(state):
            yield key
            yield from _leaves(state[key])
    elif isinstance(state, tuple):
        for item in state:
            yield from _leaves(item)
    else:
        yield state


def _ring(entries: Entries) -> Replica:
    """Return a cluster of two peers that have the extension."""
    peers = {
        name: Peer(
            name, f"node-{name}", f"{name}:7400", f"{name}:7480", "", 1, (), entries.versions, joined_position=place
        )
        for place, name in enumerate("ab")
    }
    return Replica(
        position=9,
        cluster=Cluster("main", "c1", Settings()),
        ring=Ring(members=pmap(dict.fromkeys("ab")), pairs=pmap({"a": "b", "b": "a"})),
        peers=pmap(peers),
        nodes=pmap({f"node-{name}": Node(f"node-{name}", "", name) for name in "ab"}),
        partitions=pmap({0: Partition(("node-a", "node-b"), ("node-a", "node-b"), "a", 1, ready=True)}),
        enabled=entries.versions,
    )
