"""Jobs on real Spark beside real peers: files, failing functions, and peers that cannot host Spark."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import evolve

from onyxq import Function, Input, Job, Output, Reduce, Trigger, Window
from onyxq.errors import BadRequest
from tests.processes.cluster import Cluster, bounded, surroundings
from tests.processes.jobs_watched import STEP_S_MAX, Watch
from tests.processes.slot_jobs import check_slots

pytestmark = pytest.mark.anyio

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
    """Submit a job from files to files on the command line, with its functions, and wait for it."""
    (root / "lines").mkdir()
    for number in range(3):
        (root / f"lines/{number}.txt").write_text("".join(f"line {number}-{line}\n" for line in range(100)))
    file = root / "pipelines.py"
    file.write_text(PIPELINES.replace("IN", str(root / "lines")).replace("OUT", str(root / "shouted")))
    submitted = await trio.run_process(
        [
            *(sys.executable, "-m", "onyxq", "job", "submit", f"{file}:job", "--wait", "--json"),
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
    """One host runs both; the failure has task, segment and traceback, and its input can be claimed again.

    Between them, random jobs keep to the bounds of their slots.
    """
    cluster.more_options("--spark", "--allow-local-code", "--slots", "3")
    await cluster.start("a")
    await cluster.whole("a")
    await check_files(cluster, tmp_path)
    await check_slots(cluster, tmp_path / "balanced", scheduler="balanced", count=3, slots=3)
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


def counting(name: str, **more: Any) -> Job:
    """Return a job that counts the tasks of a queue by user and gives the counts to another queue at its end."""
    return Job(
        id=name,
        workflow=[("in", "counted"), ("counted", "out")],
        catalog=[Input("in", queue="clicks"), Reduce("counted"), Output("out", queue="counts")],
        windows=[Window("by_user", "counted", key="user", aggregation="count")],
        triggers=[Trigger("by_user")],
        key_groups=2,
        **more,
    )


@pytest.mark.long
@bounded(4 * STEP_S_MAX)
async def test_a_job_is_replaced_by_one_that_keeps_its_windows(cluster: Cluster) -> None:
    """Each task counts once, whichever of the two jobs has read it; a job that does not fit changes nothing."""
    cluster.more_options("--spark", "--allow-local-code", "--slots", "2")
    await cluster.start("a")
    await cluster.whole("a")
    clicks = [json.dumps({"user": f"u{number % 3}"}).encode() for number in range(60)]
    async with cluster.client("a") as client:
        await client.submit_job(counting("old"))
        await client.enqueue_many("clicks", clicks[:30], format="json")
        await Watch(cluster, client, "old").until("a batch is committed", lambda found: found["batch"] is not None)
        other = Window("by_user", "counted", key="user", aggregation="conj")
        with pytest.raises(BadRequest, match=r"windows\[0\].aggregation"):
            await client.submit_job(evolve(counting("new", resume="old"), windows=[other]), replace=True)
        with pytest.raises(BadRequest, match="only an ended job"):
            await client.submit_job(counting("new", resume="old"))
        assert (await client.job("old"))["state"] == "running"
        await client.enqueue_many("clicks", clicks[30:], format="json")
        await client.submit_job(counting("new", resume="old"), replace=True)
        assert (await client.job("old"))["state"] == "killed"
        await client.seal_job("new", "in")
        outcome = await client.wait_job("new", int(STEP_S_MAX * 1000))
        assert outcome.completed, outcome.error
        counts = [json.loads(claim.data) for claim in await client.claim("counts", max=10, wait_ms=30_000)]
        assert {one["key"]: one["value"] for one in counts} == {"u0": 20, "u1": 20, "u2": 20}
        assert len(counts) == 3


async def test_a_peer_says_that_it_cannot_host_spark(cluster: Cluster) -> None:
    """Without Java it does not start, and says what to install."""
    cluster.more_options("--spark", "--allow-local-code")
    peer = cluster.add("a")
    peer.surroundings = {"PATH": "", "JAVA_HOME": ""}
    peer.spawn()
    assert peer.process is not None
    assert peer.process.wait() == 1
    assert "needs Java" in peer.tail() and "Install a Java runtime" in peer.tail()
