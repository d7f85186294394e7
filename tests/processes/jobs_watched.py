"""A job on real Spark beside real peers: its state in the cluster, and its processes."""

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
"""Longest start of Spark on a busy machine, with the files that the first start builds, in seconds."""


class Watch:
    """A job as its cluster reports it."""

    def __init__(self, cluster: Cluster, client: AsyncClient, job: str) -> None:
        self.cluster = cluster
        self.client = client
        self.job = job

    async def until(self, about: str, check: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
        """Return the job once the check is true."""

        async def look() -> dict[str, Any] | None:
            found = await self.check()
            return found if check(found) else None

        found = await self.cluster.until(about, look, seconds=STEP_S_MAX)
        assert found is not None
        return found

    async def check(self) -> dict[str, Any]:
        """Return the job, which must not have failed."""
        found = await self.client.job(self.job)
        if found["state"] == "failed":
            pytest.fail(f"the job failed: {found['error']}")
        return found

    def driver_in(self, found: dict[str, Any]) -> PeerProcess:
        """Return the peer that drives a running job."""
        return next(peer for peer in self.cluster.peers.values() if found["driver"].startswith(peer.node))


def host_of(peer: PeerProcess) -> int:
    """Return the process id of a peer's Spark host; raises `OSError` without one."""
    return int(json.loads((peer.data / "spark/host.pid").read_text())["pid"])


def machine_of(host: int) -> int:
    """Return the process id of a host's virtual machine."""
    return next(pid for pid in descendants(host) if Path(f"/proc/{pid}/comm").read_text() == "java\n")


def is_running(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class Frozen:
    """A peer, its Spark host and all the host's processes, stopped at any point."""

    def __init__(self, peer: PeerProcess) -> None:
        assert peer.process is not None
        self.peer = peer
        self.family: list[int] = []
        peer.freeze()
        while more := [pid for pid in descendants(peer.process.pid) if pid not in self.family]:
            for pid in more:
                with suppress(ProcessLookupError):  # it has just ended
                    os.kill(pid, signal.SIGSTOP)
            self.family += more

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all but the peer."""
        for pid in self.family:
            if is_running(pid):
                os.kill(pid, number)
