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
from onyxq.errors import Superseded
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


class Faults:
    """Faults of a running job's processes; each returns when the job runs again.

    ``before`` is the job at the time of the fault.
    """

    def __init__(self, watch: Watch) -> None:
        self.watch = watch

    async def virtual_machine(self, before: dict[str, Any]) -> None:
        """Kill the virtual machine of the driver's host; the same peer starts another host."""
        await self._host(before, machine_of)

    async def host(self, before: dict[str, Any]) -> None:
        """Kill the driver's host; the same peer starts another one."""
        await self._host(before, lambda host: host)

    async def _host(self, before: dict[str, Any], victim: Callable[[int], int]) -> None:
        host = host_of(self.watch.driver_in(before))
        os.kill(victim(host), signal.SIGKILL)

        def starts(job: dict[str, Any]) -> bool:
            return bool(job["progress"] and job["progress"].get("host_starts", 0) > before["progress"]["host_starts"])

        after = await self.watch.until("another host", lambda job: job["version"] > before["version"] or starts(job))
        assert not is_running(host)
        assert after["version"] == before["version"], "a host that dies costs its peer nothing"

    async def peer(self, before: dict[str, Any]) -> dict[str, Any]:
        """Kill the driver's peer, whose host dies too; another one takes over. Return the job then."""
        peer = self.watch.driver_in(before)
        host = host_of(peer)
        peer.kill()
        after = await self._taken_over(before)
        assert after["batch"] >= before["batch"] and not is_running(host)
        return after

    async def frozen(self, before: dict[str, Any]) -> dict[str, Any]:
        """Freeze driver and peer; once another one has the job, thaw the driver, and later its peer.

        The driver learns of its replacement only from its peer, which continues when the new driver's query
        runs. Return the job then.
        """
        peer = self.watch.driver_in(before)
        host = host_of(peer)
        frozen = Frozen(peer)
        try:
            await self.watch.until("a version for another", lambda job: job["version"] > before["version"])
            assert peer.runs and is_running(host), "it was frozen, not dead"
            frozen.signal(signal.SIGCONT)
            after = await self._taken_over(before)
        except BaseException:
            frozen.signal(signal.SIGKILL)
            raise
        peer.thaw()
        return after

    async def _taken_over(self, before: dict[str, Any]) -> dict[str, Any]:
        """Wait until another peer drives the job; check that the log refuses a batch of the driver before."""

        def by_another(job: dict[str, Any]) -> bool:
            return job["version"] > before["version"] and bool(job["ready"])

        after = await self.watch.until("another driver", by_another)
        assert self.watch.driver_in(after) is not self.watch.driver_in(before)
        with pytest.raises(Superseded):
            old = {"job": self.watch.job, "version": before["version"]}
            await self.watch.client.commit_batch(name="too late", batch=after["batch"] + 1, **old)
        return after
