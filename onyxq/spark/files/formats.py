"""Segments as files: Parquet, JSON, CSV and text, a segment a row or a line.

Every value is the same when the file is read with the same schema. A value that would change is refused.
"""

from __future__ import annotations

import base64
import io
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import pyarrow
from pyarrow import parquet

from onyxq.core.errors import BadRequest
from onyxq.jobs.options import CORRUPT, TABLES
from onyxq.jobs.values import Unfit, called, encode_json, pack, parts, to_json, unpack, unpack_all
from onyxq.spark.files.columns import Columns, check_names, plain_rows, row_fitter, segments, table, united, within
from onyxq.spark.files.messages import encoder
from onyxq.spark.files.texts import csv_form, csv_name, json_form

ROWS_MAX = 10_000
"""Segments of a Parquet row group; they are kept in memory."""
GROUP_BYTES_MAX = 16 * 1024 * 1024
"""Size of the Arrow batches that become one Parquet row group; they are kept in memory."""
KEPT_BYTES_MAX = 16 * 1024 * 1024
"""Maximum size of packed segments in memory until the columns of a file are known; more are kept on disk."""
_READ_ONCE: Mapping[str, Any] = {"compression": "lz4", "use_dictionary": False, "write_statistics": False}
"""Settings of hidden Parquet files whose rows the driver passes to a table: fast to write and to read once."""
_BLANK = "".join(map(chr, range(0x21)))
"""Characters of lines that Spark's reader of CSV skips."""
_OF_SPARK = ("csv", "delta", "json", "parquet")
"""Formats that Spark reads, which ignores the case of names."""
_NO_SCHEMA = "Name the columns: options={'schema': 'word string, n bigint'}"
_JSON_SCHEMA = "Or name the columns: options={'schema': 'at timestamp, price decimal(10,2)'}"
_FOUND = f"The columns are those of the output's first batch. {_NO_SCHEMA}"


class Described(Protocol):
    """The input of a format's writer: the output, its options and its columns."""

    @property
    def name(self) -> str:
        """The output's name, for messages."""

    @property
    def format(self) -> str:
        """One of `WRITERS`."""

    @property
    def options(self) -> Mapping[str, str]:
        """The format's options."""

    @property
    def schema(self) -> str:
        """An Arrow schema, base64, or empty."""


class Writer(Protocol):
    """A file that is being written."""

    @property
    def size(self) -> int:
        """Bytes of the file so far; rows that are not yet compressed count as msgpack."""

    def add(self, payload: bytes) -> None:
        """Write one packed segment; raises `BadRequest` if it does not fit."""

    def take(self, value: Any) -> bool:
        """Write a segment that is not packed, if that needs no change of its values; return whether it was written."""

    def add_batch(self, batch: Any) -> None:
        """Write the rows of an Arrow batch that has the columns of the output's schema."""

    def close(self) -> str:
        """Finish the file, and return the schema that was found in the segments, base64, or an empty string."""

    def abandon(self) -> None:
        """Release the file; its content is not needed."""


class _BySegment:
    """Base of the formats that write one segment after the other to a stream."""

    def __init__(self, stream: Any, output: Described, found: str = "") -> None:
        self._stream = stream
        self._output = output
        self.size = 0

    def add(self, payload: bytes) -> None:
        raise NotImplementedError

    def take(self, value: Any) -> bool:
        return False

    def add_batch(self, batch: Any) -> None:
        try:
            found = list(segments(batch))
        except Unfit as error:
            raise refused(self._output, error) from error
        for row in found:
            self.add(pack(row))

    def close(self) -> str:
        self._stream.close()
        return ""

    def abandon(self) -> None:
        self._stream.close()


class _Lines(_BySegment):
    """Base of the formats that write a line for each segment."""

    def __init__(self, stream: Any, output: Described, found: str = "") -> None:
        super().__init__(stream, output, found)
        self._hint = ""
        try:
            self._form = self._former()
        except Unfit as error:
            raise refused(output, error) from None

    def _former(self) -> Callable[[bytes], str]:
        """Return a function from a packed segment to a line."""
        raise NotImplementedError

    def add(self, payload: bytes) -> None:
        try:
            line = self._form(payload)
        except Unfit as error:
            raise refused(self._output, error, self._hint) from None
        data = line.encode() + b"\n"
        self._stream.write(data)
        self.size += len(data)

    def _fitter(self, schema: Any) -> Callable[[Any], list[Any]]:
        fit: Callable[[Any], list[Any]] = row_fitter(
            schema, drop_others=self._output.options.get("other_fields") == "drop"
        )
        return fit


class JsonLines(_Lines):
    """One JSON value a line; without a schema only of types that JSON has itself."""

    def _former(self) -> Callable[[bytes], str]:
        if not self._output.schema:
            self._hint = _JSON_SCHEMA
            return to_json
        fields = _not_corrupt(decoded(self._output.schema))
        fit = self._fitter(fields)
        forms = [(part.name, within(part.name, json_form, part.type)) for part in fields]

        def form(payload: bytes) -> str:
            row = zip(forms, fit(unpack(payload)), strict=True)
            return encode_json({name: one(value) for (name, one), value in row})

        return form


class Text(_Lines):
    """One string a line: the segment, or its only field ``value``."""

    def _former(self) -> Callable[[bytes], str]:
        return _text_line


def _text_line(payload: bytes) -> str:
    segment = unpack(payload)
    line = segment["value"] if isinstance(segment, dict) and segment.keys() == {"value"} else segment
    if not isinstance(line, str):
        raise Unfit("", f"text holds strings, or dicts with one as their only field 'value', not the {called(segment)}")
    if "\n" in line or "\r" in line or line.startswith("\ufeff"):
        raise Unfit("", "a line of text cannot hold a line break, or begin with a byte order mark")
    return line


class Csv(_Lines):
    """One line for each segment, with the columns of the schema."""

    def _former(self) -> Callable[[bytes], str]:
        fields = _not_corrupt(decoded(self._output.schema))
        fit = self._fitter(fields)
        separator = self._output.options.get("sep", ",")
        forms = [within(part.name, partial(csv_form, separator=separator), part.type) for part in fields]

        def form(payload: bytes) -> str:
            row = zip(fields.names, forms, fit(unpack(payload)), strict=True)
            line = separator.join([within(name, one, value) for name, one, value in row])
            if not line.strip(_BLANK):
                raise Unfit(fields.names[0], "CSV cannot hold a row of Nones alone here: readers skip blank lines")
            return line

        if self._output.options.get("header") == "true" and self._stream.tell() == 0:
            self._stream.write((separator.join(map(csv_name, fields.names)) + "\n").encode())
        return form


def _not_corrupt(schema: Any) -> Any:
    """Return the schema; raise `Unfit` if Spark would not read one of its columns back."""
    if CORRUPT in schema.names:
        raise Unfit(CORRUPT, "Spark's readers keep this name for lines that they cannot read: choose another one")
    return schema


class Parquet:
    """A row for each segment, with the columns of the schema, or of all segments of the file together.

    ``found`` is the schema of the output's earlier files, if columns are found in segments. With ``other_fields`` as
    ``add``, fields that it lacks become columns as well.
    """

    def __init__(self, stream: Any, output: Described, found: str = "", *, whole: bool = False) -> None:
        """``whole``: the columns are exactly those of ``found``."""
        self._stream = stream
        self._output = output
        known = found or output.schema
        grows = not whole and (not known or output.options.get("other_fields") == "add")
        self._columns = Columns() if grows else None
        self._hint = "" if output.schema else _FOUND if found else _NO_SCHEMA
        self._rows: list[Sequence[Any]] = []
        self._batches: list[Any] = []
        """Arrow batches that are not in the file yet."""
        self._unwritten = 0
        """Bytes of the rows and batches that are not in the file yet; rows count as msgpack."""
        self._writer: Any = None
        self._known = decoded(known) if known else pyarrow.schema([])
        if self._columns is None:
            self._kept: Any = io.BytesIO()
            self._begin(self._known)
        else:
            self._known = self._columns.start(self._known)
            self._fit = self._fitting(row_fitter, self._known)
            self._kept = tempfile.SpooledTemporaryFile(KEPT_BYTES_MAX)  # noqa: SIM115  # closed with the writer

    @property
    def size(self) -> int:
        """Bytes of the file so far; rows that are not yet compressed count as msgpack."""
        return int(self._stream.tell()) + self._unwritten

    def _begin(self, schema: Any) -> None:
        self._schema = schema
        drop = self._output.options.get("other_fields") == "drop"
        self._fit = self._fitting(lambda: row_fitter(schema, drop_others=drop))
        self._plain = plain_rows(schema)
        settings: Mapping[str, Any] = {"compression": self._output.options.get("compression", "snappy")}
        if self._output.format in TABLES:
            settings = _READ_ONCE
        try:
            self._writer = parquet.ParquetWriter(self._stream, schema, **settings)
        except pyarrow.ArrowException as error:  # It has no type for a column.
            raise refused(self._output, Unfit("", str(error)), self._hint) from error

    def _fitting(self, do: Callable[..., Any], *given: Any) -> Any:
        try:
            return do(*given)
        except Unfit as error:
            raise refused(self._output, error, self._hint) from None

    def add(self, payload: bytes) -> None:
        """Write one packed segment; it is kept until the columns are known."""
        segment = unpack(payload)
        if self._columns is None:
            self._write(segment, len(payload))
        else:
            self._fitting(self._look_at, segment)
            self._kept.write(payload)
            self._unwritten += len(payload)

    def take(self, value: Any) -> bool:
        """Write a segment that is not packed, if it has exactly the columns, and values that they take unchanged."""
        row = None if self._columns is not None else self._plain(value)
        if row is None:
            return False
        self._rows.append(row)
        if len(self._rows) >= ROWS_MAX:
            self._flush()
        return True

    def add_batch(self, batch: Any) -> None:
        """Write the rows of an Arrow batch that has the columns of the output's schema."""
        self._batches.append(batch.select(self._schema.names).cast(self._schema))
        self._unwritten += batch.nbytes
        if self._unwritten >= GROUP_BYTES_MAX:
            self._flush()

    def _look_at(self, segment: Any) -> None:
        """Add the columns of a segment whose known fields fit."""
        assert self._columns is not None
        if not self._known:
            self._columns.add(segment)
            return
        row = segment if type(segment) is dict else {"value": segment}
        names = self._known.names
        self._fit({name: value for name, value in row.items() if name in names})
        self._columns.add({name: value for name, value in row.items() if name not in names})

    def _write(self, segment: Any, size: int) -> None:
        try:
            row = self._fit(segment)
        except Unfit as error:
            raise refused(self._output, error, self._hint) from None
        self._rows.append(row)
        self._unwritten += size
        if len(self._rows) >= ROWS_MAX:
            self._flush()

    def _flush(self) -> None:
        """Write what is in memory: the batches as one row group, and the rows as another one."""
        if self._batches:
            self._writer.write_table(pyarrow.Table.from_batches(self._batches))
            self._batches = []
        if self._rows:
            self._flush_rows()
        self._unwritten = 0

    def _flush_rows(self) -> None:
        try:
            self._writer.write_table(table(self._schema, self._rows))
        except (pyarrow.ArrowException, OverflowError, TypeError, ValueError) as error:
            raise refused(self._output, Unfit("", str(error)), self._hint) from error
        self._rows = []

    def close(self) -> str:
        """Write the rest and the footer, and return the schema if columns were found."""
        grows = self._columns is not None
        if self._columns is not None:
            columns = self._columns
            self._begin(self._fitting(columns.schema, self._known))
            self._kept.seek(0)
            for segment in unpack_all(self._kept):
                self._write(segment, 0)
        self._flush()
        self._writer.close()
        self._stream.close()
        self._kept.close()
        return described(self._schema) if grows or not self._output.schema else ""

    def abandon(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._stream.close()
        self._kept.close()


def widened(source: Any, stream: Any, output: Described, schema: str) -> None:
    """Copy a Parquet file with the columns of a schema that includes all of the file's."""
    writer = Parquet(stream, output, schema, whole=True)
    with parquet.ParquetFile(source) as file:
        for batch in file.iter_batches(ROWS_MAX):
            for row in segments(batch):
                writer.add(pack(row))
    writer.close()


def united_schema(output: Described, found: str, schemas: Iterable[str]) -> str:
    """Return the schema that holds the rows of several files; raises `BadRequest` if a column has two types.

    ``found`` is the schema of the output's earlier files.
    """
    known = found or output.schema
    try:
        return described(united(decoded(known) if known else pyarrow.schema([]), map(decoded, schemas)))
    except Unfit as error:
        raise refused(output, error, _NO_SCHEMA) from None


def check_schema(output: Described) -> None:
    """Raise `BadRequest` if the format cannot hold a column of the schema, or two have the same name."""
    try:
        check_names(decoded(output.schema), ignore_case=output.format in _OF_SPARK)
    except Unfit as error:
        raise refused(output, error) from None
    WRITERS[output.format](io.BytesIO(), output).abandon()


def refused(output: Described, error: Unfit, hint: str = "") -> BadRequest:
    """Return the error of an output that cannot take a segment."""
    said = f"output {output.name}: {error.message}"
    return BadRequest(f"{said}. {hint}" if hint else said, field=output.name, hint=hint or None)


def decoded(schema: str) -> Any:
    """Return the Arrow schema that `described` encoded."""
    return pyarrow.ipc.read_schema(pyarrow.py_buffer(base64.b64decode(schema)))


def described(schema: Any) -> str:
    """Return an Arrow schema in the form of `Described.schema`."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


class Packed(_BySegment):
    """Segments as msgpack, one after the other."""

    def add(self, payload: bytes) -> None:
        """Write one packed segment."""
        self._stream.write(payload)
        self.size += len(payload)


class Messages(Packed):
    """Messages of Kafka as msgpack, one after the other."""

    def __init__(self, stream: Any, output: Described, found: str = "") -> None:
        super().__init__(stream, output, found)
        schema = decoded(output.schema) if output.schema else None
        try:
            self._encode = encoder(schema, output.options)
        except Unfit as error:
            raise refused(output, error) from None

    def add(self, payload: bytes) -> None:
        """Write the message of one packed segment."""
        try:
            message = self._encode(payload)
        except Unfit as error:
            raise refused(self._output, error) from None
        super().add(pack(message))


class WithoutNulls(Parquet):
    """Parquet without the null character, which PostgreSQL's strings cannot hold."""

    def take(self, value: Any) -> bool:
        """Leave all segments to `add`, which looks for the character."""
        return False

    def add(self, payload: bytes) -> None:
        """Write one packed segment."""
        if b"\0" in payload:
            self._fitting(_refuse_nulls, unpack(payload), "")
        super().add(payload)


def _refuse_nulls(value: Any, path: str) -> None:
    if type(value) is str and "\0" in value:
        raise Unfit(path.removeprefix("."), f"PostgreSQL cannot hold the null character in {value!r:.60}")
    if isinstance(value, dict):
        for key in value:
            _refuse_nulls(key, path)
    for place, part in parts(value):
        _refuse_nulls(part, path + place)


def _for_call(stream: Any, output: Described, found: str = "") -> Writer:
    return Parquet(stream, output, found) if output.schema else Packed(stream, output, found)


WRITERS: dict[str, Callable[..., Any]] = {
    "json": JsonLines,
    "text": Text,
    "csv": Csv,
    "parquet": Parquet,
    "delta": Parquet,
    "kafka": Messages,
    "postgres": WithoutNulls,
    "foreach_batch": _for_call,
}
"""Format of an output -> the writer of its files."""
