"""A log that was set back, wiped or overwritten is recognised as another log, for each kind of log."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from attrs import evolve

from log_entries.registry import ENTRIES
from onyxq.core.log.digest import ReadMark
from onyxq.core.log.interface import LogBackend, Record, Trimmed
from onyxq.core.replica import EMPTY
from onyxq.core.snapshot import pack
from onyxq.core.step import step
from onyxq.errors import LogWentBack
from onyxq.log.embedded import EmbeddedBackend
from onyxq.log.zookeeper import ZookeeperBackend
from onyxq.log.zookeeper_server import ZookeeperServer
from onyxq.node.log_check import mark_of, read_again
from onyxq.system.clock import SystemClock
from simulation.world.log import MemoryBackend
from tests.conformance.conftest import start_zookeeper
from tests.conformance.log_world import bounded

pytestmark = pytest.mark.anyio


class Restorable:
    """A log whose older copy can be restored; ``log`` is its present handle."""

    log: LogBackend

    def keep(self) -> None:
        """Keep a copy of the log as it is now."""

    def bring_back(self, *, wiped: bool = False) -> None:
        """Replace the log by the copy, or by an empty log."""

    def close(self) -> None:
        """Free its resources."""


class InMemory(Restorable):
    """The simulated log."""

    def __init__(self) -> None:
        self.log: MemoryBackend = MemoryBackend(SystemClock())

    def keep(self) -> None:
        """Keep the records."""
        self._kept = dict(self.log.records), self.log.following

    def bring_back(self, *, wiped: bool = False) -> None:
        """Start another log with them."""
        self.log = MemoryBackend(SystemClock())
        if not wiped:
            self.log.records, self.log.following = self._kept


class OnDisk(Restorable):
    """The embedded log."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.log: EmbeddedBackend = EmbeddedBackend.open(root / "log")

    def keep(self) -> None:
        """Copy the directory."""
        self.log.close()
        shutil.copytree(self._root / "log", self._root / "kept")
        self.log = EmbeddedBackend.open(self._root / "log")

    def bring_back(self, *, wiped: bool = False) -> None:
        """Put the copy in its place."""
        self.log.close()
        shutil.rmtree(self._root / "log")
        if not wiped:
            shutil.copytree(self._root / "kept", self._root / "log")
        self.log = EmbeddedBackend.open(self._root / "log")

    def close(self) -> None:
        """Close the files."""
        self.log.close()


class InZookeeper(Restorable):
    """A ZooKeeper of its own."""

    def __init__(self, server: ZookeeperServer, kept: Path) -> None:
        self.log = ZookeeperBackend(server.hosts, "c", open_timeout_s=60)
        self._server = server
        self._data = server._dir / "server-1" / "data"
        self._kept = kept

    def keep(self) -> None:
        """Copy the data directory."""
        self._server.kill()
        shutil.copytree(self._data, self._kept)
        self._server.spawn()

    def bring_back(self, *, wiped: bool = False) -> None:
        """Put the copy in its place."""
        self._server.kill()
        shutil.rmtree(self._data)
        if not wiped:
            shutil.copytree(self._kept, self._data)
        self._server.spawn()

    def close(self) -> None:
        """End the server."""
        self._server.stop()


@pytest.fixture(params=["memory", "embedded", "zookeeper"])
def restorable(
    request: pytest.FixtureRequest, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Restorable]:
    """An empty log of each kind."""
    found: Restorable
    if request.param == "memory":
        found = InMemory()
    elif request.param == "embedded":
        found = OnDisk(tmp_path)
    else:
        found = InZookeeper(start_zookeeper(tmp_path_factory, servers=1), tmp_path / "kept")
    yield found
    found.close()


async def write(log: LogBackend, *datas: bytes) -> None:
    """Append records."""
    session = await log.session()
    for data in datas:
        await session.append(data)
    await session.aclose()


async def read(log: LogBackend) -> ReadMark:
    """Return the read mark of a node that has read everything."""
    session = await log.session()
    replica, end = EMPTY, await session.tail()
    while replica.position < end:
        found = await session.read(replica.position + 1)
        assert isinstance(found, Record)
        replica = step(replica, found, ENTRIES).replica
    await session.aclose()
    return mark_of(replica)


async def begin(log: LogBackend, mark: ReadMark) -> list[Record]:
    """Return the records that a starting node with this read mark reads again."""
    session = await log.session()
    try:
        return (await read_again(session, mark)).records
    finally:
        await session.aclose()


@bounded
async def test_a_log_that_continues_is_read_again(restorable: Restorable) -> None:
    """They are read up to the node's position, also if there are more."""
    await write(restorable.log, b"1", b"2", b"3")
    mark = await read(restorable.log)
    await write(restorable.log, b"4")
    assert [record.data for record in await begin(restorable.log, mark)] == [b"1", b"2", b"3"]


@pytest.mark.long
@bounded
async def test_a_log_that_was_set_back_is_refused(restorable: Restorable) -> None:
    """It ends before the node's position."""
    await write(restorable.log, b"1", b"2")
    restorable.keep()
    await write(restorable.log, b"3", b"4")
    mark = await read(restorable.log)
    restorable.bring_back()
    with pytest.raises(LogWentBack, match="ends at position 1, before position 3"):
        await begin(restorable.log, mark)
    assert await restorable.log.look(3) is None
    assert isinstance(await restorable.log.look(1), Record)


@pytest.mark.long
@bounded
async def test_a_log_that_was_wiped_is_refused(restorable: Restorable) -> None:
    """And nothing is written to it."""
    await write(restorable.log, b"1", b"2")
    mark = await read(restorable.log)
    restorable.bring_back(wiped=True)
    with pytest.raises(LogWentBack, match="the log is empty"):
        await begin(restorable.log, mark)


@pytest.mark.long
@bounded
async def test_a_log_on_which_others_have_written_is_refused(restorable: Restorable) -> None:
    """It is longer than the node's position, and the last record may even have the same bytes."""
    await write(restorable.log, b"1", b"2")
    restorable.keep()
    await write(restorable.log, b"3", b"4")
    mark = await read(restorable.log)
    restorable.bring_back()
    await write(restorable.log, b"other", b"4", b"5")
    with pytest.raises(LogWentBack, match="another record at or before position 3"):
        await begin(restorable.log, mark)


@pytest.mark.long
@bounded
async def test_a_log_that_was_collected_beyond_the_position_is_compared_by_its_snapshot(restorable: Restorable) -> None:
    """A snapshot of the same log lets the node start, one of another log does not."""
    await write(restorable.log, b"1", b"2")
    mark = await read(restorable.log)
    await write(restorable.log, b"3", b"4")
    session = await restorable.log.session()
    replica = EMPTY
    for position in range(4):
        found = await session.read(position)
        assert isinstance(found, Record)
        replica = step(replica, found, ENTRIES).replica
    assert await session.store_origin(3, pack(replica), expected_version=-1)
    await session.trim(3)
    assert await session.look(1) == Trimmed(3)
    await session.aclose()
    assert await begin(restorable.log, mark) == []
    with pytest.raises(LogWentBack, match="another record at or before position 1"):
        await begin(restorable.log, evolve(mark, digest=bytes(16)))
