"""Functions that are not async, in a worker's threads: their calls, and their stop."""

from __future__ import annotations

import logging
import threading
from typing import Any

import anyio
import pytest

from onyxq import App, blocking_context
from onyxq.client import AsyncClient
from onyxq.errors import Overloaded
from onyxq.worker import TaskCancelled, contextual_logs, threads
from simulation.world.network import SimulatedNetwork
from tests.interfaces.fake_service import FakeCluster, FakePeer
from tests.interfaces.worker_world import a_call, play_in_real_time, until, with_worker

BACKENDS = pytest.mark.parametrize("backend", ["trio", "asyncio"])


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that do not end are abandoned soon."""
    monkeypatch.setattr(threads, "GRACE_S", 0.1)


@BACKENDS
def test_a_thread_says_what_it_does_over_the_workers_connection(backend: str) -> None:
    """Updates and enqueues need no other connection."""

    async def scenario(cluster: FakeCluster, network: SimulatedNetwork) -> None:
        app = App("nowhere:1")
        found: list[Any] = []

        @app.task(name="first", queue="q")
        def first() -> str:
            ctx = blocking_context()
            found.append((ctx.name, ctx.queue, ctx.attempt, ctx.token, ctx.cancelled))
            assert [ctx.log({"step": 1}), ctx.log(b"\xff"), ctx.log("done")] == [0, 1, 2]
            second.enqueue(7)
            return threading.current_thread().name

        @app.task(name="second", queue="q")
        def second(number: int) -> int:
            return number

        worker = app.worker()

        async def body(client: AsyncClient, peer: FakePeer) -> None:
            await client.enqueue("q", a_call("first"))
            await until(lambda: len(cluster.outcomes) == 2)
            worker.stop()
            assert sorted(cluster.outcomes.values()) == [b'"onyxq task"', b"7"]
            assert [(seq, data) for _, _, seq, data in cluster.updates] == [
                (0, b'{"step":1}'),
                (1, b"\xff"),
                (2, b'"done"'),
            ]
            assert found == [("first", "q", 1, 1, False)]

        await with_worker(cluster, network, worker, body)

    play_in_real_time(scenario, backend)


@BACKENDS
def test_a_thread_that_is_cancelled_ends_where_it_checks(backend: str) -> None:
    """Its claim is gone: nothing is reported, and its slot is free."""

    async def scenario(cluster: FakeCluster, network: SimulatedNetwork) -> None:
        app = App()
        began, ended = threading.Event(), threading.Event()

        @app.task(name="wait", queue="q")
        def wait() -> None:
            ctx = blocking_context()
            began.set()
            try:
                ctx.sleep(60)
            except TaskCancelled:
                ended.set()
                raise

        worker = app.worker(lease_ms=1_000)

        async def body(client: AsyncClient, peer: FakePeer) -> None:
            task_id = await client.enqueue("q", a_call("wait"))
            await until(began.is_set)
            cluster.steal(task_id)
            await until(lambda: worker.held == 0)
            assert ended.is_set()
            assert peer.methods("release", "fail", "complete") == []
            worker.stop()

        await with_worker(cluster, network, worker, body)

    play_in_real_time(scenario, backend)


@BACKENDS
def test_a_thread_that_takes_too_long_has_failed(backend: str) -> None:
    """It learns this; a result shortly afterwards still counts."""

    async def scenario(cluster: FakeCluster, network: SimulatedNetwork) -> None:
        app = App()

        @app.task(name="obeys", queue="q", timeout_s=0.05)
        def obeys() -> None:
            blocking_context().sleep(60)

        @app.task(name="saves", queue="q", timeout_s=0.05)
        def saves() -> str:
            ctx = blocking_context()
            try:
                ctx.sleep(60)
            except TaskCancelled:
                return "what there was"
            return "all"

        worker = app.worker()

        async def body(client: AsyncClient, peer: FakePeer) -> None:
            ids = await client.enqueue_many("q", [a_call("obeys"), a_call("saves")])
            await until(lambda: len(cluster.outcomes) == 2)
            assert cluster.outcomes[ids[0]].message == "TimedOut: obeys did not end within 0.05 s"
            assert cluster.outcomes[ids[1]] == b'"what there was"'
            worker.stop()

        await with_worker(cluster, network, worker, body)

    play_in_real_time(scenario, backend)


@BACKENDS
def test_a_thread_that_never_ends_keeps_its_slot_until_it_does(backend: str) -> None:
    """Its attempt is over nevertheless, and threads do not accumulate."""

    async def scenario(cluster: FakeCluster, network: SimulatedNetwork) -> None:
        app = App()
        go_on = threading.Event()

        @app.task(name="stuck", queue="q", timeout_s=0.05)
        def stuck() -> None:
            go_on.wait()

        @app.task(name="good", queue="q")
        def good() -> None:
            """Returns."""

        worker = app.worker(concurrency=2)

        async def body(client: AsyncClient, peer: FakePeer) -> None:
            await client.enqueue("q", a_call("stuck"))
            await until(lambda: len(cluster.outcomes) == 1)
            assert worker._slots() == 1
            await client.enqueue("q", a_call("good"))
            await until(lambda: len(cluster.outcomes) == 2)
            go_on.set()
            await until(lambda: worker._slots() == 2)
            worker.stop()

        await with_worker(cluster, network, worker, body)

    play_in_real_time(scenario, backend)


def test_a_worker_without_a_slot_left_ends_with_the_reason() -> None:
    """Its supervisor may restart it; its threads do not keep the process alive."""

    async def scenario(cluster: FakeCluster, network: SimulatedNetwork) -> None:
        app = App()
        go_on = threading.Event()

        @app.task(name="stuck", queue="q", timeout_s=0.01)
        def stuck() -> None:
            go_on.wait()

        await cluster.start(network.host("a"), "a:1")
        async with AsyncClient("a:1", network=network.host("w")) as client:
            await client.enqueue_many("q", [a_call("stuck")] * 2)
            with pytest.raises(Overloaded, match="no slot is left"):
                await app.worker(concurrency=2).serve(client)
        assert all(isinstance(found, Exception) for found in cluster.outcomes.values())
        go_on.set()

    play_in_real_time(scenario, "trio")


@BACKENDS
def test_a_second_signal_leaves_a_thread_and_gives_its_task_back(
    backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    """This happens soon, and is not counted. Its slot does not matter any more."""

    async def scenario(cluster: FakeCluster, network: SimulatedNetwork) -> None:
        app = App()
        began, go_on = threading.Event(), threading.Event()

        @app.task(name="stuck", queue="q")
        def stuck() -> None:
            began.set()
            go_on.wait()

        worker = app.worker()

        async def body(client: AsyncClient, peer: FakePeer) -> None:
            await client.enqueue("q", a_call("stuck"))
            await until(began.is_set)
            worker.stop()
            worker.stop()

        await with_worker(cluster, network, worker, body)
        assert cluster.tokens == cluster.outcomes == {}
        assert "keeps its slot" not in caplog.text
        go_on.set()

    play_in_real_time(scenario, backend)


def test_records_of_the_log_tell_the_task(caplog: pytest.LogCaptureFixture) -> None:
    """This is so in threads, in the event loop, and outside of tasks."""
    before = logging.getLogRecordFactory()
    contextual_logs()
    contextual_logs()

    async def scenario(cluster: FakeCluster, network: SimulatedNetwork) -> None:
        app = App()
        log = logging.getLogger("shop")

        @app.task(name="thread", queue="q")
        def thread() -> None:
            log.warning("thread")

        @app.task(name="loop", queue="q")
        async def loop() -> None:
            log.warning("loop")

        worker = app.worker()

        async def body(client: AsyncClient, peer: FakePeer) -> None:
            ids = await client.enqueue_many("q", [a_call("thread"), a_call("loop")])
            await until(lambda: len(cluster.outcomes) == 2)
            log.warning("outside")
            said: dict[str, Any] = {record.message: record for record in caplog.records}
            for name, task_id in zip(("thread", "loop"), ids, strict=True):
                record = said[name]
                assert (record.task_id, record.task_name) == (task_id.hex(), name)
                assert (record.task_queue, record.task_attempt) == ("q", 1)
            assert said["outside"].task_id == "-"
            worker.stop()

        await with_worker(cluster, network, worker, body)

    try:
        with caplog.at_level(logging.WARNING):
            play_in_real_time(scenario, "trio")
    finally:
        logging.setLogRecordFactory(before)


@BACKENDS
def test_a_call_into_the_worker_fails_once_it_has_ended(backend: str) -> None:
    """An abandoned thread does not hang in it."""

    async def main() -> None:
        failed: list[BaseException] = []
        go_on, over = threading.Event(), threading.Event()

        async def nothing() -> None:
            """Never called."""

        def function() -> None:
            go_on.wait()
            try:
                pool.call(nothing)
            except BaseException as error:
                failed.append(error)
            over.set()

        async with threads.Threads() as pool:
            with anyio.move_on_after(0.01):
                await pool.run(function)
            assert pool.left == 1
        go_on.set()
        assert over.wait(10)
        assert isinstance(failed[0], RuntimeError)

    anyio.run(main, backend=backend)
