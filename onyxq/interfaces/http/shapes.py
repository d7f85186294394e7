"""Shapes of JSON bodies that are not arguments of an operation: they validate a body and describe it in OpenAPI.

The ``check`` of a shape returns the value for the program (hex becomes bytes) or raises `Invalid`, which collects
the dotted path to the wrong place.  Checks are strict: ``true``, ``"5"`` and ``5.0`` are not integers.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Protocol, TypeAlias

from attrs import field, frozen

from onyxq.core.errors import BadRequest
from onyxq.core.ids import ID_BYTES, TaskId
from onyxq.core.limits import INT_MAX, is_plain
from onyxq.operations.table.problems import clip

Schema: TypeAlias = dict[str, Any]

_HEX_ID = re.compile(r"[0-9a-fA-F]{40}")


class Invalid(Exception):
    """A value does not fit its shape; ``path`` is the place, innermost part first."""

    def __init__(self, reason: str, *, hint: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint
        self.path: list[str | int] = []

    def within(self, part: str | int) -> None:
        """Add the part of the path that leads to where the error was raised."""
        self.path.append(part if isinstance(part, int) else clip(part))

    @property
    def field(self) -> str | None:
        """Return the dotted path, like ``tasks[0].priority``; None for the whole."""
        text = ""
        for part in reversed(self.path):
            text += f"[{part}]" if isinstance(part, int) else f".{part}"
        return text.removeprefix(".") or None

    def to_error(self, whole: str) -> BadRequest:
        """Return the error to answer with; ``whole`` names the checked value, like ``the body``."""
        place = self.field
        return BadRequest(f"{place or whole} {self.reason}", field=place, hint=self.hint)


def kind_of(value: Any) -> str:
    """Return the kind of a decoded JSON value in words."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    names = {int: "an integer", float: "a number with a fraction or exponent", str: "a string", list: "an array"}
    return names.get(type(value), "an object")


class Shape(Protocol):
    """The form of a value."""

    def check(self, value: Any) -> Any:
        """Return the value for the program; raises `Invalid`."""
        ...

    def schema(self) -> Schema:
        """Return the JSON schema of the value."""
        ...


@frozen
class Integer:
    """An integer within bounds, both inclusive."""

    minimum: int = 0
    maximum: int = INT_MAX

    def check(self, value: Any) -> int:
        """Return the integer itself."""
        if type(value) is not int:
            raise Invalid(f"must be an integer, not {kind_of(value)}")
        if not self.minimum <= value <= self.maximum:
            shown = str(value) if value.bit_length() <= 128 else f"a number of {value.bit_length()} bits"
            raise Invalid(f"must be {self.minimum} to {self.maximum}, not {shown}")
        return value

    def schema(self) -> Schema:
        """Return the JSON schema of the value."""
        return {"type": "integer", "format": "int64", "minimum": self.minimum, "maximum": self.maximum}


@frozen
class Text:
    """A string; lengths are counted in characters. A ``name`` has no control characters."""

    minimum: int = 1
    maximum: int = 200
    name: bool = True
    pattern: str = ""
    """Pattern of the whole string; empty: any."""

    def check(self, value: Any) -> str:
        """Return the string itself."""
        if type(value) is not str:
            raise Invalid(f"must be a string, not {kind_of(value)}")
        if not self.minimum <= len(value) <= self.maximum:
            raise Invalid(f"must have {self.minimum} to {self.maximum} characters, not {len(value)}")
        if self.name and not is_plain(value):
            raise Invalid("must not contain control characters")
        if self.pattern and not re.fullmatch(self.pattern, value):
            raise Invalid(f"must match {self.pattern}")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise Invalid("contains half of a surrogate pair, which is no character") from None
        return value

    def schema(self) -> Schema:
        """Return the JSON schema of the value."""
        bounds = {"type": "string", "minLength": self.minimum, "maxLength": self.maximum}
        return bounds | {"pattern": f"^(?:{self.pattern})$"} if self.pattern else bounds


@frozen
class Choice:
    """One of a few words."""

    words: tuple[str, ...]

    def check(self, value: Any) -> str:
        """Return the word itself."""
        if type(value) is not str:
            raise Invalid(f"must be a string, not {kind_of(value)}")
        if value not in self.words:
            raise Invalid(f"must be one of {', '.join(self.words)}")
        return value

    def schema(self) -> Schema:
        """Return the JSON schema of the value."""
        return {"type": "string", "enum": list(self.words)}


@frozen
class HexId:
    """A task id: 40 hex digits in JSON, 20 bytes in the program."""

    def check(self, value: Any) -> TaskId:
        """Return the id's bytes."""
        if type(value) is not str:
            raise Invalid(f"must be a string of {2 * ID_BYTES} hex digits, not {kind_of(value)}")
        if not _HEX_ID.fullmatch(value):
            raise Invalid(f"must be {2 * ID_BYTES} hex digits", hint="Ids come from GET /v1/ids or POST /v1/tasks.")
        return TaskId(bytes.fromhex(value))

    def schema(self) -> Schema:
        """Return the JSON schema of the value."""
        return {"type": "string", "pattern": "^[0-9a-fA-F]{40}$", "examples": ["0" * 40]}


@frozen
class Base64:
    """Bytes as standard base64 with padding."""

    def check(self, value: Any) -> bytes:
        """Return the bytes."""
        if type(value) is not str:
            raise Invalid(f"must be a base64 string, not {kind_of(value)}")
        try:
            return base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            raise Invalid("must be standard base64 with padding") from None

    def schema(self) -> Schema:
        """Return the JSON schema of the value."""
        return {"type": "string", "contentEncoding": "base64", "format": "byte"}


@frozen
class AnyValue:
    """Any JSON value, kept as it is."""

    def check(self, value: Any) -> Any:
        """Return the value itself."""
        return value

    def schema(self) -> Schema:
        """Return the JSON schema of the value."""
        return {}


@frozen
class Array:
    """An array of items of one shape; sizes are inclusive."""

    item: Shape
    minimum: int = 0
    maximum: int = 100_000

    def check(self, value: Any) -> list[Any]:
        """Return a list of the checked items."""
        if type(value) is not list:
            raise Invalid(f"must be an array, not {kind_of(value)}")
        if not self.minimum <= len(value) <= self.maximum:
            raise Invalid(f"must have {self.minimum} to {self.maximum} items, not {len(value)}")
        check, out = self.item.check, []
        try:
            for item in value:
                out.append(check(item))
        except Invalid as error:
            error.within(len(out))
            raise
        return out

    def schema(self) -> Schema:
        """Return the JSON schema of the value."""
        sizes = {"minItems": self.minimum, "maxItems": self.maximum}
        return {"type": "array", "items": self.item.schema(), **sizes}


@frozen
class Field:
    """A member of an object. ``null`` means a missing member, unless ``keeps_null``."""

    shape: Shape
    required: bool = False
    default: Any = None
    keeps_null: bool = False
    doc: str = ""

    def schema(self) -> Schema:
        """Return the JSON schema of the member."""
        schema = dict(self.shape.schema())
        if not self.required or self.keeps_null:
            schema = _nullable(schema)
        if self.default is not None:
            schema["default"] = list(self.default) if isinstance(self.default, tuple) else self.default
        if self.doc:
            schema["description"] = self.doc
        return schema


def _nullable(schema: Schema) -> Schema:
    if "enum" in schema:
        return {**schema, "type": [schema["type"], "null"], "enum": [*schema["enum"], None]}
    if "type" in schema:
        return {**schema, "type": [schema["type"], "null"]}
    return schema if not schema else {"anyOf": [schema, {"type": "null"}]}


def _required(fields: Mapping[str, Field]) -> tuple[str, ...]:
    return tuple(name for name, member in fields.items() if member.required)


@frozen
class Object:
    """An object with known members; ``name`` is its component in the OpenAPI document."""

    name: str
    fields: Mapping[str, Field]
    required: tuple[str, ...] = field(init=False)
    defaults: tuple[tuple[str, Any], ...] = field(init=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "required", _required(self.fields))
        defaults = tuple((name, member.default) for name, member in self.fields.items() if member.default is not None)
        object.__setattr__(self, "defaults", defaults)

    def check(self, value: Any) -> dict[str, Any]:
        """Return the checked members, with defaults for missing ones."""
        if type(value) is not dict:
            raise Invalid(f"must be an object, not {kind_of(value)}")
        out: dict[str, Any] = {}
        for key, item in value.items():
            try:
                member = self.fields.get(key)
                if member is None:
                    raise self._unknown(key)
                if item is None and not member.keeps_null:
                    continue
                out[key] = None if item is None else member.shape.check(item)
            except Invalid as error:
                error.within(key)
                raise
        return self._completed(out)

    def _completed(self, out: dict[str, Any]) -> dict[str, Any]:
        for key in self.required:
            if key not in out:
                missing = Invalid("is missing")
                missing.within(key)
                raise missing
        for key, default in self.defaults:
            out.setdefault(key, default)
        return out

    def _unknown(self, key: str) -> Invalid:
        near = get_close_matches(clip(key), self.fields, 1)
        hint = f"Did you mean {near[0]}?" if near else f"Known here: {', '.join(sorted(self.fields)) or 'none'}."
        return Invalid("is not a known field", hint=hint)

    def schema(self) -> Schema:
        """Return a reference to the component that `definition` returns."""
        return {"$ref": f"#/components/schemas/{self.name}"}

    def definition(self) -> Schema:
        """Return the component's JSON schema."""
        properties = {name: member.schema() for name, member in self.fields.items()}
        schema: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
        if self.required:
            schema["required"] = list(self.required)
        return schema
