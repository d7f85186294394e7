"""Clusters on a real ZooKeeper, created and destroyed on the command line."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
import trio

from log_entries.registry import ENTRIES
from onyxq.core.cluster_settings import Settings
from onyxq.core.log.interface import Record
from onyxq.core.replica import EMPTY
from onyxq.core.step import step
from onyxq.errors import Incomplete
from onyxq.interfaces.cli.main import run
from onyxq.log.zookeeper import ZookeeperBackend
from onyxq.log.zookeeper_server import find_jars
from onyxq.system.java import find_java

STOP_SECONDS_MAX = 60


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[str]:
    """Run ``onyxq zookeeper start`` for this module; return its connection string."""
    try:
        find_java()
        find_jars()
    except Incomplete as missing:
        pytest.skip(f"{missing}. {missing.advice}")
    command = [sys.executable, "-m", "onyxq", "zookeeper", "start", "--json", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield json.loads(server.stdout.readline())["zookeeper"]
        server.send_signal(signal.SIGTERM)
        assert server.wait(STOP_SECONDS_MAX) == 0


async def settings_of(zookeeper: str, name: str) -> Settings:
    """Return the settings in the first record of a cluster's log."""
    session = await ZookeeperBackend(zookeeper, name).session()
    try:
        record = await session.read(EMPTY.position + 1)
        assert isinstance(record, Record)
        return step(EMPTY, record, ENTRIES).replica.settings
    finally:
        await session.aclose()


@pytest.mark.long
def test_a_cluster_is_created_once(zookeeper: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The command prints the cluster's id; a second creation is a conflict."""
    assert run(["cluster", "create", "once", "--zookeeper", zookeeper, "--partitions", "8", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["id"]
    assert run(["cluster", "create", "once", "--zookeeper", zookeeper]) == 4
    assert "once" in capsys.readouterr().err


def test_a_cluster_keeps_the_settings_it_is_created_with(zookeeper: str, capsys: pytest.CaptureFixture[str]) -> None:
    """All fixed settings can be given; a value out of range is refused by name."""
    made = ["cluster", "create", "fixed", "--zookeeper", zookeeper]
    assert run([*made, "--absent-after-ms", "10"]) == 2
    assert "absent_after_ms must be from 1000 to" in capsys.readouterr().err
    assert run([*made, "--absent-after-ms", "172800000", "--yield-after-ms", "700", "--gc-records", "50"]) == 0
    settings = trio.run(settings_of, zookeeper, "fixed")
    assert (settings.absent_after_ms, settings.yield_after_ms, settings.gc_records) == (172_800_000, 700, 50)


def test_a_destroyed_cluster_can_be_created_anew(zookeeper: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Destroying needs ``--yes``, and another cluster of that name can be created."""
    assert run(["cluster", "create", "again", "--zookeeper", zookeeper]) == 0
    assert run(["cluster", "destroy", "again", "--zookeeper", zookeeper]) == 2
    assert run(["cluster", "destroy", "again", "--zookeeper", zookeeper, "--yes"]) == 0
    assert run(["cluster", "create", "again", "--zookeeper", zookeeper]) == 0
