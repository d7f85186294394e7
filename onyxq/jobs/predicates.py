"""When a flow condition holds: functions of a segment, combined by ``&``, ``|`` and ``~``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from attrs import field, frozen


@frozen
class Pickled:
    """A function as the submitting client pickled it; only Spark's processes ever load it."""

    named: str
    """What it was called there, for messages."""
    pickled: bytes = field(repr=False)


Ref: TypeAlias = "str | Pickled | Callable[..., Any]"
"""A function: ``package.module:name``, one that was pickled, or (until it is encoded) itself."""


def tupled(value: Any) -> Any:
    """Lists as tuples; anything else stays, for the check to name it."""
    return tuple(value) if isinstance(value, list) else value


class _Combined:
    """What all predicates have in common: they combine."""

    def __and__(self, other: Any) -> And:
        return And((self, predicate(other)))

    def __or__(self, other: Any) -> Or:
        return Or((self, predicate(other)))

    def __invert__(self) -> Not:
        return Not(self)


@frozen
class Predicate(_Combined):
    """A function of a segment that says yes or no: called as ``fn(segment, **params)``.

    With ``whole`` it is called as ``fn(segment, old, all_new, **params)``: the segment that the
    task was given, and the list of all that it made of it.
    """

    fn: Ref
    params: Mapping[str, Any] = field(factory=dict)
    whole: bool = field(default=False, kw_only=True)


@frozen
class And(_Combined):
    """Holds if all of them do; asked in order, no further than the first that does not."""

    all: tuple[Any, ...] = field(converter=tupled)


@frozen
class Or(_Combined):
    """Holds if one of them does; asked in order, no further than that."""

    any: tuple[Any, ...] = field(converter=tupled)


@frozen
class Not(_Combined):
    """Holds if the other does not."""

    negated: Any


def predicate(value: Any) -> Any:
    """A function or its name as a `Predicate`; anything else as it is."""
    if isinstance(value, (str, Pickled)) or (callable(value) and not isinstance(value, (_Combined, type))):
        return Predicate(value)
    return value
