"""Workers of a cluster under test: the real loop, around handlers that can be observed and killed."""

from __future__ import annotations

import contextvars
import copy
import functools
import inspect
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, NoReturn, Protocol

import trio
from attrs import define, field

from onyxq.testing.clients import AwaitedClient, Machine
from onyxq.testing.entered import EnteredInBackend
from onyxq.testing.loop import BlockingThread, Loop
from onyxq.worker import Worker, current_bridge, current_client
from onyxq.worker.app import App, TaskFunction

MOMENT_S = 0.000_001
"""Delay after which all code that could run has run, in seconds: simulated time passes only when all wait."""


class WorkerKilled(BaseException):
    """Death of a worker, raised where it dies to end all its code."""


@define
class Run:
    """One run of a handler."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    worker: str
    started_s: float
    """Simulated seconds since the cluster started."""
    ended_s: float | None = None
    outcome: str = "running"
    """running, returned, raised, stopped (the claim was lost, or the worker stopped) or killed."""
    error: BaseException | None = None


@define(eq=False)
class Plan:
    """Plan to kill a worker at the next run of a task."""

    task: str
    when: str
    """When the worker dies: ``during`` or ``after`` the run."""


class Surroundings(Protocol):
    """The part of a cluster that its workers need."""

    loop: Loop
    runs: list[Run]
    plans: list[Plan]
    backend: str
    nursery: trio.Nursery

    async def in_backend(self, make: Callable[[], Any]) -> Any:
        """Run a coroutine in the event loop of the cluster's backend."""

    def awaited_client(self, machine: Machine) -> AwaitedClient:
        """Return a machine's client for the user's code."""

    def kill(self, worker: RunningWorker) -> None:
        """Kill the worker now and start another one in its place."""


current_worker: contextvars.ContextVar[RunningWorker] = contextvars.ContextVar("current_worker")


@define(eq=False)
class RunningWorker:
    """A worker in its own simulated process."""

    name: str
    source: App | Worker
    settings: dict[str, Any]
    machine: Machine
    around: Surroundings = field(repr=False)
    queues: tuple[str, ...] = ()
    alive: bool = True
    stopping: bool = False
    scope: trio.CancelScope = field(factory=trio.CancelScope, repr=False)
    ended: trio.Event = field(factory=trio.Event, repr=False)
    threads: list[BlockingThread] = field(factory=list, repr=False)
    worker: Worker = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self.worker = self.source if isinstance(self.source, Worker) else self._watched(self.source)
        self.queues = tuple(self.worker.queues)

    @property
    def held(self) -> int:
        """Number of claims that it holds now."""
        return self.worker.held

    async def run(self) -> None:
        """Work until stopped or killed."""
        current_worker.set(self)
        try:
            with self.scope:
                await self.worker.serve(await self.machine.client())
        except WorkerKilled:
            pass
        finally:
            self.alive = False
            self.ended.set()

    def _watched(self, app: App) -> Worker:
        """Return the worker of a copy of the application, with functions that report their runs."""
        watched = copy.copy(app)
        watched._given = {**app._given, "address": self.name}  # an App with a directory would start its own cluster
        watched.tasks = {}
        for name, task in app.tasks.items():
            watched.tasks[name] = TaskFunction(app, self._handler(task), name=name, options=task._options)
        worker = watched.worker(name=self.name, **self.settings)
        if self.around.backend == "asyncio":
            worker.around = self._entered
        return worker

    def _entered(self, make: Callable[[], AbstractAsyncContextManager[Any]]) -> EnteredInBackend[Any]:
        """Return a context manager of the application's as its worker enters it."""
        around = self.around
        client = around.awaited_client(self.machine)
        return EnteredInBackend(make, nursery=around.nursery, in_backend=around.in_backend, client=client)

    def _handler(self, task: TaskFunction[..., Any]) -> Callable[..., Any]:
        function = task.function

        @functools.wraps(function)
        async def handle(*args: Any, **kwargs: Any) -> Any:
            if inspect.iscoroutinefunction(function):
                current_client.set(self.around.awaited_client(self.machine))
                call = functools.partial(self.around.in_backend, functools.partial(function, *args, **kwargs))
            else:
                current_bridge.set(self.around.loop.call)
                bound = functools.partial(function, *args, **kwargs)
                call = functools.partial(trio.to_thread.run_sync, bound, abandon_on_cancel=True)
            return await self._attempt(Run(task.name, args, kwargs, self.name, trio.current_time()), call)

        return handle

    async def _attempt(self, run: Run, call: Callable[[], Awaitable[Any]]) -> Any:
        around = self.around
        around.runs.append(run)
        plan = next((plan for plan in around.plans if plan.task == run.name), None)
        if plan is not None:
            around.plans.remove(plan)
        try:
            if plan is not None and plan.when == "during":
                around.nursery.start_soon(self._die_soon)
            result = await call()
            run.outcome = "returned"
        except WorkerKilled:
            await self._die(run)
        except Exception as error:
            run.outcome, run.error = "raised", error
            if plan is None:
                raise
        except BaseException:
            run.outcome = "killed" if not self.alive else "stopped"
            raise
        finally:
            run.ended_s = trio.current_time()
        if plan is not None:
            await self._die(run)
        return result

    async def _die_soon(self) -> None:
        await trio.sleep(MOMENT_S)
        if self.alive:
            self.around.kill(self)

    async def _die(self, run: Run) -> NoReturn:
        run.outcome = "killed"
        if self.alive:
            self.around.kill(self)
        await trio.sleep_forever()
        raise AssertionError("unreachable")
