"""The examples in ``examples/jobs``: each runs with one command, is exact, and leaves nothing."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "jobs"
CHECKED = {
    "word_count.py": {"words by hour", "words in all"},
    "log_sessions.py": {"visits", "broken lines"},
    "web_log.py": {"requests", "bad", "minutes", "visits", "reports", "bursts"},
    "join_inputs.py": {"imports of sources", "imports of others"},
    "queue_to_queue.py": {"functions", "classes", "completed tasks of the input"},
    "archive_analysis.py": {
        *("archived tasks", "sums of the job", "tasks in the history", "claims in the history"),
        *("overlapping claims", "retries", "outcomes of claims", "the forged claim is found"),
    },
}
"""The comparisons that each example reports."""
SHARED = {"running.py", "web_log_count.py"}
"""Modules that examples import."""
EXAMPLE_S_MAX = 900.0
"""Longest time for two starts of Spark and a job, on a busy machine."""
END_S_MAX = 60.0
QUICK = {"ONYXQ_SPARK_QUICK_START": "true"}


@contextmanager
def started(name: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Start an example with a folder for all its files; end it after the test."""
    process = subprocess.Popen(
        [sys.executable, str(EXAMPLES / name)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        env={**os.environ, "TMPDIR": str(folder), "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **QUICK},
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(END_S_MAX)
        assert process.stdout is not None
        process.stdout.close()


def left_in(folder: Path) -> list[str]:
    """Return the processes that were started with this folder, and the folder's files."""
    said = f"TMPDIR={folder}".encode()
    found = [str(path) for path in folder.iterdir()]
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if said in (entry / "environ").read_bytes().split(b"\0"):
                found.append((entry / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


@pytest.mark.long
@pytest.mark.usefixtures("java")
@pytest.mark.parametrize("name", CHECKED)
def test_an_example_is_exact(name: str, tmp_path: Path) -> None:
    """It ends with code 0, reports its comparisons, and leaves no process and no file."""
    with started(name, tmp_path) as process:
        said, _ = process.communicate(timeout=EXAMPLE_S_MAX)
        assert process.returncode == 0, said
    exact = {line.removeprefix("exact: ").rpartition(", ")[0] for line in said.splitlines() if line.startswith("exact")}
    assert exact == CHECKED[name], said
    assert left_in(tmp_path) == []


@pytest.mark.long
@pytest.mark.usefixtures("java")
def test_an_example_that_is_interrupted_leaves_nothing(tmp_path: Path) -> None:
    """Its peer, Spark and their folders are gone after Ctrl-C."""
    with started("join_inputs.py", tmp_path) as process:
        assert process.stdout is not None
        while "submitted" not in (line := process.stdout.readline()):
            assert line, "it ended before it submitted its job"
        assert left_in(tmp_path)
        process.send_signal(signal.SIGINT)
        assert process.wait(END_S_MAX) == 128 + signal.SIGINT
    assert left_in(tmp_path) == []


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module that the examples share."""
    spec = importlib.util.spec_from_file_location("examples_running", EXAMPLES / "running.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def test_an_example_sees_what_differs(running: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """A missing, additional or repeated row is reported, and so is an empty comparison; order does not count."""
    running.check("rows", ["b", "a"], ["a", "b"])
    assert capsys.readouterr().out == "exact: rows, 2 rows\n"
    for found, wanted, told in (
        (["a"], ["a", "b"], "1 rows are missing (-), 0 are too many (+)\n  - b"),
        (["a", "b"], ["a"], "0 rows are missing (-), 1 are too many (+)\n  + b"),
        (["a", "a"], ["a"], "0 rows are missing (-), 1 are too many (+)\n  + a"),
        ([], [], "there is nothing to compare with"),
    ):
        with pytest.raises(running.Failed) as caught:
            running.check("rows", found, wanted)
        assert str(caught.value) == f"rows: {told}"


def test_an_example_that_fails_ends_with_code_1(running: Any) -> None:
    """The reason is its last output."""

    def wrong() -> None:
        running.check("rows", [], [1])

    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit) as caught:
            running.main(wrong)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert str(caught.value).startswith("failed: rows: 1 rows are missing")  # text as a code: printed, and 1


def test_every_example_is_told_and_tested() -> None:
    """The folder's page names each program, and so does this module."""
    programs = {file.name for file in EXAMPLES.glob("*.py")} - SHARED
    told = re.findall(r"^``(\w+\.py)``", (EXAMPLES / "README.rst").read_text("utf-8"), re.MULTILINE)
    assert programs == set(CHECKED) == set(told) - SHARED
