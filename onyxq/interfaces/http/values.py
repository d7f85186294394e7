"""Task data between JSON and stored bytes.

JSON data is stored as compact UTF-8 JSON with the header format ``json``; bytes are base64 in requests and answers.
Stored JSON is copied into answers after a check that it is JSON, so no part is lost or nested deeper.

Results and updates have no format: JSON text is shown as JSON, other bytes as base64.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

import msgspec
from starlette.responses import Response

from onyxq.core.errors import BadRequest
from onyxq.interfaces.http.shapes import Invalid
from onyxq.operations.table.json_form import BYTES, JSON, data_member

_COMPACT = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_ESCAPED = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode


def _refuse_constant(name: str) -> NoReturn:
    raise BadRequest(f"malformed JSON: {name} is not a JSON number", hint="JSON has neither NaN nor infinities.")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        raise BadRequest("malformed JSON: an object has the same key twice", hint="Give each key once.")
    return out


_parse = json.JSONDecoder(parse_constant=_refuse_constant, object_pairs_hook=_unique).decode


def decode_json(body: bytes) -> Any:
    """Return the value of a request's body; raises `BadRequest`."""
    if not body.strip(b" \t\r\n"):
        raise BadRequest("the body is empty; a JSON object is expected")
    try:
        return _parse(body.decode())
    except UnicodeDecodeError as error:
        raise BadRequest(f"the body is not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        place = f"line {error.lineno} column {error.colno}"
        raise BadRequest(f"malformed JSON at {place}: {error.msg}", hint="Check the body's syntax.") from None
    except RecursionError:
        raise BadRequest("malformed JSON: nested too deeply", hint="Nest arrays and objects less.") from None
    except ValueError:
        raise BadRequest("malformed JSON: a number has too many digits", hint="Send it as a string.") from None


def encode_value(value: Any) -> bytes:
    """Return compact UTF-8 JSON of a decoded value; raises `Invalid`."""
    try:
        return _COMPACT(value).encode()
    except UnicodeEncodeError:
        return _ESCAPED(value).encode("ascii")  # half a surrogate pair is legal as an escape only
    except RecursionError:
        raise Invalid("is nested too deeply") from None
    except ValueError:
        raise Invalid("holds a number beyond the range of a double") from None


def payload_of(members: Mapping[str, Any], name: str) -> tuple[str, bytes] | None:
    """Return format and bytes of the member ``name`` or ``name_base64``; None without both."""
    encoded = f"{name}_base64"
    try:
        if encoded in members:
            if name in members:
                raise Invalid(f"and {encoded} exclude each other")
            return BYTES, members[encoded]
        return (JSON, encode_value(members[name])) if name in members else None
    except Invalid as error:
        error.within(name)
        raise


def member(name: str, data: bytes | None, stored: str | None = None) -> str:
    """Return ``"name":value`` or ``"name_base64":"…"``, for bytes that were stored in a format."""
    key, shown = data_member(name, data, stored)
    return f'"{key}":{msgspec.json.encode(shown).decode()}'


def dumps(value: Any) -> str:
    """Return the JSON text of plain values; bytes become hex."""
    return _ESCAPED(plain(value))


def plain(value: Any) -> Any:
    """Return the value with bytes as hex, tuples as lists and keys as strings."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return {key.hex() if isinstance(key, bytes) else str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    return value


def with_members(value: Mapping[str, Any], members: Iterable[str]) -> str:
    """Return the JSON object of plain members and of rendered ones."""
    return "{" + ",".join([*(f"{_ESCAPED(key)}:{dumps(item)}" for key, item in value.items()), *members]) + "}"


def task_json(task: Mapping[str, Any]) -> str:
    """Return a task of the method ``get`` as JSON text."""
    hidden = ("data", "format", "result")
    shown = {key: item for key, item in task.items() if key not in hidden}
    stored = task.get("format", BYTES)
    return with_members(shown, [member("data", task.get("data"), stored), member("result", task.get("result"))])


def answer(value: Any, *, status: int = 200) -> Response:
    """Return an answer of plain values."""
    return answer_text(dumps(value), status=status)


def answer_text(text: str, *, status: int = 200) -> Response:
    """Return an answer of JSON text."""
    headers = {"cache-control": "no-store"}
    return Response(text.encode(), status_code=status, headers=headers, media_type="application/json")
