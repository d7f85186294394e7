"""Segments as messages of Kafka: executors encode them, so that a segment that does not fit is refused at its row.

A message is ``[key, value, headers]``: bytes or None, bytes or None, and a list of ``[name, bytes]``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from pyarrow import types

from onyxq.jobs.options import PRODUCER, names_in
from onyxq.jobs.values import Unfit, called, encode_json, to_json, unpack
from onyxq.spark.files.columns import row_fitter, within
from onyxq.spark.files.texts import json_form

Message: TypeAlias = list[Any]
BYTES_MAX = 1_000_000
"""Largest message that a producer of librdkafka sends by default, with its overhead."""
_OVERHEAD_BYTES, _HEADER_BYTES = 64, 10
"""What Kafka's format adds to a message, and to each header, at most."""


def encoder(schema: Any, options: Mapping[str, str]) -> Callable[[bytes], Message]:
    """Return a function from a packed segment to its message; ``schema`` is None if the columns are not known.

    Raises `Unfit` if a message cannot hold a column; so does the function for a segment that does not fit.
    """
    used = [options[name] for name in ("key", "value") if name in options]
    headers = names_in(options["headers"]) if "headers" in options else ()
    read = _without_schema if schema is None else _with_schema(schema, options, (*used, *headers))
    key, value = options.get("key"), options.get("value")
    most = int(options.get(f"{PRODUCER}message.max.bytes", BYTES_MAX))

    def encode(payload: bytes) -> Message:
        row, whole = read(payload)
        if (used or headers) and type(row) is not dict:
            raise Unfit("", f"must be a dict, which has the fields of key, value and headers, not the {called(row)}")
        said = whole().encode() if value is None else _bytes(value, row.get(value))
        found = [[name, _bytes(name, row[name])] for name in headers if row.get(name) is not None]
        message = [None if key is None else _bytes(key, row.get(key)), said, found]
        if value is not None and (other := next((name for name in row if name not in (*used, *headers)), None)):
            raise Unfit(str(other), "is neither the key nor the value nor a header")
        _check_size(message, most)
        return message

    return encode


def _without_schema(payload: bytes) -> tuple[Any, Callable[[], str]]:
    return unpack(payload), lambda: to_json(payload)


def _with_schema(schema: Any, options: Mapping[str, str], used: tuple[str, ...]) -> Callable[[bytes], Any]:
    """Return a function from a packed segment to its columns, and to a function that returns them as JSON."""
    for name in used:
        if name not in schema.names:
            raise Unfit(name, f"is not one of the columns: {', '.join(schema.names)}")
        kind = schema.field(name).type
        if not (types.is_string(kind) or types.is_binary(kind) or types.is_integer(kind)):
            raise Unfit(name, f"is {kind}; keys, values and headers are strings, binaries or integers")
    if "value" in options:
        for name in schema.names:
            if name not in used:
                raise Unfit(name, "is neither the key nor the value nor a header")
    fit = row_fitter(schema, drop_others=options.get("other_fields") == "drop")
    forms = {part.name: within(part.name, json_form, part.type) for part in schema} if "value" not in options else {}

    def read(payload: bytes) -> tuple[Any, Callable[[], str]]:
        row = dict(zip(schema.names, fit(unpack(payload)), strict=True))
        return row, lambda: encode_json({name: form(row[name]) for name, form in forms.items()})

    return read


def _bytes(name: str, value: Any) -> bytes | None:
    """Return a key, value or header as bytes: a string as UTF-8, an integer as its digits."""
    if value is None or type(value) is bytes:
        return value
    if type(value) not in (str, int):
        raise Unfit(name, f"must be a string, bytes or an integer, not the {called(value)}")
    return str(value).encode()


def _check_size(message: Message, most: int) -> None:
    key, value, headers = message
    size = _OVERHEAD_BYTES + len(key or b"") + len(value or b"")
    size += sum(_HEADER_BYTES + len(name.encode()) + len(said) for name, said in headers)
    if size > most:
        raise Unfit("", f"the message has up to {size} bytes, more than {PRODUCER}message.max.bytes, {most}")
