"""Files of outputs, read without Spark and without the code that wrote them."""

from __future__ import annotations

import base64
import datetime
import decimal
import json
import re
from collections.abc import Callable
from typing import Any

from pyarrow import BufferReader, parquet, types

from onyxq.spark.files.columns import segments

_FIELD = re.compile(r'("(?:[^"]|"")*"|[^,"]*)(?:,|$)')


def from_parquet(data: bytes) -> list[Any]:
    """Return the rows of a Parquet file, as an input gives them."""
    return [row for batch in parquet.read_table(BufferReader(data)).to_batches() for row in segments(batch)]


def from_json(data: bytes, schema: Any) -> list[Any]:
    """Return the rows of lines of JSON with these columns."""
    kinds = {part.name: part.type for part in schema}
    lines = [json.loads(line) for line in data.decode().split("\n")[:-1]]
    return [{name: json_value(kinds[name], value) for name, value in line.items()} for line in lines]


def from_csv(data: bytes, schema: Any) -> list[Any]:
    """Return the rows of lines of CSV with these columns, separated by commas."""
    lines = [_FIELD.findall(line)[: len(schema)] for line in data.decode().split("\n")[:-1]]
    return [{part.name: _from_csv(part.type, text) for part, text in zip(schema, one, strict=True)} for one in lines]


def _from_text(kind: Any) -> Callable[[Any], Any]:
    """Return a reader of the text of a value that uses only the standard library."""
    if types.is_timestamp(kind):
        return datetime.datetime.fromisoformat
    if types.is_date(kind):
        return datetime.date.fromisoformat
    return decimal.Decimal if types.is_decimal(kind) else float if types.is_floating(kind) else lambda text: text


def json_value(kind: Any, value: Any) -> Any:
    """Return the value of a column that JSON holds."""
    if value is None or types.is_boolean(kind) or types.is_integer(kind):
        return value
    if types.is_list(kind):
        return [json_value(kind.value_type, one) for one in value]
    if types.is_map(kind):
        return {key: json_value(kind.item_type, one) for key, one in value.items()}
    if types.is_struct(kind):
        return {part.name: json_value(part.type, value[part.name]) for part in kind}
    return base64.b64decode(value) if types.is_binary(kind) else _from_text(kind)(value)


def _from_csv(kind: Any, text: str) -> Any:
    """Return the value of a field of CSV; quotes tell an empty string from None."""
    if not text:
        return None
    if text.startswith('"'):
        text = text[1:-1].replace('""', '"')
    if types.is_boolean(kind):
        return text == "true"
    return int(text) if types.is_integer(kind) else _from_text(kind)(text)
