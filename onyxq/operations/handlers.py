"""Functions that serve the methods of a node, by name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from onyxq.operations.table.operation import A, Operation, R

Handler: TypeAlias = Callable[[Any], Awaitable[Any]]


def served(operation: Operation[A, R], work: Callable[[A], Awaitable[R]]) -> dict[str, Handler]:
    """Return the function that serves an operation, by its name; its types must be the operation's."""
    return {operation.name: work}


def merged(*families: dict[str, Handler]) -> dict[str, Handler]:
    """Return all methods in one table; raises `ValueError` if two families have the same name."""
    every: dict[str, Handler] = {}
    for family in families:
        if taken := every.keys() & family.keys():
            raise ValueError(f"two families of methods have {', '.join(sorted(taken))}")
        every |= family
    return every
