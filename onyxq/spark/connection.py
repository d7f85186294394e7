"""A process' connection with the cluster: an `AsyncClient` on its own event loop (design: jobs on Spark).

Spark forks its workers, reuses them between tasks, and ends them without notice. So there is one connection per
process and address. Its thread is a daemon, and it need not be closed.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import TypeVar

from onyxq.client import AsyncClient

R = TypeVar("R")

_open: dict[tuple[int, str, str], Connection] = {}
_lock = threading.Lock()


class Connection:
    """Runs calls of a client for plain threads."""

    def __init__(self, connect: str, token: str, timeout_ms: int) -> None:
        self._loop = asyncio.new_event_loop()
        self._client = AsyncClient(connect.split(","), token=token or None, timeout_ms=timeout_ms)
        self._ended = asyncio.Event()
        self._up: Future[None] = Future()
        threading.Thread(target=self._run, name="onyxq", daemon=True).start()
        self._up.result()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        except BaseException as error:
            if self._up.done():
                raise
            self._up.set_exception(error)

    async def _serve(self) -> None:
        async with self._client:
            self._up.set_result(None)
            await self._ended.wait()

    def begin(self, call: Callable[[AsyncClient], Awaitable[R]]) -> Future[R]:
        """Begin a call, and return the future of its result."""

        async def run() -> R:
            return await call(self._client)

        return asyncio.run_coroutine_threadsafe(run(), self._loop)

    def call(self, call: Callable[[AsyncClient], Awaitable[R]]) -> R:
        """Make a call, and return its result or raise its error."""
        return self.begin(call).result()

    def close(self) -> None:
        """End the connection."""
        self._loop.call_soon_threadsafe(self._ended.set)


def connection(connect: str, token: str, timeout_ms: int) -> Connection:
    """Return this process' connection with the peers at ``connect`` (comma-separated addresses)."""
    key = os.getpid(), connect, token
    with _lock:
        found = _open.get(key)
        if found is None:
            found = _open[key] = Connection(connect, token, timeout_ms)
        return found
