"""Models of other packages as arguments and results: pydantic, msgspec and attrs (design: interfaces).

pydantic and msgspec models check and convert themselves. Fields of attrs classes are converted by their annotations, as
those of dataclasses are.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import attrs
import msgspec


class Misfit(Exception):
    """A value does not fit its annotation; ``path``: the place inside the argument."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path} {problem}".strip())
        self.path = path
        self.problem = problem


class Field(NamedTuple):
    """A field of a class that its annotations describe."""

    name: str
    argument: str
    """Its name in the class's constructor."""
    needed: bool


def fields_of(hint: type) -> list[Field] | None:
    """Return the fields of a dataclass or an attrs class that its constructor takes; None for other classes."""
    if dataclasses.is_dataclass(hint):
        none = dataclasses.MISSING
        return [
            Field(one.name, one.name, one.default is none and one.default_factory is none)
            for one in dataclasses.fields(hint)
            if one.init
        ]
    if attrs.has(hint):
        return [Field(one.name, one.alias, one.default is attrs.NOTHING) for one in attrs.fields(hint) if one.init]
    return None


def check_fields(value: Any, hint: type, path: str) -> None:
    """Raise `Misfit` for an instance of a subclass with fields that ``hint`` lacks: they would not arrive."""
    if type(value) is hint or (_is_pydantic(hint) and getattr(hint, "model_config", {}).get("extra") == "allow"):
        return
    known = _names_of(hint)
    more = next((name for name in _names_of(type(value)) if name not in known), None)
    if more is not None:
        found = type(value).__name__
        raise Misfit(path, f"must be {hint.__name__}, not {found}: its field {more!r} would not arrive")


def _names_of(kind: Any) -> Sequence[str]:
    if issubclass(kind, msgspec.Struct):
        return tuple(kind.__struct_fields__)
    if _is_pydantic(kind):
        return tuple(kind.model_fields)
    return tuple(field.name for field in fields_of(kind) or ())


def converts_itself(hint: type) -> bool:
    """Return whether a class is a pydantic or msgspec model."""
    return issubclass(hint, msgspec.Struct) or _is_pydantic(hint)


def to_json(value: Any, hint: Any, path: str) -> Any:
    """Return an instance of a pydantic or msgspec model as JSON; raise `Misfit`."""
    if not isinstance(value, hint):
        raise Misfit(path, f"must be {hint.__name__}, not {type(value).__name__}")
    if isinstance(value, msgspec.Struct):
        check_fields(value, hint, path)
        stored = msgspec.to_builtins(value, str_keys=True)
        from_json(stored, hint, path)  # the constructor of a struct does not check types
        return stored
    try:
        stored = json.loads(value.model_dump_json(by_alias=True, round_trip=True))
    except ValueError as error:
        raise Misfit(path, f"cannot be sent: {error}") from None
    if type(value) is not hint:  # a validator of the model may return an instance of the subclass
        check_fields(value, type(from_json(stored, hint, path)), path)
    return stored


def from_json(value: Any, hint: Any, path: str) -> Any:
    """Return the instance that `to_json` converted; raise `Misfit`."""
    if issubclass(hint, msgspec.Struct):
        try:
            return msgspec.convert(value, hint, str_keys=True)
        except msgspec.ValidationError as error:
            problem, _, place = str(error).partition(" - at `$")
            raise Misfit(path + place.rstrip("`"), f"does not fit {hint.__name__}: {problem}") from None
    pydantic = sys.modules["pydantic"]
    try:
        # From JSON, because strict models accept text for a date there only.
        return hint.model_validate_json(json.dumps(value))
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        place = "".join(f"[{one}]" if isinstance(one, int) else f".{one}" for one in first["loc"])
        raise Misfit(path + place, f"does not fit {hint.__name__}: {first['msg']}") from None


def _is_pydantic(hint: type) -> bool:
    pydantic = sys.modules.get("pydantic")  # a model cannot exist unless its program has imported it
    return pydantic is not None and issubclass(hint, pydantic.BaseModel)
