"""The context of running code: what it can read and record about its task (design: claims).

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
from onyxq.system.durations import Seconds, as_seconds
from onyxq.worker.attempts import Attempt, LogEntry, TaskCancelled, current_attempt, current_client, pack

Bridge = Callable[[Callable[[], Awaitable[Any]]], Any]


def _of_anyio(function: Callable[[], Awaitable[Any]]) -> Any:
    async def call() -> Any:
        return await function()

    return anyio.from_thread.run(call)


current_bridge: ContextVar[Bridge] = ContextVar("current_bridge", default=_of_anyio)
"""Function for threads: runs a call in the worker's event loop and waits for it."""


class About:
    """Facts about the running task."""

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
        """The task's queue."""
        return self._attempt.claim.queue

    @property
    def attempt(self) -> int:
        """Number of this attempt, counted from 1; claims that were given back do not count."""
        return self._attempt.claim.attempts + 1

    @property
    def token(self) -> int:
        """The claim's token. It rises with every claim of the task, so it can serve as a fencing token elsewhere."""
        return self._attempt.claim.token

    @property
    def cancelled(self) -> bool:
        """Whether the attempt must end: the claim is lost, its time is over, or the worker stops."""
        return self._attempt.cancelled.is_set()

    def check(self) -> None:
        """Raise `TaskCancelled` if the attempt must end. Do not catch it; clean up in ``finally``."""
        if self.cancelled:
            raise TaskCancelled(f"the attempt at task {self.id.hex()} is to end")


class Context(About):
    """The context of an async function."""

    @property
    def cancelled(self) -> bool:
        """Whether the attempt must end: the claim is lost, its time is over, or the worker stops."""
        return super().cancelled or anyio.current_time() >= self._attempt.ends_at

    @property
    def client(self) -> AsyncClient:
        """The worker's client."""
        return current_client.get()

    async def log(self, value: Any) -> int:
        """Append a checkpoint to the task's updates and return its number, from 0 per attempt.

        ``value``: bytes, or anything that JSON can hold; the next attempt reads it with `earlier`. Raises `StaleToken`
        if the claim is no longer valid.
        """
        return await self._attempt.log(self.client, value)

    async def progress(self, done: float, total: float | None = None, note: str = "") -> None:
        """Report progress to people who look at the task.

        It is stored at most once a second, and when ``done`` reaches ``total``.
        """
        await self._attempt.progress(self.client, done, total, note)

    async def earlier(self) -> list[LogEntry]:
        """Return the checkpoints of earlier attempts, oldest first."""
        return await self._attempt.earlier(self.client)

    async def results(self) -> list[Any]:
        """Return the results of the tasks that this one depends on, in the order of ``depends``."""
        return await self._attempt.results(self.client)

    def transaction(self, result: Any = None, *, name: str | None = None, complete: bool = True) -> AsyncTransaction:
        """Start a transaction that completes the task: ``async with ctx.transaction(result) as tx``.

        Once it is committed the task is complete, whatever the function does afterwards. With ``complete`` false the
        transaction leaves the task running.
        """
        attempt = self._attempt
        commit = functools.partial(attempt.commit, self.client)
        made = AsyncTransaction(commit, name=name, random_name=attempt.random_name)
        if complete:
            made.complete(attempt.claim, None if result is None else pack(result))
        return made


class BlockingContext(About):
    """The context of a function in a worker's thread or process: the calls of `Context`, which wait."""

    def log(self, value: Any) -> int:
        """Append a checkpoint to the task's updates; see `Context.log`."""
        number: int = self._ask("log", value)
        return number

    def progress(self, done: float, total: float | None = None, note: str = "") -> None:
        """Report progress; see `Context.progress`."""
        self._ask("progress", done, total, note)

    def earlier(self) -> list[LogEntry]:
        """Return the checkpoints of earlier attempts; see `Context.earlier`."""
        found: list[LogEntry] = self._ask("earlier")
        return found

    def results(self) -> list[Any]:
        """Return the results of the tasks that this one depends on; see `Context.results`."""
        found: list[Any] = self._ask("results")
        return found

    def transaction(self, result: Any = None, *, name: str | None = None, complete: bool = True) -> BlockingTransaction:
        """Start a transaction: ``with ctx.transaction(result) as tx``; see `Context.transaction`."""

        def commit(gathered: Gathered) -> Committed:
            committed: Committed = self._ask("commit", gathered)
            return committed

        made = BlockingTransaction(commit, name=name, random_name=self._attempt.random_name)
        if complete:
            made.complete(self._attempt.claim, None if result is None else pack(result))
        return made

    def sleep(self, seconds: Seconds) -> None:
        """Wait, but raise `TaskCancelled` at once if the attempt must end."""
        self._attempt.cancelled.wait(as_seconds(seconds, "seconds"))
        self.check()

    def _ask(self, method: str, *args: Any) -> Any:
        client = current_client.get()
        return current_bridge.get()(functools.partial(getattr(self._attempt, method), client, *args))


current_blocking: ContextVar[Callable[[], BlockingContext]] = ContextVar("current_blocking")
"""Function that makes the context, in a process that runs tasks."""


def context() -> Context:
    """Return the context of the running async function; raise `Conflict` outside of a task."""
    return Context(_attempt())


def blocking_context() -> BlockingContext:
    """Return the context of a running function that is not async; raise `Conflict` outside of a task."""
    make = current_blocking.get(None)
    return make() if make is not None else BlockingContext(_attempt())


def _attempt() -> Attempt:
    attempt = current_attempt.get(None)
    if attempt is None:
        raise Conflict("no task runs here", hint="Ask for the context within the function of a task.")
    return attempt
