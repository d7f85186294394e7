"""``onyxq dev``: its banner, its ports, and the worker that it runs."""

from __future__ import annotations

import io
import json
import math
import os
import signal
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing

from onyxq.errors import BadRequest
from onyxq.interfaces.cli.context import Context
from onyxq.interfaces.cli.main import run
from onyxq.interfaces.cli.output import Output
from onyxq.interfaces.cli.processes.dev import WorkerProcess, announce
from onyxq.interfaces.daemon import PeerAddresses
from onyxq.interfaces.local_cluster import address_after
from tests.interfaces.test_cli_live import FREE, started

STOP_S_MAX = 60
TASKS = """
import os

from onyxq import App

app = App()

@app.task(queue="mail")
def greet(name: str) -> str:
    return f"hello {name}"

@app.task(queue="mail")
def pid() -> int:
    return os.getpid()
"""


def free_ports(count: int) -> int:
    """Return a port after which the next ones are free, too."""
    while True:
        with socket.socket() as first:
            first.bind(("127.0.0.1", 0))
            port: int = first.getsockname()[1]
        try:
            for one in range(port, port + count):
                with socket.socket() as taken:
                    taken.bind(("127.0.0.1", one))
            return port
        except (OSError, OverflowError):
            continue


@pytest.mark.long
def test_all_peers_keep_their_ports(tmp_path: Path) -> None:
    """Each peer has the ports after those of the one before, at every start; HTTP can be off."""
    first = free_ports(2)
    expected = [f"127.0.0.1:{first}", f"127.0.0.1:{first + 1}"]
    for peers in (["--peers", "2"], []):  # the second time, as many as the directory has
        with started(
            "dev", "--json", *peers, "--listen", expected[0], "--http", "off", "--data", str(tmp_path)
        ) as process:
            assert process.stdout is not None
            peers = json.loads(process.stdout.readline())["peers"]
            assert [one["listen"] for one in peers] == expected
            assert not any(one["http"] for one in peers)
            process.send_signal(signal.SIGTERM)
            assert process.wait(STOP_S_MAX) == 0


@pytest.mark.long
def test_another_number_of_peers_is_refused_or_explained(tmp_path: Path) -> None:
    """Fewer peers than the directory has are refused; more peers start, and a note says that they add no copies."""

    def said(*peers: str) -> tuple[int, str]:
        with started("dev", *FREE, "--data", str(tmp_path), *peers) as process:
            assert process.stdout is not None
            process.stdout.readline()
            process.send_signal(signal.SIGTERM)
            _, said = process.communicate(timeout=STOP_S_MAX)
        return process.returncode, said

    code, text = said()
    assert code == 0 and "copies" not in text
    code, text = said("--peers", "2")
    assert code == 0 and "this cluster keeps 1 copy of each task; more peers add no copies" in text
    code, text = said("--peers", "1")
    assert code == 2 and f"{tmp_path} has 2 nodes" in text and f"onyxq dev --data {tmp_path} --peers 2" in text


def test_the_port_of_a_peer_follows_the_first() -> None:
    """A free port stays one, and ports end at 65,535."""
    assert address_after("127.0.0.1:7400", 2) == "127.0.0.1:7402"
    assert address_after("[::1]:7400", 1) == "[::1]:7401"
    assert address_after("127.0.0.1:0", 3) == "127.0.0.1:0"
    with pytest.raises(BadRequest, match="no port"):
        address_after("127.0.0.1:65535", 1)


def test_a_banner_says_where_things_are_and_what_is_next(tmp_path: Path) -> None:
    """People see the URL of the dashboard and the next commands, on stderr; stdout has the ready line."""
    archive = tmp_path / "archive"
    with started("dev", *FREE, "--archive", str(archive)) as process:
        assert process.stdout is not None
        ready = dict(word.split("=") for word in process.stdout.readline().split()[1:])
        process.send_signal(signal.SIGTERM)
        out, said = process.communicate(timeout=STOP_S_MAX)
    assert out == ""
    assert f"http://{ready['http']}/" in said
    assert f"onyxq worker start MODULE:APP --connect {ready['listen']}" in said
    assert archive.is_dir()


def test_a_terminal_gets_no_line_for_programs() -> None:
    """A program that reads a pipe waits for the ready line. Ids of peers tell a person nothing."""

    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen, peer = Screen(), PeerAddresses("p1", "n1", "127.0.0.1:7400", "127.0.0.1:7480", "127.0.0.1:7490")
    texts = SimpleNamespace(text=lambda _: "", args=SimpleNamespace(app=None))
    for stream in (screen, io.StringIO()):
        out = Output(as_json=False, environment={"NO_COLOR": "1"}, stdout=stream, stderr=screen)
        announce(cast(Context, SimpleNamespace(out=out, **vars(texts))), [peer], None)
        assert (stream.getvalue().startswith("ready peer=p1 ")) == (stream is not screen)
    assert screen.getvalue().startswith("OnyxQ ") and "  task store 127.0.0.1:7490\n" in screen.getvalue()


@pytest.mark.long
def test_a_worker_runs_beside_the_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``onyxq dev hello`` runs the tasks of the only App in the module, and stops its worker in good order.

    If the worker is killed, another one starts, and the cluster continues.
    """
    (tmp_path / "hello.py").write_text(TASKS)
    monkeypatch.chdir(tmp_path)
    with started("dev", "hello", "--json", *FREE) as process:
        assert process.stdout is not None
        address = json.loads(process.stdout.readline())["peers"][0]["listen"]
        assert run(["task", "call", "hello:pid", "--wait", "--connect", address]) == 0
        os.kill(int(capsys.readouterr().out.split()[-1]), signal.SIGKILL)
        call = '{"task": "greet", "args": ["ann"], "kwargs": {}}'
        assert run(["task", "enqueue", "mail", "--data", call, "--connect", address]) == 0
        task = capsys.readouterr().out.strip()
        assert run(["task", "wait", task, "--timeout", "60s", "--connect", address]) == 0
        assert capsys.readouterr().out == f'{task} completed: "hello ann"\n'
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=STOP_S_MAX)
        assert process.returncode == 0, said
    assert "the worker was killed by SIGKILL: starting another" in said
    assert "stopped: 1 task completed" in said


@pytest.mark.parametrize(
    ("typed", "problem"),
    [
        (["hello:ap"], "did you mean app?"),
        (["hello", "--concurrency", "none"], "concurrency must be a number like 8"),
        (["hello", "--import", "no_such_module"], "no_such_module"),
    ],
)
def test_a_worker_that_cannot_start_ends_the_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: list[str], problem: str
) -> None:
    """A misspelt application or option ends it at once, with the exit code of the worker."""
    (tmp_path / "hello.py").write_text(TASKS)
    monkeypatch.chdir(tmp_path)
    with started("dev", *typed, *FREE) as process:
        _, said = process.communicate(timeout=STOP_S_MAX)
        assert process.returncode == 2
    assert problem in said


@pytest.mark.long
def test_a_worker_ends_with_a_killed_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that watches its files ends, too. The output that they share with the cluster is then closed."""
    (tmp_path / "hello.py").write_text(TASKS)
    monkeypatch.chdir(tmp_path)
    with started("dev", "hello", "--reload", "--data", str(tmp_path / "data"), *FREE) as process:
        assert process.stderr is not None
        assert any("Ctrl-C stops after the running tasks" in line for line in process.stderr)
        process.kill()
        process.communicate(timeout=STOP_S_MAX)


def test_a_worker_that_crashes_does_not_start_without_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may crash each time it is imported. Ctrl-C ends the pause."""
    monkeypatch.setattr("onyxq.interfaces.cli.processes.dev.KILLED_PAUSE_S", math.inf)
    said: list[str] = []
    context = cast(Context, SimpleNamespace(out=SimpleNamespace(note=said.append)))
    starts: list[str] = []

    class Crashing(WorkerProcess):
        def start(self, context: Context, address: str) -> Any:
            starts.append(address)
            assert len(starts) == 1
            return SimpleNamespace(wait=lambda: -signal.SIGSEGV)

    async def main() -> None:
        stop, worker = trio.Event(), Crashing()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.run, context, "127.0.0.1:1", stop)
            while not said:
                await trio.sleep(0.01)
            await trio.testing.wait_all_tasks_blocked()
            stop.set()
        assert worker.code is None

    trio.run(main)
    assert said == ["the worker was killed by SIGSEGV: starting another"]
