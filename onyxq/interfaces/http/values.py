"""JSON of requests and answers as plain values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn

from starlette.responses import Response

from onyxq.core.errors import BadRequest

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


def answer(value: Any, *, status: int = 200) -> Response:
    """Return an answer of plain values."""
    return answer_text(dumps(value), status=status)


def answer_text(text: str, *, status: int = 200) -> Response:
    """Return an answer of JSON text."""
    headers = {"cache-control": "no-store"}
    return Response(text.encode(), status_code=status, headers=headers, media_type="application/json")
