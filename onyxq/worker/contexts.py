"""What running code knows of its task, and what it may say of it (design: claims).

    from onyxq import context

    @app.task(queue="books")
    async def index(book: str) -> int:
        ctx = context()
        first = max((entry.value["page"] + 1 for entry in await ctx.earlier()), default=0)
        for page in range(first, PAGES):
            ...
            await ctx.log({"page": page})

`context` is for async functions, `blocking_context` for those that run in a thread or a process.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import anyio
import anyio.from_thread

from onyxq.client import AsyncClient, AsyncTransaction, BlockingTransaction, Committed
from onyxq.client.transactions import Gathered
from onyxq.core.errors import Conflict
from onyxq.core.ids import TaskId
from onyxq.worker.attempts import Attempt, LogEntry, TaskCancelled, current_attempt, current_client, pack

Bridge = Callable[[Callable[[], Awaitable[Any]]], Any]


def _of_anyio(function: Callable[[], Awaitable[Any]]) -> Any:
    async def call() -> Any:
        return await function()

    return anyio.from_thread.run(call)


current_bridge: ContextVar[Bridge] = ContextVar("current_bridge", default=_of_anyio)
"""From a thread: has the worker's event loop do something, and waits for it."""


class About:
    """What there is to know of the task that runs."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt

    @property
    def id(self) -> TaskId:
        """The task's id."""
        return self._attempt.claim.id

    @property
    def name(self) -> str:
        """The name of the application's task; empty outside of an application."""
        return self._attempt.name

    @property
    def queue(self) -> str:
        """Its queue."""
        return self._attempt.claim.queue

    @property
    def attempt(self) -> int:
        """1 for the first attempt; those that were given back do not count."""
        return self._attempt.claim.attempts + 1

    @property
    def token(self) -> int:
        """The claim's token: higher for every later claim, so of use as a fencing token elsewhere."""
        return self._attempt.claim.token

    @property
    def cancelled(self) -> bool:
        """Whether the attempt is to end: the claim is lost, its time is over, or the worker stops."""
        return self._attempt.cancelled.is_set()

    def check(self) -> None:
        """End the attempt if it is to end: raises `TaskCancelled`, which nothing but ``finally`` should see."""
        if self.cancelled:
            raise TaskCancelled(f"the attempt at task {self.id.hex()} is to end")


class Context(About):
    """For async functions."""

    @property
    def cancelled(self) -> bool:
        """See `About.cancelled`."""
        return super().cancelled or anyio.current_time() >= self._attempt.ends_at

    @property
    def client(self) -> AsyncClient:
        """The worker's client."""
        return current_client.get()

    async def log(self, value: Any) -> int:
        """Append to the task's log, a checkpoint for the next attempt: bytes, or anything that JSON can hold.

        The entry's number, from 0 per attempt.  Raises `StaleToken` if the claim no longer stands.
        """
        return await self._attempt.log(self.client, value)

    async def progress(self, done: float, total: float | None = None, note: str = "") -> None:
        """Tell whoever looks at the task how far it is; stored at most once a second, and at the end."""
        await self._attempt.progress(self.client, done, total, note)

    async def earlier(self) -> list[LogEntry]:
        """What earlier attempts logged, oldest first: where to go on."""
        return await self._attempt.earlier(self.client)

    async def results(self) -> list[Any]:
        """The results of the tasks that this one follows on, in the order of ``depends``."""
        return await self._attempt.results(self.client)

    def transaction(self, result: Any = None, *, name: str | None = None, complete: bool = True) -> AsyncTransaction:
        """``async with ctx.transaction(result) as tx``: completes the task together with what else it does.

        Once it is committed the task is finished, whatever the function does then.  ``complete`` false:
        the task goes on.
        """
        attempt = self._attempt
        commit = functools.partial(attempt.commit, self.client)
        made = AsyncTransaction(commit, name=name, random_name=attempt.random_name)
        if complete:
            made.complete(attempt.claim, None if result is None else pack(result))
        return made


class BlockingContext(About):
    """For functions in a worker's thread or process: the calls of `Context`, which wait."""

    def log(self, value: Any) -> int:
        """See `Context.log`."""
        number: int = self._ask("log", value)
        return number

    def progress(self, done: float, total: float | None = None, note: str = "") -> None:
        """See `Context.progress`."""
        self._ask("progress", done, total, note)

    def earlier(self) -> list[LogEntry]:
        """See `Context.earlier`."""
        found: list[LogEntry] = self._ask("earlier")
        return found

    def results(self) -> list[Any]:
        """See `Context.results`."""
        found: list[Any] = self._ask("results")
        return found

    def transaction(self, result: Any = None, *, name: str | None = None, complete: bool = True) -> BlockingTransaction:
        """``with ctx.transaction(result) as tx``; see `Context.transaction`."""

        def commit(gathered: Gathered) -> Committed:
            committed: Committed = self._ask("commit", gathered)
            return committed

        made = BlockingTransaction(commit, name=name, random_name=self._attempt.random_name)
        if complete:
            made.complete(self._attempt.claim, None if result is None else pack(result))
        return made

    def sleep(self, seconds: float) -> None:
        """Wait, and end the attempt at once if it is to end: raises `TaskCancelled`."""
        self._attempt.cancelled.wait(seconds)
        self.check()

    def _ask(self, method: str, *args: Any) -> Any:
        client = current_client.get()
        return current_bridge.get()(functools.partial(getattr(self._attempt, method), client, *args))


current_blocking: ContextVar[Callable[[], BlockingContext]] = ContextVar("current_blocking")
"""Within a task's process: makes its context."""


def context() -> Context:
    """What an async function knows of the task that it runs for; raises `Conflict` outside of one."""
    return Context(_attempt())


def blocking_context() -> BlockingContext:
    """The same for functions that are not async."""
    make = current_blocking.get(None)
    return make() if make is not None else BlockingContext(_attempt())


def _attempt() -> Attempt:
    attempt = current_attempt.get(None)
    if attempt is None:
        raise Conflict("no task runs here", hint="Ask for the context within the function of a task.")
    return attempt
