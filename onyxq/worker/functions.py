"""Functions as tasks: calls are stored as JSON, by name and arguments (design: interfaces)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, Unpack, cast

import anyio
import anyio.to_thread

from onyxq.client import AsyncClient, Client, Step, Task
from onyxq.client.transactions import Gathered
from onyxq.core.errors import Conflict
from onyxq.core.ids import TaskId
from onyxq.worker.arguments import Arguments
from onyxq.worker.attempts import Progress, current_client, latest_progress
from onyxq.worker.contexts import current_bridge
from onyxq.worker.options import Changes, Options

P = ParamSpec("P")
R = TypeVar("R")


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


class TaskFunction(Generic[P, R]):
    """A function of an application: call it, or enqueue a call of it."""

    def __init__(self, app: Application, function: Callable[P, R], *, name: str, options: Options) -> None:
        functools.update_wrapper(self, function)
        self.name = name
        self.function = function
        self.app = app
        self._options = options
        self._called_with = options
        """The options that a worker knows without the task's data."""
        self.arguments = Arguments(function, name)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    @property
    def queue(self) -> str:
        """The queue of its tasks."""
        return self._options.queue

    def options(self, **changes: Unpack[Changes]) -> TaskFunction[P, R]:
        """Return the same function with other options: ``send.options(delay_ms=5_000).enqueue(...)``.

        Raises `BadRequest` naming the option that is unknown or wrong.
        """
        options = self._options.changed(changes)
        options.check(self.function)
        made = TaskFunction(self.app, self.function, name=self.name, options=options)
        made._called_with = self._called_with
        return made

    # --- enqueueing

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> TaskId:
        """Enqueue a call of the function; raise `BadRequest` naming the argument that does not fit."""
        payload = self.payload(*args, **kwargs)
        worker = current_client.get(None)
        if worker is None or self.app.opened is not None:
            client = self.app.client
            now_ms = client.now_ms() if self._options.expires_after_ms is not None else None
            return client.enqueue(self.queue, payload, **self._how(args, kwargs, now_ms))
        # In a worker's thread the worker's connection is used.
        send = functools.partial(self._send, worker, payload, args, kwargs)
        return cast(TaskId, current_bridge.get()(send))

    async def enqueue_async(self, *args: P.args, **kwargs: P.kwargs) -> TaskId:
        """Enqueue a call from async code; inside a worker the worker's connection is used."""
        client = current_client.get(None)
        if client is not None:
            return await self._send(client, self.payload(*args, **kwargs), args, kwargs)
        return await anyio.to_thread.run_sync(functools.partial(self.enqueue, *args, **kwargs))

    def enqueue_in(self, transaction: Gathered, /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Enqueue a call as part of a transaction."""
        transaction.enqueue(self.queue, self.payload(*args, **kwargs), **self._how(args, kwargs, None))

    def s(self, *args: P.args, **kwargs: P.kwargs) -> Step:
        """Return a call as a step of a chain or a group: ``app.chain(fetch.s(url), index.s(url)).enqueue()``."""
        return Step(self.queue, self.payload(*args, **kwargs), **self._how(args, kwargs, None))

    def payload(self, *args: P.args, **kwargs: P.kwargs) -> bytes:
        """Return the call as it is stored; raise `BadRequest` naming the argument that does not fit."""
        timeout_s = self._options.timeout_s
        more = {} if timeout_s == self._called_with.timeout_s else {"timeout_s": timeout_s}
        return self.arguments.call(args, kwargs, **more)

    async def _send(self, client: AsyncClient, payload: bytes, args: Any, kwargs: Any) -> TaskId:
        now_ms = await client.now_ms() if self._options.expires_after_ms is not None else None
        return await client.enqueue(self.queue, payload, **self._how(args, kwargs, now_ms))

    def _how(self, args: Any, kwargs: Any, now_ms: int | None) -> dict[str, Any]:
        return self._options.arguments(functools.partial(self.arguments.named, args, kwargs), now_ms)

    # --- looking

    def result(self, id: bytes | str, *, wait_ms: int = 0) -> Any:
        """Return the result of a call of the function; wait up to ``wait_ms`` for it.

        Raises `TimedOut` if it is not finished by then, `Conflict` if it failed or was cancelled, `NotFound` if it does
        not exist.
        """
        return self._returned(self.app.client.wait(id, wait_ms))

    async def result_async(self, id: bytes | str, *, wait_ms: int = 0) -> Any:
        """Return the result of a call; see `result`."""
        client = current_client.get(None)
        if client is None:
            return await anyio.to_thread.run_sync(functools.partial(self.result, id, wait_ms=wait_ms))
        return self._returned(await client.wait(id, wait_ms))

    def _returned(self, task: Task) -> Any:
        if task.state != "completed":
            raise Conflict(f"{self.name} {task.id.hex()} {task.state}: {task.error}")
        return self.arguments.returned(task.result)

    def progress(self, id: bytes | str) -> Progress | None:
        """Return the latest progress of a call; None if it reported none."""
        return latest_progress((one.data, one.at_ms) for one in self.app.client.task_log(id))

    def __repr__(self) -> str:
        return f"<task {self.name} of queue {self.queue!r}>"
