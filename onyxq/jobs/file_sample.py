"""The first rows of an input, read from files in this process, for previews.

Only lines of text, plain JSON and Parquet are read: there this process and Spark give the same segments. Anything else
is refused, and the caller gives the rows, or a session of Spark.
"""

from __future__ import annotations

import gzip
import importlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from glob import glob
from itertools import islice
from pathlib import Path
from typing import Any

from onyxq.core.errors import BadRequest
from onyxq.jobs.model import Input
from onyxq.jobs.options import CORRUPT, FILES, format_of

COLUMNS = "onyxq.spark.files.columns"
"""Module that makes segments of columns. It is loaded by name: only Parquet needs it, and pyarrow."""
COMPRESSED = (".bz2", ".deflate", ".lz4", ".snappy", ".zst")
BATCH_ROWS = 1_000
"""Rows of Parquet that are read at once."""
_COLUMN = re.compile(r"\s*(?:`(?P<quoted>[^`]+)`|(?P<name>\w+))[\s:]+(?P<type>\w+)\s*")
_TYPES: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("string",), (str,)),
    **dict.fromkeys(("tinyint", "byte", "smallint", "short", "int", "integer", "bigint", "long"), (int,)),
    **dict.fromkeys(("float", "real", "double"), (float, int)),
    **dict.fromkeys(("boolean",), (bool,)),
}
"""Type of a column -> the types of JSON's values; the first one is the segment's."""


def first_rows(task: Input, count: int) -> list[dict[str, Any]]:
    """Return the first ``count`` segments of an input, oldest file first.

    Raises `BadRequest` if the input is not files of text, JSON or Parquet on this machine, or has options or columns
    that only Spark can read.
    """
    kind = format_of(task)
    if kind not in ("text", "json", "parquet"):
        other = kind if task.queue is None else f"the queue {task.queue!r}"
        raise refused(task, f"a preview reads files of text, JSON and Parquet, not {other}")
    if task.options:
        raise refused(task, f"a preview does not know its options: {', '.join(task.options)}")
    if kind == "parquet":
        return list(islice(_rows(task), count))
    lines = _lines(task)
    if kind == "text":
        return [{"value": line} for _, line in islice(lines, count)]
    columns = None if task.schema is None else _columns(task, task.schema)
    found = islice(((place, line) for place, line in lines if line.strip()), count)
    objects = [_object(task, columns, place, line) for place, line in found]
    known = _inferred(task, [one for one, _ in objects]) if columns is None else columns
    return [_segment(task, known, place, one) for one, place in objects]


def refused(task: Input, why: str) -> BadRequest:
    """Return the error about an input that a preview cannot read."""
    hint = f"Give its rows: job.preview(rows={{{task.name!r}: [...]}})."
    if format_of(task) in FILES:
        hint += " Or let Spark read its files: job.preview(spark=session)."
    return BadRequest(f"input {task.name}: {why}", field="rows", hint=hint)


def _files(task: Input) -> list[Path]:
    """Return the files of an input in the order in which Spark reads them."""
    path = str(task.path).removeprefix("file://").removeprefix("file:")
    if "://" in path:
        raise refused(task, f"{task.path} is not on this machine")
    named = [Path(one) for one in glob(path)] or [Path(path)]
    found = [file for one in named for file in (one.iterdir() if one.is_dir() else [one])]
    since_ns = 1_000_000 * (task.since_ms or 0)
    files = [file for file in found if file.is_file() and not file.name.startswith(("_", "."))]
    files = [file for file in files if file.stat().st_mtime_ns >= since_ns]
    if not files:
        raise refused(task, f"there are no files at {task.path}" + (" since its since_ms" if since_ns else ""))
    return sorted(files, key=lambda file: (file.stat().st_mtime_ns, str(file)))


def _lines(task: Input) -> Iterator[tuple[str, str]]:
    """Yield the lines of all files, each with its place."""
    for file in _files(task):
        if file.suffix in COMPRESSED:
            raise refused(task, f"a preview cannot unpack {file.name}")
        opened = gzip.open if file.suffix == ".gz" else open
        with opened(file, "rt", encoding="utf-8") as text:
            try:
                for number, line in enumerate(text, start=1):
                    yield f"{file}, line {number}", line.rstrip("\n")
            except UnicodeDecodeError:
                raise refused(task, f"{file} has bytes that are not UTF-8") from None


def _rows(task: Input) -> Iterator[dict[str, Any]]:
    """Yield the rows of all files of Parquet; raises `BadRequest` for columns that Spark may read as other values."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ModuleNotFoundError:
        raise refused(task, "a preview reads Parquet with pyarrow, which is not installed") from None
    if task.schema is not None:
        raise refused(task, "a preview does not know a schema for Parquet")
    columns: Any = importlib.import_module(COLUMNS)
    first: Any = None
    for path in _files(task):
        try:
            with parquet.ParquetFile(path) as file:
                first = first or file.schema_arrow.remove_metadata()
                if file.schema_arrow.remove_metadata() != first:
                    raise refused(task, f"{path} has other columns than the file before it")
                for part in first:
                    if not _is_same(part.type, pyarrow.types):
                        raise refused(task, f"a preview does not know the type of {part.name!r}, {part.type}")
                for batch in file.iter_batches(batch_size=BATCH_ROWS):
                    yield from columns.segments(batch)
        except pyarrow.ArrowException as error:
            raise refused(task, f"{path} cannot be read: {error}") from error


def _is_same(kind: Any, types: Any) -> bool:
    """Return whether Spark and Arrow read the same values of an Arrow type; ``types``: the tests of pyarrow."""
    if types.is_struct(kind) or types.is_list(kind) or types.is_large_list(kind) or types.is_map(kind):
        return all(_is_same(kind.field(place).type, types) for place in range(kind.num_fields))
    if types.is_timestamp(kind):  # Those of Spark's older form, INT96, have nanoseconds and no zone here.
        return bool(kind.unit in ("ms", "us"))
    tests = "boolean signed_integer float32 float64 string large_string binary large_binary date32 decimal128"
    return any(getattr(types, f"is_{test}")(kind) for test in tests.split())


def _columns(task: Input, schema: str) -> dict[str, str]:
    """Return the names and types of columns; raises `BadRequest` for types that JSON does not have."""
    found = {}
    for part in schema.split(","):
        match = _COLUMN.fullmatch(part)
        if match is None or match["type"].lower() not in _TYPES:
            raise refused(task, f"a preview does not know the type of {part.strip()!r}")
        found[match["quoted"] or match["name"]] = match["type"].lower()
    return found


def _object(task: Input, columns: Mapping[str, str] | None, place: str, line: str) -> tuple[dict[str, Any], str]:
    """Return a line as an object, and its place."""
    try:
        found = json.loads(line)
    except ValueError:
        found = None
    if isinstance(found, dict):
        return found, place
    if CORRUPT not in (columns or ()):
        raise refused(task, f"{place} is not a JSON object: {line[:100]!r}")
    return {CORRUPT: line}, place


def _inferred(task: Input, objects: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the columns that the objects have together, sorted as Spark sorts them."""
    seen: dict[str, set[type]] = {}
    for one in objects:
        for name, value in one.items():
            seen.setdefault(name, set()).update(() if value is None else (type(value),))
    found = {}
    for name, types in sorted(seen.items()):
        fitting = [kind for kind in ("string", "bigint", "double", "boolean") if types <= set(_TYPES[kind])]
        if not fitting:
            raise refused(task, f"a preview cannot tell the type of {name!r} without a schema")
        found[name] = fitting[0]
    return found


def _segment(task: Input, columns: Mapping[str, str], place: str, one: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object with exactly these columns; raises `BadRequest` for a value of another type."""
    segment = {}
    for name, kind in columns.items():
        value, types = one.get(name), _TYPES[kind]
        if value is not None and type(value) not in types:
            raise refused(task, f"{place}: {name} is {value!r:.100}, not a {kind}")
        segment[name] = float(value) if value is not None and types[0] is float else value
    return segment
