"""Print the reference page of all entries as reStructuredText, made from the registry.

``--installed``: include the entries of extensions that are installed here.
"""

from __future__ import annotations

import inspect
import sys
import typing

import attrs

from log_entries.registry import ENTRIES
from onyxq.core.entry import Entries, Entry
from onyxq.system.extensions import installed


def page(entries: Entries = ENTRIES) -> str:
    """Return the whole page."""
    title = "Log entries"
    intro = (
        "Every way in which the replica changes. This page is printed by ``python -m log_entries`` from the\n"
        "registry; each section is the docstring of the entry's module."
    )
    return "\n".join([title, "=" * len(title), "", intro, "", *map(section, entries.values())])


def section(entry: Entry) -> str:
    """Return the section of one entry: its documentation, its arguments and whether peers owe it."""
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
            *_of_extension(entry),
            ":Arguments:" + ("" if rows else " none"),
            *rows,
            "",
        ]
    )


def _of_extension(entry: Entry) -> list[str]:
    """Return the lines that only entries of extensions have."""
    if not entry.extension:
        return []
    submitted, doing = (("no", "yes")[bool(part)] for part in (entry.submitted, entry.duties))
    return [f":Extension: {entry.extension}", f":Submitted by clients: {submitted}", f":Duties: {doing}"]


def _kind(kind: typing.Any) -> str:
    """Return a type as the page shows it."""
    if isinstance(kind, type) and not typing.get_args(kind):
        return kind.__name__
    return str(kind).replace("typing.", "").replace("pyrsistent._pmap.", "")


if __name__ == "__main__":
    sys.stdout.write(page(installed() if "--installed" in sys.argv[1:] else ENTRIES))
