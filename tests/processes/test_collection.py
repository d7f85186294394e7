"""Log collections by real peers at work: nothing is lost, repeated, or paused for long."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest
import trio

from onyxq.errors import TimedOut
from tests.processes.cluster import POLL_S, Cluster, bounded
from tests.processes.collecting import applied, die_collecting, gc, grown
from tests.processes.dying_peer import STEPS
from tests.processes.workload import History, all_there, enqueue_over_tcp, work

pytestmark = [pytest.mark.anyio, pytest.mark.long]

COLLECTIONS = int(os.environ.get("ONYXQ_TEST_COLLECTIONS", "20"))
"""Number of collections; before a release it is 200."""
STEPS_KILLED = tuple(STEPS) if COLLECTIONS >= 200 else ("between the chunks", "before trimming", "between trims")
NAMES = ("a", "b", "c")
RECORDS = 60
"""Records by which a log must have grown to be trimmed in more than two batches."""


async def load(cluster: Cluster, history: History, stop: trio.Event, names: Sequence[str]) -> None:
    """Run a producer, and a worker at each of these peers, until ``stop``; then complete everything enqueued."""
    async with cluster.client(*names) as producer, trio.open_nursery() as workers:
        for name in names:
            workers.start_soon(run_worker, cluster, history, name)
        while not stop.is_set():
            await enqueue_over_tcp(history, producer, 100)
            await trio.sleep(POLL_S)
        await history.until_all_completed(producer)
        workers.cancel_scope.cancel()


async def run_worker(cluster: Cluster, history: History, first: str) -> None:
    """Run one worker that knows one peer at first; a frozen peer that leads does not answer."""
    async with cluster.client(first) as client:
        while True:
            try:
                await work(history, client, f"worker-{first}")
            except TimedOut:
                continue


@bounded(120 + COLLECTIONS * 3)
async def test_collections_under_load_lose_and_repeat_nothing(cluster: Cluster) -> None:
    """Each peer collects in turn; then one peer is away for many collections, and returns correctly."""
    await cluster.start(*NAMES)
    await cluster.whole(*NAMES)
    history, stop = History("work"), trio.Event()
    reports: list[dict[str, int]] = []
    away = cluster["c"]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(load, cluster, history, stop, NAMES)
        for number in range(COLLECTIONS):
            reports.append(await gc(cluster, cluster[NAMES[number % 3]]))
        away.freeze()
        await cluster.whole("a", "b")
        for number in range(COLLECTIONS // 4):
            reports.append(await gc(cluster, cluster[NAMES[number % 2]]))
        away.thaw()
        await cluster.whole(*NAMES)
        reports.append(await gc(cluster, away))
        stop.set()
    assert history.wrong == []
    positions = [report["position"] for report in reports]
    assert positions == sorted(set(positions))
    assert sum(report["trimmed"] for report in reports) >= positions[-1] * 0.9
    async with cluster.client() as client:
        await all_there(cluster, client, "work", dict.fromkeys(history.enqueued, "completed"))


@bounded(120 + 60 * len(STEPS_KILLED))
async def test_a_collector_killed_at_any_step_leaves_a_log_that_is_read_and_collected(cluster: Cluster) -> None:
    """The ring's first peer finishes the collection; the killed node returns; no acknowledged task is lost."""
    await cluster.start("a", "b")
    victim = cluster.add("c")
    history, stop = History("work"), trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(load, cluster, history, stop, ("a", "b"))
        origin = 0
        for step in STEPS_KILLED:
            await grown(cluster, beyond=origin, records=RECORDS)
            await die_collecting(cluster, victim, step)
            report = await gc(cluster, cluster["b"])
            assert report["origin_bytes"] > 0
            origin = report["position"]
        await cluster.start("c")
        await cluster.whole(*NAMES)
        stop.set()
    assert history.wrong == []
    async with cluster.client() as client:
        await all_there(cluster, client, "work", dict.fromkeys(history.enqueued, "completed"))


@bounded(180)
async def test_a_cluster_collects_by_itself(cluster: Cluster) -> None:
    """It collects on its own once the log has grown by a number of records; new nodes start from the snapshot."""
    cluster.more_options("--gc-records", "60")
    await cluster.start("a", "b")
    history, stop = History("work"), trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(load, cluster, history, stop, ("a", "b"))
        await cluster.until("two collections", lambda: collected_twice(cluster))
        await cluster.start("c")
        await cluster.whole(*NAMES)
        stop.set()
    assert history.wrong == []


async def collected_twice(cluster: Cluster) -> bool:
    """Return whether the log has two finished collections."""
    return (await applied(cluster, cluster["a"])).count("finish_gc") >= 2
