"""An application with a directory: its cluster runs in the first process that uses it, and others reach it there."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
import traceback
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import anyio
import httpx
import pytest

import onyxq
from onyxq import App, Client
from onyxq.errors import BadRequest, Conflict
from onyxq.interfaces.cli.main import run
from onyxq.interfaces.local_cluster import NOTE, findable_in, served_at
from onyxq.log.embedded import EmbeddedBackend
from tests.interfaces.test_cli_live import FREE, announced, started, stop
from tests.tidy.rules import ROOT

SHOP = """
from onyxq import App

app = App(data="queue")


@app.task(queue="pictures")
def thumbnail(path: str) -> str:
    return path.upper()
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with an application, and settings for free ports."""
    for name in ("ONYXQ_CONNECT", "ONYXQ_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ONYXQ_LISTEN", "127.0.0.1:0")
    monkeypatch.setenv("ONYXQ_HTTP", "127.0.0.1:0")
    (tmp_path / "shop.py").write_text(SHOP)
    return tmp_path


def shop() -> App:
    """Return the application, as a process of its own would import it."""
    app = App(data="queue")

    @app.task(queue="pictures", name="thumbnail")
    def thumbnail(path: str) -> str:
        return path.upper()

    return app


def python(code: str) -> str:
    """Return what a program in a process of its own prints."""
    command = [sys.executable, "-c", f"from shop import thumbnail\n{code}"]
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:."}
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert found.returncode == 0, found.stderr
    return found.stdout.strip()


def test_a_program_needs_no_server(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It has a worker in the background. The command line, the dashboard and other processes reach the cluster."""
    app = shop()
    thumbnail = app.tasks["thumbnail"]
    with app.background_worker(concurrency=2):
        task = thumbnail.enqueue("cat.jpg")
        assert task.result(timeout="30s") == "CAT.JPG"
        assert anyio.run(lambda: thumbnail.result_async(task, wait_ms="30s")) == "CAT.JPG"
        assert shop().address == app.address, "a second application of the same directory uses the same cluster"
        assert isinstance(app.address, str)
        connection = shop().worker()._connection  # also for its processes
        assert connection.address == app.address, "a worker in Python uses the same cluster"
        assert run(["task", "get", task.id, "--connect", app.address]) == 0
        assert "completed" in capsys.readouterr().out
        assert app._cluster is not None
        assert httpx.get(f"http://{app._cluster.http_address}/ui/tasks", trust_env=False).status_code == 200
        assert python('print(thumbnail.enqueue("dog.jpg").result("30s"))') == "DOG.JPG"
    app.close()


@pytest.mark.long
def test_tasks_wait_in_the_directory_for_a_worker(here: Path) -> None:
    """One program enqueues and ends; ``onyxq worker start`` then runs the cluster, and a third program uses it."""
    first = python('print(thumbnail.enqueue("dog.jpg").id)')
    command = [sys.executable, "-m", "onyxq", "worker", "start", "shop:app"]
    with subprocess.Popen(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE) as worker:
        try:
            # The worker has the directory first: this program waits until it serves.
            while served_at(here / "queue") is None:
                assert worker.poll() is None
                time.sleep(0.05)
            assert python(f'print(thumbnail.handle({first!r}).result("30s"))') == "DOG.JPG"
            assert python('print(thumbnail.enqueue("eel.jpg").result("30s"))') == "EEL.JPG"
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(30) == 0
        finally:
            worker.kill()
    assert python(f"print(thumbnail.handle({first!r}).result(0))") == "DOG.JPG"


def test_a_directory_takes_the_place_of_an_address(here: Path) -> None:
    """Both together are refused."""
    with pytest.raises(BadRequest) as refused:
        App("127.0.0.1:7400", data="queue")
    assert refused.value.field == "data"


def test_an_embedded_cluster_may_serve_others(here: Path) -> None:
    """`onyxq.open` takes addresses, too; without them only its own process reaches it."""
    with onyxq.open("data", listen="127.0.0.1:0") as opened:
        assert opened.address is not None and opened.http_address is None
        task = opened.enqueue("q", b"x")
        with Client(opened.address) as client:
            assert client.get(task).data == b"x"
    assert opened.address is None
    with onyxq.open("data") as alone:
        assert (alone.address, alone.http_address) == (None, None)
        assert alone.get(task).data == b"x"


def test_a_cluster_that_serves_no_others_is_not_found(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the process that has the directory, and comes soon: it will never serve others."""
    monkeypatch.setattr("onyxq.interfaces.embedded.STARTING_S", math.inf)
    monkeypatch.setattr("onyxq.interfaces.embedded.NOTE_S", 0.0)
    with onyxq.open("queue"), pytest.raises(Conflict, match=f"process {os.getpid()}") as refused:
        _ = shop().address
    assert "another directory" in refused.value.advice and "--data" not in refused.value.advice


def test_a_note_of_a_process_that_was_killed_is_not_believed(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also not before the process that has the directory now has read its log and writes a note of its own."""
    monkeypatch.setattr("onyxq.interfaces.embedded.NOTE_S", 0.0)
    (here / "queue").mkdir()
    (here / "queue" / NOTE).write_text("127.0.0.1:9")
    with closing(EmbeddedBackend.open("queue/log")), pytest.raises(Conflict, match=f"process {os.getpid()}"):
        _ = shop().address


def test_an_application_finds_the_cluster_that_dev_runs_in_its_directory(here: Path) -> None:
    """The note with its address is removed at the end."""
    with started("dev", "--json", *FREE, "--data", "queue") as process:
        address, app = announced(process)["peers"][0]["listen"], shop()
        assert app.address == address
        assert app.tasks["thumbnail"].enqueue("cat.jpg").state() == "ready"
        app.close()
        stop(process)
    assert not (here / "queue/served").exists()


def test_an_application_waits_for_a_cluster_that_starts(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The note says that it will have an address."""
    monkeypatch.setattr("onyxq.interfaces.embedded.NOTE_S", 0.0)
    with onyxq.open("queue"), findable_in(here / "queue") as serve:
        clock = SimpleNamespace(monotonic=lambda: 0.0, sleep=lambda _: serve("127.0.0.1:9"))
        monkeypatch.setattr("onyxq.interfaces.embedded.time", clock)
        assert shop().address == "127.0.0.1:9"


def test_a_port_in_use_is_told_at_once(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No wait would free it. The error says whom to use instead, below few frames."""
    monkeypatch.setattr("onyxq.interfaces.embedded.STARTING_S", math.inf)
    with onyxq.open("first", listen="127.0.0.1:0") as first:
        address = str(first.address)
        monkeypatch.setenv("ONYXQ_LISTEN", address)
        with pytest.raises(Conflict, match="in use by another process") as refused:
            shop().tasks["thumbnail"].enqueue("cat.jpg")
    assert refused.value.field == "listen"
    assert f"App('{address}')" in refused.value.advice and "ONYXQ_LISTEN" in refused.value.advice
    assert len(traceback.extract_tb(refused.value.__traceback__)) <= 12
