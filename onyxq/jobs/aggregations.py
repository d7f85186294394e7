"""Aggregations, which fold segments of a window into one state: the built-in ones and users' own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs import frozen

from onyxq.jobs.flow_conditions import Resolve
from onyxq.jobs.model import Aggregation, Window


@frozen
class Folding:
    """An aggregation with its functions loaded. The owner of a state may change it in place."""

    init: Callable[[], Any]
    fold: Callable[[Any, Any], Any]
    """Function that returns the state after another segment."""
    merge: Callable[[Any, Any], Any] | None
    """Function that joins the states of two parts, in their order; None if states cannot be merged."""
    result: Callable[[Any], Any]


def folding(window: Window, resolve: Resolve, path: str) -> Folding:
    """Return the aggregation of a window, applied to its ``field`` if it has one."""
    own = window.aggregation
    if isinstance(own, Aggregation):
        path = f"{path}.aggregation"
        return Folding(
            init=resolve(own.init, f"{path}.init"),
            fold=resolve(own.fold, f"{path}.fold"),
            merge=None if own.merge is None else resolve(own.merge, f"{path}.merge"),
            result=_itself if own.result is None else resolve(own.result, f"{path}.result"),
        )
    found, name = FOLDINGS[own], window.field
    if name is None or own == "count":
        return found
    return Folding(found.init, lambda state, segment: found.fold(state, segment[name]), found.merge, found.result)


def _itself(state: Any) -> Any:
    return state


def _least(state: list[Any], value: Any) -> list[Any]:
    return [value] if not state or value < state[0] else state


def _most(state: list[Any], value: Any) -> list[Any]:
    return [value] if not state or value > state[0] else state


def _averaged(state: list[Any], value: Any) -> list[Any]:
    return [state[0] + value, state[1] + 1]


def _gathered(state: list[Any], value: Any) -> list[Any]:
    state.append(value)
    return state


def _extended(state: list[Any], other: list[Any]) -> list[Any]:
    state.extend(other)
    return state


FOLDINGS: dict[str, Folding] = {
    "count": Folding(int, lambda state, _: state + 1, lambda one, other: one + other, _itself),
    "sum": Folding(int, lambda state, value: state + value, lambda one, other: one + other, _itself),
    "min": Folding(list, _least, lambda one, other: _least(one, other[0]) if other else one, lambda state: state[0]),
    "max": Folding(list, _most, lambda one, other: _most(one, other[0]) if other else one, lambda state: state[0]),
    "average": Folding(
        lambda: [0, 0],
        _averaged,
        lambda one, other: [one[0] + other[0], one[1] + other[1]],
        lambda state: state[0] / state[1],
    ),
    "conj": Folding(list, _gathered, _extended, _itself),
}
