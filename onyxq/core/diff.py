"""Differences between two replicas, in one form for tail, subscriptions, explanations and waiters.

Pure.  Subtrees that both replicas share are skipped by identity.  So the cost of the difference that one
record makes depends on what the record changed, not on the size of the replica.

A replica as a plain tree (`tree`) has maps with text keys, lists, text, numbers, booleans
and None, as in JSON: ids are hexadecimal, and numbers as keys are text.  A claim in flight
is a map of its fields at ``claims / partition / stretch / offset``.  `patched`
turns the old tree and the changes into the new tree.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import attrs
from attrs import frozen
from pyrsistent import PMap

from onyxq.core.replica import ClaimPiece, Replica

Tree: TypeAlias = Any
"""A value that JSON can hold."""

BOOKKEEPING = frozenset(
    "position counted_position digest trail milestones log_time_ms ctime_ms clock_ms outbox grown_records grown_bytes "
    "limited rates".split()
)
"""Top-level fields that change with nearly every record. Texts for people leave them out."""
SHOWN_CHARACTERS_MAX = 100
"""Most characters of one value in a text for people."""


class Absent(enum.Enum):
    """The type of `ABSENT`, the value of a missing key."""

    ABSENT = "absent"

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT = Absent.ABSENT


@frozen
class Change:
    """One place of the tree that differs; ``before`` or ``after`` is `ABSENT` if a key was added or removed."""

    path: tuple[str, ...]
    before: Tree
    after: Tree


@frozen
class _Piece:
    """A claim in flight without its offset, which is its key."""

    count: int
    token: int
    worker: str
    deadline_ms: int


def diff(old: Replica, new: Replica) -> tuple[Change, ...]:
    """Return every place where the replicas differ, sorted by path."""
    found: list[Change] = []
    _walk((), old, new, found)
    return tuple(sorted(found, key=lambda change: change.path))


def tree(replica: Replica) -> dict[str, Tree]:
    """Return the replica as a plain tree."""
    shown = {name: plain(getattr(replica, name)) for name in _names(Replica) if name != "claims"}
    shown["claims"] = {str(number): _shown(("claims",), replica.claims[number]) for number in sorted(replica.claims)}
    return shown


def plain(value: Any) -> Tree:
    """Return any value of the replica or of an entry's arguments as a plain tree."""
    if isinstance(value, bytes):
        return value.hex()
    if attrs.has(type(value)):
        return {name: plain(getattr(value, name)) for name in _names(type(value))}
    if hasattr(value, "_asdict"):
        return {name: plain(item) for name, item in value._asdict().items()}
    if isinstance(value, Mapping):
        return {_key(key): plain(value[key]) for key in sorted(value)}
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    return value


def patched(before: Tree, changes: Iterable[Change]) -> Tree:
    """Return the tree with the changes applied; ``before`` stays as it is."""
    root: dict[str, Tree] = {"": before}
    fresh: dict[tuple[str, ...], dict[str, Tree]] = {(): root}
    for change in changes:
        place = _own(fresh, change.path[:-1])
        name = change.path[-1]
        if change.after is ABSENT:
            place.pop(name, None)
        else:
            place[name] = change.after
    return root[""]


def render(change: Change) -> str:
    """Return one change in words, such as ``partitions/3/epoch: 4 -> 5``."""
    where = "/".join(change.path)
    if change.before is ABSENT:
        return f"{where}: new, {_short(change.after)}"
    if change.after is ABSENT:
        return f"{where}: gone, was {_short(change.before)}"
    return f"{where}: {_short(change.before)} -> {_short(change.after)}"


def in_words(changes: Sequence[Change], *, limit: int = 20) -> list[str]:
    """Return a line for each change that matters to people.

    There are at most ``limit`` lines, and one more with the number of other changes.
    """
    told = [change for change in changes if change.path[0] not in BOOKKEEPING]
    lines = [render(change) for change in told[:limit]]
    if len(told) > limit:
        lines.append(f"and {len(told) - limit} more changes")
    return lines


def _walk(path: tuple[str, ...], old: Any, new: Any, found: list[Change]) -> None:
    if old is new:
        return
    if type(old) is type(new) and attrs.has(type(old)):
        for name in _names(type(old)):
            _walk((*path, name), getattr(old, name), getattr(new, name), found)
    elif isinstance(old, (PMap, dict)) and isinstance(new, (PMap, dict)):
        _walk_maps(path, old, new, found)
    elif len(path) == 3 and path[0] == "claims" and isinstance(old, tuple) and isinstance(new, tuple):
        _walk_maps(path, _by_offset(old), _by_offset(new), found)
    else:
        before, after = plain(old), plain(new)
        if repr(before) != repr(after):  # 0 equals False, also inside of lists
            found.append(Change(path, before, after))


def _walk_maps(path: tuple[str, ...], old: Mapping[Any, Any], new: Mapping[Any, Any], found: list[Change]) -> None:
    for key, value in new.items():
        before = old.get(key, ABSENT)
        if before is ABSENT:
            found.append(Change((*path, _key(key)), ABSENT, _shown(path, value)))
        elif before is not value:
            _walk((*path, _key(key)), before, value, found)
    for key, value in old.items():
        if key not in new:
            found.append(Change((*path, _key(key)), _shown(path, value), ABSENT))


def _shown(parent: tuple[str, ...], value: Any) -> Tree:
    """Return a value that was added to or removed from the map at ``parent``, with claims in the form of `tree`."""
    if parent[:1] == ("claims",) and len(parent) == 1:
        return {stretch.hex(): plain(_by_offset(value[stretch])) for stretch in sorted(value)}
    if parent[:1] == ("claims",) and len(parent) == 2:
        return plain(_by_offset(value))
    return plain(value)


def _by_offset(pieces: Sequence[ClaimPiece]) -> dict[int, _Piece]:
    return {piece[0]: _Piece(*piece[1:]) for piece in pieces}


def _names(kind: type) -> tuple[str, ...]:
    return tuple(item.name for item in attrs.fields(kind))


def _key(key: Any) -> str:
    return key.hex() if isinstance(key, bytes) else str(key)


def _own(fresh: dict[tuple[str, ...], dict[str, Tree]], path: tuple[str, ...]) -> dict[str, Tree]:
    """Return the map at ``path`` of the new tree, copied on its first use."""
    full = ("", *path)
    for depth in range(1, len(full) + 1):
        if full[:depth] not in fresh:
            parent = fresh[full[: depth - 1]]
            parent[full[depth - 1]] = fresh[full[:depth]] = dict(parent[full[depth - 1]])
    return fresh[full]


def _short(value: Tree) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = text or '""'
    return text if len(text) <= SHOWN_CHARACTERS_MAX else text[: SHOWN_CHARACTERS_MAX - 1] + "…"
