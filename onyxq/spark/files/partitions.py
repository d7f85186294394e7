"""Hive partitions: columns of a row as names of folders (``day=2027-01-15/shop=a%2Fb``), escaped as Spark does.

Spark reads the values back with the schema of the input. A value that would come back as another one is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow
from pyarrow import types

from onyxq.jobs.values import Unfit
from onyxq.spark.files.columns import Convert, fitter

NULL = "__HIVE_DEFAULT_PARTITION__"
"""The text of None, as in Hive and Spark."""
NAME_BYTES_MAX = 255
"""Longest name of a folder on most file systems, in bytes."""
_ESCAPED = frozenset(map(chr, range(1, 0x20))) | frozenset("\"#%'*/:=?\\\x7f{[]^")
_COPYING = "._COPYING_"
"""End of names that Spark's readers ignore."""


def escaped(text: str) -> str:
    """Return a text as part of the name of a folder."""
    return "".join(f"%{ord(sign):02X}" if sign in _ESCAPED else sign for sign in text)


class Partitions:
    """The partition of each segment: its folder, and the other fields, which go to the file."""

    def __init__(self, schema: Any, names: tuple[str, ...]) -> None:
        """Raise `Unfit` if a column is not in the schema, has another type, or if no column is left."""
        for name in names:
            if name not in schema.names:
                raise Unfit(name, f"partition_by names it, but the schema has {', '.join(schema.names)}")
            if name.startswith("."):
                raise Unfit(name, "Spark does not read folders whose names begin with a full stop")
        self.rest = pyarrow.schema([part for part in schema if part.name not in names])
        """The columns of the files."""
        if not len(self.rest):
            raise Unfit(names[-1], "partition_by names every column: none is left for the files")
        self._forms = [(name, fitter(schema.field(name).type), _form(name, schema.field(name))) for name in names]

    def of(self, segment: Any) -> tuple[str, Any]:
        """Return the folder of a segment, and the segment without these columns; raises `Unfit`."""
        if type(segment) is not dict:
            segment = {"value": segment}
        rest = dict(segment)
        return "/".join(self._folders(rest)), rest

    def _folders(self, rest: dict[Any, Any]) -> Iterator[str]:
        for name, fit, form in self._forms:
            value = rest.pop(name, None)
            try:
                text = NULL if value is None else escaped(_checked(form(fit(value))))
            except Unfit as error:
                raise Unfit(name, error.why) from None
            found = f"{escaped(name)}={text}"
            if len(found.encode()) > NAME_BYTES_MAX:
                raise Unfit(
                    name, f"the folder of its partition would have more than {NAME_BYTES_MAX} bytes in its name"
                )
            yield found


def _form(name: str, part: Any) -> Convert:
    if types.is_string(part.type):
        return lambda value: value
    if types.is_boolean(part.type):
        return lambda value: "true" if value else "false"
    if types.is_signed_integer(part.type):
        return str
    if types.is_date32(part.type):
        return lambda value: value.isoformat()
    raise Unfit(name, f"partition_by is for strings, integers, booleans and dates, not for {part.type}")


def _checked(text: str) -> str:
    if not text or text == NULL:
        raise Unfit("", f"a partition cannot hold the string {text!r}: it would come back as None")
    if "\0" in text or text.endswith(_COPYING):
        raise Unfit("", f"the name of a folder cannot hold the string {text!r:.60}")
    return text
