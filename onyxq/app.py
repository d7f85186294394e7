"""Functions as tasks (design: interfaces).

An `App` names functions; enqueueing one stores its name and arguments as JSON, and a
worker of the same application calls it::

    app = App("127.0.0.1:7400")

    @app.task(queue="mail", retries=5)
    async def send(to: str, body: str) -> None: ...

    send.enqueue(to="a@example.org", body="hello")
"""

from __future__ import annotations

import atexit
import functools
import inspect
import json
import threading
from collections.abc import Callable, Sequence
from typing import Any, Generic, ParamSpec, TypeVar, overload

import anyio
import anyio.to_thread
from attrs import evolve, frozen

from onyxq.client import Claim, Client
from onyxq.client.asynchronous import ADDRESS
from onyxq.errors import BadRequest
from onyxq.ids import TaskId
from onyxq.wire.network import Network
from onyxq.worker import Worker, current_client, run_worker

P = ParamSpec("P")
R = TypeVar("R")


@frozen(kw_only=True)
class Options:
    """How a function's tasks are enqueued; see `AsyncClient.enqueue`."""

    queue: str = "default"
    priority: int = 0
    delay_ms: int = 0
    at_ms: int | None = None
    retries: int | None = 25
    backoff_ms: int = 1000

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of ``enqueue``."""
        return {
            "priority": self.priority,
            "delay_ms": self.delay_ms,
            "at_ms": self.at_ms,
            "retries": self.retries,
            "backoff_ms": self.backoff_ms,
            "format": "json",
        }


class TaskFunction(Generic[P, R]):
    """A function of an application: call it, or enqueue a call of it."""

    def __init__(self, app: App, function: Callable[P, R], *, name: str, options: Options) -> None:
        functools.update_wrapper(self, function)
        self.name = name
        self.function = function
        self._app = app
        self._options = options

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    @property
    def queue(self) -> str:
        """The queue its tasks go to."""
        return self._options.queue

    def options(self, **changes: Any) -> TaskFunction[P, R]:
        """The same function with other options: ``send.options(delay_ms=5_000).enqueue(...)``."""
        return TaskFunction(self._app, self.function, name=self.name, options=evolve(self._options, **changes))

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> TaskId:
        """Have a worker call the function; raises `BadRequest` if the arguments do not fit or are not JSON."""
        payload = self._payload(args, kwargs)
        return self._app.client.enqueue(self.queue, payload, **self._options.arguments())

    async def enqueue_async(self, *args: P.args, **kwargs: P.kwargs) -> TaskId:
        """The same from async code; within a worker over the worker's own connection."""
        payload = self._payload(args, kwargs)
        client = current_client.get(None)
        if client is not None:
            return await client.enqueue(self.queue, payload, **self._options.arguments())
        call = functools.partial(self._app.client.enqueue, self.queue, payload, **self._options.arguments())
        return await anyio.to_thread.run_sync(call)

    def _payload(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        try:
            inspect.signature(self.function).bind(*args, **kwargs)
            call = {"task": self.name, "args": list(args), "kwargs": kwargs}
            return json.dumps(call, separators=(",", ":")).encode()
        except (TypeError, ValueError) as error:
            raise BadRequest(f"{self.name}: {error}", field="args") from None


class App:
    """An application: a cluster's address and functions that workers run."""

    def __init__(
        self,
        address: str | Sequence[str] = ADDRESS,
        *,
        token: str | None = None,
        network: Network | None = None,
    ) -> None:
        self.address = address
        self.tasks: dict[str, TaskFunction[..., Any]] = {}
        """The functions by name."""
        self._token = token
        self._network = network
        self._client: Client | None = None
        self._lock = threading.Lock()

    @overload
    def task(self, function: Callable[P, R]) -> TaskFunction[P, R]: ...
    @overload
    def task(
        self,
        *,
        queue: str = "default",
        name: str | None = None,
        priority: int = 0,
        retries: int | None = 25,
        backoff_ms: int = 1000,
    ) -> Callable[[Callable[P, R]], TaskFunction[P, R]]: ...
    def task(
        self,
        function: Callable[..., Any] | None = None,
        *,
        queue: str = "default",
        name: str | None = None,
        priority: int = 0,
        retries: int | None = 25,
        backoff_ms: int = 1000,
    ) -> Any:
        """Make a function, async or not, a task; its name (default: the function's) is what is stored."""
        options = Options(queue=queue, priority=priority, retries=retries, backoff_ms=backoff_ms)

        def register(function: Callable[..., Any]) -> TaskFunction[..., Any]:
            known_as = name or function.__qualname__
            if known_as in self.tasks:
                raise BadRequest(f"there are two tasks named {known_as!r}", field="name")
            made = self.tasks[known_as] = TaskFunction(self, function, name=known_as, options=options)
            return made

        return register if function is None else register(function)

    @property
    def client(self) -> Client:
        """A client for this process, opened when first used."""
        with self._lock:
            if self._client is None:
                self._client = Client(self.address, token=self._token, network=self._network).open()
                atexit.register(self.close)
            return self._client

    def close(self) -> None:
        """Close the client; it is opened anew when needed."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            atexit.unregister(self.close)
            client.close()

    def worker(
        self,
        queues: Sequence[str] | None = None,
        concurrency: int = 10,
        *,
        lease_ms: int = 30_000,
        wait_ms: int = 10_000,
        drain_ms: int = 30_000,
        name: str | None = None,
    ) -> AppWorker:
        """A worker for the tasks in ``queues`` (default: all that this application's tasks use)."""
        names = sorted({task.queue for task in self.tasks.values()}) if queues is None else list(queues)
        if not names:
            raise BadRequest("the application has no tasks", field="queues")
        limiter: list[anyio.CapacityLimiter] = []

        async def body(claim: Claim) -> bytes | None:
            if not limiter:
                limiter.append(anyio.CapacityLimiter(concurrency))
            return await self.run(claim, limiter=limiter[0])

        return AppWorker(
            body,
            queues=names,
            concurrency=concurrency,
            lease_ms=lease_ms,
            wait_ms=wait_ms,
            drain_ms=drain_ms,
            name=name,
            address=self.address,
            token=self._token,
        )

    async def run(self, claim: Claim, *, limiter: anyio.CapacityLimiter | None = None) -> bytes | None:
        """Call the function that a claimed task names; its result as JSON, None for None.

        A function that is not async runs in a thread; if its claim goes stale, the thread
        is left alone and what it returns is dropped.
        """
        try:
            call = json.loads(claim.data)
            name, args, kwargs = call["task"], call["args"], call["kwargs"]
        except (ValueError, KeyError, TypeError) as error:
            raise BadRequest(f"the task's data is not a call: {error!r}") from None
        task = self.tasks.get(name)
        if task is None:
            raise BadRequest(f"this worker has no task named {name!r}")
        if inspect.iscoroutinefunction(task.function):
            result = await task.function(*args, **kwargs)
        else:
            bound = functools.partial(task.function, *args, **kwargs)
            result = await anyio.to_thread.run_sync(bound, abandon_on_cancel=True, limiter=limiter)
        return None if result is None else json.dumps(result, separators=(",", ":")).encode()


class AppWorker(Worker):
    """A `Worker` that knows its application's cluster."""

    def __init__(self, *args: Any, address: str | Sequence[str], token: str | None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._address = address
        self._token = token

    def run(self, *, backend: str = "asyncio") -> None:
        """Work until SIGTERM or SIGINT; ``backend``: ``asyncio`` or ``trio``."""
        run_worker(self, self._address, token=self._token, backend=backend)
