"""Handles: what the code that enqueued a task can do with it."""

from __future__ import annotations

import asyncio
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
import trio

import onyxq
from onyxq import App, blocking_context, context
from onyxq.client import AsyncClient
from onyxq.core.facts import task_header
from onyxq.errors import BadRequest, Conflict, TaskFailed, TimedOut, Unavailable
from onyxq.interfaces.local_cluster import LocalCluster
from onyxq.testing import Cluster, open_cluster
from simulation.world.network import SimulatedNetwork
from tests.interfaces.fake_service import FakeCluster, FakePeer, play
from tests.interfaces.worker_world import a_call, play_in_real_time, until, with_worker

app = App()


@app.task(queue="q", retries=0)
async def double(number: int) -> int:
    if number < 0:
        raise ValueError("it is below 0")
    return 2 * number


@app.task(queue="q")
async def count(to: int) -> int:
    ctx = context()
    for number in range(to):
        await ctx.log({"at": number})
        await asyncio.sleep(5)
    await ctx.progress(to, to, note="done")
    return to


@app.task(queue="q")
async def outer(number: int) -> int:
    return 1 + await (await double.enqueue_async(number))


@app.task(queue="q")
async def outer_flow(number: int) -> int:
    flow = await app.chain(double.s(number)).then(double.s(number + 1)).enqueue_async()
    return await double.handle(flow.last[0])


@app.task(queue="q")
async def outer_made(number: int) -> int:
    flow = await app.group(double.s(number)).make_async("inner", on_done=double.s(number + 1))
    assert await flow.state_async() in ("waiting", "running")
    assert (await flow.wait_async(timeout="1m"))["counts"] == {"completed": 2}
    return await double.handle(flow.ids[0])


@app.task(queue="q")
def outer_thread(number: int) -> int:
    assert blocking_context().attempt == 1
    return 1 + double.enqueue(number).result(timeout="1m")


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A cluster in simulated time that the application uses."""
    with open_cluster(peers=1, seed=1) as cluster:
        cluster.use(app)
        yield cluster


def test_a_handle_is_the_id_and_knows_the_result(cluster: Cluster) -> None:
    """Its text is the 40 hex digits; every call that takes an id takes it."""
    task = double.enqueue(4)
    assert task.id == str(task) == task.hex() and len(task.id) == 40 and task.id in repr(task)
    assert cluster.client().get(task).state == "ready" and cluster.client().get(task.id).id == task
    after = double.options(depends=[task]).enqueue(5)
    assert pickle.loads(pickle.dumps(task)) == task and type(pickle.loads(pickle.dumps(task))) is bytes
    cluster.drain()
    assert (task.result(), after.result("1s"), double.handle(task.id).result()) == (8, 10, 8)
    assert {task: 1}[bytes(task)] == 1  # type: ignore[index]  # equal to the plain id


def test_a_task_that_fails_has_no_result(cluster: Cluster) -> None:
    """The error says why; a result that is late is another error."""
    task = double.enqueue(-1)
    with pytest.raises(TimedOut):
        task.result(timeout=0.5)
    cluster.drain()
    with pytest.raises(TaskFailed, match="ValueError: it is below 0") as failed:
        task.result()
    assert isinstance(failed.value, Conflict)


def test_a_handle_knows_the_state(cluster: Cluster) -> None:
    """It is read from the cluster at each call."""
    task = double.enqueue(4)
    assert task.state() == "ready"
    cluster.drain()
    assert task.state() == "completed"
    assert repr(cluster.client().get(task)) == f"<task {task.id} of queue 'q': completed>"


@pytest.mark.parametrize(("name", "here"), [("status", "state()"), ("get", "result()"), ("nothing", "'nothing'")])
def test_names_of_other_queues_are_answered_with_ours(name: str, here: str) -> None:
    """Users of Celery or RQ type them first."""
    with pytest.raises(AttributeError, match=re.escape(here)):
        getattr(double.handle("00" * 20), name)
    with pytest.raises(AttributeError, match=r"no attribute 'delay'; use enqueue\(\.\.\.\)"):
        getattr(double, "delay")  # noqa: B009  # type checkers know that it does not exist
    assert not hasattr(double, "nothing")


def test_a_part_of_an_id_is_for_the_command_line() -> None:
    """A program that has a part has lost the rest."""
    with pytest.raises(BadRequest, match="not 'abc'") as refused:
        double.handle("abc")
    assert "first digits of an id are enough on the command line only" in refused.value.advice
    with pytest.raises(BadRequest) as refused:
        double.handle("no id")
    assert not refused.value.advice


def test_a_task_is_cancelled_by_its_handle(cluster: Cluster) -> None:
    """It never runs."""
    task = double.enqueue(1)
    task.cancel()
    with pytest.raises(TaskFailed, match="cancelled"):
        task.result()


def test_updates_come_while_the_task_runs_and_end_with_it(cluster: Cluster) -> None:
    """Each comes once, in order; the last progress is read on its own."""
    task = count.enqueue(3)
    assert task.progress() is None
    cluster.start_worker(app)
    found = [entry.value for entry in task.updates()]
    assert found == [{"at": 0}, {"at": 1}, {"at": 2}, {"progress": {"done": 3, "total": 3, "note": "done"}}]
    progress = task.progress()
    assert progress is not None and (progress.done, progress.note) == (3, "done")
    assert [entry.value for entry in task.updates()] == found


def test_a_task_waits_for_another(cluster: Cluster) -> None:
    """Functions, async or not, use the worker's connection."""
    tasks = [outer.enqueue(1), outer_thread.enqueue(2), outer_flow.enqueue(3), outer_made.enqueue(5)]
    cluster.drain()
    assert [task.result() for task in tasks] == [3, 5, 8, 10]


def test_a_flow_of_calls_is_made_cancelled_and_found_again(cluster: Cluster) -> None:
    """Its id is that of the dashboard. A call again makes no second task."""
    flow = app.chain(double.s(1), double.s(2))
    made = flow.make("doubles", on_done=double.s(3))
    assert (made.state(), len(made.ids), flow.make("doubles", on_done=double.s(3)).id) == ("waiting", 2, made.id)
    assert [one["name"] for one in cluster.client().flows()["flows"]] == ["doubles"]
    app.flow_handle(made.id).cancel()
    assert made.wait(timeout=5)["counts"] == {"cancelled": 3}
    with pytest.raises(Conflict, match="is cancelled"):
        made.requeue()
    assert repr(made) == f"<flow {made.id}>"


def test_many_calls_are_enqueued_at_once(cluster: Cluster) -> None:
    """Keys are made of each call's arguments; calls are by position or by name."""
    tasks = double.options(ordering_key="n {number}").enqueue_many([(1,), {"number": 2}, (3,)])
    assert [cluster.client().get(task).ordering_key for task in tasks] == ["n 1", "n 2", "n 3"]
    cluster.drain()
    assert [task.result() for task in tasks] == [2, 4, 6]
    assert double.enqueue_many([]) == []


@pytest.mark.parametrize(
    ("calls", "field"),
    [
        ([(1,), ("a",)], "calls[1].args.number"),
        ([(1,), {"numbr": 2}], "calls[1].args.numbr"),
        ([(1,), (2,), [3]], "calls[2]"),
        (["abc"], "calls[0]"),
    ],
)
def test_one_wrong_call_of_many_is_named_and_none_is_sent(cluster: Cluster, calls: list[Any], field: str) -> None:
    """The error names the call and its argument."""
    with pytest.raises(BadRequest) as refused:
        double.enqueue_many(calls)
    assert refused.value.field == field
    assert cluster.client().count() == {}


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_async_code_awaits_a_task_and_its_loop_runs_on(tmp_path: Path, backend: str) -> None:
    """This is so outside of workers, on both event loops; a wait that is given up ends at once."""
    real = App()

    @real.task(queue="real")
    async def add(a: int, b: int) -> int:
        await context().log("half")
        return a + b

    async def main(address: str) -> None:
        real.address = address
        tasks = [await add.enqueue_async(1, 2), *await add.enqueue_many_async([(3, 4), (5, 6)])]
        with anyio.move_on_after(0.05) as scope:
            await tasks[0]
        assert scope.cancelled_caught
        with pytest.raises(TimedOut):
            await tasks[0].result_async(timeout="10ms")
        worker = real.worker()
        async with AsyncClient(address) as client, anyio.create_task_group() as group:
            group.start_soon(worker.serve, client)
            assert [await task for task in tasks] == [3, 7, 11]
            assert [entry.value async for entry in tasks[1].updates()] == ["half"]
            assert await tasks[1].progress_async() is None
            worker.stop()
        with pytest.raises(Conflict):
            await tasks[0].cancel_async()
        await anyio.to_thread.run_sync(real.close)

    async def in_cluster() -> None:
        async with LocalCluster(peers=1, data=str(tmp_path)) as cluster:
            await trio.to_thread.run_sync(lambda: anyio.run(main, cluster.addresses[0], backend=backend))

    trio.run(in_cluster)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_call_that_would_stop_an_event_loop_is_told(backend: str, caplog: pytest.LogCaptureFixture) -> None:
    """In a worker's loop it would never end, so it is refused; elsewhere it is logged once."""

    async def scenario(cluster: FakeCluster, network: SimulatedNetwork) -> None:
        fake = App("nowhere:1")

        @fake.task(queue="q", name="outer")
        async def outer() -> None:
            inner.enqueue()

        @fake.task(queue="q", name="inner")
        def inner() -> None:
            """A task."""

        worker = fake.worker()

        async def body(client: AsyncClient, peer: FakePeer) -> None:
            task = await client.enqueue("q", a_call("outer"))
            await until(lambda: task in cluster.outcomes)
            assert "would stop the worker's event loop" in cluster.outcomes[task].message
            worker.stop()

        await with_worker(cluster, network, worker, body)
        away = App("127.0.0.1:1", connect_timeout_ms=1)
        lonely = away.task(print)
        for _ in range(2):
            with pytest.raises(Unavailable):
                lonely.enqueue()
        away.close()

    play(scenario, backend=backend)
    assert caplog.text.count("stops the event loop meanwhile") == 1


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_task_of_an_application_at_another_address_goes_there(backend: str) -> None:
    """A worker's connection serves its own application, those at the same addresses, and those without one.

    The worker's application may be moved by a command: it then has the address of the program, and another one.
    """

    async def scenario(cluster: FakeCluster, network: SimulatedNetwork) -> None:
        mine, other = App("program:1"), App("127.0.0.1:1", connect_timeout_ms=1)
        mine.address = "nowhere:1,nowhere:2"
        near = {"same": App("program:1"), "moved": App(["nowhere:2", "nowhere:3"]), "plain": App()}
        here = [one.task(queue=queue, name="note")(print) for queue, one in near.items()]
        there = other.task(queue="there")(print)

        @mine.task(queue="q", name="outer", retries=0)
        async def outer() -> None:
            for one in here:
                await one.enqueue_async()
            await there.enqueue_async()

        @mine.task(queue="q", name="blocking", retries=0)
        def blocking() -> None:
            there.enqueue()

        worker = mine.worker()

        async def body(client: AsyncClient, peer: FakePeer) -> None:
            tasks = [await client.enqueue("q", a_call(name)) for name in ("outer", "blocking")]
            await until(lambda: cluster.outcomes.keys() >= set(tasks))
            assert all("127.0.0.1:1" in cluster.outcomes[task].message for task in tasks)
            assert {task_header(row)[0]["queue"] for row in cluster.rows.values()} == {"q", *near}
            worker.stop()

        await with_worker(cluster, network, worker, body)
        other.close()

    play_in_real_time(scenario, backend)


def test_a_client_that_is_not_open_says_so_to_async_code() -> None:
    """`Client.awaited` needs an open client."""
    client = onyxq.Client("127.0.0.1:1")

    async def main() -> None:
        with pytest.raises(onyxq.errors.Unavailable, match="not open"):
            await client.awaited(AsyncClient.get, b"")

    anyio.run(main)
