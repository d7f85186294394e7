"""The test kit's resources and middleware: they belong to the event loop of the functions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar

import anyio
import pytest

from onyxq import App, context
from onyxq.testing import open_cluster

Loop = asyncio.AbstractEventLoop


def test_resources_are_opened_and_closed_in_the_event_loop_of_asyncio() -> None:
    """Whether they are async or not; each is opened and closed in one task."""
    app, said = App(), list[str]()

    @app.resource
    async def pool() -> AsyncIterator[Loop]:
        async with asyncio.TaskGroup() as group, asyncio.timeout(3_600):
            waits = group.create_task(asyncio.sleep(1_000))
            await asyncio.sleep(1)
            yield asyncio.get_running_loop()
            said.append("closed")
            waits.cancel()

    @app.resource
    def plain() -> Iterator[Loop]:
        yield asyncio.get_running_loop()

    @app.task(queue="q", retries=0)
    async def use(db: Loop = pool, other: Loop = plain) -> bool:
        return db is other is asyncio.get_running_loop()

    with open_cluster(seed=1, peers=1) as cluster:
        cluster.use(app)
        task = use.enqueue()
        cluster.drain()
        assert task.result()
        assert said == ["closed"]


def test_middleware_runs_in_the_event_loop_of_asyncio() -> None:
    """It gets the errors of functions, may change or catch them, and sets variables for the functions."""
    app, tenant, said = App(), ContextVar("tenant", default=0), list[str]()

    @app.middleware
    async def around() -> AsyncIterator[None]:
        tenant.set(7)
        async with asyncio.timeout(3_600):
            await context().log("begun")
            try:
                yield
            except KeyError:
                said.append("caught")
            except ValueError:
                raise TypeError("changed") from None
            except asyncio.CancelledError:
                said.append("cancelled")
                raise

    @app.task(queue="q", retries=0)
    async def run(error: str) -> int:
        if error == "sleep":
            await asyncio.sleep(10_000)
        if error == "key":
            raise KeyError
        if error == "value":
            raise ValueError
        return tenant.get()

    @app.task(queue="q", retries=0)
    def plain() -> int:
        return tenant.get()

    with open_cluster(seed=1, peers=1) as cluster:
        cluster.use(app)
        tasks = [run.enqueue(""), plain.enqueue(), run.enqueue("key"), run.enqueue("value")]
        cluster.drain()
        found = {task.id: (task.result, task.error) for task in cluster.tasks()}
        assert [found[task] for task in tasks] == [(7, None), (7, None), (None, None), (None, "TypeError: changed")]
        cluster.start_worker()
        run.enqueue("sleep")
        cluster.until(lambda: cluster.runs(run)[-1].outcome == "running")
        cluster.kill_worker()
        assert said == ["caught", "cancelled"]


def test_a_time_limit_of_middleware_ends_the_function() -> None:
    """The function ends first, as if it ran in the same task; the rest of the middleware may take its time."""
    app, said = App(), list[str]()

    @app.middleware
    async def limit() -> AsyncIterator[None]:
        try:
            if context().name == "asyncio":
                async with asyncio.timeout(5):
                    yield
            else:
                with anyio.fail_after(5):
                    yield
        finally:
            await asyncio.sleep(100)
            said.append("left")

    async def run(error: bool) -> None:
        if error:
            raise ValueError("early")
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(1)
            said.append("ended")

    tasks = [app.task(name=name, queue="q", retries=0)(run) for name in ("asyncio", "anyio")]
    with open_cluster(seed=1, peers=1) as cluster:
        cluster.use(app)
        for task in tasks:
            task.enqueue(True)
            cluster.drain()
            task.enqueue(False)
            cluster.drain()
        assert [task.error for task in cluster.tasks("q")] == 2 * ["ValueError: early", "TimeoutError"]
        assert said == 2 * ["left", "ended", "left"]


def test_middleware_that_cancels_itself_fails_the_task() -> None:
    """Before and after the function. Other tasks are not affected."""
    app = App()

    @app.middleware
    async def around() -> AsyncIterator[None]:
        if context().attempt == 1:
            raise asyncio.CancelledError
        yield
        raise asyncio.CancelledError

    @app.task(queue="q", retries=1, backoff_ms=1_000)
    async def run() -> None: ...

    with open_cluster(seed=1, peers=1) as cluster:
        cluster.use(app)
        run.enqueue()
        cluster.drain()
        (task,) = cluster.tasks("q")
        assert (task.state, task.error) == ("failed", "RuntimeError: a resource or middleware cancelled itself")


def test_a_resource_that_cannot_be_opened_ends_the_test_with_its_error() -> None:
    """The end of the cluster raises the same error, and no other one that hides it."""
    app = App()

    @app.resource
    async def pool() -> AsyncIterator[None]:
        raise OSError("no database")
        yield

    @app.task(queue="q")
    async def use() -> None: ...

    with pytest.raises(ExceptionGroup) as caught, open_cluster(seed=1, peers=1) as cluster:
        cluster.use(app)
        use.enqueue()
        cluster.drain()
    assert caught.group_contains(OSError, match="no database")
