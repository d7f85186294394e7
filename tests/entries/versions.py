"""Two versions of a program: one knows an entry ``paint`` in version 1, the other also in version 2.

Version 1 stores a colour, version 2 a colour and a number of coats.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from attrs import evolve, frozen

from log_entries.registry import ENTRIES
from onyxq.core.entry import APPLIED, Entries, Stamp, Verdict, describe
from onyxq.core.replica import Replica


@frozen
class PaintOnce:
    """Version 1."""

    colour: str


@frozen
class Paint:
    """Version 2."""

    colour: str
    coats: int


@frozen
class Brand:
    """An entry that only the newer program has."""

    name: str


def _noted(replica: Replica, value: Any) -> Replica:
    return evolve(replica, extensions=replica.extensions.set("paint", value))


def paint_once(replica: Replica, args: PaintOnce, stamp: Stamp) -> tuple[Replica, Verdict]:
    """Version 1: one coat."""
    return _noted(replica, (args.colour, 1)), APPLIED


def paint(replica: Replica, args: Paint, stamp: Stamp) -> tuple[Replica, Verdict]:
    """Version 2."""
    return (_noted(replica, (args.colour, args.coats)), APPLIED) if args.coats > 0 else (replica, "no coat")


def brand(replica: Replica, args: Brand, stamp: Stamp) -> tuple[Replica, Verdict]:
    """Store only the name."""
    return _noted(replica, args.name), APPLIED


ONCE = SimpleNamespace(VERSION=1, Args=PaintOnce, apply=paint_once)
TWICE = SimpleNamespace(
    VERSION=2, Args=Paint, apply=paint, EARLIER=(ONCE,), lowered=lambda args: PaintOnce(args.colour)
)
BRAND = SimpleNamespace(VERSION=1, Args=Brand, apply=brand)


def brand_owed(replica: Replica, me: str) -> list[Brand]:
    """Every peer owes a brand until there is one."""
    return [] if replica.extensions.get("paint") == "owed" else [Brand("owed")]


BRAND_OWED = SimpleNamespace(VERSION=1, Args=Brand, apply=brand, owed=brand_owed)

OLD = Entries([*ENTRIES.values(), describe(ONCE, name="paint")])
NEW = Entries([*ENTRIES.values(), describe(TWICE, name="paint"), describe(BRAND, name="brand")])
OWING = Entries([*ENTRIES.values(), describe(TWICE, name="paint"), describe(BRAND_OWED, name="brand")])
"""Like `NEW`, but its peers owe the new entry."""
