"""A real ZooKeeper for all tests of a run, a cluster of its own for each test, and logs and stores of each kind."""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from onyxq.core.log.interface import SEGMENT_RECORDS, LogBackend, LogSession
from onyxq.errors import Incomplete
from onyxq.log import zookeeper_reader
from onyxq.log.embedded import EmbeddedBackend
from onyxq.log.zookeeper import ZookeeperBackend
from onyxq.log.zookeeper_server import ZookeeperServer
from onyxq.system.clock import SystemClock
from simulation.world.log import MemoryBackend
from tests.conformance.log_world import Opener
from tests.conformance.store_world import World


@pytest.fixture
def anyio_backend() -> str:
    """Logs and stores run in trio."""
    return "trio"


def start_zookeeper(tmp_path_factory: pytest.TempPathFactory, *, servers: int) -> ZookeeperServer:
    """Start a server; skip the test without Java or pyspark, except under ``CI``, where it fails."""
    try:
        server = ZookeeperServer(tmp_path_factory.mktemp("zookeeper"), servers=servers)
        server.start()
    except Incomplete as error:
        reason = f"{error} ({error.advice})"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return server


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZookeeperServer]:
    """One server on a free port; a test that kills or stops it starts it again."""
    server = start_zookeeper(tmp_path_factory, servers=1)
    yield server
    server.stop()


@pytest.fixture
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZookeeperServer]:
    """Three servers of one test."""
    server = start_zookeeper(tmp_path_factory, servers=3)
    yield server
    server.stop()


@pytest.fixture(autouse=True)
def readers_do_not_look_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ZooKeeper reader that missed an event waits for ever instead of a few seconds."""
    monkeypatch.setattr(zookeeper_reader, "RECHECK_S", 3_600.0)


@pytest.fixture
def cluster() -> str:
    """A cluster name that no other test has."""
    return f"test-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def segment_records() -> int:
    """Records after which a segment may be closed; a module with short segments says otherwise."""
    return SEGMENT_RECORDS


@pytest.fixture(params=["memory", "embedded", "zookeeper"])
def backend(request: pytest.FixtureRequest, tmp_path: Path, cluster: str, segment_records: int) -> Iterator[LogBackend]:
    """An empty log of each kind."""
    if request.param == "memory":
        yield MemoryBackend(SystemClock(), segment_records=segment_records)
    elif request.param == "embedded":
        embedded = EmbeddedBackend.open(tmp_path / "log", segment_records=segment_records)
        yield embedded
        embedded.close()
    else:
        hosts = request.getfixturevalue("zookeeper").hosts
        yield ZookeeperBackend(hosts, cluster, segment_records=segment_records)


@pytest.fixture
async def opened(backend: LogBackend) -> AsyncIterator[Opener]:
    """Opens sessions with the log that are closed after the test."""
    sessions: list[LogSession] = []

    async def open_one() -> LogSession:
        sessions.append(await backend.session())
        return sessions[-1]

    yield open_one
    for session in sessions:
        await session.aclose()


@pytest.fixture(params=["memory", "lmdb"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    """A store of each kind."""
    return World(request.param, tmp_path)
