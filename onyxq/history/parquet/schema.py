"""The columns of archived tasks, their claims and updates, and of the records of the log.

Pure except for pyarrow, which is imported at first use: a node without an archive does not need it. Each file
holds the version of the schema. Adding a column does not change the version; any other change does.
"""

from __future__ import annotations

from typing import Any

from onyxq.core.errors import Corrupt, Incomplete

VERSION = 1
TASKS, CLAIMS, UPDATES, RECORDS = "tasks", "claims", "updates", "records"

_TEXT, _BYTES, _NUMBER, _COUNT, _TIME = "text", "bytes", "number", "count", "time"
_TEXTS, _NUMBERS, _FLAG = "texts", "numbers", "flag"

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
        ("attempts_max", _COUNT, True),
        ("unique_until", _TEXT, True),
        ("unique_period_ms", _NUMBER, True),
        ("on_conflict", _TEXT, True),
        ("flow", _TEXT, True),
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
        ("attempt", _COUNT, False),
        ("given_up", _FLAG, False),
        ("traceback", _TEXT, True),
    ),
    UPDATES: (
        ("id", _TEXT, False),
        ("token", _NUMBER, False),
        ("seq", _COUNT, False),
        ("stored", _TIME, False),
        ("data", _BYTES, False),
    ),
}
"""Per table of tasks (name, kind, whether it may be null), in the order of the values in a row."""

TABLES = {
    **COLUMNS,
    RECORDS: (
        ("position", _NUMBER, False),
        ("time", _TIME, False),
        ("peer", _TEXT, False),
        ("number", _NUMBER, False),
        ("index", _COUNT, True),
        ("entry", _TEXT, True),
        ("version", _COUNT, True),
        ("args", _TEXT, True),
        ("verdict", _TEXT, False),
    ),
}
_DICTIONARY = ("state", "format", "worker", "outcome", "ordering_key", "peer", "entry", "verdict")
"""Columns with few distinct values."""


def pyarrow() -> Any:
    """Return the library; raises `Incomplete` if it is not installed."""
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.parquet
    except ImportError as error:
        raise Incomplete(f"an archive in Parquet needs pyarrow: {error}", hint="pip install 'onyxq[archive]'") from None
    return pyarrow


def types(*, unit: str = "ms") -> dict[str, Any]:
    """Return the Arrow type of each kind of column; ``unit``: of times."""
    pa = pyarrow()
    return {
        _TEXT: pa.string(),
        _BYTES: pa.binary(),
        _NUMBER: pa.int64(),
        _COUNT: pa.int32(),
        _TIME: pa.timestamp(unit, tz="UTC"),
        _TEXTS: pa.list_(pa.string()),
        _NUMBERS: pa.list_(pa.int64()),
        _FLAG: pa.bool_(),
    }


def schema_of(table: str, **about: str | int) -> Any:
    """Return the Arrow schema of one file of a table, with metadata ``about`` it."""
    pa, kinds = pyarrow(), types()
    fields = [pa.field(name, kinds[kind], nullable=null) for name, kind, null in TABLES[table]]
    said = {"version": VERSION, "table": table, **about}
    return pa.schema(fields, metadata={f"onyxq.{name}": str(value) for name, value in said.items()})


def options_of(table: str) -> dict[str, Any]:
    """Return the writer options of a table.

    Ids are delta-encoded. Columns that may be large have no statistics.
    """
    kinds = {name: kind for name, kind, _ in TABLES[table]}
    return {
        "compression": "zstd",
        "use_dictionary": [name for name in kinds if name in _DICTIONARY],
        "column_encoding": {"id": "DELTA_BYTE_ARRAY"} if "id" in kinds else None,
        "write_statistics": [name for name, kind in kinds.items() if name == "id" or kind in (_NUMBER, _COUNT, _TIME)],
    }


def queue_in(metadata: dict[bytes, bytes] | None, *, table: str, path: str) -> str:
    """Return the queue in a file's metadata; raises `Corrupt` if the file is not of this archive."""
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
