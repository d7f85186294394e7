"""What functions share: resources that a worker opens, middleware around attempts, and processes that are replaced."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from onyxq import App, blocking_context, context
from onyxq.client import AsyncClient
from onyxq.errors import BadRequest
from simulation.world.network import SimulatedNetwork
from tests.interfaces.fake_service import FakeCluster, FakePeer, play
from tests.interfaces.worker_tasks import app as in_processes
from tests.interfaces.worker_world import a_call, play_in_real_time, until, with_worker

BACKENDS = pytest.mark.parametrize("backend", ["trio", "asyncio"])


def ran(app: App, *calls: bytes, backend: str = "trio", **settings: Any) -> list[Any]:
    """Let a worker run calls in the queue ``q``, one after the other; return their outcomes."""
    outcomes: list[Any] = []

    async def scenario(cluster: FakeCluster, network: SimulatedNetwork) -> None:
        worker = app.worker(concurrency=1, **settings)

        async def body(client: AsyncClient, peer: FakePeer) -> None:
            ids = [await client.enqueue(worker.queues[0], call) for call in calls]
            await until(lambda: len(cluster.outcomes) == len(ids))
            outcomes.extend(cluster.outcomes[task_id] for task_id in ids)
            worker.stop()

        await with_worker(cluster, network, worker, body)

    play_in_real_time(scenario, backend)
    return [one if isinstance(one, Exception) else json.loads(one or b"null") for one in outcomes]


@BACKENDS
def test_a_resource_is_opened_once_and_closed_at_the_end(backend: str) -> None:
    """The functions get its value, also those in threads; callers do not give it."""
    app, said = App(), list[str]()

    @app.resource
    async def pool() -> AsyncIterator[list[str]]:
        said.append("pool opened")
        yield said
        said.append("pool closed")

    @app.resource
    def hook() -> Iterator[None]:
        said.append("started")
        yield
        said.append("stopped")

    @app.task(queue="q", name="send")
    async def send(to: str, db: list[str] = pool) -> str:
        db.append(f"send {to}")
        return to

    @app.task(queue="q", name="index")
    def index(*, db: list[str] = pool, book: str = "all") -> str:
        db.append(f"index {book}")
        return book

    assert ran(app, a_call("send", "ann"), a_call("index", book="b"), backend=backend) == ["ann", "b"]
    assert said == ["pool opened", "started", "send ann", "index b", "stopped", "pool closed"]
    assert send.payload("ann") == b'{"task":"send","args":["ann"],"kwargs":{}}'


def test_the_value_of_a_resource_cannot_be_sent() -> None:
    """It is refused by callers, and by workers whose payload comes from another program."""
    app = App()

    @app.resource
    def pool() -> Iterator[str]:
        yield "pool"

    @app.task(queue="q", name="send")
    async def send(to: str, db: str = pool) -> str:
        return db

    for call in (lambda: send.payload("ann", "mine"), lambda: send.payload("ann", db="mine")):
        with pytest.raises(BadRequest, match="filled by the worker"):
            call()
    (error,) = ran(app, a_call("send", "ann", db="mine"))
    assert "filled by the worker" in str(error)


def test_a_resource_that_cannot_be_opened_ends_the_worker() -> None:
    """It claims nothing, and closes what is open."""
    app, said = App(), list[str]()

    @app.resource
    def first() -> Iterator[None]:
        try:
            yield
        finally:
            said.append("closed")

    @app.resource
    def second() -> Iterator[None]:
        raise OSError("no database")
        yield

    @app.task(queue="q", name="send")
    async def send() -> None:
        """A task."""

    async def scenario(cluster: FakeCluster, network: SimulatedNetwork) -> None:
        peer = await cluster.start(network.host("a"), "a:1")
        async with AsyncClient("a:1", network=network.host("w")) as client:
            with pytest.raises(OSError, match="no database"):
                await app.worker().serve(client)
        assert said == ["closed"] and peer.methods("claim") == []

    play(scenario)


def test_a_wrong_resource_is_refused_where_it_is_declared() -> None:
    """This holds for functions that do not yield, and for async ones that a process would need."""
    app = App()
    wrong: Any = lambda: 5  # noqa: E731
    for declare in (app.resource, app.middleware):
        with pytest.raises(BadRequest):
            declare(wrong)

    @app.resource
    async def pool() -> AsyncIterator[str]:
        yield "pool"

    with pytest.raises(BadRequest) as caught:
        app.task(runs="process")(_uses(pool))
    assert caught.value.field == "runs"


def _uses(pool: Any) -> Any:
    def work(db: str = pool) -> None:
        """A task."""

    work.__qualname__ = "work"
    return work


@BACKENDS
def test_middleware_runs_around_each_attempt(backend: str) -> None:
    """The first one is the outermost; it sees the task, its error, and may replace it. It need not be async."""
    app, said = App(), list[str]()

    @app.middleware
    def outer() -> Iterator[None]:
        try:
            yield
        except KeyError as error:
            said.append(f"outer saw {error!r}")
            raise ValueError("replaced") from error
        finally:
            said.append("outer ends")

    @app.middleware
    async def inner() -> AsyncIterator[None]:
        said.append(f"{context().name} begins")
        yield
        said.append("inner ends")

    @app.task(queue="q", name="good")
    def good() -> int:
        return blocking_context().attempt

    @app.task(queue="q", name="bad")
    async def bad() -> None:
        raise KeyError("boom")

    result, error = ran(app, a_call("good"), a_call("bad"), backend=backend)
    assert (result, str(error)) == (1, "ValueError: replaced")
    assert said == ["good begins", "inner ends", "outer ends", "bad begins", "outer saw KeyError('boom')", "outer ends"]


def test_a_process_is_replaced_after_its_tasks() -> None:
    """Memory that a library does not give back is given back then."""
    calls = [a_call("pid", number) for number in range(5)]
    pids = [found[0] for found in ran(in_processes, *calls, tasks_per_process=2)]
    assert pids[0] == pids[1] != pids[2] == pids[3] != pids[4]
    with pytest.raises(BadRequest):
        in_processes.worker(tasks_per_process=0)


def test_a_process_opens_resources_of_its_own(tmp_path: Any) -> None:
    """They are opened at their first use and closed when the process ends."""
    path = str(tmp_path / "said")
    first, second = ran(in_processes, a_call("shared", path), a_call("shared", path))
    assert first == second
    with open(path, encoding="utf-8") as file:
        assert file.read() == "closed"


def test_a_task_in_a_process_sees_nothing_that_the_one_before_it_set_in_its_context() -> None:
    """The process is the same."""
    assert ran(in_processes, a_call("serve", 1), a_call("serve", 2)) == [0, 0]
