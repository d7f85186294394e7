"""ZooKeeper servers are child processes that never outlive the process that started them."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from onyxq.errors import Conflict, Incomplete
from onyxq.log.zookeeper_server import ZookeeperServer, find_jars, find_java

END_TIMEOUT_S = 60.0
_IP_LOCAL_PORT_RANGE = 51
RUN = ("-m", "onyxq", "zookeeper", "start", "--port", "0", "--data")


@pytest.fixture
def running(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a process with one server, which has reported it."""
    made(tmp_path, port=0)
    with subprocess.Popen([sys.executable, *RUN, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def made(data_dir: Path, *, port: int) -> ZookeeperServer:
    """Return a server that is not started; skip without Java or pyspark, except under ``CI``."""
    try:
        return ZookeeperServer(data_dir, port=port)
    except Incomplete as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(f"{error} ({error.advice})")


def servers_in(data_dir: Path) -> list[int]:
    """Return the process ids of the servers on a directory (a zombie has no command line)."""
    config = str(data_dir / "server-1" / "zoo.cfg").encode()
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and config in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def assert_none_left(data_dir: Path) -> None:
    """Check that none is left; the kernel ends them asynchronously, so allow some time."""
    deadline = time.monotonic() + END_TIMEOUT_S
    while servers_in(data_dir) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert servers_in(data_dir) == []


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_servers_and_exits_cleanly(
    running: subprocess.Popen[str], tmp_path: Path, number: signal.Signals
) -> None:
    """This holds for both signals; the addresses were printed."""
    assert running.stdout is not None
    line = running.stdout.readline()
    assert line.startswith("ready 127.0.0.1:")
    assert len(servers_in(tmp_path)) == 1
    running.send_signal(number)
    assert running.wait(END_TIMEOUT_S) == 0
    assert_none_left(tmp_path)


def test_killing_the_parent_leaves_no_orphan(running: subprocess.Popen[str], tmp_path: Path) -> None:
    """After SIGKILL only the kernel can clean up."""
    assert running.stdout is not None
    assert running.stdout.readline().startswith("ready")
    assert len(servers_in(tmp_path)) == 1
    running.kill()
    running.wait()
    assert_none_left(tmp_path)


def test_a_machine_without_java_is_told_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The message names Java, the hint how to install it."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(Incomplete, match="Java") as caught:
        find_java()
    assert "openjdk" in caught.value.advice


def test_java_home_comes_before_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """This is the usual order."""
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert find_java() == str(program)


def test_a_machine_without_pyspark_is_told_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names pyspark, the hint the extra that brings it."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Incomplete, match="pyspark") as caught:
        find_jars()
    assert "onyxq[spark]" in caught.value.advice


def test_a_port_in_use_is_refused_before_anything_starts(tmp_path: Path) -> None:
    """Otherwise the server that has the port would be mistaken for ours."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        server = made(tmp_path, port=taken.getsockname()[1])
        with pytest.raises(Conflict, match=str(taken.getsockname()[1])):
            server.start()
        assert server.pids == []


def test_a_server_that_cannot_start_says_where_to_look(tmp_path: Path) -> None:
    """Here a file is in the place of its data directory."""
    server = made(tmp_path, port=0)
    data = tmp_path / "server-1" / "data"
    data.mkdir(parents=True)
    (data / "version-2").write_bytes(b"in the way")
    try:
        with pytest.raises(Incomplete, match="ended with code") as caught:
            server.start()
    finally:
        server.stop()
    assert "zookeeper.log" in caught.value.advice
    assert server.pids == []


class Probed(ZookeeperServer):
    """Checks, before each start of a server, whether another process could get its port."""

    given_away = False

    def spawn(self, server: int = 0) -> None:
        """Request the port as a client's own end."""
        with socket.socket() as client:
            try:
                client.setsockopt(socket.IPPROTO_IP, _IP_LOCAL_PORT_RANGE, struct.pack("HH", *2 * self.ports))
            except OSError:
                pytest.skip("needs Linux 6.3")
            self.given_away |= client.connect_ex(("127.0.0.1", *self.ports)) == 0
        super().spawn(server)


def test_the_port_is_nobody_elses_while_its_server_does_not_run(tmp_path: Path) -> None:
    """This holds before its start and after a kill: otherwise a client could connect to itself for ever."""
    made(tmp_path, port=0)
    with Probed(tmp_path) as server:
        server.kill()
        server.spawn()
        assert not server.given_away
