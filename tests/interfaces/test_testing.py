"""The test kit from a user's tests: time, handlers, workers (design: interfaces)."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
import threading
import time
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import trio

import onyxq.testing.loop
from onyxq import App, Client
from onyxq.client import Claim
from onyxq.testing import Cluster, NotDrained, die_here, open_cluster
from onyxq.testing.loop import HandlerBlocked
from onyxq.worker import Worker, current_claim, current_client


def outcomes(cluster: Cluster, task: object = None) -> list[str]:
    """Return the outcome of every run of a handler."""
    return [run.outcome for run in cluster.runs(task)]


# --- time


def test_time_stands_still_between_calls() -> None:
    """Simulated time does not pass while the test itself works, however long that takes."""
    with open_cluster(peers=1) as cluster:
        before = cluster.now_ms
        sum(range(200_000))
        assert cluster.now_ms == before
        cluster.advance(90)
        assert cluster.now_ms == before + 90_000
        assert (cluster.now.timestamp() * 1000) == pytest.approx(cluster.now_ms)


def test_a_month_passes_at_once() -> None:
    """Time jumps while everything waits, and due work on the way is done."""
    app = App()
    seen: list[int] = []

    @app.task
    def note() -> None:
        seen.append(cluster.now_ms)

    with open_cluster(seed=3) as cluster:
        cluster.use(app)
        start_ms, began = cluster.now_ms, time.perf_counter()
        days = (1, 2, 29)
        for day in days:
            note.options(delay_ms=day * 86_400_000).enqueue()
        cluster.start_worker()
        cluster.advance(30 * 86_400)
        assert time.perf_counter() - began < 20
        assert [round((at_ms - start_ms) / 86_400_000, 3) for at_ms in seen] == list(days)
        assert 0 <= cluster.now_ms - start_ms - 30 * 86_400_000 < 1_000


def test_a_condition_that_never_holds_is_named() -> None:
    """`until` fails after its simulated seconds and names its condition."""

    def the_moon_is_full() -> bool:
        return False

    with open_cluster(peers=1) as cluster:
        before = cluster.now_ms
        with pytest.raises(AssertionError, match="not within 20 simulated seconds: .*the_moon_is_full"):
            cluster.until(the_moon_is_full, within_s=20)
        assert cluster.now_ms == before + 20_000


def test_a_condition_may_use_the_cluster() -> None:
    """It is evaluated in the test's own thread, between two steps of time."""
    with open_cluster(seed=1) as cluster:
        client = cluster.client()
        client.enqueue("q", b"x", delay_ms=10_000)
        cluster.until(lambda: cluster.counts()["q"]["ready"] and client.claim("q"))
        assert len(cluster.tasks("q", "claimed")) == 1


def test_a_test_may_run_trio_and_asyncio_for_itself() -> None:
    """Between two calls the cluster does not run."""

    async def five() -> int:
        await anyio.lowlevel.checkpoint()
        return 5

    with open_cluster(peers=1) as cluster:
        assert trio.run(five) == asyncio.run(five()) == anyio.run(five) == 5
        cluster.client().enqueue("q", b"x")
        assert trio.run(five) == 5


# --- handlers


def test_back_off_grows_and_costs_no_time() -> None:
    """A handler that fails three times is tried again later and later."""
    app = App()

    @app.task(name="flaky", retries=5, backoff_ms=60_000)
    def flaky() -> int:
        if len(cluster.runs(flaky)) < 4:
            raise ValueError("not yet")
        return 42

    with open_cluster(seed=1) as cluster:
        cluster.use(app)
        flaky.enqueue()
        done = cluster.drain()
        starts = [run.started_s for run in cluster.runs(flaky)]
        pauses = [later - earlier for earlier, later in zip(starts, starts[1:], strict=False)]
        assert (done.completed, done.failed, done.runs) == (1, 0, 4)
        assert 30 <= pauses[0] < pauses[1] < pauses[2] < 300
        [task] = cluster.tasks(state="completed")
        assert (task.name, task.result, task.attempts) == ("flaky", 42, 3)
        assert outcomes(cluster) == ["raised", "raised", "raised", "returned"]
        assert str(cluster.runs(flaky)[0].error) == "not yet"


def test_a_blocking_handler_sleeps_and_enqueues_in_simulated_time() -> None:
    """It may use the cluster, the application's client and its claim as usual."""
    app = App()

    @app.task(queue="long")
    def first() -> float:
        began_ms = cluster.now_ms
        cluster.sleep(100)  # longer than the lease, which is renewed
        app.client.update(current_claim.get(), b"half way")
        second.enqueue(7)
        return (cluster.now_ms - began_ms) / 1000

    @app.task(queue="short")
    def second(number: int) -> int:
        return number

    with open_cluster(seed=2) as cluster:
        cluster.use(app)
        task_id = first.enqueue()
        assert cluster.drain().completed == 2
        assert [task.result for task in cluster.tasks()] == [pytest.approx(100, abs=0.1), 7]
        assert [update.data for update in cluster.client().task_log(task_id)] == [b"half way"]


def test_an_asyncio_handler_has_all_of_asyncio() -> None:
    """Timers, tasks, timeouts, threads of asyncio and anyio, and the worker's client use simulated time."""
    app = App()
    seen: list[Any] = []

    @app.task
    async def handler() -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await asyncio.gather(asyncio.sleep(30), anyio.sleep(20))
        seen.append(round(loop.time() - began))
        try:
            await asyncio.wait_for(asyncio.Event().wait(), 5)
        except TimeoutError:
            seen.append("timeout")
        seen.append(await asyncio.to_thread(threading.current_thread) is not threading.main_thread())
        seen.append(await anyio.to_thread.run_sync(cluster.sleep, 10))
        await current_client.get().update(current_claim.get(), b"u")
        seen.append((await current_client.get().get(current_claim.get().id)).updates)
        await asyncio.gather(*(other.enqueue_async(number) for number in range(3)))

    @app.task
    async def other(number: int) -> None:
        seen.append(number)

    with open_cluster(seed=4) as cluster:
        cluster.use(app)
        handler.enqueue()
        assert cluster.drain().completed == 4
        assert seen[:5] == [30, "timeout", True, None, 1]
        assert sorted(seen[5:]) == [0, 1, 2]


def test_a_trio_handler_runs_in_trio() -> None:
    """``backend="trio"``: handlers are the run's own tasks."""
    app = App()

    @app.task
    async def handler() -> str:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 50)
        await other.enqueue_async()
        return "trio"

    @app.task
    async def other() -> None:
        await trio.lowlevel.checkpoint()

    with open_cluster(seed=4, backend="trio") as cluster:
        cluster.use(app)
        handler.enqueue()
        done = cluster.drain()
        assert done.completed == 2 and done.seconds > 50
        assert cluster.tasks()[0].result == "trio"


def test_a_blocking_call_in_an_async_handler_says_what_to_do() -> None:
    """It would stop the worker in production; here it fails with a hint."""
    app = App()

    @app.task(retries=0)
    async def handler() -> None:
        handler.enqueue()

    with open_cluster(seed=4) as cluster:
        cluster.use(app)
        handler.enqueue()
        cluster.drain()
        assert "await function.enqueue_async" in str(cluster.runs()[0].error)


def test_a_handler_that_blocks_for_real_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A blocking handler that waits for an impossible event ends the test, with the line of the wait."""
    monkeypatch.setattr(onyxq.testing.loop, "BLOCKED_S_MAX", 0.2)
    app = App()
    never = threading.Event()

    @app.task
    def handler() -> None:
        never.wait(10)  # it will never be set

    with open_cluster(seed=4) as cluster:
        cluster.use(app)
        handler.enqueue()
        with pytest.raises(HandlerBlocked, match=r"to sleep in it use cluster.sleep(?s:.*)never\.wait\(10\)"):
            cluster.drain()
        never.set()


def test_a_handler_that_never_sleeps_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler that only yields stops simulated time; the test fails instead of running for ever."""
    monkeypatch.setattr("simulation.world.scheduling.ROUNDS_MAX", 5_000)
    app = App()

    @app.task
    async def handler() -> None:
        while True:
            await anyio.lowlevel.checkpoint()

    with open_cluster(seed=4, peers=1, backend="trio") as cluster:
        cluster.use(app)
        handler.enqueue()
        with pytest.raises(AssertionError, match="the simulated clock stands still"):
            cluster.drain()


def test_a_foreign_thread_is_refused() -> None:
    """An unknown thread would make the order of events random."""
    with open_cluster(peers=1) as cluster:
        client, errors = cluster.client(), []

        def foreign() -> None:
            try:
                client.enqueue("q", b"x")
            except RuntimeError as error:
                errors.append(str(error))

        thread = threading.Thread(target=foreign)
        thread.start()
        thread.join()
        assert errors == ["a simulated cluster is used from the thread of its test, and from its handlers only"]


def test_the_client_is_the_client() -> None:
    """What `client` gives is a `Client`, in a ``with`` block or without."""
    with open_cluster(peers=1) as cluster, cluster.client() as client:
        assert isinstance(client, Client)
        client.enqueue_many("q", [b"1", b"2"])
        claims = client.claim("q", max=2)
        client.complete(claims, b"done")
        assert cluster.counts()["q"]["completed"] == 2
        assert [task.data for task in cluster.tasks("q", "completed")] == [b"1", b"2"]


def test_the_application_is_given_back() -> None:
    """After the test, the application's client is its own again."""
    app = App()
    with open_cluster(peers=1) as cluster:
        cluster.use(app)
        assert app.client.count() == {}
    assert app._client is None


# --- workers that die


def test_a_task_runs_again_when_its_worker_dies_before_the_outcome_is_known() -> None:
    """``after=``: the handler ended; the lease expires; another worker repeats the task."""
    app = App()

    @app.task
    def charge() -> None: ...

    with open_cluster(seed=5) as cluster:
        cluster.use(app)
        cluster.kill_worker(after=charge)
        charge.enqueue()
        done = cluster.drain()
        assert (done.completed, done.runs) == (1, 2)
        assert done.seconds > 29
        assert outcomes(cluster) == ["killed", "returned"]
        assert [run.worker for run in cluster.runs()] == ["worker-1", "worker-2"]
        [task] = cluster.tasks()
        assert [claim.outcome for claim in task.claims] == ["expired", "completed"]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_worker_dies_where_its_handler_first_waits(backend: str) -> None:
    """``during=``: the dead worker does nothing after the wait."""
    app = App()
    steps: list[str] = []

    @app.task
    async def handler() -> None:
        steps.append("before")
        await anyio.sleep(1)
        steps.append("after")

    with open_cluster(seed=5, backend=backend) as cluster:
        cluster.use(app)
        cluster.kill_worker(during=handler)
        handler.enqueue()
        assert cluster.drain().runs == 2
        assert steps == ["before", "before", "after"]
        assert outcomes(cluster) == ["killed", "returned"]


def test_a_killed_workers_blocking_handler_does_not_go_on() -> None:
    """Its thread ends at its present line."""
    app = App()
    steps: list[str] = []

    @app.task
    def handler() -> None:
        steps.append("before")
        cluster.sleep(10)
        steps.append("after")

    with open_cluster(seed=6) as cluster:
        cluster.use(app)
        cluster.start_worker()
        handler.enqueue()
        cluster.until(lambda: steps)
        cluster.kill_worker()
        cluster.advance(20)
        assert steps == ["before"]
        cluster.drain()
        assert steps == ["before", "before", "after"]


def test_a_worker_may_die_at_a_chosen_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """`die_here` replaces a function that the handler calls; no ``except Exception`` stops it."""
    app = App()

    class Books:
        @staticmethod
        def record() -> None: ...

    @app.task
    def pay() -> str:
        try:
            Books.record()
        except Exception:
            return "swallowed"
        return "paid"

    with open_cluster(seed=7) as cluster:
        cluster.use(app)
        pay.enqueue()
        with monkeypatch.context() as patch:
            patch.setattr(Books, "record", die_here)
            cluster.start_worker(app)
            cluster.until(lambda: outcomes(cluster) == ["killed"])
        cluster.drain()
        assert [task.result for task in cluster.tasks()] == ["paid"]


@pytest.mark.long
def test_a_blocking_handler_that_lost_its_lease_is_not_heard() -> None:
    """Its thread continues, as in production; its result is dropped, and the task runs again."""
    app = App()

    @app.task
    def slow() -> int:
        number = len(cluster.runs(slow))
        cluster.sleep(300)
        return number

    with open_cluster(seed=8) as cluster:
        cluster.use(app)
        cluster.start_worker(lease_ms=10_000)
        slow.enqueue()
        cluster.until(lambda: cluster.runs(slow))
        cluster.expire_leases()
        assert outcomes(cluster) == ["stopped"]
        cluster.drain()
        assert [task.result for task in cluster.tasks()] == [2]


def test_a_worker_that_is_stopped_gives_back_what_it_has_not_begun() -> None:
    """As on SIGTERM, running tasks are finished, and others can be claimed at once."""
    app = App()

    @app.task
    async def handler(number: int) -> int:
        await asyncio.sleep(5)
        return number

    with open_cluster(seed=9) as cluster:
        cluster.use(app)
        for number in range(4):
            handler.enqueue(number)
        worker = cluster.start_worker(concurrency=1)
        cluster.until(lambda: worker.held > 0)
        cluster.stop_worker(worker)
        assert not worker.alive and cluster.workers == []
        assert cluster.counts()["default"]["completed"] == 1
        assert cluster.counts()["default"]["ready"] == 3


def test_a_worker_without_an_application_can_be_used() -> None:
    """A `Worker` made by hand is run as it is."""

    async def body(claim: Claim) -> bytes:
        await anyio.sleep(1)
        return claim.data[::-1]

    with open_cluster(seed=9) as cluster:
        cluster.start_worker(Worker(body, queues=["raw"]))
        cluster.client().enqueue("raw", b"abc")
        assert cluster.drain().completed == 1
        assert [task.result for task in cluster.tasks("raw")] == [b"cba"]


# --- draining


def test_a_drain_leaves_what_is_due_too_late() -> None:
    """Tasks that are due later than its limit are counted, not run."""
    app = App()

    @app.task
    def note() -> None: ...

    with open_cluster(seed=10) as cluster:
        cluster.use(app)
        note.options(delay_ms=1_000_000).enqueue()
        note.options(delay_ms=3_000_000).enqueue()
        done = cluster.drain(reach_s=2_000)
        assert (done.completed, done.left) == (1, 1)
        assert cluster.drain().completed == 1
        assert cluster.drain() == cluster.drain()


def test_a_drain_without_a_worker_says_so() -> None:
    """The error names the queue, the tasks, and the function to call."""
    with open_cluster(seed=10) as cluster:
        cluster.client().enqueue("mail", b"letter")
        with pytest.raises(NotDrained) as caught:
            cluster.drain()
    said = str(caught.value)
    assert "no worker serves queue 'mail' (cluster.use(app) before draining" in said
    assert "1 task is not finished:\n  data b'letter' in queue 'mail': ready" in said


def test_a_drain_names_a_handler_that_never_ends() -> None:
    """It fails when nothing has started or ended for a while, in simulated time."""
    app = App()

    @app.task(name="wait_for")
    async def wait_for(what: str) -> None:
        await asyncio.Event().wait()

    with open_cluster(seed=11) as cluster:
        cluster.use(app)
        wait_for.enqueue(what="godot")
        with pytest.raises(NotDrained) as caught:
            cluster.drain(patience_s=120)
    said = str(caught.value)
    assert "no handler has begun or ended for 120 simulated seconds" in said
    assert "wait_for(what='godot') in queue 'default': claimed by worker-1" in said


def test_a_drain_ends_tasks_without_end() -> None:
    """A task that enqueues itself is detected by the number of runs."""
    app = App()

    @app.task
    def again(number: int) -> None:
        again.enqueue(number + 1)

    with open_cluster(seed=11, peers=1) as cluster:
        cluster.use(app)
        again.enqueue(0)
        with pytest.raises(
            NotDrained, match=r"handlers have run 5\d times \(runs_max\): do tasks enqueue tasks without end"
        ):
            cluster.drain(runs_max=50)


@pytest.mark.long
def test_a_drain_mentions_faults_that_stand_in_its_way() -> None:
    """The message names a dead peer or a parted network."""
    app = App()

    @app.task
    def note() -> None: ...

    with open_cluster(seed=12) as cluster:
        cluster.use(app)
        note.enqueue()
        cluster.kill_peer("n0")
        cluster.kill_peer("n1")
        with pytest.raises(NotDrained, match="Mind that peers n0, n1 are down"):
            cluster.drain(patience_s=30)
        cluster.start_peer("n0")
        cluster.start_peer("n1")
        assert cluster.drain().completed == 1


# --- repeatable

PROGRAM = """
    import asyncio
    from onyxq import App
    from onyxq.testing import open_cluster
    app = App()
    @app.task(retries=3)
    async def work(n):
        await asyncio.sleep(n)
        if n == 3 and len(cluster.runs(work)) < 12:
            raise ValueError(n)
        if n < 3: await work.enqueue_async(n + 1)
    @app.task
    def plain(n):
        cluster.sleep(n)
        work.enqueue(0)
    with open_cluster(seed=SEED) as cluster:
        cluster.use(app)
        cluster.kill_worker(after=plain)
        for n in range(4):
            work.enqueue(n); plain.enqueue(n)
        cluster.kill_peer()
        print(cluster.drain())
        for run in cluster.runs():
            print(run.name, run.args, run.worker, run.started_s, run.ended_s, run.outcome)
        for task in cluster.tasks():
            print(task, task.claims)
"""


def told(seed: int, hash_seed: str) -> str:
    """Return the output of a program in an interpreter of its own."""
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM).replace("SEED", str(seed))],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    return ended.stdout


@pytest.mark.long
def test_the_same_seed_is_the_same_run_in_every_process() -> None:
    """Threads, asyncio, a killed worker and peer: ids, times and tokens are equal; another seed's are not."""
    first = told(1, "1")
    assert first == told(1, "1") == told(1, "2")
    assert first != told(2, "1")
