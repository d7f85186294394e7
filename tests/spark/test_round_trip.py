"""Values written to Parquet, JSON, CSV, text and queues are equal when read, or refused with the output's name."""

from __future__ import annotations

import base64
import datetime
import decimal
import io
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("pyarrow")

from pyarrow import BufferReader, parquet, types

from onyxq.errors import BadRequest
from onyxq.jobs.values import pack
from onyxq.spark.files.columns import segments
from onyxq.spark.files.formats import WRITERS, described
from onyxq.spark.files.staging import Folder
from onyxq.spark.queues.options import QueueOutput
from onyxq.spark.queues.shares import task_of
from tests.jobs.generated_values import TEXTS, values
from tests.spark.generated_columns import Rows, alike, rows

pytestmark = pytest.mark.long


EXAMPLES = settings(max_examples=400, suppress_health_check=list(HealthCheck))
FIELD = re.compile(r'("(?:[^"]|"")*"|[^,"]*)(?:,|$)')


class Kept(io.BytesIO):
    """A file whose bytes are kept after its close."""

    data = b""

    def close(self) -> None:
        """Keep the bytes."""
        self.data = self.data if self.closed else self.getvalue()
        super().close()


def file_of(kind: str, found: list[Any], schema: Any = None) -> bytes | None:
    """Return the file of these segments, or None if one was refused."""
    stream = Kept()
    writer = WRITERS[kind](stream, Folder("out", kind, "", {}, "" if schema is None else described(schema)))
    try:
        for one in found:
            writer.add(pack(one))
        writer.close()
    except BadRequest as error:
        writer.abandon()
        assert error.message.startswith("output out: ")
        return None
    return stream.data


def from_parquet(data: bytes) -> list[Any]:
    """Return the rows of a Parquet file, as an input gives them."""
    return [row for batch in parquet.read_table(BufferReader(data)).to_batches() for row in segments(batch)]


def from_text(kind: Any) -> Callable[[Any], Any]:
    """Return a reader of the text of a value that uses only the standard library."""
    if types.is_timestamp(kind):
        return datetime.datetime.fromisoformat
    if types.is_date(kind):
        return datetime.date.fromisoformat
    return decimal.Decimal if types.is_decimal(kind) else float if types.is_floating(kind) else lambda text: text


def from_json(kind: Any, value: Any) -> Any:
    """Return the value of a column that JSON holds."""
    if value is None or types.is_boolean(kind) or types.is_integer(kind):
        return value
    if types.is_list(kind):
        return [from_json(kind.value_type, one) for one in value]
    if types.is_map(kind):
        return {key: from_json(kind.item_type, one) for key, one in value.items()}
    if types.is_struct(kind):
        return {part.name: from_json(part.type, value[part.name]) for part in kind}
    return base64.b64decode(value) if types.is_binary(kind) else from_text(kind)(value)


def from_csv(kind: Any, text: str) -> Any:
    """Return the value of a field of CSV; quotes tell an empty string from None."""
    if not text:
        return None
    if text.startswith('"'):
        text = text[1:-1].replace('""', '"')
    if types.is_boolean(kind):
        return text == "true"
    return int(text) if types.is_integer(kind) else from_text(kind)(text)


@EXAMPLES
@given(rows(nested=True))
def test_columns_of_parquet(made: Rows) -> None:
    """With a schema."""
    data = file_of("parquet", made.rows, made.arrow)
    assert data is None or alike(from_parquet(data), made.rows)


@EXAMPLES
@given(rows(nested=True, astray=False, least=1))
def test_what_fits_its_columns_is_not_refused(made: Rows) -> None:
    """This is about Parquet and JSON, which have all types of columns."""
    assert file_of("parquet", made.rows, made.arrow) is not None
    assert file_of("json", made.rows, made.arrow) is not None


@EXAMPLES
@given(st.lists(st.dictionaries(st.sampled_from("abc"), values(), max_size=3), max_size=4))
def test_columns_of_parquet_that_are_found(found: list[Any]) -> None:
    """Without a schema, the columns are those of all rows together."""
    data = file_of("parquet", found)
    assert data is None or alike(from_parquet(data), found)


@EXAMPLES
@given(st.lists(values(), max_size=4))
def test_lines_of_json(found: list[Any]) -> None:
    """Without a schema, values are those of JSON."""
    data = file_of("json", found)
    assert data is None or alike([json.loads(line) for line in data.decode().split("\n")[:-1]], found)


@EXAMPLES
@given(rows(nested=True))
def test_columns_of_json(made: Rows) -> None:
    """With a schema, the text of a value is read by its type."""
    data = file_of("json", made.rows, made.arrow)
    if data is not None:
        lines = [json.loads(line) for line in data.decode().split("\n")[:-1]]
        kinds = {part.name: part.type for part in made.arrow}
        found = [{name: from_json(kinds[name], value) for name, value in line.items()} for line in lines]
        assert alike(found, made.rows)


@EXAMPLES
@given(rows(nested=False))
def test_columns_of_csv(made: Rows) -> None:
    """With a schema, which CSV needs."""
    data = file_of("csv", made.rows, made.arrow)
    if data is not None:
        lines = [FIELD.findall(line)[: len(made.arrow)] for line in data.decode().split("\n")[:-1]]
        found = [
            {part.name: from_csv(part.type, text) for part, text in zip(made.arrow, one, strict=True)} for one in lines
        ]
        assert alike(found, made.rows)


@EXAMPLES
@given(values())
def test_tasks_of_queues(value: Any) -> None:
    """Bytes stay bytes, values that JSON has are read as they were, and all others are refused."""
    try:
        output, payload, _ = task_of(QueueOutput("q"), pack(value), "out")
    except BadRequest as error:
        assert error.message.startswith("output out: ")
        return
    found = json.loads(payload) if output.format == "json" else payload
    assert alike(found, value) and type(found) is type(value)


@EXAMPLES
@given(st.lists(values() | TEXTS, max_size=4))
def test_lines_of_text(found: list[Any]) -> None:
    """Strings of one line each, and nothing else."""
    data = file_of("text", found)
    if data is not None:
        wanted = [one["value"] if isinstance(one, dict) else one for one in found]
        assert re.split("\r\n|\n|\r", data.decode())[:-1] == wanted
