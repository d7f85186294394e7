"""A job on real Spark beside real peers: whatever is killed, each segment is answered for exactly once."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from onyxq import Function, Input, Job, Output
from onyxq.client import AsyncClient
from tests.processes.cluster import Cluster, PeerProcess, bounded, surroundings

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

STEP_S_MAX = 240.0
"""For a start of Spark on a busy machine, with what is built at the first one."""
HOSTS = ("a", "b")
"""Nodes that host Spark; a third one keeps the majority of every cohort."""
WORDS = 400


def segments(part: int) -> list[bytes]:
    """Tasks of JSON strings that no other part has."""
    return [json.dumps(f"word {part}-{number}").encode() for number in range(WORDS)]


def image(part: int) -> list[bytes]:
    """What the job makes of them."""
    return [one.upper() for one in segments(part)]


def shouting(name: str) -> Job:
    """A job from queue to queue."""
    return Job(
        id=name,
        workflow=[("in", "shout"), ("shout", "out")],
        catalog=[
            Input("in", queue="in", max_rows=100),
            Function("shout", "builtins:str.upper"),
            Output("out", queue="out"),
        ],
    )


class Watch:
    """A job as its cluster tells of it."""

    def __init__(self, cluster: Cluster, client: AsyncClient, job: str) -> None:
        self.cluster = cluster
        self.client = client
        self.job = job

    async def until(self, about: str, check: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
        """The job once the check is true of it."""

        async def look() -> dict[str, Any] | None:
            found = await self.check()
            return found if check(found) else None

        found = await self.cluster.until(about, look, seconds=STEP_S_MAX)
        assert found is not None
        return found

    async def check(self) -> dict[str, Any]:
        """The job, which must not have failed."""
        found = await self.client.job(self.job)
        if found["state"] == "failed":
            pytest.fail(f"the job failed: {found['error']}")
        return found

    async def outputs(self) -> Counter[bytes]:
        """What came out so far."""
        return Counter([task.data async for task in self.client.list_all("out")])

    async def came_out(self, parts: int) -> None:
        """Return once the images of so many parts came out; no segment may ever be there twice."""
        wanted = Counter(one for part in range(parts) for one in image(part))

        async def look() -> bool:
            await self.check()
            found = await self.outputs()
            assert not found - wanted, "something came out twice, or is no image of a segment"
            return found == wanted

        await self.cluster.until(f"the images of {parts} parts", look, seconds=STEP_S_MAX)

    async def driver(self) -> PeerProcess:
        """The process that drives the job."""
        found = (await self.client.job(self.job))["driver"]
        return next(peer for peer in self.cluster.peers.values() if found.startswith(peer.node))


def host_of(peer: PeerProcess) -> int:
    """Process id of a peer's Spark host."""
    return int(json.loads((peer.data / "spark/host.pid").read_text())["pid"])


def is_running(pid: int) -> bool:
    """Whether a process is there and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("session_timeout_ms", [10_000])
@bounded(6 * STEP_S_MAX)
async def test_a_job_survives_its_host_and_its_peer(cluster: Cluster) -> None:
    """Killed one after the other, a driver frozen until it was replaced: the output is the input's image,
    each segment once."""
    await cluster.start("c")
    cluster.more_options("--spark", "--slots", "2")
    await cluster.start(*HOSTS)
    await cluster.whole("a", "b", "c")
    async with cluster.client("c") as client:
        watch = Watch(cluster, client, "shouting")
        await client.submit_job(shouting("shouting"))
        await client.enqueue_many("in", segments(0), format="json")
        await watch.came_out(1)

        before = await watch.until("a batch in the log", lambda job: job["batch"] is not None)
        host = host_of(await watch.driver())
        await client.enqueue_many("in", segments(1), format="json")
        os.kill(host, signal.SIGKILL)
        await watch.came_out(2)
        after = await watch.until("its failure is told", lambda job: job["progress"]["host_starts"] == 2)
        assert after["version"] == before["version"] and host_of(await watch.driver()) != host

        peer = await watch.driver()
        host = host_of(peer)
        await client.enqueue_many("in", segments(2), format="json")
        peer.kill()
        await watch.came_out(3)
        taken = await watch.until("another driver", lambda job: job["version"] > before["version"] and job["ready"])
        assert taken["batch"] > before["batch"]
        assert (await watch.driver()) is not peer and not is_running(host)

        await cluster.start(peer.name)
        await cluster.whole("a", "b", "c")
        frozen = await watch.driver()
        await client.enqueue_many("in", segments(3), format="json")
        frozen.freeze()
        await watch.until("another driver", lambda job: job["version"] > taken["version"] and job["ready"])
        assert is_running(host_of(frozen))
        frozen.thaw()
        await watch.came_out(4)

        await client.seal_job("shouting", "in")
        assert (await client.wait_job("shouting", int(STEP_S_MAX * 1000))).completed
        await watch.came_out(4)
        assert (await client.count("in"))["in"]["completed"] == 4 * WORDS


PIPELINES = """
from onyxq import Function, Input, Job, Output


def shout(row):
    return {"value": louder(row["value"])}


def louder(text):
    return text.upper() + "!"


job = Job(
    id="files",
    workflow=[("in", "shout"), ("shout", "out")],
    catalog=[Input("in", format="text", path="IN"), Function("shout", shout), Output("out", format="text", path="OUT")],
)
"""


async def check_files(cluster: Cluster, root: Path) -> None:
    """A job from files to files is submitted from the shell, with its functions, and waited for."""
    (root / "lines").mkdir()
    for number in range(3):
        (root / f"lines/{number}.txt").write_text("".join(f"line {number}-{line}\n" for line in range(100)))
    file = root / "pipelines.py"
    file.write_text(PIPELINES.replace("IN", str(root / "lines")).replace("OUT", str(root / "shouted")))
    submitted = await trio.run_process(
        [
            *(sys.executable, "-m", "onyxq.cli.main", "job", "submit", f"{file}:job", "--wait", "--json"),
            *("--connect", cluster["a"].address, "--timeout", f"{STEP_S_MAX:.0f}s"),
        ],
        capture_stdout=True,
        env=surroundings(),
        cwd=root,
    )
    assert json.loads(submitted.stdout)["state"] == "completed"
    parts = [path for path in (root / "shouted").rglob("*") if path.is_file() and path.name[0] not in "._"]
    found = Counter(line for part in parts for line in part.read_text().splitlines())
    assert found == Counter(f"LINE {number}-{line}!" for number in range(3) for line in range(100))


@bounded(3 * STEP_S_MAX)
async def test_files_are_made_of_files_and_a_function_that_raises_fails_its_job(
    cluster: Cluster, tmp_path: Path
) -> None:
    """One host runs both; the failure names task, segment and traceback, and what was read is claimable again."""
    cluster.more_options("--spark", "--slots", "2")
    await cluster.start("a")
    await cluster.whole("a")
    await check_files(cluster, tmp_path)
    async with cluster.client("a") as client:
        job = Job(
            id="wrong",
            workflow=[("in", "root"), ("root", "out")],
            catalog=[Input("in", queue="in"), Function("root", "math:sqrt"), Output("out", queue="out")],
            restarts=0,
        )
        await client.submit_job(job)
        await client.enqueue_many("in", [b"-4"], format="json")
        outcome = await client.wait_job("wrong", int(STEP_S_MAX * 1000))
        assert outcome.state == "failed"
        assert "ValueError" in outcome.error and "task: root" in outcome.error and "segment: -4" in outcome.error
        (claim,) = await client.claim("in", wait_ms=30_000)
        assert claim.data == b"-4"


async def test_a_peer_says_that_it_cannot_host_spark(cluster: Cluster) -> None:
    """Without Java it does not start, and says what to install."""
    cluster.more_options("--spark")
    peer = cluster.add("a")
    peer.surroundings = {"PATH": "", "JAVA_HOME": ""}
    peer.spawn()
    assert peer.process is not None
    assert peer.process.wait() == 1
    assert "needs Java" in peer.tail() and "Install a Java runtime" in peer.tail()
