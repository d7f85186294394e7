"""A power cut at a real peer loses nothing that was acknowledged, and nothing that was archived and then deleted."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from onyxq import api
from onyxq.client import AsyncClient
from onyxq.history.archive import files
from onyxq.history.dump import read
from onyxq.history.parquet.reader import find
from tests.processes.cluster import POLL_S, PeerProcess, bounded
from tests.processes.power_cut import PowerCut

pytestmark = pytest.mark.anyio

TASKS = 40
EMBEDDED = ("--listen", "127.0.0.1:0", "--http", "off")
PURGING = {"ONYXQ_PURGE_BUCKET_MS": "1000", "ONYXQ_PURGE_MARGIN_MS": "10000"}


@pytest.fixture
def disk(tmp_path: Path) -> PowerCut:
    """A disk that loses unsynced writes. Without a C compiler the tests are skipped, but fail under ``CI``."""
    if shutil.which("cc") is None and not os.environ.get("CI"):
        pytest.skip("no C compiler (cc)")
    (tmp_path / "disk").mkdir()
    return PowerCut.at(tmp_path / "disk", tmp_path / "scratch")


@pytest.fixture
def peer(disk: PowerCut, tmp_path: Path) -> Iterator[PeerProcess]:
    """A peer with an embedded log on that disk; it is killed after the test."""
    found = PeerProcess("alone", data=disk.root / "alone", output=tmp_path, arguments=EMBEDDED)
    found.surroundings.update(disk.environment)
    yield found
    found.kill()


async def power_cut(peer: PeerProcess, disk: PowerCut) -> None:
    """Kill the peer, cut the power, and start the peer again."""
    peer.kill()
    disk.cut()
    peer.spawn()
    await peer.ready()


@pytest.mark.long
@bounded(120)
async def test_what_was_acknowledged_outlives_a_power_cut(peer: PeerProcess, disk: PowerCut) -> None:
    """Tasks that were enqueued, updated, claimed and completed are as they were."""
    peer.spawn()
    await peer.ready()
    async with AsyncClient([peer.address]) as client:
        ids = await client.enqueue_many("q", [b"%d" % number for number in range(TASKS)])
        done = await client.claim(["q"], max=TASKS // 2, lease_ms=600_000, wait_ms=10_000)
        await client.complete(done, results=[b"result of " + claim.id for claim in done])
        (held,) = await client.claim(["q"], max=1, lease_ms=600_000, wait_ms=10_000)
        await client.update(held, b"half")
    await power_cut(peer, disk)
    async with AsyncClient([peer.address]) as client:
        expected: dict[bytes, str] = dict.fromkeys(ids, "ready")
        expected.update({**{claim.id: "completed" for claim in done}, held.id: "claimed"})
        assert {task_id: (await client.get(task_id)).state for task_id in ids} == expected
        assert (await client.get(done[0].id)).result == b"result of " + done[0].id
        assert [one.data for one in await client.task_log(held.id)] == [b"half"]
        await client.complete([held])


@bounded(120)
async def test_the_log_is_trimmed_only_after_its_archive_is_durable(peer: PeerProcess, disk: PowerCut) -> None:
    """After a power cut the archive still has every record from the first on."""
    archive = disk.root / "archive"
    peer.surroundings["ONYXQ_ARCHIVE"] = str(archive)
    peer.spawn()
    await peer.ready()
    async with AsyncClient([peer.address]) as client:
        await client.enqueue_many("q", [b"%d" % number for number in range(TASKS)])
        await client.complete(await client.claim(["q"], max=TASKS, lease_ms=60_000, wait_ms=10_000))
        collected = await trio.to_thread.run_sync(api.gc, peer.address)
    assert [path for path in disk.nameless() if archive in path.parents] == []
    peer.kill()
    disk.cut()
    ((first, last, path),) = files(archive)
    assert (first, last) == (0, collected.position)
    assert [record.position for record in read(path).records] == list(range(last + 1))


@pytest.mark.long
@bounded(120)
async def test_tasks_are_purged_only_after_their_archive_is_durable(peer: PeerProcess, disk: PowerCut) -> None:
    """After a power cut the archive still has every purged task."""
    archive = disk.root / "tasks"
    peer.surroundings.update({**PURGING, "ONYXQ_TASK_ARCHIVE": str(archive)})
    peer.spawn()
    await peer.ready()
    async with AsyncClient([peer.address]) as client:
        await client.set_queue("q", retention_ms=1_000, archive=True)
        ids = await client.enqueue_many("q", [b"%d" % number for number in range(TASKS)])
        await client.complete(await client.claim(["q"], max=TASKS, lease_ms=60_000, wait_ms=10_000))
        while sum((await client.count("q"))["q"].values()):
            await trio.sleep(POLL_S)
    assert [path for path in disk.nameless() if archive in path.parents] == []
    peer.kill()
    disk.cut()
    assert all(find([archive], task_id) for task_id in ids)
