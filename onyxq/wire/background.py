"""Background tasks that belong to an object used with ``async with`` (design: wire).

A plain task group wraps exceptions of the body in an exception group, but users of a client want
to catch the error itself.  `Background` cancels its tasks at the end and lets the body's
exception through unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Protocol

import anyio


class Spawner(Protocol):
    """Something that starts tasks: an anyio task group, a trio nursery or a `Background`."""

    def start_soon(self, func: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> object:
        """Run ``func(*args)`` concurrently."""


class Background:
    """A task group whose tasks end when the ``async with`` block does."""

    def __init__(self) -> None:
        self._group = anyio.create_task_group()

    def start_soon(self, func: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> None:
        """Run ``func(*args)`` until it ends or the block does."""
        self._group.start_soon(func, *args)

    async def __aenter__(self) -> Background:
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._group.cancel_scope.cancel()
        if isinstance(error, anyio.get_cancelled_exc_class()):
            await self._group.__aexit__(kind, error, trace)
        else:
            await self._group.__aexit__(None, None, None)
