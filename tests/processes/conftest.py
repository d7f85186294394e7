"""A real ZooKeeper for all tests of a run, peers of its own for each test, and their output on failure."""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path

import pytest

from onyxq.errors import Incomplete
from onyxq.log.zookeeper_server import ZookeeperServer
from tests.outbox.postgres import database, postgres
from tests.processes.cluster import SESSION_TIMEOUT_MS, Cluster
from tests.spark.standalone_world import Standalone, standalone

__all__ = ["database", "postgres"]


@pytest.fixture
def anyio_backend() -> str:
    """Tests run in trio."""
    return "trio"


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZookeeperServer]:
    """One server on a free port; skips without Java or pyspark, except under ``CI``, where it fails."""
    try:
        server = ZookeeperServer(tmp_path_factory.mktemp("zookeeper"))
        server.start()
    except Incomplete as error:
        reason = f"{error} ({error.advice})"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    yield server
    server.stop()


@pytest.fixture
async def cluster(
    zookeeper: ZookeeperServer, tmp_path: Path, yield_after_ms: int, session_timeout_ms: int
) -> AsyncIterator[Cluster]:
    """A cluster without peers yet; they are killed after the test."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    patience = {"yield_after_ms": yield_after_ms, "session_timeout_ms": session_timeout_ms}
    async with Cluster(tmp_path, zookeeper=zookeeper.hosts, name=name, **patience) as found:
        yield found


@pytest.fixture
def spark(zookeeper: ZookeeperServer, tmp_path: Path) -> Iterator[Standalone]:
    """Start a standalone master of Spark and two workers; tests with a ZooKeeper have Java.

    The workers have room for the executors of three sessions, because those of replaced drivers stay for a while.
    """
    folder = tmp_path / "standalone"
    folder.mkdir()
    with standalone(folder, cores=3, memory="3g") as found:
        yield found


@pytest.fixture
def yield_after_ms() -> int:
    """Time after which leaders in trouble yield; a test that waits for it sets a shorter one."""
    return 5_000


@pytest.fixture
def session_timeout_ms() -> int:
    """Session timeout of peers; a test that does much before it expires sets a longer one."""
    return SESSION_TIMEOUT_MS


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the end of the peers' output for a failed test."""
    report = yield
    found = getattr(item, "funcargs", {}).get("cluster")
    if report.failed and isinstance(found, Cluster):
        report.sections += found.tails()
    return report
