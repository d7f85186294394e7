"""Predicates of flow conditions: functions of a segment, combined with ``&``, ``|`` and ``~``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from attrs import field, frozen


@frozen
class Pickled:
    """A function pickled by the submitting client; only Spark's processes load it."""

    named: str
    """The function's name at the client, for messages."""
    pickled: bytes = field(repr=False)


Ref: TypeAlias = "str | Pickled | Callable[..., Any]"
"""A function: ``package.module:name``, pickled, or (until it is encoded) itself."""


def tupled(value: Any) -> Any:
    """Return a list as a tuple; return anything else unchanged, so that the check can name it."""
    return tuple(value) if isinstance(value, list) else value


class _Combined:
    """The base of all predicates: they can be combined."""

    def __and__(self, other: Any) -> And:
        return And((self, predicate(other)))

    def __or__(self, other: Any) -> Or:
        return Or((self, predicate(other)))

    def __invert__(self) -> Not:
        return Not(self)


@frozen
class Predicate(_Combined):
    """A function of a segment that returns true or false, called as ``fn(segment, **params)``.

    With ``whole`` it is called as ``fn(segment, old, all_new, **params)``: ``old`` is the segment that the task got,
    and ``all_new`` the list of everything that it made of it.
    """

    fn: Ref
    params: Mapping[str, Any] = field(factory=dict)
    whole: bool = field(default=False, kw_only=True)


@frozen
class And(_Combined):
    """Predicate that holds if all parts hold; checked in order, up to the first that does not hold."""

    all: tuple[Any, ...] = field(converter=tupled)


@frozen
class Or(_Combined):
    """Predicate that holds if any part holds; checked in order, up to the first that holds."""

    any: tuple[Any, ...] = field(converter=tupled)


@frozen
class Not(_Combined):
    """Predicate that holds if the negated one does not."""

    negated: Any


def predicate(value: Any) -> Any:
    """Return a function or its name as a `Predicate`; return anything else unchanged."""
    if isinstance(value, (str, Pickled)) or (callable(value) and not isinstance(value, (_Combined, type))):
        return Predicate(value)
    return value


def predicates_in(value: Any) -> Iterator[Predicate]:
    """Yield the predicates that a value combines, in their order; none for anything else."""
    if isinstance(value, Predicate):
        yield value
    elif isinstance(value, Not):
        yield from predicates_in(value.negated)
    elif isinstance(value, (And, Or)):
        for one in value.all if isinstance(value, And) else value.any:
            yield from predicates_in(one)
