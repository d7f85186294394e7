"""Context managers of the user's, entered and left in the event loop of asyncio (design: simulation).

A worker under test runs on trio. Its resources and middleware belong to the event loop of the functions, as outside of
tests. Each is entered and left in one task there, because cancel scopes and time limits ask for that. The code between
runs in other tasks. If a time limit around it ends, that code is cancelled, as if it ran in the same task.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from types import TracebackType
from typing import Any, Generic, TypeVar

import anyio
import trio

from onyxq.client import AsyncClient
from onyxq.worker import current_client

T = TypeVar("T")

LAST_WORDS_S = 60.0
"""Simulated seconds that the code after a ``yield`` may take once it was cancelled."""


class EnteredInBackend(AbstractAsyncContextManager[T], Generic[T]):
    """A context manager for trio that enters and leaves another one in asyncio.

    ``make`` makes the other one. ``in_backend`` runs a coroutine in the event loop of asyncio. ``client`` is that of
    the code there, in place of the worker's.
    """

    def __init__(
        self,
        make: Callable[[], AbstractAsyncContextManager[T]],
        *,
        nursery: trio.Nursery,
        in_backend: Callable[[Callable[[], Any]], Awaitable[Any]],
        client: AsyncClient,
    ) -> None:
        self._make = make
        self._nursery = nursery
        self._in_backend = in_backend
        self._client = client
        self._scope = trio.CancelScope()
        self._body = trio.CancelScope()
        """Scope of the code between entering and leaving."""
        self._ended_early = False
        """Whether that code was cancelled because the other one was, as by a time limit of its own."""
        self._entered, self._left = trio.Event(), trio.Event()
        self._value: list[T] = []
        """What entering returned, once it has."""
        self._error: BaseException | None = None
        """What entering or leaving raised."""
        self._leave: asyncio.Future[BaseException | None]
        self._context: contextvars.Context

    async def __aenter__(self) -> T:
        self._nursery.start_soon(self._keep)
        try:
            await self._entered.wait()
        except trio.Cancelled:
            await self._cancel()
            raise
        if not self._value:
            raise self._failure()
        # Functions run with the variables that it set, as if it had been entered here.
        for variable, value in self._context.items():
            if variable is not current_client and variable.get(self) is not value:
                variable.set(value)
        self._body.__enter__()
        return self._value[0]

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if isinstance(error, trio.Cancelled):
            self._ended_early = self._body.__exit__(kind, error, trace)
            if not self._ended_early:
                await self._cancel()
                if self._error is None or isinstance(self._error, asyncio.CancelledError):
                    return False
                raise self._error
        else:
            self._body.__exit__(None, None, None)
        await self._release(None if self._ended_early else error)
        if self._error is None:
            return error is not None
        if self._error is error:
            return False
        raise self._failure()

    def _failure(self) -> BaseException:
        """Return what entering or leaving raised. The worker runs on trio, which knows no cancellation of asyncio."""
        assert self._error is not None
        if not isinstance(self._error, asyncio.CancelledError):
            return self._error
        failure = RuntimeError("a resource or middleware cancelled itself")
        failure.__cause__ = self._error
        return failure

    async def _release(self, error: BaseException | None) -> None:
        """Leave with an error, and wait for the end; if this is cancelled, the rest of the code is too."""
        with suppress(RuntimeError):  # the event loop has ended
            self._leave.get_loop().call_soon_threadsafe(self._let_go, error)
        try:
            await self._left.wait()
        except trio.Cancelled:
            await self._cancel()
            raise

    async def _cancel(self) -> None:
        """Cancel it and wait for the end."""
        self._scope.cancel()
        with trio.move_on_after(LAST_WORDS_S, shield=True):
            await self._left.wait()

    def _let_go(self, error: BaseException | None) -> None:
        if not self._leave.done():
            self._leave.set_result(error)

    async def _keep(self) -> None:
        if current_client.get(None) is not None:
            current_client.set(self._client)
        try:
            with self._scope:
                await self._in_backend(self._inside)
        finally:
            self._entered.set()
            self._left.set()

    async def _inside(self) -> None:
        """Enter, wait, and leave; runs in asyncio."""
        self._leave = asyncio.get_running_loop().create_future()
        try:
            async with self._make() as value:
                self._value.append(value)
                self._context = contextvars.copy_context()
                self._entered.set()
                if (problem := await self._outcome()) is not None:
                    raise problem
        except BaseException as error:
            self._error = error

    async def _outcome(self) -> BaseException | None:
        """Wait for the end of the code between and return its error; runs in asyncio.

        If this wait is cancelled, as by a time limit around it, that code is cancelled and ends first.
        """
        try:
            return await asyncio.shield(self._leave)
        except asyncio.CancelledError:
            if self._scope.cancel_called:
                raise
            self._body.cancel()
            with anyio.CancelScope(shield=True):  # anyio cancels again in each pass of the event loop
                problem = await asyncio.shield(self._leave)
            if self._ended_early:
                raise
            return problem
