"""The archive of real nodes: a command finds tasks that were purged from every disk, without a cluster."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import trio
from pyarrow import dataset

from onyxq.errors import NotFound
from tests.processes.cluster import Cluster, bounded
from tests.processes.workload import spread

pytestmark = [pytest.mark.anyio, pytest.mark.long]

NAMES = ("a", "b", "c")
TASKS = 3_000
PURGING = {"ONYXQ_PURGE_BUCKET_MS": "1000", "ONYXQ_PURGE_MARGIN_MS": "10000"}


async def onyxq(*words: str) -> subprocess.CompletedProcess[bytes]:
    """Run a command that needs no peer."""
    command = [sys.executable, "-m", "onyxq", *words, "--json"]
    return await trio.run_process(
        command, capture_stdout=True, capture_stderr=True, check=False, env={"PYTHONPATH": ":".join(sys.path)}
    )


@bounded(240)
async def test_purged_tasks_are_found_in_the_archive(cluster: Cluster, tmp_path: Path) -> None:
    """All are found once and unchanged; two directories of three nodes are read as one."""
    directories = [tmp_path / "one", tmp_path / "two"]
    for name, directory in zip(NAMES, (*directories, directories[0]), strict=True):
        cluster.add(name).surroundings.update({**PURGING, "ONYXQ_TASK_ARCHIVE": str(directory)})
    await cluster.start(*NAMES)
    await cluster.whole(*NAMES)
    async with cluster.client() as client:
        await client.set_queue("work", retention_ms=1_000, archive=True)
        ids = await spread(client, "work", TASKS)
        done = 0
        while done < TASKS:
            claims = await client.claim(["work"], max=500, lease_ms=60_000, wait_ms=20_000, worker="w")
            await client.complete(claims, results=[b"result of " + claim.id for claim in claims])
            done += len(claims)

        async def gone() -> bool:
            return sum((await client.count("work"))["work"].values()) == 0

        await cluster.until("everything is purged", gone)
        with pytest.raises(NotFound):
            await client.get(ids[0])
    named = [word for directory in directories for word in ("--archive", str(directory))]
    for task_id in ids[::1_000]:
        found = await onyxq("task", "get", task_id.hex(), *named)
        assert found.returncode == 0, found.stderr
        task = json.loads(found.stdout)
        assert (task["state"], [claim["outcome"] for claim in task["claims"]]) == ("completed", ["completed"])
    rows: list[tuple[str, bytes]] = []
    for directory in directories:
        table = dataset.dataset(directory / "tasks", partitioning="hive").to_table(columns=["id", "result"])
        rows += zip(table["id"].to_pylist(), table["result"].to_pylist(), strict=True)
    assert sorted(set(rows)) == sorted((one.hex(), b"result of " + one) for one in ids)
