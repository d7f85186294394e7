"""Segments as files: Parquet, JSON, CSV and text, a segment a row or a line."""

from __future__ import annotations

import base64
import csv
import io
import json
from typing import Any, Protocol

import pyarrow
from pyarrow import parquet

from onyxq.errors import BadRequest

ROWS_MAX = 10_000
"""Rows of a Parquet row group; what is kept in memory."""


class Described(Protocol):
    """What a format is told: the output, its options and, if given, its columns."""

    @property
    def name(self) -> str:
        """The output's name, for messages."""

    @property
    def options(self) -> dict[str, str]:
        """The format's options."""

    @property
    def schema(self) -> str:
        """An Arrow schema, base64, or empty."""


class Writer(Protocol):
    """A file that is being written."""

    def add(self, segment: Any) -> None:
        """Write one segment; raises `BadRequest` if the format cannot hold it."""

    def close(self) -> None:
        """All segments were added: finish the file."""

    def abandon(self) -> None:
        """Release the file; what it holds is of no use."""


class _Lines:
    """What the formats of one line a segment have in common."""

    def __init__(self, stream: Any, output: Described) -> None:
        self._stream = stream
        self._output = output

    def close(self) -> None:
        """Finish the file."""
        self._stream.close()

    def abandon(self) -> None:
        """Release the file."""
        self._stream.close()

    def _refused(self, segment: Any, wanted: str) -> BadRequest:
        return BadRequest(f"output {self._output.name} takes {wanted}, not {segment!r:.200}", field="format")


class JsonLines(_Lines):
    """One JSON value a line."""

    def add(self, segment: Any) -> None:
        """Write one segment."""
        try:
            line = json.dumps(segment, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError):
            raise self._refused(segment, "what JSON can hold") from None
        self._stream.write(line.encode() + b"\n")


class Text(_Lines):
    """One string a line: the segment, or its field ``value``."""

    def add(self, segment: Any) -> None:
        """Write one segment."""
        line = segment.get("value") if isinstance(segment, dict) else segment
        if not isinstance(line, str) or "\n" in line:
            raise self._refused(segment, "strings of one line, or maps with one as 'value',")
        self._stream.write(line.encode() + b"\n")


class Csv(_Lines):
    """One map a line; the columns are those of the schema, else those of the first segment."""

    def __init__(self, stream: Any, output: Described) -> None:
        super().__init__(stream, output)
        self._columns = [str(name) for name in _schema(output).names] if output.schema else []

    def add(self, segment: Any) -> None:
        """Write one segment."""
        if not isinstance(segment, dict):
            raise self._refused(segment, "maps of its columns")
        if not self._columns:
            self._columns = list(segment)
        if set(segment) - set(self._columns):
            raise self._refused(segment, f"maps of {', '.join(self._columns)}")
        if self._stream.tell() == 0 and self._output.options.get("header", "false").lower() == "true":
            self._line(self._columns)
        self._line([segment.get(name) for name in self._columns])

    def _line(self, values: list[Any]) -> None:
        line = io.StringIO()
        separator = self._output.options.get("sep", ",")
        csv.writer(line, delimiter=separator, lineterminator="\n").writerow(values)
        self._stream.write(line.getvalue().encode())


class Parquet:
    """A row for each map; the columns are those of the schema, else what the first rows show."""

    def __init__(self, stream: Any, output: Described) -> None:
        self._stream = stream
        self._output = output
        self._schema = _schema(output) if output.schema else None
        self._rows: list[Any] = []
        self._writer: Any = None

    def add(self, segment: Any) -> None:
        """Keep one segment, and write those kept when there are enough."""
        self._rows.append(segment if isinstance(segment, dict) else {"value": segment})
        if len(self._rows) >= ROWS_MAX:
            self._flush()

    def close(self) -> None:
        """Write the rest and the footer."""
        if self._rows or self._writer is None:
            self._flush()
        self._writer.close()
        self._stream.close()

    def abandon(self) -> None:
        """Release the file."""
        self._stream.close()

    def _flush(self) -> None:
        try:
            table = pyarrow.Table.from_pylist(self._rows, schema=self._schema)
        except (pyarrow.ArrowException, TypeError, ValueError) as error:
            raise BadRequest(
                f"output {self._output.name}: segments do not fit one schema: {error}",
                field="schema",
                hint="Say the columns: options={'schema': 'word string, n bigint'}.",
            ) from error
        if self._writer is None:
            self._schema = table.schema
            compression = self._output.options.get("compression", "snappy")
            self._writer = parquet.ParquetWriter(self._stream, self._schema, compression=compression)
        self._writer.write_table(table)
        self._rows = []


def _schema(output: Described) -> Any:
    return pyarrow.ipc.read_schema(pyarrow.py_buffer(base64.b64decode(output.schema)))


def described(schema: Any) -> str:
    """An Arrow schema as `Described.schema` has it."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


WRITERS: dict[str, type[Any]] = {"json": JsonLines, "text": Text, "csv": Csv, "parquet": Parquet}
"""The formats that outputs can have, and what writes them."""
