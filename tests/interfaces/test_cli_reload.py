"""``--reload``: a command runs again when a file changes, survives a broken file, and ends with a signal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from onyxq.interfaces.cli.processes.reload import command_without, files_in

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
        assert process.stdout.readline() == "ended with exit code 7; waiting for a change\n"
        work.write_text(WAITING.format(version=2), "utf-8")
        assert process.stdout.readline() == "work.py changed: starting again\n"
        assert process.stdout.readline() == "version 2\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 3


def test_only_the_users_python_files_are_watched(tmp_path: Path) -> None:
    """Hidden directories and those of packages are left out."""
    for name in ("shop.py", "notes.txt", "lib/mail.py", ".venv/lib.py", "x/site-packages/lib.py", "__pycache__/a.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("", "utf-8")
    assert {os.path.relpath(name, tmp_path) for name in files_in(tmp_path)} == {"shop.py", "lib/mail.py"}


def test_the_command_is_that_of_the_user_without_the_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything else stays."""
    monkeypatch.setattr(sys, "argv", ["/usr/bin/onyxq", "worker", "start", "shop:app", "--reload", "--quiet"])
    assert command_without("--reload") == [sys.executable, "-m", "onyxq", "worker", "start", "shop:app", "--quiet"]
