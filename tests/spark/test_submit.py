"""`spark-submit` of a program that serves a job: it is frozen, loses the job to its peer, and takes it again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from onyxq import Client, Function, HostSettings, Input, Job, Output, Sql
from onyxq.interfaces import job_hosts
from onyxq.spark.home import find_home
from onyxq.spark.session import descendants
from tests.interfaces.live_world import running
from tests.jobs.fake_host import FakeHosts
from tests.spark.host_world import PATIENCE_S, ROOT, alive
from tests.spark.page_world import blocks, executed

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("java")]

LEASE_S = 4.0
QUIET = ("spark.ui.enabled=false", "spark.log.level=ERROR", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1")


def until(look: Callable[[], Any], log: Path) -> Any:
    """Look again and again, and return the first result that is not empty."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := look()):
        assert time.monotonic() < deadline, log.read_text()[-3_000:]
        time.sleep(0.1)
    return found


@contextmanager
def submitted(job: str, connect: str, log: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run the program under ``spark-submit``; kill all of it after the test."""
    home = str(find_home().path)
    command = [f"{home}/bin/spark-submit", "--master", "local[2]", "--driver-memory", "600m"]
    for setting in QUIET:
        command += ["--conf", setting]
    program = log.with_name("driver.py")
    program.write_text(blocks()["spark-clusters/driver.py"])
    command += [str(program), "--connect", connect, "--work", str(log.parent), *options, job]
    environment = {
        **os.environ,
        "SPARK_HOME": home,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
    }
    with open(log, "wb") as file, subprocess.Popen(command, env=environment, stdout=file, stderr=file) as process:
        try:
            yield process
        finally:
            signal_all(process.pid, signal.SIGKILL)


def signal_all(pid: int, number: int) -> None:
    """Send a signal to a process and all that it has started."""
    for one in [pid, *descendants(pid)]:
        if alive(one):
            os.kill(one, number)


def test_a_submitted_program_loses_a_job_when_it_is_frozen_and_takes_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each task counts once, under each version of the job; the program ends with the job."""
    monkeypatch.setattr(job_hosts, "LEASE_S", LEASE_S)
    hosts, log = FakeHosts(), tmp_path / "submit.log"
    shown: Job = executed("spark-clusters/waiting.py", {}, {})["job"]
    job = evolve(
        shown,
        workflow=[("in", "same"), ("same", "out")],
        catalog=[Input("in", queue="a"), Function("same", "tests.spark.tasks:same"), Output("out", queue="b")],
    )
    with running(slots=2, launch_host=hosts.launch) as cluster, Client(cluster.addresses[0]) as client:
        client.enqueue_many("a", [b"%d" % number for number in range(50)])
        client.submit_job(job, importable=False)
        with submitted(job.id, cluster.addresses[0], log) as process:
            until(lambda: client.count("b")["b"]["ready"] == 50, log)
            first = client.job(job.id)
            signal_all(process.pid, signal.SIGSTOP)
            client.enqueue_many("a", [b"%d" % number for number in range(50, 100)])
            until(lambda: client.job(job.id)["version"] > first["version"], log)
            signal_all(process.pid, signal.SIGCONT)
            until(lambda: client.count("b")["b"]["ready"] == 100, log)
            assert client.job(job.id)["batch"] > first["batch"]
            client.seal_job(job.id, "in")
            assert client.wait_job(job.id, 60_000).state == "completed"
            assert process.wait(60) == 0, log.read_text()[-3_000:]
        found = [claim.data for claim in client.claim(["b"], max=200, worker="w")]
    assert sorted(map(int, found)) == list(range(100))
    assert log.read_text().count("serving job orders") == 2
    assert hosts.links == []


def test_a_submitted_program_continues_the_windows_of_a_killed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state of a window of SQL is in the checkpoint, which both programs reach."""
    monkeypatch.setattr(job_hosts, "LEASE_S", LEASE_S)
    hosts, log, clicks = FakeHosts(), tmp_path / "submit.log", tmp_path / "clicks"
    start, pages = "window(at, '10 minutes')", ("a", "b", "c")
    job = Job(
        id="windows",
        workflow=[("clicks", "counts"), ("counts", "out")],
        catalog=[
            Input(
                "clicks",
                format="json",
                path=str(clicks),
                schema="at timestamp, page string",
                time="at",
                watermark_ms=60_000,
                bounded=False,
            ),
            Sql(
                "counts",
                f"select unix_seconds({start}.start) start, page, count(*) n from clicks group by {start}, page",
            ),
            Output("out", queue="b"),
        ],
        own_host=True,
        host=HostSettings(submit_wait_ms=600_000),
        key_groups=2,
    )

    def add(minute: int) -> None:
        lines = [{"at": f"1970-01-01T00:{minute:02}:{one:02}Z", "page": pages[one % 3]} for one in range(60)]
        (clicks / f"{minute}.json").write_text("".join(f"{json.dumps(line)}\n" for line in lines))

    clicks.mkdir()
    add(0)
    options = (log, "--checkpoints", str(tmp_path / "checkpoints"))
    with running(slots=2, launch_host=hosts.launch) as cluster, Client(cluster.addresses[0]) as client:
        client.submit_job(job, importable=False)
        with submitted(job.id, cluster.addresses[0], *options):
            until(lambda: client.job(job.id)["batch"] in (0, 1), log)
        add(1)
        with submitted(job.id, cluster.addresses[0], *options) as process:
            client.seal_job(job.id, "clicks")
            assert client.wait_job(job.id, round(1_000 * PATIENCE_S)).state == "completed"
            assert process.wait(60) == 0, log.read_text()[-3_000:]
        found = sorted(tuple(json.loads(claim.data).values()) for claim in client.claim(["b"], max=200, worker="w"))
    assert found == [(0, page, 40) for page in pages]
    assert hosts.links == []
