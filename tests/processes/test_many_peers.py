"""Twenty peers start at the same time, and five die at the same time, on a real ZooKeeper.

The test prints how long both take, by ZooKeeper's times of the log's records. It does not judge the
speed of the machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import IO

import pytest
import trio
from attrs import define, field

from log_entries.registry import ENTRIES
from onyxq.core.invariants.replica import violations
from onyxq.core.log.interface import LogSession, Record
from onyxq.core.replica import EMPTY, Replica
from onyxq.core.step import step
from onyxq.log.zookeeper import ZookeeperBackend
from onyxq.log.zookeeper_server import ZookeeperServer
from onyxq.system.parent_death import killed_with_parent
from tests.processes.cluster import bounded

pytestmark = [pytest.mark.anyio, pytest.mark.long]

PROCESSES, EACH = 4, 5
SESSION_TIMEOUT_MS = 6_000
PATIENCE_S = 60.0
ROOT = Path(__file__).resolve().parents[2]


@define(eq=False)
class Observer:
    """Reads the log and steps every record, without being in a ring."""

    session: LogSession
    replica: Replica = EMPTY
    entries: list[tuple[int, str, str]] = field(factory=list)
    """(record's time in ms, entry, its peer) of every applied entry."""
    members: list[tuple[int, frozenset[str]]] = field(factory=list)
    """(record's time in ms, members of the closed ring) whenever no peer was joining."""
    _changed: trio.Event = field(factory=trio.Event)

    async def follow(self) -> None:
        """Read until cancelled."""
        while True:
            record = await self.session.read(self.replica.position + 1)
            assert isinstance(record, Record)
            done = step(self.replica, record, ENTRIES)
            self.replica = done.replica
            assert violations(self.replica) == []
            for outcome in done.outcomes:
                if outcome.verdict == "applied":
                    about = getattr(outcome.args, "joiner", getattr(outcome.args, "peer", ""))
                    self.entries.append((record.ctime_ms, outcome.name, about))
            ring = self.replica.ring
            if not (ring.prepared or ring.accepted or ring.queue):
                self.members.append((record.ctime_ms, frozenset(ring.members)))
            self._changed.set()
            self._changed = trio.Event()

    async def until(self, about: str, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds."""
        with trio.move_on_after(PATIENCE_S):
            while not condition():
                await self._changed.wait()
            return
        pytest.fail(f"{about}: not within {PATIENCE_S:.0f} s; ring {self.replica.ring}")

    def closed_at(self, *, size: int, seen: int = 0) -> int | None:
        """Return when the ring first had exactly that many members and no peer was joining.

        The first ``seen`` closed rings do not count: while twenty peers join, one of fifteen may be among them.
        """
        return next((at_ms for at_ms, found in self.members[seen:] if len(found) == size), None)


class Group:
    """A process with several peers."""

    def __init__(self, root: Path, arguments: list[str]) -> None:
        self._output = root.with_suffix(".err")
        with self._output.open("wb") as stderr:
            self.process = self._start(arguments, stderr)
        self.peers: set[str] = set()

    def _start(self, arguments: list[str], stderr: IO[bytes]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.processes.several_peers", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            cwd=ROOT,
            start_new_session=True,
            preexec_fn=killed_with_parent(),  # noqa: PLW1509  # two system calls, their library loaded before
        )

    async def line(self) -> str:
        """Return its next line."""
        assert self.process.stdout is not None
        with trio.move_on_after(PATIENCE_S):
            said = await trio.to_thread.run_sync(self.process.stdout.readline, abandon_on_cancel=True)
            if said:
                return str(said, "utf-8").strip()
        pytest.fail(f"a process said nothing (code {self.process.poll()}): {self._output.read_text()[-4_000:]}")

    async def all_ready(self) -> None:
        """Wait until all its peers have reported that they serve."""
        while len(self.peers) < EACH:
            self.peers.add(json.loads(await self.line())["peer"])

    def begin(self) -> None:
        """Start its peers."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        """Send SIGKILL; return when it is gone."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


@asynccontextmanager
async def observed(zookeeper: ZookeeperServer, cluster: str) -> AsyncIterator[Observer]:
    """Run an observer that follows a cluster's log."""
    session = await ZookeeperBackend(zookeeper.hosts, cluster, session_timeout_ms=30_000).session()
    try:
        async with trio.open_nursery() as nursery:
            observer = Observer(session)
            nursery.start_soon(observer.follow)
            yield observer
            nursery.cancel_scope.cancel()
    finally:
        with trio.CancelScope(shield=True):
            await session.aclose()


@bounded(4 * PATIENCE_S)
async def test_twenty_join_at_once_and_the_ring_closes_around_five_that_die(
    zookeeper: ZookeeperServer, tmp_path: Path
) -> None:
    """Each peer joins with its first and only attempt; the five killed peers leave, and no other does."""
    cluster = f"many-{uuid.uuid4().hex[:12]}"
    with ExitStack() as stack:
        groups = []
        for number in range(PROCESSES):
            root = tmp_path / f"group-{number}"
            groups.append(Group(root, [zookeeper.hosts, cluster, str(root), str(EACH), str(SESSION_TIMEOUT_MS)]))
            stack.callback(groups[-1].kill)
        for group in groups:
            assert await group.line() == "waiting"
        async with observed(zookeeper, cluster) as observer:
            await all_join(observer, groups)
            await kill(observer, groups.pop(), (PROCESSES - 1) * EACH)


async def all_join(observer: Observer, groups: list[Group]) -> None:
    """Start all peers together and wait for the complete ring."""
    began_ms = time.time_ns() // 1_000_000
    for group in groups:
        group.begin()
    size = PROCESSES * EACH
    await observer.until(f"{size} peers in the ring", lambda: observer.closed_at(size=size) is not None)
    prepares = [at_ms for at_ms, name, _ in observer.entries if name == "prepare_join_cluster"]
    closed_ms = observer.closed_at(size=size)
    assert closed_ms is not None
    asked = f"asked to join {prepares[0] - began_ms} to {prepares[-1] - began_ms} ms after they were told to start"
    print(f"{size} peers: {asked}; the ring was whole {closed_ms - prepares[-1]} ms after the last of them asked")
    async with trio.open_nursery() as nursery:
        for group in groups:
            nursery.start_soon(group.all_ready)
    names = Counter(name for _, name, _ in observer.entries)
    assert names["prepare_join_cluster"] == size, "nobody tried twice"
    assert names["abort_join_cluster"] == names["leave_cluster"] == 0
    assert set(observer.replica.ring.members) == set().union(*(group.peers for group in groups))


async def kill(observer: Observer, group: Group, size: int) -> None:
    """Kill a process with all its peers and wait until the ring is closed without them."""
    killed_ms, seen = time.time_ns() // 1_000_000, len(observer.members)
    group.kill()
    await observer.until(
        f"a ring of {size} without the dead", lambda: observer.closed_at(size=size, seen=seen) is not None
    )
    left = {peer: at_ms - killed_ms for at_ms, name, peer in observer.entries if name == "leave_cluster"}
    assert left.keys() == group.peers
    assert not group.peers & set(observer.replica.ring.members)
    print(f"{EACH} of {size + EACH} killed: they were out {sorted(left.values())} ms after the kill")
