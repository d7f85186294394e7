"""Prometheus, run for a test: it is given what a cluster showed, and evaluates the queries of the board and the alerts.

Debian's package ``prometheus`` has both programs. No service is started: a server listens on a free port of this
machine, on a directory of its own, and ends with the test.
"""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from onyxq.system.parent_death import killed_with_parent
from tests.metrics.workload import SCRAPE_S, Recorded
from tests.outbox.postgres import free_port

JOB = "onyxq"
BEGAN_S = 1_700_006_400
"""When the recorded run is said to have begun, in seconds since the epoch: a block of Prometheus begins then, too."""
START_S_MAX = 60.0
LOOK_EVERY_S = 0.05


def program(name: str) -> str:
    """Return the path of a program of Prometheus. Without it the test is skipped, and under ``CI`` it fails."""
    found = shutil.which(name)
    if found is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"no {name} (Debian package prometheus)")
    return found


def promtool(*command: str, cwd: Path, given: str = "") -> str:
    """Run promtool and return what it says; fail with that."""
    ended = subprocess.run(
        [program("promtool"), *command],
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        input=given,
        timeout=START_S_MAX,
        cwd=cwd,
    )
    assert ended.returncode == 0, ended.stdout
    return ended.stdout


class Prometheus:
    """A server that has the scrapes of a run, as if it had made them."""

    def __init__(self, recorded: Recorded, where: Path) -> None:
        (where / "scrapes").write_text(_open_metrics(recorded), "utf-8")
        promtool("tsdb", "create-blocks-from", "openmetrics", "scrapes", "data", cwd=where)
        (where / "prometheus.yml").write_text("{}\n", "utf-8")
        self._ends_s = BEGAN_S + recorded.scrapes[-1].at_s
        port = free_port()
        options = {
            "config.file": "prometheus.yml",
            "storage.tsdb.path": "data",
            "storage.tsdb.retention.time": "100y",
            "web.listen-address": f"127.0.0.1:{port}",
        }
        self._log = where / "log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [program("prometheus"), *(f"--{name}={value}" for name, value in options.items())],
                cwd=where,
                stdout=log,
                stderr=log,
                preexec_fn=killed_with_parent(),  # noqa: PLW1509  # two system calls, their library loaded before
            )
        self._client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=START_S_MAX, trust_env=False)

    def wait(self) -> None:
        """Wait until it answers."""
        until_s = time.monotonic() + START_S_MAX
        while time.monotonic() < until_s:
            assert self._process.poll() is None, self._log.read_text("utf-8")
            try:
                if self._client.get("/-/ready").is_success:
                    return
            except httpx.TransportError:
                pass  # it does not listen yet
            time.sleep(LOOK_EVERY_S)
        raise AssertionError(f"not ready within {START_S_MAX:g} s: {self._log.read_text('utf-8')}")

    def stop(self) -> None:
        """End the server."""
        self._client.close()
        self._process.terminate()
        self._process.wait(timeout=START_S_MAX)

    def drawn(self, expression: str) -> dict[str, set[float]]:
        """Return what a panel draws for an expression over the run: labels -> values, without those that are NaN."""
        answer = self._client.get(
            "/api/v1/query_range",
            params={"query": expression, "start": BEGAN_S, "end": self._ends_s, "step": SCRAPE_S},
        ).json()
        assert answer["status"] == "success", f"{expression}: {answer}"
        found = {}
        for one in answer["data"]["result"]:
            values = {float(value) for _, value in one["values"]}
            found[str(one["metric"])] = {value for value in values if math.isfinite(value)}
        return found


@contextmanager
def serving(recorded: Recorded, where: Path) -> Iterator[Prometheus]:
    """Run a server that has the scrapes of a run."""
    server = Prometheus(recorded, where)
    try:
        server.wait()
        yield server
    finally:
        server.stop()


def _open_metrics(recorded: Recorded) -> str:
    """Return the scrapes as a text that Prometheus imports; it adds ``up``, ``job`` and ``instance`` to each itself."""
    lines = []
    for scrape in recorded.scrapes:
        for peer, found in scrape.peers.items():
            labels, at_s = f'job="{JOB}",instance="{peer}"', BEGAN_S + scrape.at_s
            lines.append(f"up{{{labels}}} {int(found is not None)} {at_s}")
            for series, value in (found or {}).items():
                name, _, own = series.rstrip("}").partition("{")
                lines.append(f"{name}{{{labels}{',' * bool(own)}{own}}} {value} {at_s}")
    return "\n".join([*lines, "# EOF\n"])
