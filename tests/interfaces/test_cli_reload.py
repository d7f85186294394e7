"""``--reload``: a command runs again when a file changes, survives a broken file, and ends with a signal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from onyxq.errors import ClusterMismatch
from onyxq.interfaces.cli.main import run
from onyxq.interfaces.cli.processes.reload import AGAIN, WATCHED, command_without, files_in
from onyxq.worker.app import AppWorker

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import sys
from pathlib import Path
from onyxq.interfaces.cli.output import Output
from onyxq.interfaces.cli.processes.reload import keep_running

out = Output(as_json=False, environment={}, stderr=sys.stdout)
sys.exit(keep_running(out, [sys.executable, "-u", "work.py"]))
"""
WAITING = """
import signal, sys
signal.signal(signal.SIGINT, lambda *_: sys.exit(3))
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("version {version}", flush=True)
while True:
    signal.pause()
"""


def test_a_command_runs_again_when_a_file_changes(tmp_path: Path) -> None:
    """A broken file is reported and waited out; a signal reaches the command, whose exit code is kept."""
    work = tmp_path / "work.py"
    work.write_text(WAITING.format(version=1), "utf-8")
    command = [sys.executable, "-u", "-c", PROGRAM]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "version 1\n"
        work.write_text("raise SystemExit(7)", "utf-8")
        assert process.stdout.readline() == "work.py changed: starting again\n"
        assert process.stdout.readline() == "the worker ended with exit code 7; waiting for a change\n"
        work.write_text(WAITING.format(version=2), "utf-8")
        assert process.stdout.readline() == "work.py changed: starting again\n"
        assert process.stdout.readline() == "version 2\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 3


def test_a_command_that_a_signal_killed_runs_again(tmp_path: Path) -> None:
    """No file must change for that."""
    kill = """
import os, signal
from pathlib import Path

begun = Path("begun").exists()
Path("begun").touch()
if not begun:
    os.kill(os.getpid(), signal.SIGKILL)
print("again", flush=True)
"""
    (tmp_path / "work.py").write_text(kill, "utf-8")
    command = [sys.executable, "-u", "-c", PROGRAM]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = [process.stdout.readline() for _ in range(2)]
        process.terminate()
    assert said == ["the worker was killed by SIGKILL: starting again\n", "again\n"]


def test_a_command_ends_with_a_killed_watcher(tmp_path: Path) -> None:
    """The output that they share is then closed."""
    (tmp_path / "work.py").write_text("import signal\nsignal.alarm(60)\nprint('begun')\nsignal.pause()", "utf-8")
    command = [sys.executable, "-u", "-c", PROGRAM]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.kill()
        assert process.communicate(timeout=20) == ("", None)


def test_a_signal_during_a_restart_is_not_lost(tmp_path: Path) -> None:
    """Ctrl-C may come while the command that must start again still ends. No other one starts."""
    work = tmp_path / "work.py"
    ending = """
import os, signal, sys

def end(*_):
    os.kill(os.getppid(), signal.SIGINT)
    sys.exit(0)

signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is passed on, and may come before the end
signal.signal(signal.SIGTERM, end)
print("begun", flush=True)
while True:
    signal.pause()
"""
    work.write_text(ending, "utf-8")
    command = [sys.executable, "-u", "-c", PROGRAM]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "begun\n"
            work.write_text(WAITING.format(version=2), "utf-8")
            assert process.wait(20) == 0
            assert process.stdout.read() == "work.py changed: starting again\n"
        finally:
            process.terminate()


def test_a_command_runs_again_when_it_asks_for_it(tmp_path: Path) -> None:
    """A worker does so if its server is a new cluster. Only a command that is watched may ask."""
    work = tmp_path / "work.py"
    asks = f"""
import sys
from pathlib import Path
from onyxq.interfaces.cli.processes.reload import is_watched

print("watched" if is_watched() else "alone", flush=True)
begun = Path("begun").exists()
Path("begun").touch()
sys.exit(0 if begun else {AGAIN})
"""
    work.write_text(asks, "utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    alone = subprocess.run([sys.executable, "work.py"], check=False, cwd=tmp_path, env=environment, capture_output=True)
    assert alone.stdout == b"alone\n"
    (tmp_path / "begun").unlink()
    command = [sys.executable, "-u", "-c", PROGRAM]
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = [process.stdout.readline() for _ in range(4)]
        process.terminate()
    assert said[:3] == ["watched\n", "the server is a new cluster: starting again\n", "watched\n"]
    assert said[3] == "the worker ended with exit code 0; waiting for a change\n"


@pytest.mark.parametrize("watched", [True, False])
def test_a_worker_asks_to_start_again_at_a_new_cluster(
    watched: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without ``--reload`` it ends with the error: an operator should learn that its cluster is gone."""
    (tmp_path / "new_cluster_shop.py").write_text(
        "from onyxq import App\napp = App()\n\n\n@app.task\ndef send(): ...\n", "utf-8"
    )

    def run_worker(*_: object, **__: object) -> None:
        raise ClusterMismatch("the server is of another cluster")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(AppWorker, "run", run_worker)
    monkeypatch.delenv(WATCHED, raising=False)
    if watched:
        monkeypatch.setenv(WATCHED, "1")
    assert run(["worker", "start", "new_cluster_shop:app"]) == (AGAIN if watched else 1)
    assert ("another cluster" in capsys.readouterr().err) is not watched


def test_only_the_users_python_files_are_watched(tmp_path: Path) -> None:
    """Hidden directories, those of packages, and tests are left out."""
    tests = ["test_shop.py", "lib/shop_test.py", "conftest.py"]
    others = ["notes.txt", ".venv/lib.py", "x/site-packages/lib.py", "__pycache__/a.py"]
    for name in ["shop.py", "lib/mail.py", *others, *tests]:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("", "utf-8")
    assert {os.path.relpath(name, tmp_path) for name in files_in(tmp_path)} == {"shop.py", "lib/mail.py"}


def test_the_command_is_that_of_the_user_without_the_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything else stays."""
    monkeypatch.setattr(sys, "argv", ["/usr/bin/onyxq", "worker", "start", "shop:app", "--reload", "--quiet"])
    assert command_without("--reload") == [sys.executable, "-m", "onyxq", "worker", "start", "shop:app", "--quiet"]
