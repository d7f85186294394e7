"""Clients of a cluster under test, for plain code and for both kinds of async code.

To their users they are a `Client` or an `AsyncClient`. Each uses a client inside the simulation, on its own machine,
which is opened at the first call and closed with the cluster.
"""

from __future__ import annotations

import functools
import inspect
import zlib
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

import anyio
import anyio.to_thread
import trio
from anyio.abc import ByteStream

from onyxq.client import AsyncClient, Client, Task
from onyxq.client.asynchronous import TIMEOUT_MS
from onyxq.client.blocking import AsyncMethod
from onyxq.client.flow_calls import AsyncFlowHandle, FlowHandle
from onyxq.client.flows import Flow
from onyxq.client.taskstore import AsyncTaskStore
from onyxq.client.values import TaskUpdate, as_id
from onyxq.core.errors import OnyxqError, ProtocolError, TimedOut
from onyxq.core.ids import TaskId
from onyxq.operations.table.flow import FLOW_TASKS_MAX
from onyxq.system.durations import Milliseconds
from onyxq.wire.network import Network
from onyxq.wire.protocol import Decoder
from simulation.world.world import World

P = ParamSpec("P")
T = TypeVar("T")

REQUESTS = frozenset((
    *("enqueue", "claim", "complete", "fail", "renew", "release", "postpone", "give_up"),
    *("update", "cancel", "transact", "submit"),
    *("queue.set", "dead.requeue", "dead.discard", "periodic.set", "periodic.remove"),
))  # fmt: skip
"""Methods whose answers may be lost: those that change something."""

UNSERVED_MS = 60_000
"""Simulated milliseconds after which a wait without limit ends if no worker serves the task's queue."""

Elsewhere = Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]]
"""Function that runs an async function inside the simulation."""


class Losses:
    """Answers that will be lost."""

    def __init__(self) -> None:
        self._methods: list[frozenset[str]] = []

    def add(self, methods: frozenset[str], times: int) -> None:
        """Lose the answers to the next ``times`` requests of these methods."""
        self._methods += [methods] * times

    @property
    def left(self) -> int:
        """Number of answers still to be lost."""
        return len(self._methods)

    def take(self, method: str) -> bool:
        """Return whether the answer to this request is lost, and count it if so."""
        for place, methods in enumerate(self._methods):
            if method in methods:
                del self._methods[place]
                return True
        return False


class _LossyNetwork:
    def __init__(self, network: Network, losses: Losses) -> None:
        self._network = network
        self._losses = losses
        self.serve = network.serve

    async def connect(self, address: str, *, timeout_ms: int) -> ByteStream:
        return _LossyStream(await self._network.connect(address, timeout_ms=timeout_ms), self._losses)


class _LossyStream(ByteStream):
    """A stream that breaks instead of delivering an answer that is to be lost."""

    def __init__(self, stream: ByteStream, losses: Losses) -> None:
        self._stream: Any = stream
        self._losses = losses
        self._sent, self._received = Decoder(), Decoder()
        self._losing: set[int] = set()

    async def send(self, item: bytes) -> None:
        self._sent.feed(item)
        for message, _ in self._sent.messages():
            match message:
                case [int() as number, str() as method, dict()] if number and self._losses.take(method):
                    self._losing.add(number)
        await self._stream.send(item)

    async def receive(self, max_bytes: int = 65536) -> bytes:
        data: bytes = await self._stream.receive(max_bytes)
        self._received.feed(data)
        try:
            for message, _ in self._received.messages():
                match message:
                    case [int() as number, *_] if number in self._losing:
                        self._stream.tear()
                        raise anyio.BrokenResourceError
        except ProtocolError:
            pass  # the client reports it
        return data

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()


class Machine:
    """A client inside the simulation, on its own machine."""

    def __init__(
        self, world: World, nursery: trio.Nursery, losses: Losses, *, name: str, serves: Callable[[str], bool]
    ) -> None:
        self.name = name
        self._serves = serves
        self._nursery = nursery
        self._lock = trio.Lock()
        self._client: AsyncClient | None = None
        self.calls = 0
        """Number of calls of the user that wait for an answer."""
        self._named = 0
        self._make = world.client_maker(_LossyNetwork(world.network.host(name), losses))

    async def client(self) -> AsyncClient:
        """Return the client; open it first if needed."""
        async with self._lock:
            if self._client is None:
                self._client = await self._nursery.start(self.keep)
        return self._client

    async def wait(self, id: bytes | str, wait_ms: Milliseconds | None) -> Task:
        """Wait as `AsyncClient.wait` does, but not without limit for a task that no worker can run."""
        return await self._wait(lambda client, limit: client.wait(id, limit), wait_ms, self._task_blocked, id)

    async def next_updates(
        self, id: bytes | str, after: TaskUpdate | None, wait_ms: Milliseconds | None
    ) -> list[TaskUpdate]:
        """Wait as `AsyncClient.next_updates` does, but not without limit for a task that no worker can run."""
        return await self._wait(
            lambda client, limit: client.next_updates(id, after, wait_ms=limit), wait_ms, self._task_blocked, id
        )

    async def wait_flow(self, id: bytes | str, wait_ms: Milliseconds | None) -> dict[str, Any]:
        """Wait as `AsyncClient.wait_flow` does, but not without limit for a flow that no worker can continue."""
        return await self._wait(lambda client, limit: client.wait_flow(id, limit), wait_ms, self._flow_blocked, id)

    async def _wait(
        self,
        call: Callable[[AsyncClient, Milliseconds], Awaitable[T]],
        wait_ms: Milliseconds | None,
        blocked: Callable[[AsyncClient, bytes | str], Awaitable[str | None]],
        id: bytes | str,
    ) -> T:
        """Call with a limit until it returns; raise `TimedOut` if ``blocked`` returns why that cannot happen."""
        client = await self.client()
        while True:
            try:
                return await call(client, UNSERVED_MS if wait_ms is None else wait_ms)
            except TimedOut:
                if problem := await blocked(client, id):
                    hint = "Call onyxq_cluster.drain() first, or onyxq_cluster.start_worker(...)."
                    raise TimedOut(problem, hint=hint) from None
                if wait_ms is not None:
                    raise

    async def _task_blocked(self, client: AsyncClient, id: bytes | str) -> str | None:
        """Return why no worker can run a task; None if one can."""
        task = await client.get(id)
        if self._serves(task.queue):
            return None
        return f"task {task.id.hex()} is {task.state}: no worker serves queue {task.queue!r}"

    async def _flow_blocked(self, client: AsyncClient, id: bytes | str) -> str | None:
        """Return why no worker can continue a flow; None if one can, or if time may help."""
        flow = await client.flow(id, limit=FLOW_TASKS_MAX)
        queues: dict[str, set[str]] = {}
        for task in flow["tasks"]:
            queues.setdefault(task["state"], set()).add(task["queue"])
        # If none is ready, they all wait for tasks outside of the flow.
        next_ones = queues.get("ready") or queues.get("waiting") or set()
        if not next_ones or queues.keys() & {"claimed", "scheduled"} or any(map(self._serves, next_ones)):
            return None
        names = " and ".join(map(repr, sorted(next_ones)))
        return f"flow {as_id(id).hex()} is {flow['state']}: no worker serves queue {names}"

    def random_name(self) -> str:
        """Return a name for a transaction that is unique in the cluster and the same in each run."""
        self._named += 1
        return f"transaction {self._named} of {self.name}"

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Count a call of the user as in progress; a context manager."""
        self.calls += 1
        try:
            yield
        finally:
            self.calls -= 1

    async def keep(self, task_status: trio.TaskStatus[AsyncClient] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep a client open until cancelled."""
        async with self._make() as client:
            task_status.started(client)
            await trio.sleep_forever()


def told_here(call: Callable[[], T]) -> T:
    """Show an expected error where the call was made, not where it arose."""
    __tracebackhide__ = True
    try:
        return call()
    except (OnyxqError, AssertionError) as error:
        failure = error.with_traceback(None)
    raise failure


async def told_there(call: Awaitable[T]) -> T:
    """Show an expected error where the call is awaited, not where it arose."""
    __tracebackhide__ = True
    try:
        return await call
    except (OnyxqError, AssertionError) as error:
        failure = error.with_traceback(None)
    raise failure


class _MachinesFlow(AsyncFlowHandle):
    """A flow whose waits are those of a machine."""

    def __init__(self, machine: Machine, client: AsyncClient, id: bytes | str, ids: Sequence[TaskId] = ()) -> None:
        super().__init__(client, id, ids)
        self._machine = machine

    async def wait(self, timeout: Milliseconds | None = None) -> dict[str, Any]:
        return await self._machine.wait_flow(self.id, timeout)


class BlockingClient(Client):
    """The `Client` of plain code and of handlers that are not async."""

    def __init__(self, machine: Machine, call: Callable[[Callable[[], Awaitable[Any]]], Any]) -> None:
        super().__init__()
        self._machine = machine
        self._call = call

    def open(self) -> BlockingClient:
        """Return the client, which is open already."""
        return self

    def close(self) -> None:
        """Do nothing: the client stays open until the test is over."""

    def _opened(self) -> AsyncClient:
        __tracebackhide__ = True
        found: AsyncClient = self._call(self._machine.client)
        return found

    def _run(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        __tracebackhide__ = True
        found: T = told_here(lambda: self._call(call))
        return found

    def wait(self, id: bytes | str, wait_ms: Milliseconds | None = TIMEOUT_MS) -> Task:
        __tracebackhide__ = True
        return self._run(functools.partial(self._machine.wait, id, wait_ms))

    def next_updates(
        self, id: bytes | str, after: TaskUpdate | None = None, *, wait_ms: Milliseconds | None = TIMEOUT_MS
    ) -> list[TaskUpdate]:
        __tracebackhide__ = True
        return self._run(functools.partial(self._machine.next_updates, id, after, wait_ms))

    def wait_flow(self, id: bytes | str, wait_ms: Milliseconds | None = None) -> dict[str, Any]:
        __tracebackhide__ = True
        return self._run(functools.partial(self._machine.wait_flow, id, wait_ms))

    def make_flow(self, flow: Flow[Any], **options: Any) -> FlowHandle:
        made = super().make_flow(flow, **options)
        return FlowHandle(self._run, _MachinesFlow(self._machine, self._opened(), made.id, made.ids))

    def flow_handle(self, id: bytes | str) -> FlowHandle:
        return FlowHandle(self._run, _MachinesFlow(self._machine, self._opened(), id))

    async def awaited(
        self,
        method: AsyncMethod[P, T],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        call = functools.partial(getattr(self, method.__name__), *args, **kwargs)
        found: T = await anyio.to_thread.run_sync(call)
        return found


class AwaitedClient(AsyncClient):
    """The `AsyncClient` of async code, on trio or asyncio."""

    def __init__(self, machine: Machine, elsewhere: Elsewhere) -> None:
        super().__init__()
        self._machine = machine
        self._elsewhere = elsewhere

    async def __aenter__(self) -> AwaitedClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Do nothing: the client stays open until the test is over."""

    def random_name(self) -> str:
        return self._machine.random_name()

    async def wait(self, id: bytes | str, wait_ms: Milliseconds | None = TIMEOUT_MS) -> Task:
        __tracebackhide__ = True
        return await self._waiting(functools.partial(self._machine.wait, id, wait_ms))

    async def next_updates(
        self, id: bytes | str, after: TaskUpdate | None = None, *, wait_ms: Milliseconds | None = TIMEOUT_MS
    ) -> list[TaskUpdate]:
        __tracebackhide__ = True
        return await self._waiting(functools.partial(self._machine.next_updates, id, after, wait_ms))

    async def wait_flow(self, id: bytes | str, wait_ms: Milliseconds | None = None) -> dict[str, Any]:
        __tracebackhide__ = True
        return await self._waiting(functools.partial(self._machine.wait_flow, id, wait_ms))

    async def _waiting(self, wait: Callable[[], Awaitable[T]]) -> T:
        """Wait on the machine; the wait counts as a call of the user."""

        async def inside() -> T:
            with self._machine.calling():
                return await wait()

        __tracebackhide__ = True
        found: T = await told_there(self._elsewhere(inside))
        return found

    async def make_flow(self, flow: Flow[Any], **options: Any) -> AsyncFlowHandle:
        made: AsyncFlowHandle = await _awaited("make_flow", AsyncClient.make_flow)(self, flow, **options)
        return AsyncFlowHandle(self, made.id, made.ids)

    def task_store(self, client_id: int | None = None) -> AsyncTaskStore:
        """Return the task store as seen by one of its clients; see `AsyncClient.task_store`."""

        async def ask(method: str, args: dict[str, Any]) -> Any:
            async def inside() -> Any:
                client = await self._machine.client()
                with self._machine.calling():
                    return await client._ask(method, args)

            return await told_there(self._elsewhere(inside))

        return AsyncTaskStore(ask, zlib.crc32(self.random_name().encode()) >> 1 if client_id is None else client_id)


def _awaited(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    async def call(self: AwaitedClient, *args: Any, **kwargs: Any) -> Any:
        async def inside() -> Any:
            client = await self._machine.client()
            with self._machine.calling():
                return await getattr(client, name)(*args, **kwargs)

        __tracebackhide__ = True
        return await told_there(self._elsewhere(inside))

    return call


for _name, _method in inspect.getmembers(AsyncClient, inspect.iscoroutinefunction):
    if not _name.startswith("_") and _name not in vars(AwaitedClient):
        setattr(AwaitedClient, _name, _awaited(_name, _method))
