"""Handles: a task that was enqueued, for the code that enqueued it (design: interfaces).

    task = resize.enqueue("cat.jpg")
    width = task.result(timeout="10s")    # in async code: await task

A handle is the task's id, so code that keeps ids keeps handles as well.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, cast

import anyio.to_thread
from attrs import frozen

from onyxq.client import AsyncClient, Client, Task
from onyxq.client.blocking import AsyncMethod
from onyxq.client.values import TaskUpdate, as_id
from onyxq.core.errors import Conflict, TaskFailed
from onyxq.operations.table.task import State
from onyxq.system.durations import Seconds, as_seconds
from onyxq.worker.arguments import Arguments
from onyxq.worker.attempts import LogEntry, Progress, current_client, latest_progress, unpack
from onyxq.worker.contexts import current_bridge

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

ELSEWHERE = {
    **dict.fromkeys(("status", "ready"), "state()"),
    **dict.fromkeys(("get", "wait"), "result()"),
    "revoke": "cancel()",
}
"""Names that handles have in other task queues, and what they are called here."""

ASYNC_HINT = "In async code write `await task`, `await function.enqueue_async(...)` or `async for`."

log = logging.getLogger(__name__)


class Application(Protocol):
    """The part of an application that its functions need."""

    address: str | Sequence[str]
    token: str | None

    @property
    def client(self) -> Client:
        """A client for this process."""

    @property
    def opened(self) -> Client | None:
        """The client of this process if it is open; None otherwise."""

    def is_elsewhere(self, running: Application, address: str | Sequence[str]) -> bool:
        """Return whether its cluster is another one than that of a worker of ``running``, which is at ``address``."""


current_home: ContextVar[tuple[Application, str | Sequence[str]]] = ContextVar("current_home")
"""Within a task of an application: the application, and the address of its worker's cluster."""


class Reach:
    """Calls of a client from application code.

    Inside of a task they are calls of the worker's client, unless the application names another cluster. Elsewhere they
    are calls of the application's own client.
    """

    def __init__(self, app: Application) -> None:
        self._app = app
        self._warned = False

    def call(self, method: AsyncMethod[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a method of `AsyncClient` and wait for the answer."""
        worker = self._worker()
        if worker is None or self._app.opened is not None:
            if _in_event_loop() and not self._warned:
                self._warned = True
                log.warning("a call waits for the cluster and stops the event loop meanwhile. %s", ASYNC_HINT)
            return cast(T, getattr(self._app.client, method.__name__)(*args, **kwargs))
        if _in_event_loop():
            # The answer would arrive in the event loop that waits for it.
            raise Conflict("this call would stop the worker's event loop", hint=ASYNC_HINT)
        return cast(T, current_bridge.get()(functools.partial(self._of(worker, method), *args, **kwargs)))

    async def call_async(self, method: AsyncMethod[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a method of `AsyncClient` from async code."""
        worker = self._worker()
        if worker is not None:
            return cast(T, await self._of(worker, method)(*args, **kwargs))
        # Opening starts a thread and may start a cluster.
        client = self._app.opened
        if client is None:
            client = await anyio.to_thread.run_sync(_client_of, self._app)
        return await client.awaited(method, *args, **kwargs)

    def _worker(self) -> AsyncClient | None:
        """Return the client of the worker that runs this code, if it reaches the application's cluster."""
        home = current_home.get(None)
        if home is not None and home[0] is not self._app and self._app.is_elsewhere(*home):
            return None
        return current_client.get(None)

    @staticmethod
    def _of(client: AsyncClient, method: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
        # By name, because the client may be of another class, as in `onyxq.testing`.
        return cast(Callable[..., Awaitable[Any]], getattr(client, method.__name__))


def _in_event_loop() -> bool:
    """Return whether this thread runs an event loop. sniffio cannot tell: threads inherit its answer on trio."""
    with suppress(RuntimeError):
        asyncio.get_running_loop()
        return True
    # If it was not loaded, or another thread still loads it, this thread does not run it. Loading it takes 0.1 s.
    lowlevel = getattr(sys.modules.get("trio"), "lowlevel", None)
    if lowlevel is not None:
        with suppress(RuntimeError):
            lowlevel.current_trio_token()
            return True
    return False


def _client_of(app: Application) -> Client:
    return app.client


@frozen
class Called(Generic[R]):
    """The function that a task calls: its name, how it returns results, and how to reach the cluster."""

    name: str
    arguments: Arguments
    reach: Reach

    def returned(self, task: Task) -> R:
        """Return the result of a finished task; raise `TaskFailed` if it has none."""
        if task.state != "completed":
            name, why = task.id.hex(), "" if task.error is None else f": {task.error}"
            hint = f"Read the error of each attempt with: onyxq task get {name}"
            raise TaskFailed(f"{self.name} {name} {task.state}{why}", hint=hint)
        return cast(R, self.arguments.returned(task.result))


class TaskHandle(bytes, Generic[R]):
    """A task that was enqueued: its result, its state, its progress, and its cancellation.

    It is the task's id and can be used wherever an id is asked for. ``id``, and ``str()`` of it, are the 40 hex digits.
    A pickled or copied handle becomes the plain id. ``function.handle(id)`` makes a handle of an id.
    """

    _called: Called[R]

    def __new__(cls, id: bytes | str, called: Called[R]) -> TaskHandle[R]:
        made = super().__new__(cls, as_id(id))
        made._called = called
        return made

    @property
    def id(self) -> str:
        """The task's id: 40 hex digits, as the command line and the dashboard show it."""
        return self.hex()

    def result(self, timeout: Seconds | None = None) -> R:
        """Wait for the task to finish and return the function's result.

        ``timeout``: the longest wait, in seconds, as a `timedelta` or as text such as ``"10s"``; None for no limit.
        Raises `TimedOut` after it, `TaskFailed` if the task failed or was cancelled, `NotFound` if it does not exist.
        """
        return self._called.returned(self._called.reach.call(AsyncClient.wait, self, wait_ms(timeout)))

    async def result_async(self, timeout: Seconds | None = None) -> R:
        """Wait for the task from async code; ``await task`` is the same without a timeout. See `result`."""
        return self._called.returned(await self._called.reach.call_async(AsyncClient.wait, self, wait_ms(timeout)))

    def __await__(self) -> Generator[Any, None, R]:
        return self.result_async().__await__()

    def state(self) -> State:
        """Return the task's state: ``scheduled``, ``waiting``, ``ready``, ``claimed``, ``completed`` and so on.

        `Task` explains the states. Raises `NotFound` if the task does not exist.
        """
        return self._called.reach.call(AsyncClient.get, self).state

    async def state_async(self) -> State:
        """Return the task's state from async code; see `state`."""
        return (await self._called.reach.call_async(AsyncClient.get, self)).state

    def progress(self) -> Progress | None:
        """Return the latest progress that the function reported; None if it reported none."""
        return _progress(self._called.reach.call(AsyncClient.task_log, self))

    async def progress_async(self) -> Progress | None:
        """Return the latest progress from async code; see `progress`."""
        return _progress(await self._called.reach.call_async(AsyncClient.task_log, self))

    def updates(self) -> Updates:
        """Return the task's updates, past and future, until it is finished: ``for update in task.updates()``.

        In async code use ``async for``. Each is a `LogEntry`; progress has the value ``{"progress": {...}}``.
        """
        return Updates(self, self._called.reach)

    def cancel(self, *, claimed: bool = False) -> None:
        """Cancel the task; raise `Conflict` if it is claimed, completed or failed.

        ``claimed``: cancel it even if it is claimed. Its function then learns that it must end.
        """
        self._called.reach.call(AsyncClient.cancel, self, claimed=claimed)

    async def cancel_async(self, *, claimed: bool = False) -> None:
        """Cancel the task from async code; see `cancel`."""
        await self._called.reach.call_async(AsyncClient.cancel, self, claimed=claimed)

    if not TYPE_CHECKING:  # type checkers must find wrong names

        def __getattr__(self, name: str) -> Any:
            raise unknown_name(self, name, ELSEWHERE)

    # The same as of `bytes`; declared, so that type checkers allow ``handle == id``.
    def __eq__(self, other: object) -> bool:
        return super().__eq__(other)

    __hash__ = bytes.__hash__

    def __str__(self) -> str:
        return self.id

    def __repr__(self) -> str:
        return f"<task {self.id} of {self._called.name}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return bytes, (bytes(self),)


def unknown_name(owner: object, name: str, meant: Mapping[str, str]) -> AttributeError:
    """Return the error for an attribute that does not exist, with the name that it has here."""
    hint = f"; use {meant[name]}" if name in meant else ""
    return AttributeError(f"{type(owner).__name__!r} has no attribute {name!r}{hint}", name=name, obj=owner)


class Updates:
    """The updates of one task until it is finished, for ``for`` and ``async for``."""

    def __init__(self, task: bytes, reach: Reach) -> None:
        self._task = task
        self._reach = reach

    def __iter__(self) -> Iterator[LogEntry]:
        found: list[TaskUpdate] = []
        while found := self._reach.call(AsyncClient.next_updates, self._task, *found[-1:], wait_ms=None):
            yield from map(_entry, found)

    async def __aiter__(self) -> AsyncIterator[LogEntry]:
        found: list[TaskUpdate] = []
        while found := await self._reach.call_async(AsyncClient.next_updates, self._task, *found[-1:], wait_ms=None):
            for one in found:
                yield _entry(one)


def _entry(update: TaskUpdate) -> LogEntry:
    return LogEntry(update.token, update.seq, unpack(update.data), update.at_ms)


def _progress(updates: Sequence[TaskUpdate]) -> Progress | None:
    return latest_progress((one.data, one.at_ms) for one in updates)


def wait_ms(timeout: Seconds | None) -> int | None:
    """Return the longest wait in milliseconds; None for no limit."""
    return None if timeout is None else round(as_seconds(timeout, "timeout") * 1000)
