"""Arguments of a task: checked and converted to JSON when a call is enqueued (design: interfaces).

Annotations are checked as far as JSON allows: numbers, strings, lists, tuples, sets, dicts, unions, literals, enums,
dataclasses, typed dicts, and pydantic, msgspec and attrs models. Bytes, dates, times, UUIDs and decimals are stored as
strings. A value with another annotation, or none, must be JSON.
"""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from onyxq.core.errors import BadRequest
from onyxq.system.settings import did_you_mean
from onyxq.worker.models import Misfit
from onyxq.worker.resources import used_by
from onyxq.worker.retries import ResultRefused
from onyxq.worker.values import from_json, to_json

NOT_JSON = (
    "Annotate it with its class. Sets, bytes, datetimes, dates, times, UUIDs, decimals, enums, dataclasses, "
    "typed dicts, and pydantic, msgspec and attrs models can be sent."
)
"""Hint for a value that cannot be sent as it is."""
PLAIN_CLASS = "Make {} a dataclass, or a pydantic, msgspec or attrs model, or send what it consists of."
"""Hint for a value whose class is in the annotation, and cannot be sent."""

RESULT_NOT_JSON = "Annotate what the function returns, as in -> set[str], or return lists, dicts, texts and numbers."
KEYS_ARE_TEXT = "Return text as the keys of dicts, or a list of pairs."
"""Hints for a result that cannot be stored."""

VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Arguments:
    """The parameters of one task's function."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self._function = function
        self._name = name
        self.signature = inspect.signature(function)
        self.resources = used_by(self.signature)
        """The parameters that the worker fills."""
        self._known_hints: dict[str, Any] | None = None

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> inspect.BoundArguments:
        """Return the call's arguments by name; raise `BadRequest` naming the one at fault."""
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            name, problem = self._at_fault(args, kwargs)
            field = f"args.{name}" if name else "args"
            problem = f"{self._name}: {problem or error}"
            raise BadRequest(problem, field=field, hint=f"Call it as {self._usage()}.") from None
        for name in self.resources:
            if name in bound.arguments:
                raise BadRequest(f"{self._name}: argument {name!r} is filled by the worker", field=f"args.{name}")
        return bound

    def _usage(self) -> str:
        """Return the function's name and the arguments of a call, such as ``send(to, text='hello')``."""
        kept = [one for name, one in self.signature.parameters.items() if name not in self.resources]
        shown = [one.replace(annotation=inspect.Parameter.empty) for one in kept]
        return f"{self._name}{inspect.Signature(shown)}"

    def call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], **more: Any) -> bytes:
        """Return the payload of a call; raise `BadRequest` naming the argument that does not fit."""
        bound = self.bind(args, kwargs)
        for holder, key, name, hint in self._places(bound):
            try:
                holder[key] = to_json(holder[key], hint, "")
                json.dumps(holder[key], allow_nan=False, default=_refuse)
            except Misfit as error:
                raise self._misfit(name, error) from None
            except (TypeError, ValueError, RecursionError) as error:
                raise self._not_json(name, holder[key], hint, error) from None
        given, named = _as_given(bound, args, kwargs)
        call = {"task": self._name, "args": given, "kwargs": named, **more}
        return json.dumps(call, separators=(",", ":")).encode()

    def read(self, args: list[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments in a payload as the function takes them; raise `BadRequest` if they do not fit."""
        bound = self.bind(tuple(args), kwargs)
        for holder, key, name, hint in self._places(bound):
            try:
                holder[key] = from_json(holder[key], hint, "")
            except Misfit as error:
                raise self._misfit(name, error) from None
        return _as_given(bound, args, kwargs)

    def named(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> inspect.BoundArguments:
        """Return the call's arguments by name, defaults included."""
        bound = self.bind(args, kwargs)
        bound.apply_defaults()
        return bound

    def result(self, value: Any) -> bytes | None:
        """Return the function's result as it is stored; raise `ResultRefused` if it cannot be."""
        if value is None:
            return None
        try:
            made = to_json(value, self._hints().get("return", Any), "")
            return json.dumps(made, separators=(",", ":"), allow_nan=False, default=_refuse).encode()
        except Misfit as error:
            hint = KEYS_ARE_TEXT if "has the key" in error.problem else "Return what the function's annotation says."
            raise ResultRefused(self._name, f"result{error.path} {error.problem}", hint) from None
        except (TypeError, ValueError, RecursionError) as error:
            hint = KEYS_ARE_TEXT if "keys must be" in str(error) else RESULT_NOT_JSON
            raise ResultRefused(self._name, f"it is not JSON: {error}", hint) from None

    def returned(self, data: bytes | None) -> Any:
        """Return a stored result as the function returned it; raise `BadRequest` if it does not fit."""
        try:
            return None if data is None else from_json(json.loads(data), self._hints().get("return", Any), "")
        except (Misfit, ValueError) as error:
            raise BadRequest(f"{self._name}: its stored result does not fit: {error}", field="result") from None

    def _misfit(self, name: str, error: Misfit) -> BadRequest:
        return BadRequest(
            f"{self._name}: argument '{name}{error.path}' {error.problem}", field=f"args.{name}{error.path}"
        )

    def _not_json(self, name: str, value: Any, hint: Any, error: Exception) -> BadRequest:
        problem, advice = f"argument {name!r} is not JSON: {error}", NOT_JSON
        if isinstance(error, _NotJson):
            place, kind = _place(error.value, value, name), type(error.value)
            problem += f" at {place}" if place != name else ""
            advice = PLAIN_CLASS.format(kind.__name__) if _has(hint, kind) else NOT_JSON
        return BadRequest(f"{self._name}: {problem}", field=f"args.{name}", hint=advice)

    def _places(self, bound: inspect.BoundArguments) -> Iterator[tuple[Any, Any, str, Any]]:
        """Yield the place of each argument: (container, key, name, annotation)."""
        hints = self._hints()
        for name in list(bound.arguments):
            hint = hints.get(name, Any)
            kind = self.signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_POSITIONAL:
                rest = list(bound.arguments[name])
                for place in range(len(rest)):
                    yield rest, place, f"{name}[{place}]", hint
                bound.arguments[name] = tuple(rest)
            elif kind is inspect.Parameter.VAR_KEYWORD:
                bound.arguments[name] = dict(bound.arguments[name])
                for key in bound.arguments[name]:
                    yield bound.arguments[name], key, key, hint
            else:
                yield bound.arguments, name, name, hint

    def _hints(self) -> dict[str, Any]:
        """Return the annotations; read at first use, because they may name things that are defined later."""
        if self._known_hints is None:
            try:
                self._known_hints = typing.get_type_hints(self._function, include_extras=True)
            except (NameError, TypeError, AttributeError):
                # Names that only type checkers see: nothing can be checked.
                self._known_hints = {}
        return self._known_hints

    def _at_fault(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[str, str]:
        """Return the argument that does not fit, and why if Python says something else first; each may be empty."""
        parameters = self.signature.parameters
        kinds = {one.kind for one in parameters.values()}
        if inspect.Parameter.VAR_KEYWORD not in kinds:
            unknown = [name for name in kwargs if name not in parameters]
            if unknown:
                guess = did_you_mean(unknown[0], [name for name in parameters if name not in self.resources])
                return unknown[0], f"there is no argument {unknown[0]!r}{guess}"
        given = dict(zip(parameters, args, strict=False))
        twice = [name for name in kwargs if name in given]
        missing = [
            name
            for name, one in parameters.items()
            if one.default is one.empty and one.kind not in VARIADIC and name not in given and name not in kwargs
        ]
        return (twice + missing + [""])[0], ""


class _NotJson(TypeError):
    def __init__(self, value: object) -> None:
        super().__init__(f"it contains a value of type {type(value).__qualname__}")
        self.value = value


def _refuse(value: Any) -> None:
    raise _NotJson(value)


def _place(wanted: object, value: Any, path: str) -> str:
    """Return the place in a value, at ``path``, of the first part that JSON does not have, ``wanted``."""
    left = [(path, value)]
    while left:
        place, found = left.pop()
        if found is wanted:
            return place
        parts = []
        if isinstance(found, dict):
            parts = [(f"{place}.{key}", part) for key, part in found.items()]
        elif isinstance(found, (list, tuple)):
            parts = [(f"{place}[{number}]", part) for number, part in enumerate(found)]
        left += reversed(parts)
    return path


def _has(hint: Any, kind: type) -> bool:
    """Return whether an annotation names a class."""
    return hint is kind or any(_has(part, kind) for part in typing.get_args(hint))


def _as_given(
    bound: inspect.BoundArguments, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Return the values of ``bound`` as ``(args, kwargs)``: by position or by name as the caller gave them."""
    named = {**bound.arguments, **bound.kwargs}
    return list(bound.args[: len(args)]), {name: named[name] for name in kwargs}
