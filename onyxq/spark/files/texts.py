"""Columns as text: the forms in which CSV and JSON hold the values of a schema, as Spark reads them back.

Values must have passed `onyxq.spark.files.columns.fitter`. Times are ISO 8601, with ``Z`` if the column is a
timestamp with a zone. In JSON, decimals are strings and binaries are base64.
"""

from __future__ import annotations

import base64
import datetime
import math
from collections.abc import Callable
from typing import Any

from pyarrow import types

from onyxq.jobs.values import Unfit
from onyxq.spark.files.columns import Convert

NULL = "\0"
"""The text that CSV inputs read as None, so that an empty string in quotes stays a string."""
_EPOCH = datetime.datetime(1970, 1, 1)
_CSV_SPECIAL = {math.inf: "Inf", -math.inf: "-Inf"}


def json_form(kind: Any, *, signed_zero: bool = True) -> Convert:
    """Return a function from a fitted value to a JSON value; raises `Unfit` for a type that JSON cannot hold.

    Numbers that the reader lacks are strings: NaN, infinity and, without ``signed_zero``, -0.0.
    """
    if types.is_list(kind):
        inside = json_form(kind.value_type, signed_zero=signed_zero)
        return lambda value: None if value is None else [inside(one) for one in value]
    if types.is_map(kind):
        if not types.is_string(kind.key_type):
            raise Unfit("", f"JSON cannot hold the type {kind}: its keys must be strings")
        item = json_form(kind.item_type, signed_zero=signed_zero)
        return lambda value: None if value is None else {key: item(one) for key, one in value}
    if types.is_struct(kind):
        forms = [(part.name, json_form(part.type, signed_zero=signed_zero)) for part in kind]
        return lambda value: None if value is None else {name: form(value[name]) for name, form in forms}
    scalar = _json_scalar(kind, signed_zero=signed_zero)
    return lambda value: None if value is None else scalar(value)


def _json_scalar(kind: Any, *, signed_zero: bool) -> Convert:
    if types.is_binary(kind):
        return lambda value: base64.b64encode(value).decode()
    if types.is_floating(kind):
        return lambda value: _json_float(value, signed_zero=signed_zero)
    return _scalar(kind) or (lambda value: value)


def _json_float(value: float, *, signed_zero: bool) -> float | str:
    if not math.isfinite(value):
        return _NAMED.get(value, "NaN")
    lost = value == 0 and math.copysign(1, value) < 0 and not signed_zero
    return "-0.0" if lost else value


_NAMED = {math.inf: "Infinity", -math.inf: "-Infinity"}


def csv_form(kind: Any, separator: str) -> Callable[[Any], str]:
    """Return a function from a fitted value to a CSV field; raises `Unfit` for a type that CSV cannot hold.

    Strings are always in quotes and None never is, so an empty string is not None.
    """
    if types.is_nested(kind) or types.is_binary(kind):
        raise Unfit("", f"CSV cannot hold the type {kind}")
    scalar = _csv_text if types.is_string(kind) else _scalar(kind) or _csv_plain

    def form(value: Any) -> str:
        if value is None:
            return ""
        text: str = scalar(value)
        return _quoted(text) if types.is_string(kind) or separator in text else text

    return form


def csv_name(name: str) -> str:
    """Return a column's name as a field of the header."""
    return _quoted(_csv_text(name))


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


def _csv_text(value: str) -> str:
    if "\n" in value or "\r" in value or NULL in value:  # Spark leaves null characters out.
        raise Unfit("", f"CSV cannot hold a string with a line break or the null character, such as {value!r:.60}")
    return value


def _csv_plain(value: Any) -> str:
    if type(value) is bool:
        return "true" if value else "false"
    return _CSV_SPECIAL.get(value, "NaN") if type(value) is float and not math.isfinite(value) else str(value)


def _scalar(kind: Any) -> Convert | None:
    """Return the form of types that are text in both formats, or None."""
    if types.is_timestamp(kind):
        end = "" if kind.tz is None else "Z"
        return lambda value: (_EPOCH + datetime.timedelta(microseconds=value)).isoformat(timespec="microseconds") + end
    if types.is_date(kind):
        return lambda value: str(value.isoformat())
    return str if types.is_decimal(kind) else None
