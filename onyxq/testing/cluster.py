"""The cluster that a test uses: `Cluster` for plain tests, `AsyncCluster` for async ones.

Both are an in-memory cluster of real peers on a clock that jumps. They have the same calls; in an async test the
calls that take simulated time are awaited.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Concatenate, ParamSpec, TypeVar

import trio

from onyxq.system.durations import Seconds, as_seconds
from onyxq.testing.clients import AwaitedClient, BlockingClient, told_here, told_there
from onyxq.testing.core import Core
from onyxq.testing.loop import Loop
from onyxq.testing.workers import Run, RunningWorker
from onyxq.worker import Worker, current_client
from onyxq.worker.app import App, only_tested

P = ParamSpec("P")
R = TypeVar("R")

PAUSE_FIRST_S, PAUSE_MAX_S = 0.01, 0.5
"""Shortest and longest pause between two checks of a condition, in simulated seconds."""


class _Handle:
    """The part of a cluster that needs no simulated time."""

    def __init__(self, core: Core) -> None:
        self._core = core

    @property
    def seed(self) -> int:
        """The seed that decides delays and the order of events."""
        return self._core.seed

    @property
    def now_ms(self) -> int:
        """The cluster's wall clock in milliseconds since the epoch; it starts in November 2023."""
        return self._core.now_ms()

    @property
    def now(self) -> datetime:
        """The cluster's wall clock, in UTC."""
        return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=self._core.now_ms())

    @property
    def peers(self) -> list[str]:
        """Names of the peers' machines."""
        return self._core.peer_names()

    @property
    def workers(self) -> list[RunningWorker]:
        """Workers that are running."""
        return self._core.working()

    def use(self, app: App) -> App:
        """Connect an application: ``function.enqueue(...)`` then reaches this cluster, and `drain` runs its tasks."""
        return self._core.use(app)

    def runs(self, task: Any = None) -> list[Run]:
        """Return every run of a handler so far, of one task function (or name) if given."""
        name = getattr(task, "name", task)
        return [run for run in self._core.runs if name in (None, run.name)]


def _blocking(method: Callable[Concatenate[Core, P], Awaitable[R]]) -> Callable[Concatenate[Cluster, P], R]:
    @functools.wraps(method)
    def call(self: Cluster, /, *args: P.args, **kwargs: P.kwargs) -> R:
        __tracebackhide__ = True
        bound = functools.partial(method, self._core, *args, **kwargs)
        return told_here(functools.partial(self._core.loop.call, bound))

    return call


def _awaited(
    method: Callable[Concatenate[Core, P], Awaitable[R]],
) -> Callable[Concatenate[AsyncCluster, P], Awaitable[R]]:
    @functools.wraps(method)
    async def call(self: AsyncCluster, /, *args: P.args, **kwargs: P.kwargs) -> R:
        __tracebackhide__ = True
        bound = functools.partial(method, self._core, *args, **kwargs)
        found: R = await told_there(self._core.elsewhere(bound))
        return found

    return call


class Cluster(_Handle):
    """A cluster for a plain test; time passes only during its calls."""

    def client(self) -> BlockingClient:
        """Return a new open client; it is closed with the cluster."""
        return BlockingClient(self._core.machine("client"), self._core.loop.call)

    def start_worker(self, source: App | Worker | None = None, **settings: Any) -> RunningWorker:
        """Start a worker of an application (default: the one in use), with the settings of `App.worker`."""
        return self._core.loop.call(functools.partial(self._core.start_worker, source, settings))

    def until(self, condition: Callable[[], object], *, within_s: Seconds = 600) -> None:
        """Let time pass until ``condition()`` is true; it may use the cluster.

        Raises `AssertionError` after ``within_s`` simulated seconds.
        """
        __tracebackhide__ = True
        for pause_s in _pauses(self._core, condition, as_seconds(within_s, "within_s")):
            if condition():
                return
            self.sleep(pause_s)

    stop_worker = _blocking(Core.stop_worker)
    drain = _blocking(Core.drain)
    advance = _blocking(Core.advance)
    sleep = _blocking(Core.sleep)
    settle = _blocking(Core.settle)
    tasks = _blocking(Core.tasks)
    counts = _blocking(Core.counts)
    kill_worker = _blocking(Core.kill_worker)
    expire_leases = _blocking(Core.expire_leases)
    lose_answers = _blocking(Core.lose_answers)
    kill_peer = _blocking(Core.kill_peer)
    start_peer = _blocking(Core.start_peer)
    expire_session = _blocking(Core.expire_session)
    freeze_log = _blocking(Core.freeze_log)
    partition_network = _blocking(Core.partition_network)
    heal_network = _blocking(Core.heal_network)


class AsyncCluster(_Handle):
    """A cluster for an async test: the calls of `Cluster`, awaited."""

    @property
    def blocking(self) -> Cluster:
        """The same cluster for plain code: fixtures and handlers that are not async."""
        return Cluster(self._core)

    def client(self) -> AwaitedClient:
        """Return a new open client; it is closed with the cluster."""
        return self._core.awaited_client(self._core.machine("client"))

    async def start_worker(self, source: App | Worker | None = None, **settings: Any) -> RunningWorker:
        """Start a worker of an application (default: the one in use), with the settings of `App.worker`."""
        found: RunningWorker = await self._core.elsewhere(functools.partial(self._core.start_worker, source, settings))
        return found

    async def until(self, condition: Callable[[], object], *, within_s: Seconds = 600) -> None:
        """Let time pass until ``condition()``, async or not, is true.

        Raises `AssertionError` after ``within_s`` simulated seconds.
        """
        __tracebackhide__ = True
        for pause_s in _pauses(self._core, condition, as_seconds(within_s, "within_s")):
            found = condition()
            if await found if inspect.isawaitable(found) else found:
                return
            await self.sleep(pause_s)

    stop_worker = _awaited(Core.stop_worker)
    drain = _awaited(Core.drain)
    advance = _awaited(Core.advance)
    sleep = _awaited(Core.sleep)
    settle = _awaited(Core.settle)
    tasks = _awaited(Core.tasks)
    counts = _awaited(Core.counts)
    kill_worker = _awaited(Core.kill_worker)
    expire_leases = _awaited(Core.expire_leases)
    lose_answers = _awaited(Core.lose_answers)
    kill_peer = _awaited(Core.kill_peer)
    start_peer = _awaited(Core.start_peer)
    expire_session = _awaited(Core.expire_session)
    freeze_log = _awaited(Core.freeze_log)
    partition_network = _awaited(Core.partition_network)
    heal_network = _awaited(Core.heal_network)


def _pauses(core: Core, condition: Callable[[], object], within_s: float) -> Iterator[float]:
    """Yield growing pauses between two checks; raise `AssertionError` when the time is over."""
    __tracebackhide__ = True
    pause_s, end_s = PAUSE_FIRST_S, core.now_s() + within_s
    while (left_s := end_s - core.now_s()) > 0:
        yield min(pause_s, left_s)
        pause_s = min(1.5 * pause_s, PAUSE_MAX_S)
    yield 0.0  # a last check
    name = getattr(condition, "__qualname__", repr(condition))
    code = getattr(condition, "__code__", None)
    where = f" ({code.co_filename}:{code.co_firstlineno})" if code is not None else ""
    raise AssertionError(f"not within {within_s:g} simulated seconds: {name}{where}")


@contextmanager
def open_cluster(*, seed: int = 0, peers: int = 3, backend: str = "asyncio") -> Iterator[Cluster]:
    """Open a cluster without pytest: ``with open_cluster() as cluster``.

    ``seed`` decides delays and the order of events. ``peers`` is from 1 to 9. ``backend``, ``asyncio`` or ``trio``, is
    the event loop of async handlers. See the fixture ``onyxq_cluster``.
    """
    loop = Loop(seed=seed)
    core = Core(loop, seed=seed, peers=peers, backend=backend)
    loop.open(core.start)
    try:
        with only_tested(core.apps):
            yield Cluster(core)
    finally:
        core.finish()
        loop.close()


def run_async(cluster: Cluster, test: Callable[[], Any]) -> None:
    """Run an async test in the cluster's time, in the event loop of its backend."""
    core = cluster._core

    async def inside() -> None:
        core.test_task = trio.lowlevel.current_task()
        current_client.set(core.awaited_client(core.machine("client")))
        await core.in_backend(test)

    core.loop.call(inside)
