"""A peer reports to systemd that it is ready, alive and stopping, by systemd's protocol."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trio.testing

from onyxq.interfaces.cli.processes.supervisor import Supervisor

PATIENCE_S = 60.0


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """Open a socket like systemd; return it and its path."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        path = str(tmp_path / "notify")
        listening.bind(path)
        listening.settimeout(PATIENCE_S)
        yield listening, path


def test_nobody_is_told_anything_where_nobody_listens(tmp_path: Path) -> None:
    """No message is sent without a supervisor or after its end; the watchdog's task ends at once."""
    assert Supervisor.of({}) == Supervisor.of({"NOTIFY_SOCKET": "relative"}) == Supervisor()
    Supervisor().tell("READY=1")
    Supervisor(str(tmp_path / "gone")).tell("READY=1")
    trio.run(Supervisor().keep_telling)


def test_a_watchdog_of_another_process_is_not_ours() -> None:
    """Children inherit the environment."""
    said = {"NOTIFY_SOCKET": "/run/notify", "WATCHDOG_USEC": "3000000"}
    assert Supervisor.of(said).watchdog_s == 3.0
    assert Supervisor.of(said | {"WATCHDOG_PID": str(os.getpid())}).watchdog_s == 3.0
    assert Supervisor.of(said | {"WATCHDOG_PID": "1"}).watchdog_s == 0.0
    assert Supervisor.of(said | {"WATCHDOG_USEC": "soon"}).watchdog_s == 0.0


def test_the_watchdog_hears_of_us_twice_as_often_as_it_must(systemd: tuple[socket.socket, str]) -> None:
    """With a clock that jumps, thirty seconds of a limit of ten give six messages, and one at the start."""
    listening, path = systemd

    async def main() -> None:
        with trio.move_on_after(30.5):
            await Supervisor(path, 10.0).keep_telling()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    listening.setblocking(False)
    assert [listening.recv(100) for _ in range(7)] == [b"WATCHDOG=1"] * 7
    with pytest.raises(BlockingIOError):
        listening.recv(100)


def test_a_peer_is_ready_alive_and_stopping(systemd: tuple[socket.socket, str], tmp_path: Path) -> None:
    """One process is observed from its start to SIGTERM."""
    listening, path = systemd
    free = ["--listen", "127.0.0.1:0", "--http", "off", "--data", str(tmp_path / "data")]
    with subprocess.Popen(
        [sys.executable, "-m", "onyxq", "peer", "start", *free],
        env=os.environ | {"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "200000"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            heard = [listening.recv(1_000).decode()]
            while not heard[-1].startswith("READY=1\nSTATUS=peer="):
                heard.append(listening.recv(1_000).decode())
            assert "WATCHDOG=1" in heard or listening.recv(1_000) == b"WATCHDOG=1"
            process.send_signal(signal.SIGTERM)
            while heard[-1] != "STOPPING=1":
                heard.append(listening.recv(1_000).decode())
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()
