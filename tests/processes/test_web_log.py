"""The web log of ``examples/jobs``, with DataFrames and SQL, on a cluster of peers: its tables are exact.

The log arrives file by file. During batches, virtual machine, host and peer of the driver are killed. On a
cluster of Spark, workers and the master are killed. At the end all rows and windows are compared with a
count of the same files by pandas.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import trio
from attrs import evolve

from onyxq.client import AsyncClient
from tests.processes.cluster import Cluster, bounded
from tests.processes.jobs_watched import STEP_S_MAX, Faults, Watch
from tests.spark.host_world import ROOT
from tests.spark.standalone_world import Standalone

pytestmark = [pytest.mark.anyio, pytest.mark.long, pytest.mark.parametrize("session_timeout_ms", [6_000])]

NAMES = ("a", "b", "c")
EXAMPLES = ROOT / "examples" / "jobs"
EXECUTOR_MEMORY = "512m"
Fault: TypeAlias = Callable[[dict[str, Any]], Awaitable[Any]]


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the modules of the example; peers can import them too."""
    monkeypatch.syspath_prepend(EXAMPLES)
    import web_log

    return web_log


class Log:
    """The running jobs, and the files that arrive."""

    def __init__(self, example: Any, cluster: Cluster, client: AsyncClient, folder: Path) -> None:
        self.count = example.web_log_count
        self.client = client
        self.folder = folder
        self.watch = Watch(cluster, client, "web-log")
        self.faults = Faults(self.watch)
        self._example = example
        self._checkpoints = cluster.root / "checkpoints"
        self._files = 0
        self._began = time.monotonic()

    async def begin(self) -> None:
        """Submit the first job, whose log does not end on its own, and wait for its first batch."""
        self.count.write_users(self.folder)
        job = self._example.web_log(self.folder)
        catalog = [evolve(one, bounded=False) if one.name == "lines" else one for one in job.catalog]
        self._write(1)
        await self.client.submit_job(evolve(job, catalog=catalog, key_groups=2))
        await self.watch.until("a batch", lambda job: job["batch"] is not None)

    async def report(self) -> None:
        """Submit the second job, which the same peer drives."""
        await self.client.submit_job(evolve(self._example.reports(self.folder), beside="web-log", key_groups=2))
        await Watch(self.watch.cluster, self.client, "reports").until("a batch", lambda job: job["batch"] is not None)

    async def strike(self, fault: Fault, name: str) -> None:
        """Cause a fault during a batch; then wait for a batch that begins after the fault."""
        self._write(2)
        before = await self.watch.until("a batch begins", self._is_in_a_batch)
        self._say(f"{name}, after batch {before['batch']} of version {before['version']}")
        await fault(before)
        begun = self._begun()
        self._write(1)
        await self.watch.until("a batch begins and ends", lambda job: job["ready"] and job["batch"] > begun)

    def _is_in_a_batch(self, job: dict[str, Any]) -> bool:
        return bool(job["ready"] and job["progress"] and self._begun() > job["batch"])

    def _begun(self) -> int:
        """Return the number of the newest batch that a driver has begun."""
        return max(int(path.name) for path in self._checkpoints.glob("web-log*/**/offsets/[0-9]*"))

    def _write(self, files: int) -> None:
        self.count.write_log(self.folder, range(self._files, self._files + files))
        self._files += files

    async def end(self) -> None:
        """Let the rest arrive, wait until both jobs have completed, and compare all tables."""
        self._write(self.count.FILES - self._files)
        for name, source in (("web-log", "lines"), ("reports", "alerts")):
            await self.client.seal_job(name, source)
            outcome = await self.client.wait_job(name, int(STEP_S_MAX * 1000))
            assert outcome.completed, outcome
            self._say(f"{name}: {outcome.batch + 1} batches")
        late = (await self.watch.check())["progress"]["late"]
        requests, _ = self.count.read(self.folder)
        assert 0 < late <= 2 * self.count.too_late(requests).sum(), "a late request counts for minutes and for visits"
        self.count.check(self.folder)
        await self._check_queue()

    async def _check_queue(self) -> None:
        """Check that each alert is one task, which the second job has completed."""
        tasks = [task async for task in self.client.list_all("alerts")]
        assert {task.state for task in tasks} == {"completed"}
        alerts = self.count.found(self.folder, "reports")
        assert Counter(json.loads(task.data)["id"] for task in tasks) == Counter(row[1] for row in alerts)

    def _say(self, text: str) -> None:
        print(f"{time.monotonic() - self._began:6.1f} s: {text}", flush=True)


async def start(cluster: Cluster, *options: str) -> None:
    """Start three peers with Spark, which share the places of checkpoints."""
    cluster.more_options("--spark", "--allow-local-code", "--slots", "2", *options)
    cluster.more_options("--checkpoints", str(cluster.root / "checkpoints"))
    for name in NAMES:
        cluster.add(name).surroundings = {"SPARK_EXECUTOR_MEMORY": EXECUTOR_MEMORY}
    await cluster.start(*NAMES)
    await cluster.whole(*NAMES)


@bounded(3 * STEP_S_MAX)
async def test_a_web_log_is_exact_although_its_driver_is_killed(cluster: Cluster, example: Any, tmp_path: Path) -> None:
    """The virtual machine is killed, then the host, and then the peer, which also drives the second job."""
    await start(cluster)
    async with cluster.client(timeout_ms=120_000) as client:
        log = Log(example, cluster, client, tmp_path)
        await log.begin()
        await log.strike(log.faults.virtual_machine, "virtual machine")
        await log.strike(log.faults.host, "host")
        await log.report()
        await log.strike(log.faults.peer, "peer")
        await log.end()


@bounded(3 * STEP_S_MAX)
async def test_a_web_log_is_exact_although_workers_and_the_master_of_spark_are_killed(
    cluster: Cluster, spark: Standalone, example: Any, tmp_path: Path
) -> None:
    """A worker with an executor is killed, and later the master and the other worker; then the driver is frozen.

    After the master's death only executors that the new master has started do the work.
    """

    async def worker(_: dict[str, Any]) -> None:
        spark.holders()[0].kill()

    async def master(_: dict[str, Any]) -> None:
        await trio.to_thread.run_sync(spark.restart_master)
        old = spark.workers
        new = [spark.add_worker(), spark.add_worker()]
        await trio.to_thread.run_sync(spark.await_workers, new)
        assert spark.holders() == old, "no executor was lost with the master"
        for one in old:
            one.kill()

    await start(cluster, "--spark-master", spark.url)
    async with cluster.client(timeout_ms=120_000) as client:
        log = Log(example, cluster, client, tmp_path)
        await log.begin()
        await log.strike(worker, "worker")
        await log.strike(master, "master")
        await log.report()
        await log.strike(log.faults.frozen, "frozen")
        await log.end()
