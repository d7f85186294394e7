"""The replay of a dump of real peers under load gives the replicas that they report."""

from __future__ import annotations

import contextlib
import io
import json
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
from pyarrow import dataset

from onyxq import api
from onyxq.core import snapshot
from onyxq.core.invariants.replica import violations
from onyxq.errors import NotFound
from onyxq.history.archive import files as archived
from onyxq.history.archive import groups, parts
from onyxq.history.dump import read
from onyxq.history.parquet.records import covered
from onyxq.history.replay import replay
from onyxq.interfaces.cli.main import run
from onyxq.log.zookeeper_server import ZookeeperServer
from tests.processes.cluster import POLL_S, Cluster, bounded
from tests.processes.collecting import die_collecting
from tests.processes.dying_peer import ARCHIVE_STEPS, TABLE_STEPS
from tests.processes.workload import History, enqueue_over_tcp, work

pytestmark = pytest.mark.anyio

TASKS = int(os.environ.get("ONYXQ_TEST_TASKS", "2000"))
NAMES = ("a", "b", "c")
COMPARED_MIN = 5
"""Positions after the origin at which digests of live peers are recorded."""
SHOWN = 4
"""Recorded digests that are compared through the command line."""


async def command(*arguments: str, code: int = 0) -> Any:
    """Return the document that a command prints with ``--json``."""

    def body() -> tuple[int, str]:
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            return run([*arguments, "--json"]), said.getvalue()

    found, text = await trio.to_thread.run_sync(body)
    assert found == code, text
    return json.loads(text)


async def record(cluster: Cluster, seen: dict[tuple[int, str], str]) -> None:
    """Record (position, peer) -> digest of every peer repeatedly until cancelled."""
    while True:
        for peer in cluster.serving:
            with contextlib.suppress(httpx.HTTPError):
                found = await cluster.see(peer, "/v1/replica")
                seen[found["position"], peer.name] = found["digest"]
        with trio.move_on_after(POLL_S):
            await trio.sleep_forever()


@pytest.mark.long
@bounded(150 + TASKS / 50)
async def test_a_dump_replays_to_what_every_live_peer_reports(
    cluster: Cluster, zookeeper: ZookeeperServer, tmp_path: Path
) -> None:
    """The replay gives each recorded digest at its position, and each peer's last one.

    Three peers on ZooKeeper are under load; a collection and a kill -9 happen meanwhile.
    """
    await cluster.start(*NAMES)
    await cluster.whole(*NAMES)
    history = History("work")
    seen: dict[tuple[int, str], str] = {}
    async with cluster.client() as client, trio.open_nursery() as background:
        background.start_soon(record, cluster, seen)
        for name in NAMES:
            background.start_soon(work, history, client, f"worker-{name}")
        await enqueue_over_tcp(history, client, TASKS // 2)
        await history.until_completed(TASKS // 4)
        origin = (await trio.to_thread.run_sync(collect, zookeeper.hosts, cluster.name)).position
        cluster["b"].kill()
        await enqueue_over_tcp(history, client, TASKS - TASKS // 2)
        during = await command("log", "dump", str(tmp_path / "during"), "--connect", cluster["a"].address)
        await history.until_all_completed(client)
        while len({position for position, _ in seen if position >= origin}) < COMPARED_MIN:
            await enqueue_over_tcp(history, client, 20)
            await history.until_all_completed(client)
        background.cancel_scope.cancel()
    assert history.wrong == []

    last = {peer.name: await cluster.see(peer, "/v1/replica") for peer in cluster.serving}
    assert sorted(last) == ["a", "c"]
    seen.update({(found["position"], name): found["digest"] for name, found in last.items()})
    file = tmp_path / "after"
    done = await command("log", "dump", str(file), "--connect", cluster["c"].address)
    assert done["last"] >= max(found["position"] for found in last.values())
    assert (during["origin"], done["origin"]) == (origin, origin)

    digests = digests_of(file, {position for position, _ in seen})
    compared = {place: digest for place, digest in seen.items() if place[0] >= origin}
    assert {place: digests[place[0]] for place in compared} == compared
    assert {name for _, name in compared} >= {"a", "c"}
    assert len({position for position, _ in compared}) >= COMPARED_MIN
    assert all(digests[found["position"]] == found["digest"] for found in last.values())
    for position, _ in sorted(compared)[:: max(1, len(compared) // SHOWN)]:
        shown = await command("replica", "show", "--at", str(position), "--connect", cluster["a"].address)
        assert (shown["position"], shown["digest"]) == (position, digests[position])
    agreed = digests_of(tmp_path / "during", set(digests))
    assert agreed and all(digests[position] == digest for position, digest in agreed.items())
    replayed = await command("log", "replay", str(file))
    assert replayed["violations"] == [] and replayed["position"] == done["last"]
    print(f"{len(compared)} digests of {done['records']} records agree; replayed at {replayed['entries_per_s']}/s")


def collect(zookeeper: str, cluster: str) -> api.GcReport:
    """Collect the log through a peer that is found by its pulse."""
    return api.gc(zookeeper=zookeeper, cluster=cluster)


def digests_of(file: Path, wanted: set[int]) -> dict[int, str]:
    """Return digests at the wanted positions of a dump, after a check of its invariants."""
    dump = read(file)
    replicas = [dump.start, *(done.replica for done in replay(dump))]
    assert all(one.position < other.position for one, other in pairwise(replicas))
    found = {}
    for replica in replicas:
        if replica.position in wanted:
            assert violations(replica) == []
            found[replica.position] = snapshot.digest(replica)
    return found


@pytest.mark.long
@bounded(120)
async def test_peers_are_found_by_their_pulses(cluster: Cluster, zookeeper: ZookeeperServer) -> None:
    """A subscription needs only ZooKeeper; a cluster without a living peer is an error."""
    await cluster.start("a")

    def first() -> api.Event:
        return next(api.subscribe(0, zookeeper=zookeeper.hosts, cluster=cluster.name))

    event = await trio.to_thread.run_sync(first)
    assert (event.position, event.entry.name) == (0, "create_cluster")
    with pytest.raises(NotFound):
        await trio.to_thread.run_sync(collect, zookeeper.hosts, f"{cluster.name}-other")


@pytest.mark.long
@bounded(240)
async def test_an_archive_has_no_hole_though_collectors_are_killed(cluster: Cluster, tmp_path: Path) -> None:
    """One dies before, one during and one after archiving; archive and log together have every record."""
    archive = tmp_path / "archive"
    cluster.more_options("--archive", str(archive))
    await cluster.start("a", "b")
    await cluster.whole("a", "b")
    victim = cluster.add("c")
    history = History("work")
    async with cluster.client() as client, trio.open_nursery() as background:
        background.start_soon(work, history, client, "worker")
        for step in ARCHIVE_STEPS:
            await enqueue_over_tcp(history, client, 200)
            await history.until_all_completed(client)
            await die_collecting(cluster, victim, step)
        await cluster.start("c")
        await cluster.whole(*NAMES)
        background.cancel_scope.cancel()
    assert history.wrong == []

    report = await trio.to_thread.run_sync(api.gc, cluster["b"].address)
    assert archived(archive)[-1][1] >= report.position
    found = await cluster.see(cluster["c"], "/v1/replica")
    file = tmp_path / "whole"
    where = ["--archive", str(archive), "--connect", cluster["c"].address]
    done = await command("log", "dump", str(file), *where)
    assert (done["first"], done["origin"], done["records"]) == (0, None, done["last"] + 1)
    assert digests_of(file, {found["position"]}) == {found["position"]: found["digest"]}
    task_id = min(history.completed)
    events = (await command("task", "explain", task_id.hex(), *where))["events"]
    assert {"grant_claims", "release_claims"} <= {one["entry"] for one in events if one["source"] == "log"}


@pytest.mark.long
@bounded(300)
async def test_the_table_of_records_has_no_hole_though_collectors_are_killed(cluster: Cluster, tmp_path: Path) -> None:
    """The table has every record once, with the verdict of a replay of the whole log.

    Collectors are killed before, during and after its writing, and between its files.
    """
    archive, table = tmp_path / "archive", tmp_path / "table"
    cluster.more_options("--archive", str(archive), "--record-archive", str(table))
    await cluster.start("a", "b")
    await cluster.whole("a", "b")
    victim = cluster.add("c")
    history = History("work")
    async with cluster.client() as client, trio.open_nursery() as background:
        background.start_soon(work, history, client, "worker")
        for step in TABLE_STEPS:
            await enqueue_over_tcp(history, client, 200)
            await history.until_all_completed(client)
            await die_collecting(cluster, victim, step)
        background.cancel_scope.cancel()
    assert history.wrong == []

    report = await trio.to_thread.run_sync(api.gc, cluster["b"].address)
    columns = ["position", "index", "entry", "verdict"]
    rows = dataset.dataset(table / "records", partitioning="hive").to_table(columns=columns).to_pylist()
    found = [tuple(row[name] for name in columns) for row in rows if row["index"] is not None]
    whole = groups(parts([archive]))[-1]
    assert whole is not None
    told = [
        (done.replica.position, one.index, one.name, one.verdict)
        for done in replay(whole, report.position)
        for one in done.outcomes
    ]
    assert [(one.first, one.last) for one in covered(table)] == [(0, report.position)]
    assert sorted(found) == told
