"""Moments at which the disk of a peer fails in a random way; each ends with complete copies."""

from __future__ import annotations

import errno
import os
import random
import signal
from collections import Counter
from pathlib import Path

import pytest
import trio

from onyxq.client import AsyncClient
from onyxq.errors import OnyxqError
from onyxq.store.integrity.lmdb_check import DATA
from tests.processes.cluster import POLL_S, READY_TIMEOUT_S, Cluster, PeerProcess
from tests.processes.failing_disk import ALWAYS, META_WRITES, SYNCS, WRITES, FailingDisk
from tests.processes.workload import History

SEED = int(os.environ.get("ONYXQ_TEST_SEED", "5"))
NAMES = ("a", "b", "c")
ABSENT_AFTER_MS = 5_000
TASKS = 100
"""Most tasks that are processed between two moments."""
ENQUEUES_MAX = 100_000
MET_S = 8.0
"""Time after which damage that was not met stays, and the process is killed, in seconds."""
STARTS_MAX = 3
PAGE = 4096
REFUSED = {"writes": WRITES, "meta writes": META_WRITES, "syncs": SYNCS}
DAMAGE = ("zeroed", "another kind", "random bytes", "unreadable", "cut off")
CLEAR_ENDS = (5, -signal.SIGBUS, -signal.SIGSEGV, -signal.SIGABRT, -signal.SIGKILL)


class Moments:
    """Random failures of a cluster's disks from a seed."""

    def __init__(self, cluster: Cluster, library: Path) -> None:
        self.cluster = cluster
        self.draw = random.Random(SEED)
        self.seen: Counter[str] = Counter()
        """How often each failure happened, and how each process ended."""
        self.disks: dict[str, FailingDisk] = {}
        for name in NAMES:
            peer = cluster.add(name)
            self.disks[name] = FailingDisk(cluster.root / f"{name}.control", library)
            peer.surroundings = {"ONYXQ_ABSENT_AFTER_MS": str(ABSENT_AFTER_MS), **self.disks[name].surroundings}

    async def one(self, history: History) -> None:
        """Let one disk fail in one way during work; return once every copy is complete again."""
        peer = self.cluster[self.draw.choice(NAMES)]
        disk = self.disks[peer.name]
        tasks = len(history.completed) + self.draw.randrange(TASKS)
        while len(history.completed) < tasks:
            await trio.sleep(POLL_S)
        if self.draw.random() < 0.5:
            await self._refuse(peer, disk)
        else:
            await self._damage(peer, disk)
        disk.heal()
        await self.cluster.whole(*NAMES, seconds=120)
        await self.cluster.replicated(peer, seconds=120)

    async def _refuse(self, peer: PeerProcess, disk: FailingDisk) -> None:
        what = self.draw.choice(sorted(REFUSED))
        times = self.draw.choice((1, 1, 2, 5, ALWAYS))
        self.seen[what if times != ALWAYS else f"{what} for seconds"] += 1
        disk.fail(REFUSED[what], times=times, error=self.draw.choice((errno.EIO, errno.ENOSPC)))
        with trio.move_on_after(self.draw.uniform(1, 14) if times == ALWAYS else MET_S):
            while times == ALWAYS or disk.hits < times:
                await trio.sleep(POLL_S)
        disk.heal()

        async def healthy() -> bool:
            assert peer.runs, f"{peer.name} ended with {self._end(peer)}: {peer.tail()}"
            return bool((await self.cluster.send(peer, "GET", "/readyz")).status_code == 200)

        await self.cluster.until(f"{peer.name} is healthy after {what}", healthy)

    async def _damage(self, peer: PeerProcess, disk: FailingDisk) -> None:
        what = self.draw.choice(DAMAGE)
        self.seen[what] += 1
        spoil(peer.data / DATA, what, self.draw, disk)
        with trio.move_on_after(MET_S):
            while peer.runs:
                await trio.sleep(POLL_S)
        met = not peer.runs
        if not met:
            peer.kill()
        self.seen[f"ended with {self._end(peer)}" if met else "damage not met, killed"] += 1
        await self._start(peer)

    async def _start(self, peer: PeerProcess) -> None:
        """Start a process again, as a supervisor would, at most a few times until it stays."""
        for attempt in range(STARTS_MAX):
            peer.node = ""
            peer.spawn()
            with trio.move_on_after(READY_TIMEOUT_S):
                while peer.runs and not peer.said().endswith(b"\n"):
                    await trio.sleep(POLL_S)
            if peer.runs:
                await peer.ready()
                self.seen[f"up after {attempt + 1} starts"] += 1
                return
            self.seen[f"start ended with {self._end(peer)}"] += 1
        pytest.fail(f"peer {peer.name} does not start again: {peer.tail()}")

    def _end(self, peer: PeerProcess) -> int:
        """Return the exit code of a process, which must be an intended one."""
        assert peer.process is not None
        code = peer.process.wait()
        assert code in CLEAR_ENDS, f"{peer.name} ended with {code}: {peer.tail()}"
        assert "Traceback (most recent call last)" not in peer.tail(), peer.tail()
        return code


def spoil(path: Path, what: str, draw: random.Random, disk: FailingDisk) -> None:
    """Damage a page of a file that a process has open."""
    pages = path.stat().st_size // PAGE
    leaves = []
    with path.open("r+b") as file:
        for page in range(2, pages):
            file.seek(page * PAGE + 10)
            if file.read(2) in (b"\1\0", b"\2\0"):
                leaves.append(page)
        for page in draw.sample(leaves, min(len(leaves), 1 if what == "unreadable" else 1 + len(leaves) // 20)):
            if what == "unreadable":
                disk.spoil(path, page)
            elif what == "cut off":
                file.truncate(max(page, pages // 2) * PAGE)
                return
            elif what == "another kind":
                file.seek(page * PAGE + 10)
                file.write(b"\4\0")
            else:
                file.seek(page * PAGE)
                file.write(bytes(PAGE) if what == "zeroed" else draw.randbytes(64))


async def produce(history: History, client: AsyncClient) -> None:
    """Enqueue tasks until there are very many or it is cancelled; only acknowledged ones count."""
    number = 0
    while number < ENQUEUES_MAX:
        number += 1
        try:
            history.enqueued.update(await client.enqueue_many(history.queue, [b"%d" % number] * 5))
        except OnyxqError:
            pass
        await trio.sleep(POLL_S)
