"""Calls of running code about its task, and the data that a later attempt finds, on a whole cluster."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

import anyio
import pytest

from onyxq import App, blocking_context, context
from onyxq.client import AsyncClient
from onyxq.errors import Conflict
from onyxq.testing import Cluster, open_cluster
from onyxq.worker import TaskCancelled
from onyxq.worker.attempts import PROGRESS, Progress, latest_progress, pack, unpack
from simulation.world.network import SimulatedNetwork
from tests.interfaces.fake_service import FakeCluster, FakePeer
from tests.interfaces.worker_world import a_call, play_in_real_time, until, with_worker

BACKENDS = pytest.mark.parametrize("backend", ["trio", "asyncio"])


def results(cluster: Cluster, queue: str) -> list[Any]:
    """Return results of completed tasks."""
    return [task.result for task in cluster.tasks(queue, "completed")]


@BACKENDS
def test_a_later_attempt_goes_on_where_an_earlier_one_stopped(backend: str) -> None:
    """It reads the updates of earlier attempts; progress is not part of them."""
    app = App()

    @app.task(queue="q", retries=5, backoff_ms=10)
    async def index(pages: int) -> list[Any]:
        ctx = context()
        before = await ctx.earlier()
        first = max((entry.value["page"] + 1 for entry in before), default=0)
        for page in range(first, pages):
            assert await ctx.log({"page": page}) == page - first
            await ctx.progress(page + 1, pages)
            if page % 2:
                raise ValueError("half way")
        return [ctx.attempt, len(before), len({entry.token for entry in before})]

    with open_cluster(peers=1, seed=1, backend=backend) as cluster:
        cluster.use(app)
        task_id = index.enqueue(5)
        cluster.drain()
        assert results(cluster, "q") == [[3, 4, 2]]
        progress = index.progress(task_id)
        assert isinstance(progress, Progress)
        assert (progress.done, progress.total) == (5, 5)


def test_an_update_that_is_nested_too_deeply_is_bytes() -> None:
    """The progress of the task is then the one before it."""
    deep, update = b"[" * 100_000, pack({PROGRESS: {"done": 3}})
    assert unpack(deep) == deep
    assert latest_progress([(update, 5), (deep, 6)]) == Progress(3, None, "", 5)


def test_progress_is_stored_once_a_second_and_at_the_end() -> None:
    """This holds however often it is reported."""
    app = App()

    @app.task(queue="q")
    async def count() -> None:
        for number in range(100):
            await context().progress(number + 1, 100)
            await anyio.sleep(0.05)

    with open_cluster(peers=1, seed=1) as cluster:
        cluster.use(app)
        task_id = count.enqueue()
        cluster.drain()
        stored = [update.data for update in cluster.client().task_log(task_id)]
        assert 5 <= len(stored) <= 7
        assert stored[-1] == b'{"progress":{"done":100,"total":100,"note":""}}'


def test_a_function_in_a_thread_has_the_same_calls() -> None:
    """They block; it can also complete its task together with following tasks."""
    app = App()

    @app.task(queue="q", retries=2, backoff_ms=10)
    def first(number: int) -> None:
        ctx = blocking_context()
        if not ctx.earlier():
            ctx.log(number)
            raise ValueError("once more")
        with ctx.transaction({"found": ctx.earlier()[0].value}) as tx:
            second.enqueue_in(tx, number)

    @app.task(queue="r")
    def second(number: int) -> int:
        blocking_context().progress(1)
        return number + 1

    with open_cluster(peers=1, seed=1) as cluster:
        cluster.use(app)
        first.enqueue(7)
        cluster.drain()
        assert results(cluster, "q") == [{"found": 7}]
        assert results(cluster, "r") == [8]


@BACKENDS
def test_a_transaction_finishes_its_task_whatever_comes_after(backend: str) -> None:
    """The outcome is not reported twice."""
    app = App()

    @app.task(queue="q", retries=0)
    async def first() -> str:
        ctx = context()
        async with ctx.transaction("done") as tx:
            second.enqueue_in(tx, "x")
        raise ValueError("too late")

    @app.task(queue="r")
    async def second(text: str) -> str:
        return text

    with open_cluster(peers=1, seed=1, backend=backend) as cluster:
        cluster.use(app)
        first.enqueue()
        assert cluster.drain().failed == 0
        assert results(cluster, "q") == ["done"]
        assert results(cluster, "r") == ["x"]


def test_a_step_finds_the_results_of_those_before_it() -> None:
    """It is a chain of functions with a group in it; the last one joins."""
    app = App()

    @app.task(queue="q")
    async def pages(book: str) -> list[str]:
        return [f"{book}-{number}" for number in range(2)]

    @app.task(queue="q")
    def words(number: int) -> int:
        ((first, second),) = blocking_context().results()
        return len((first, second)[number]) + number

    @app.task(queue="q")
    async def total() -> int:
        return sum(await context().results())

    with open_cluster(peers=1, seed=1) as cluster:
        cluster.use(app)
        flow = app.chain(pages.s("b"), app.group(words.s(0), words.s(number=1)), total.s()).enqueue()
        cluster.drain()
        assert total.result(flow.last[0]) == 7
        assert pages.result(flow.ids[0]) == ["b-0", "b-1"]


def test_results_that_there_are_not_are_told() -> None:
    """This is for unfinished and failed tasks."""
    app = App()

    @app.task(queue="q", retries=0)
    async def fail() -> None:
        raise ValueError("boom")

    with open_cluster(peers=1, seed=1) as cluster:
        cluster.use(app)
        task_id = fail.enqueue()
        with pytest.raises(Exception, match="is ready: no worker serves queue"):
            fail.result(task_id, wait_ms=500)
        cluster.drain()
        with pytest.raises(Conflict, match="failed: ValueError: boom"):
            fail.result(task_id)


def test_there_is_no_context_where_no_task_runs() -> None:
    """There is an error that says so."""
    for ask in (context, blocking_context):
        with pytest.raises(Conflict, match="no task runs here"):
            ask()


@BACKENDS
def test_an_async_function_that_takes_too_long_has_failed(backend: str) -> None:
    """It is cancelled where it waits; the limit of a call has precedence over the function's, and so has none."""
    app = App()
    seen: list[bool] = []

    @app.task(queue="q", retries=0, timeout_s=50)
    async def wait(seconds: int) -> int:
        try:
            await anyio.sleep(seconds)
        finally:
            seen.append(context().cancelled)
        return seconds

    with open_cluster(peers=1, seed=1, backend=backend) as cluster:
        cluster.use(app)
        ids = [wait.enqueue(60), wait.options(timeout_s=100).enqueue(60), wait.options(timeout_s=5).enqueue(10)]
        ids.append(wait.options(timeout_s=None).enqueue(60))
        cluster.drain()
        found = {task.id: (task.state, task.error) for task in cluster.tasks("q")}
        assert [found[task_id][0] for task_id in ids] == ["failed", "completed", "failed", "completed"]
        assert "wait did not end within 50 s" in str(found[ids[0]][1])
        assert "wait did not end within 5 s" in str(found[ids[2]][1])
        assert sorted(seen) == [False, False, True, True]


def test_check_ends_an_attempt_that_is_to_end() -> None:
    """Otherwise it does nothing."""
    app = App()

    @app.task(queue="q")
    async def work() -> str:
        ctx = context()
        ctx.check()
        ctx._attempt.cancelled.set()
        with pytest.raises(TaskCancelled):
            ctx.check()
        return "went on"

    with open_cluster(peers=1, seed=1) as cluster:
        cluster.use(app)
        work.enqueue()
        cluster.drain()
        assert results(cluster, "q") == ["went on"]


@BACKENDS
def test_a_check_after_the_time_of_an_async_function_fails_the_attempt(backend: str) -> None:
    """It says so as if the event loop had cancelled the function; the worker and its other tasks continue."""
    app = App()

    @app.task(queue="q", timeout_s=5, retries=0)
    async def work(shielded: bool) -> str:
        with anyio.CancelScope(shield=shielded):
            await anyio.sleep(20 if shielded else 1)
        context().check()
        return "in time"

    with open_cluster(peers=1, seed=1, backend=backend) as cluster:
        cluster.use(app)
        late = work.enqueue(True)
        work.enqueue(False)
        cluster.drain()
        (failed,) = cluster.tasks("q", "failed")
        assert failed.id == late
        assert "work did not end within 5 s" in str(failed.error)
        assert results(cluster, "q") == ["in time"]


@BACKENDS
@pytest.mark.parametrize("grouped", [False, True])
def test_a_check_that_ends_a_cancelled_async_function_gives_the_task_back(backend: str, grouped: bool) -> None:
    """The attempt does not count, and the worker continues. The check may be in a task group of the function."""
    app, attempts = App(), list[int]()

    async def check() -> None:
        context().check()

    @app.task(queue="q", retries=0)
    async def work() -> str:
        ctx = context()
        attempts.append(ctx.attempt)
        if len(attempts) == 1:
            ctx._attempt.cancelled.set()
            if not grouped:
                ctx.check()
            async with anyio.create_task_group() as group:
                group.start_soon(check)
        return "done"

    with open_cluster(peers=1, seed=1, backend=backend) as cluster:
        cluster.use(app)
        work.enqueue()
        cluster.drain()
        assert attempts == [1, 1]
        assert results(cluster, "q") == ["done"]


@BACKENDS
def test_a_task_sees_nothing_that_the_one_before_it_set_in_its_context(backend: str) -> None:
    """The worker claims ahead, so most of these tasks begin where another one ends."""
    tenant: ContextVar[int | None] = ContextVar("tenant", default=None)
    seen: list[int | None] = []

    async def scenario(cluster: FakeCluster, network: SimulatedNetwork) -> None:
        app = App()

        @app.task(name="serve", queue="q")
        async def serve(number: int) -> None:
            seen.append(tenant.get())
            tenant.set(number)

        worker = app.worker(concurrency=1)

        async def body(client: AsyncClient, peer: FakePeer) -> None:
            await client.enqueue_many("q", [a_call("serve", number) for number in range(12)])
            await until(lambda: len(cluster.outcomes) == 12)
            worker.stop()

        await with_worker(cluster, network, worker, body)

    play_in_real_time(scenario, backend)
    assert seen == [None] * 12
