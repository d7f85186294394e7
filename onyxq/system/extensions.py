"""Entries of extensions: found by entry point, kept apart from OnyxQ's own (design: entries).

A distribution names its entries in the entry point group ``onyxq.entries``, each as
``EXTENSION.ENTRY = module`` (or ``module:object``).  That module or object has the form of a
module of `log_entries` (see `onyxq.core.entry`), and may also have

* ``SUBMIT = True``: clients may submit it,
* ``duties(replica, me)``: frozen values, the present duties of the peer ``me``,
* ``async run(duty, context)``: does a duty, supervised, until it is cancelled with the duty.

All entries of an extension share one state, ``Replica.extensions[EXTENSION]``: integers,
text, bytes, booleans, None, and tuples and persistent maps of them.
"""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Iterable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Protocol

import attrs

from log_entries.registry import ENTRIES
from onyxq.core.entry import Entries, Entry, Verdict, check_fields, describe, told
from onyxq.core.errors import BadExtension
from onyxq.core.limits import EXTENSION_CHARACTERS_MAX
from onyxq.core.replica import Replica

GROUP = "onyxq.entries"
_NAME = re.compile(r"[a-z][a-z0-9_]*\.[a-z][a-z0-9_]*")
SHIPPED = tuple(
    EntryPoint(f"taskstore.{name}", f"onyxq.core.taskstore.{name}", GROUP) for name in ("claim", "set_limits", "update")
)
"""Entries of extensions that are part of OnyxQ."""


class Context(Protocol):
    """The argument ``context`` of an extension's ``run``: the world as its peer sees it."""

    me: str
    """The peer's id."""
    log: logging.Logger

    @property
    def replica(self) -> Replica:
        """The peer's present replica."""

    async def changed(self) -> Replica:
        """Return the replica after the next record of the log."""

    async def submit(self, args: Any) -> Verdict:
        """Append an entry of the extension and return its verdict; waits while the log is unreachable.

        Raises `LogUnavailable` if the verdict is not known in time: the entry may have been applied, or
        may be applied later. Also raises `NotEnabled` and `TooLarge`.
        """

    def let_time_pass(self) -> None:
        """Have a record written soon, so that log time advances while no other peer writes."""

    async def sleep(self, seconds: float) -> None:
        """Wait; in simulations this takes no time."""

    def wall_ms(self) -> int:
        """Return the wall clock, in milliseconds since the epoch."""


# --- finding and loading -----------------------------------------------------------


@cache
def installed() -> Entries:
    """Return OnyxQ's entries and those of every installed extension; raises `BadExtension`.

    Looked up once in a process.
    """
    return with_extensions([*SHIPPED, *entry_points(group=GROUP)])


def with_extensions(points: Iterable[EntryPoint]) -> Entries:
    """Return OnyxQ's entries and those that entry points name, in the order of their names.

    Raises `BadExtension`.
    """
    entries = [*ENTRIES.values(), *_extensions(points)]
    if shared := shared_args(entries):
        raise BadExtension(shared)
    return Entries(entries)


def shared_args(entries: Iterable[Entry]) -> str:
    """Return which entries, or versions of one, have the same class as ``Args``, in words; empty if none have.

    An entry is submitted as its arguments alone, so their class names the entry and its version.
    """
    owners: dict[type, str] = {}
    for entry in entries:
        for version, form in sorted(entry.forms.items()):
            place = told(entry.name, version)
            if (other := owners.setdefault(form.args, place)) != place:
                return f"{other}, and {place}, have the same class as Args: give each its own"
    return ""


def _extensions(points: Iterable[EntryPoint]) -> list[Entry]:
    """Return the entries that entry points name, in the order of their names; raises `BadExtension`."""
    found: dict[str, EntryPoint] = {}
    for point in sorted(points, key=lambda one: (one.name, one.value)):
        other = found.get(point.name)
        if other is None:
            found[point.name] = point
        elif (other.value, _origin(other)) != (point.value, _origin(point)):
            raise BadExtension(f"two extensions bring an entry {point.name}: {_place(other)} and {_place(point)}")
    return [_loaded(found[name]) for name in sorted(found)]


def _loaded(point: EntryPoint) -> Entry:
    try:
        loaded = point.load()
    except Exception as error:
        raise BadExtension(f"{_place(point)} cannot be loaded: {error!r}") from error
    return entry_of(point.name, loaded, place=_place(point))


def entry_of(name: str, module: Any, *, place: str = "") -> Entry:
    """Return the entry that an extension's module or object defines under ``EXTENSION.ENTRY``.

    ``place``: its origin, for messages.  Raises `BadExtension`.
    """
    place = place or f"extension entry {name}"
    wrong = _wrong_name(name) or _wrong_shape(module)
    if wrong:
        raise BadExtension(f"{place}: {wrong}")
    return describe(module, name=name, extension=name.partition(".")[0])


def _wrong_name(name: str) -> str:
    if len(name) > EXTENSION_CHARACTERS_MAX or not _NAME.fullmatch(name):
        return "its name must be EXTENSION.ENTRY, both of lower-case letters, digits and _"
    return ""


def _wrong_shape(module: Any) -> str:
    """Return why a module or object is not an entry, or an empty text."""
    for form in (*getattr(module, "EARLIER", ()), module):
        wrong = _wrong_form(form)
        if wrong:
            return wrong
    versions = [form.VERSION for form in (*getattr(module, "EARLIER", ()), module)]
    if versions != sorted(set(versions)):
        return f"versions must rise from EARLIER to its own: {versions}"
    for name, count in (("owed", 2), ("duties", 2), ("run", 2), ("lowered", 1)):
        if hasattr(module, name) and not _takes(getattr(module, name), count):
            return f"{name} must be a function of {count} arguments"
    if hasattr(module, "run") and not inspect.iscoroutinefunction(module.run):
        return "run must be an async function"
    if hasattr(module, "duties") != hasattr(module, "run"):
        return "duties and run come together"
    return ""


def _wrong_form(form: Any) -> str:
    for name in ("VERSION", "Args", "apply"):
        if not hasattr(form, name):
            return f"it has no {name}"
    if type(form.VERSION) is not int or form.VERSION < 1:
        return f"VERSION must be an integer from 1, not {form.VERSION!r}"
    if not (isinstance(form.Args, type) and attrs.has(form.Args)):
        return "Args must be a frozen attrs class"
    if not _takes(form.apply, 3):
        return "apply must be a function of replica, args and stamp"
    try:
        return check_fields(form.Args)
    except (NameError, TypeError) as error:
        return f"the annotations of Args cannot be read: {error}"


def _takes(function: Any, count: int) -> bool:
    try:
        inspect.signature(function).bind(*range(count))
    except (TypeError, ValueError):
        return False
    return True


def _origin(point: EntryPoint) -> tuple[str, str]:
    return (point.dist.name, point.dist.version) if point.dist is not None else ("", "")


def _place(point: EntryPoint) -> str:
    by = " ".join(_origin(point)).strip()
    return f"extension entry {point.name} = {point.value}" + (f" of {by}" if by else "")
