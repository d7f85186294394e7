"""The test kit's clients for transactions, flows and lists, in tests and in handlers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from onyxq import App, Client, Step, blocking_context, context
from onyxq.errors import Conflict, StaleToken, TimedOut
from onyxq.testing import AsyncCluster, Cluster, open_cluster
from onyxq.testing.cluster import run_async


def states(cluster: Cluster) -> dict[str, str]:
    """Return every task's queue and state."""
    return {task.queue: task.state for task in cluster.tasks()}


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_an_async_test_commits_transactions(backend: str) -> None:
    """A transaction applies completely; with an invalid claim, or if the block raises, it has no effect."""
    with open_cluster(seed=1, peers=1, backend=backend) as cluster:
        around = AsyncCluster(cluster._core)

        async def test() -> None:
            client = around.client()
            await client.enqueue("in", b"1")
            (claim,) = await client.claim("in", wait_ms=1_000)
            with pytest.raises(ZeroDivisionError):
                async with client.transaction() as tx:
                    tx.enqueue("never", b"1")
                    raise ZeroDivisionError
            async with client.transaction() as tx:
                tx.complete(claim, b"done")
                tx.enqueue("out", b"2")
            assert tx.committed is not None
            (out,) = tx.committed.ids
            assert (await client.get(out)).data == b"2"
            with pytest.raises(StaleToken):
                await client.transact(complete=[claim], enqueue=[{"queue": "never", "data": b"2"}])
            (again,) = await client.claim("out", wait_ms=1_000)
            await client.transact(complete=[(again, b"3")])
            assert (await client.get(out)).result == b"3"

        run_async(cluster, test)
        assert states(cluster) == {"in": "completed", "out": "completed"}


def test_an_async_test_stores_flows_and_reads_lists() -> None:
    """Steps run in their order; ``list_all`` lists everything; a flow with an id has a handle."""
    with open_cluster(seed=1, peers=1) as cluster:
        around = AsyncCluster(cluster._core)

        async def test() -> None:
            client = around.client()
            await client.chain(client.group(Step("a", b"1"), Step("a", b"2")), Step("b", b"3")).enqueue()
            claims = await client.claim("a", max=5, wait_ms=1_000)
            await client.complete(claims, results=[claim.data for claim in claims])
            (last,) = await client.claim("b", wait_ms=20_000)
            assert sorted(one for one in await client.results(last.depends) if one) == [b"1", b"2"]
            assert len([task async for task in client.list_all()]) == 3
            flow = await client.make_flow(client.chain(Step("c", b"4")))
            assert await flow.state() == "waiting"
            (claim,) = await client.claim("c", wait_ms=20_000)
            await client.complete(claim)
            assert (await flow.wait("60s"))["state"] == "completed"

        run_async(cluster, test)


def test_handlers_commit_transactions() -> None:
    """Async and other handlers use the same calls as outside of tests."""
    app = App()

    @app.task(queue="first")
    async def first(name: str) -> None:
        await asyncio.sleep(0.1)
        async with context().transaction({"first": name}) as tx:
            second.enqueue_in(tx, name)

    @app.task(queue="second")
    def second(name: str) -> None:
        with blocking_context().transaction({"second": name}) as tx:
            third.enqueue_in(tx, name)

    @app.task(queue="third")
    async def third(name: str) -> str:
        ctx = context()
        async with ctx.client.transaction() as tx:
            tx.enqueue("beyond", name.encode())
        return name

    with open_cluster(seed=1, peers=1) as cluster:
        cluster.use(app)
        first.enqueue("x")
        cluster.start_worker(app)
        cluster.until(lambda: states(cluster).get("third") == "completed")
        assert states(cluster) == dict.fromkeys(("first", "second", "third"), "completed") | {"beyond": "ready"}
        assert [run.outcome for run in cluster.runs()] == ["returned"] * 3


def test_a_plain_test_gathers_and_commits() -> None:
    """It does so as an async one does."""
    with open_cluster(seed=1, peers=1) as cluster:
        client = cluster.client()
        client.enqueue("in", b"1")
        (claim,) = client.claim("in", wait_ms=1_000)
        with pytest.raises(ZeroDivisionError), client.transaction() as tx:
            tx.complete(claim)
            raise ZeroDivisionError
        with client.transaction() as first, client.transaction() as second:
            first.require(claim)
            second.update(claim, b"half way")
        assert first.name != second.name
        client.transact(complete=[(claim, b"done")], enqueue=[{"queue": "out", "data": b"2"}])
        assert states(cluster) == {"in": "completed", "out": "ready"}


def test_a_lost_answer_to_a_transaction_is_asked_for_again() -> None:
    """The transaction has one effect."""
    with open_cluster(seed=1, peers=1) as cluster:
        cluster.lose_answers(method="transact")
        with cluster.client().transaction() as tx:
            tx.enqueue("out", b"1")
        assert not cluster._core.losses.left
        assert states(cluster) == {"out": "ready"}


def test_a_wait_for_a_task_that_no_worker_runs_ends() -> None:
    """Also without a limit, from plain and from async code; with a worker, a wait takes as long as the task."""
    app = App()

    @app.task(queue="mail")
    def send() -> str:
        return "sent"

    with open_cluster(seed=1, peers=1) as cluster:
        cluster.use(app)
        task = send.enqueue()
        for timeout in (None, 1):
            with pytest.raises(TimedOut, match="no worker serves queue 'mail'") as caught:
                task.result(timeout)
            assert caught.value.advice.startswith("Call onyxq_cluster.drain() first")

        async def test() -> None:
            with pytest.raises(TimedOut, match="no worker serves queue 'mail'"):
                await task

        run_async(cluster, test)
        cluster.start_worker()
        assert send.options(delay_ms=70_000).enqueue().result() == "sent"


def test_waits_for_a_flow_and_for_updates_that_no_worker_makes_end() -> None:
    """Also without a limit, from plain and from async code; with a worker, they last until the flow has ended."""
    app, unserved = App(), "no worker serves queue 'mail'"

    @app.task(queue="mail")
    def send() -> None:
        blocking_context().log("sent")

    with open_cluster(seed=1, peers=1) as cluster:
        cluster.use(app)
        flow = app.client.make_flow(app.chain(send.s(), send.s()))
        task = send.handle(flow.ids[0])
        for wait in (flow.wait, app.client.flow_handle(flow.id).wait, lambda: list(task.updates())):
            with pytest.raises(TimedOut, match=unserved):
                wait()

        async def test() -> None:
            client = AsyncCluster(cluster._core).client()
            for wait in (client.flow_handle(flow.id).wait(), client.next_updates(task, wait_ms=None)):
                with pytest.raises(TimedOut, match=unserved):
                    await wait

        run_async(cluster, test)
        cluster.start_worker()
        assert flow.wait()["state"] == "completed"
        assert [entry.value for entry in task.updates()] == ["sent"]


def test_a_wait_for_a_flow_that_waits_for_another_task_ends() -> None:
    """None of its tasks is ready."""
    with open_cluster(seed=1, peers=1) as cluster:
        client = cluster.client()
        outside = client.enqueue("other", b"1", delay_ms="10h")
        flow = client.make_flow(client.chain(Step("mail", b"2", depends=[outside])))
        with pytest.raises(TimedOut, match="no worker serves queue 'mail'"):
            flow.wait()


def test_a_drain_does_not_wait_for_timers_and_callbacks() -> None:
    """Nothing in a test makes them; they are stored, and do not keep time from passing to other tasks."""
    app, uri = App(), "http://127.0.0.1:9/"

    @app.task(queue="mail", callback=uri)
    def send() -> None: ...

    with open_cluster(seed=1, peers=1) as cluster:
        cluster.use(app)
        for hours in (1, 50):
            app.client.set_timer(f"in {hours} hours", hours * 3_600_000, uri, {})
        send.options(delay_ms="2h").enqueue()
        done = cluster.drain()
        assert (done.completed, done.left) == (1, 0)
        assert sorted(task.state for task in cluster.tasks("onyxq.timers")) == ["ready", "ready", "scheduled"]


def test_an_application_that_is_not_in_use_reaches_no_real_cluster() -> None:
    """Neither a new client nor one that was open before is used; ``use`` connects it, again if it was closed."""
    app = App("127.0.0.1:1")

    @app.task(queue="mail")
    def send(to: str) -> None: ...

    before = app._client = Client("127.0.0.1:1").open()
    try:
        with open_cluster(peers=1) as cluster:
            with pytest.raises(Conflict, match="a test cluster is open"):
                send.enqueue("a")
            app.close()
            with pytest.raises(Conflict, match=r"use\(app\) first"):
                send.enqueue("a")
            cluster.use(app)
            send.enqueue("a")
            app.close()
            with pytest.raises(Conflict, match="a test cluster is open"):
                send.enqueue("b")
            cluster.use(app)
            send.enqueue("b")
            assert cluster.counts()["mail"]["ready"] == 2
    finally:
        before.close()


def test_an_application_has_its_own_client_again_after_the_test() -> None:
    """It is neither lost nor left open; of two clusters, the outer one has the application after the inner one."""
    app = App("127.0.0.1:1")
    with Client("127.0.0.1:1") as before:
        app._client = before
        with open_cluster(seed=1, peers=1) as cluster:
            outer = cluster.use(app).client
            with open_cluster(seed=1, peers=1) as inner:
                assert inner.use(app).client not in (before, outer)
            assert app.client is outer
        assert app.client is before


def test_an_application_in_use_starts_no_worker_and_no_cluster_of_its_own(tmp_path: Path) -> None:
    """Not even with a directory for its cluster; ``drain`` still runs its tasks."""
    app = App(data=tmp_path / "queue")

    @app.task(queue="mail")
    def send(to: str) -> str:
        return to

    with open_cluster(seed=1, peers=1) as cluster:
        cluster.use(app)
        with pytest.raises(Conflict, match="a test cluster is open"), app.background_worker():
            pass
        with pytest.raises(Conflict, match="a test cluster is open"):
            _ = app.address
        task = send.enqueue("a")
        cluster.drain()
        assert task.result() == "a"
    assert not (tmp_path / "queue").exists()
