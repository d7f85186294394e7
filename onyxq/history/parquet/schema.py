"""The columns of archived tasks, their claims and their updates.

Pure but for pyarrow, which is imported when first used: a node that archives nothing does
without it.  The version of the schema stands in each file; a column that is added later
does not change it, anything else does.
"""

from __future__ import annotations

from typing import Any

from onyxq.core.errors import Corrupt, Incomplete

VERSION = 1
TASKS, CLAIMS, UPDATES = "tasks", "claims", "updates"

_TEXT, _BYTES, _NUMBER, _COUNT, _TIME = "text", "bytes", "number", "count", "time"
_TEXTS, _NUMBERS = "texts", "numbers"

COLUMNS: dict[str, tuple[tuple[str, str, bool], ...]] = {
    TASKS: (
        ("id", _TEXT, False),
        ("state", _TEXT, False),
        ("priority", _COUNT, False),
        ("ordering_key", _TEXT, True),
        ("unique_key", _TEXT, True),
        ("format", _TEXT, False),
        ("data", _BYTES, False),
        ("made", _TIME, False),
        ("due", _TIME, False),
        ("expires", _TIME, True),
        ("finished", _TIME, False),
        ("retries", _COUNT, True),
        ("attempts", _COUNT, False),
        ("depends", _TEXTS, False),
        ("requeued", _TIME, True),
        ("token", _NUMBER, True),
        ("updates", _COUNT, False),
        ("result", _BYTES, True),
        ("error", _TEXT, True),
        ("turn", _NUMBERS, True),
    ),
    CLAIMS: (
        ("id", _TEXT, False),
        ("token", _NUMBER, False),
        ("worker", _TEXT, False),
        ("granted", _TIME, True),
        ("ended", _TIME, True),
        ("outcome", _TEXT, True),
        ("error", _TEXT, True),
        ("retry", _TIME, True),
        ("until", _NUMBER, True),
    ),
    UPDATES: (
        ("id", _TEXT, False),
        ("token", _NUMBER, False),
        ("seq", _COUNT, False),
        ("stored", _TIME, False),
        ("data", _BYTES, False),
    ),
}
"""Per table (name, kind, whether it may be null), in the order of the tuples that hold a row."""

_DICTIONARY = ("state", "format", "worker", "outcome", "ordering_key")
"""Columns of few values."""


def pyarrow() -> Any:
    """The library; raises `Incomplete` if it is not installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise Incomplete(f"an archive in Parquet needs pyarrow: {error}", hint="pip install 'onyxq[archive]'") from None
    return pyarrow


def schema_of(table: str, *, queue: str, partition: int) -> Any:
    """The Arrow schema of one file of a table."""
    pa = pyarrow()
    kinds = {
        _TEXT: pa.string(),
        _BYTES: pa.binary(),
        _NUMBER: pa.int64(),
        _COUNT: pa.int32(),
        _TIME: pa.timestamp("ms", tz="UTC"),
        _TEXTS: pa.list_(pa.string()),
        _NUMBERS: pa.list_(pa.int64()),
    }
    fields = [pa.field(name, kinds[kind], nullable=null) for name, kind, null in COLUMNS[table]]
    said = {"version": VERSION, "table": table, "queue": queue, "partition": partition}
    return pa.schema(fields, metadata={f"onyxq.{name}": str(value) for name, value in said.items()})


def options_of(table: str) -> dict[str, Any]:
    """How a table's files are encoded: ids by what they have in common with the one before; no statistics
    of columns that may be large."""
    kinds = {name: kind for name, kind, _ in COLUMNS[table]}
    return {
        "compression": "zstd",
        "use_dictionary": [name for name in kinds if name in _DICTIONARY],
        "column_encoding": {"id": "DELTA_BYTE_ARRAY"},
        "write_statistics": [name for name, kind in kinds.items() if name == "id" or kind in (_NUMBER, _COUNT, _TIME)],
    }


def queue_in(metadata: dict[bytes, bytes] | None, *, table: str, path: str) -> str:
    """The queue of a file by its metadata; raises `Corrupt` if it is none of this archive's files."""
    said = metadata or {}
    if said.get(b"onyxq.table") != table.encode():
        raise Corrupt(f"{path} is not a file of archived {table}", hint="Take it out of the archive's directory.")
    version = said.get(b"onyxq.version", b"").decode()
    if version != str(VERSION):
        raise Corrupt(
            f"{path} has version {version!r} of the archive's schema; this program reads {VERSION}",
            hint="Use the version of OnyxQ that wrote it.",
        )
    return said[b"onyxq.queue"].decode()
