"""Prints the reference page of all entries as reStructuredText, made from the registry."""

from __future__ import annotations

import inspect
import sys
import typing

import attrs

from log_entries.registry import ENTRIES
from onyxq.entry import Entry


def page() -> str:
    """The whole page."""
    title = "Log entries"
    intro = (
        "Every way in which the replica changes. This page is printed by ``python -m log_entries`` from the\n"
        "registry; each section is the docstring of the entry's module."
    )
    return "\n".join([title, "=" * len(title), "", intro, "", *map(section, ENTRIES.values())])


def section(entry: Entry) -> str:
    """One entry: its documentation, its arguments and whether peers owe it."""
    hints = typing.get_type_hints(entry.args)
    rows = [f"   ``{item.name}``: {_kind(hints[item.name])}" for item in attrs.fields(entry.args)]
    return "\n".join(
        [
            entry.name,
            "-" * len(entry.name),
            "",
            inspect.cleandoc(entry.doc),
            "",
            f":Version: {entry.version}",
            f":Obligation: {'yes' if entry.owed else 'no'}",
            ":Arguments:" + ("" if rows else " none"),
            *rows,
            "",
        ]
    )


def _kind(kind: typing.Any) -> str:
    """A type as the page shows it."""
    if isinstance(kind, type) and not typing.get_args(kind):
        return kind.__name__
    return str(kind).replace("typing.", "").replace("pyrsistent._pmap.", "")


if __name__ == "__main__":
    sys.stdout.write(page())
