"""A job on real Spark beside real peers, as its cluster tells of it, and the processes that run it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from onyxq.client import AsyncClient
from onyxq.spark.session import descendants
from tests.processes.cluster import Cluster, PeerProcess

STEP_S_MAX = 240.0
"""For a start of Spark on a busy machine, with what is built at the first one."""


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

    def driver_in(self, found: dict[str, Any]) -> PeerProcess:
        """The peer that drives a job that runs."""
        return next(peer for peer in self.cluster.peers.values() if found["driver"].startswith(peer.node))


def host_of(peer: PeerProcess) -> int:
    """Process id of a peer's Spark host; raises `OSError` while there is none."""
    return int(json.loads((peer.data / "spark/host.pid").read_text())["pid"])


def machine_of(host: int) -> int:
    """Process id of a host's virtual machine."""
    return next(pid for pid in descendants(host) if Path(f"/proc/{pid}/comm").read_text() == "java\n")


def is_running(pid: int) -> bool:
    """Whether a process is there and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class Frozen:
    """A peer with its Spark host and all that the host has started, stopped in the middle of whatever they did."""

    def __init__(self, peer: PeerProcess) -> None:
        assert peer.process is not None
        self.peer = peer
        self.family: list[int] = []
        peer.freeze()
        while more := [pid for pid in descendants(peer.process.pid) if pid not in self.family]:
            for pid in more:
                with suppress(ProcessLookupError):  # it has just ended by itself
                    os.kill(pid, signal.SIGSTOP)
            self.family += more

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all but the peer."""
        for pid in self.family:
            if is_running(pid):
                os.kill(pid, number)
