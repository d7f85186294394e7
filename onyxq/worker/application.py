"""The worker of an application: finds the function of a task and calls it in the right place.

Async functions run in the event loop, others in a thread or in a process (design: interfaces).
"""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, Protocol

import anyio
from attrs import frozen

from onyxq.client import OF_QUEUE, AsyncClient, Claim
from onyxq.client.connection_settings import ConnectionSettings
from onyxq.core.errors import OnyxqError, Overloaded, TimedOut
from onyxq.core.limits import NAME_CHARACTERS_MAX
from onyxq.core.task_headers import due_of
from onyxq.system import tracing
from onyxq.worker import periodic
from onyxq.worker.attempts import TaskCancelled, current_attempt, current_client, ended_by_check
from onyxq.worker.child import Work
from onyxq.worker.console import Policy
from onyxq.worker.contexts import current_bridge
from onyxq.worker.functions import TaskFunction
from onyxq.worker.handles import current_home
from onyxq.worker.loop import Worker
from onyxq.worker.options import TIMEOUT_S_MAX
from onyxq.worker.periodic import Periodic
from onyxq.worker.process import run_worker
from onyxq.worker.processes import Processes
from onyxq.worker.resources import Around, Opened, Resource
from onyxq.worker.retries import GiveUp, unknown_task
from onyxq.worker.threads import Threads

SETTINGS_FOR_S = 30.0
"""How long a worker uses what it read of a queue's settings, in seconds."""
SETTINGS_TIMEOUT_MS = 2_000

ENQUEUE_HINT = "enqueue with function.enqueue(...) or `onyxq task call`"

log = logging.getLogger(__name__)


class Parts(Protocol):
    """The parts of an application that its workers need."""

    tasks: dict[str, TaskFunction[..., Any]]
    periodics: list[Periodic]
    resources: list[Resource[Any]]
    middlewares: list[Callable[[], AbstractAsyncContextManager[None]]]


@frozen
class _Call:
    task: TaskFunction[..., Any]
    args: list[Any]
    kwargs: dict[str, Any]
    timeout_s: float | None


class AppWorker(Worker):
    """A `Worker` that runs an application's functions."""

    def __init__(self, parts: Parts, *, connection: ConnectionSettings, **settings: Any) -> None:
        super().__init__(self._call, **settings)
        self._parts = parts
        self._tasks = parts.tasks
        self._connection = connection
        self._tasks_per_process = settings.get("tasks_per_process")
        self.around: Around = lambda make: make()
        """Makes the context managers of resources and middleware."""
        self._settings: dict[str, tuple[float, dict[str, Any]]] = {}
        """Settings of queues, each with the monotonic second at which they were read."""
        self._threads: Threads
        self._processes: Processes
        self._resources: Opened

    def run(self, *, backend: str = "asyncio") -> None:
        """Work until SIGTERM or SIGINT; ``backend`` is ``asyncio`` or ``trio``."""
        run_worker(self, self._connection, backend=backend)

    async def serve(self, client: AsyncClient) -> None:
        async with AsyncExitStack() as stack:
            self._resources = Opened(self._parts.resources, stack, self.around)
            await self._resources.open()
            failure = await self._serve(client)
        if failure is not None:
            raise failure

    async def _serve(self, client: AsyncClient) -> OnyxqError | None:
        """Work until `stop`; return an error that no retry can fix."""
        failure: OnyxqError | None = None
        async with Threads(freed=self._wake, stopping=lambda: self._stopping) as self._threads:
            self._processes = Processes(
                self._threads,
                address=self._connection.address,
                token=self._connection.token,
                tasks_max=self._tasks_per_process,
            )
            try:
                await super().serve(client)
            except OnyxqError as error:
                failure = error
            finally:
                await self._processes.close()
        return failure

    def _slots(self) -> int:
        return super()._slots() - self._threads.left

    async def _resized(self) -> None:
        await self._processes.keep(self._slots() - self.running)

    # --- running

    async def _call(self, claim: Claim) -> bytes | None:
        call = await self._read(claim)
        attempt = current_attempt.get()
        attempt.name, attempt.retrying = call.task.name, call.task._options.retrying
        tracing.name_attempt(call.task.name)
        current_bridge.set(self._threads.call)
        current_home.set((call.task.app, self._connection.address))
        async with AsyncExitStack() as stack:
            for middleware in self._parts.middlewares:
                await stack.enter_async_context(self.around(middleware))
            return await self._run_call(call, claim)
        return None  # middleware caught the error

    async def _run_call(self, call: _Call, claim: Claim) -> bytes | None:
        function = call.task.function
        if inspect.iscoroutinefunction(function):
            return await self._in_time(call, lambda: self._in_loop(call))
        if call.task._options.runs == "process":
            return await self._in_time(call, lambda: self._in_process(call, claim))
        try:
            return await self._in_time(call, lambda: self._in_thread(call))
        finally:
            if self._slots() <= 0 and not self._stopping:
                self._give_up(Overloaded(
                    "no slot is left: functions still run in all of them although their attempts are over",
                    hint='Check ctx.cancelled in them, or use runs="process": OnyxQ can end a process.',
                ))  # fmt: skip

    async def _read(self, claim: Claim) -> _Call:
        """Return the call in a task's data; raise `GiveUp` for other data, and `UnknownTask` for an unknown name."""
        try:
            call = json.loads(claim.data) if claim.data else {}
            if type(call) is not dict:
                raise TypeError("it is not an object")
            name, args, kwargs = call["task"], call.get("args", []), call.get("kwargs", {})
            timeout_s = call.get("timeout_s")
            if type(args) is not list or type(kwargs) is not dict:
                raise TypeError("args is a list, kwargs an object")
            if type(name) is not str:
                raise TypeError("task is a name")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            problem = "'task' is missing" if isinstance(error, KeyError) else str(error)
            raise GiveUp(f"the data is not a call of a function ({problem}): {ENQUEUE_HINT}") from None
        task = self._tasks.get(name)
        if task is None:
            age_ms = await current_client.get().now_ms() - due_of(claim.run.header, claim.id)
            current_attempt.get().name = name[:NAME_CHARACTERS_MAX]
            raise unknown_task(name, list(self._tasks), age_ms / 1000)
        if "timeout_s" not in call:
            timeout_s = task._options.timeout_s
        elif timeout_s is not None and (type(timeout_s) not in (int, float) or not 0 < timeout_s <= TIMEOUT_S_MAX):
            raise GiveUp(
                f"timeout_s in the task's data must be a number above 0 and at most {TIMEOUT_S_MAX}, not {timeout_s!r}"
            )
        return _Call(task, args, kwargs, timeout_s)

    async def _in_time(self, call: _Call, run: Callable[[], Any]) -> bytes | None:
        attempt, overdue = current_attempt.get(), False
        with anyio.move_on_after(call.timeout_s) as scope:
            attempt.ends_at = scope.deadline
            try:
                result: bytes | None = await run()
            except (TaskCancelled, BaseExceptionGroup) as error:
                # An async function asked its context after its time and before its event loop cancelled it.
                is_over = anyio.current_time() >= scope.deadline and not attempt.cancelled.is_set()
                overdue = is_over and ended_by_check(error)
                if not overdue:
                    raise
        if scope.cancelled_caught or overdue:
            raise TimedOut(
                f"{call.task.name} did not end within {call.timeout_s:g} s",
                hint="Raise timeout_s of @app.task(...) or of the call, or let the function do less per task.",
            )
        return result

    async def _in_loop(self, call: _Call) -> bytes | None:
        arguments = call.task.arguments
        args, kwargs = arguments.read(call.args, call.kwargs)
        kwargs |= self._resources.of(arguments.resources)
        return arguments.result(await call.task.function(*args, **kwargs))

    async def _in_thread(self, call: _Call) -> bytes | None:
        arguments = call.task.arguments
        args, kwargs = arguments.read(call.args, call.kwargs)
        kwargs |= self._resources.of(arguments.resources)

        def run() -> bytes | None:
            return arguments.result(call.task.function(*args, **kwargs))

        return await self._threads.run(run, cancelled=current_attempt.get().cancelled)

    async def _in_process(self, call: _Call, claim: Claim) -> bytes | None:
        function = call.task.function
        work = Work(
            module=function.__module__,
            qualname=function.__qualname__,
            name=call.task.name,
            id=claim.id,
            token=claim.token,
            attempts=claim.attempts,
            queue=claim.queue,
            depends=claim.depends,
            args=call.args,
            kwargs=call.kwargs,
            trace=tracing.carried(),
        )
        return await self._processes.run(work, current_attempt.get(), current_client.get())

    async def _policy(self, client: AsyncClient, claim: Claim) -> Policy:
        policy = await super()._policy(client, claim)
        if policy.retries is not OF_QUEUE and policy.backoff_ms is not None:
            return policy
        settings = await self._settings_of(client, claim.queue)
        of_queue = settings.get("retries", OF_QUEUE), settings.get("backoff_ms")
        return Policy(
            of_queue[0] if policy.retries is OF_QUEUE else policy.retries,
            of_queue[1] if policy.backoff_ms is None else policy.backoff_ms,
        )

    async def _settings_of(self, client: AsyncClient, queue: str) -> dict[str, Any]:
        """Return the settings of a queue; nothing if they cannot be read now."""
        read_at, settings = self._settings.get(queue, (float("-inf"), {}))
        now = anyio.current_time()
        if now >= read_at + SETTINGS_FOR_S:
            try:
                found = await client.call("queue.get", {"queue": queue}, timeout_ms=SETTINGS_TIMEOUT_MS)
                settings = found["settings"]
            except OnyxqError as error:
                log.debug("the settings of queue %s are not known: %s", queue, error.message)
            self._settings[queue] = now, settings
        return settings

    async def _beside(self, client: AsyncClient) -> None:
        await periodic.keep(
            client,
            self._parts.periodics,
            tasks=self._tasks,
            queues=self.queues,
            give_up=self._give_up,
            done=self._is_set_up,
        )
