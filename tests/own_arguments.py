"""Decorated tests that make some of their arguments themselves, and take the others from pytest."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Collection
from inspect import Parameter, signature
from typing import Any, TypeAlias

AsyncTest: TypeAlias = Callable[..., Awaitable[None]]
Decorator: TypeAlias = Callable[[AsyncTest], Callable[..., None]]


def own_arguments(test: AsyncTest, own: Collection[str]) -> frozenset[str]:
    """Return the names among ``own`` that a test takes."""
    return frozenset(name for name in signature(test).parameters if name in own)


def seen_by_pytest(
    test: AsyncTest, own: Collection[str], run: Callable[..., None], *, needs: Collection[str] = ()
) -> Callable[..., None]:
    """Return ``run`` with the name and text of a test, and with its arguments that are not ``own``.

    ``needs``: arguments that ``run`` takes from pytest, although the test may not.
    """
    takes = signature(test)
    shown = {name: one for name, one in takes.parameters.items() if name not in own}
    shown |= {name: Parameter(name, Parameter.KEYWORD_ONLY) for name in needs if name not in shown}
    found: Any = functools.update_wrapper(run, test)
    found.__signature__ = takes.replace(parameters=[*shown.values()])
    del found.__wrapped__
    return run
