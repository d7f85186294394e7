"""Processes that play seeds: which runs count as hung."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from simulation.results import Result
from simulation.runs import Child

BOUND_S = 5.0
"""Several times what a run of ``late`` takes."""
WAITS = "print('{}', flush=True)\nimport sys\nsys.stdin.read()\n"
"""Replaces `simulation.runs`: it is ready, and then waits for an end of its input that never comes."""


def stat(pid: int) -> list[str]:
    """Return the fields of ``/proc`` about a process, from its state on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def play(child: Child, seed: int, results: list[Result]) -> None:
    """Play a seed, in a thread."""
    results.append(child.play(seed))


def stopped_in_a_run(child: Child) -> tuple[threading.Thread, list[Result]]:
    """Let it play until a signal stops it during a run; return the waiting thread and its future result."""
    pid = child._process.pid
    for seed in range(1, 100):
        used, results = stat(pid)[11], list[Result]()
        playing = threading.Thread(target=play, args=(child, seed, results))
        playing.start()
        while playing.is_alive() and stat(pid)[11] == used:
            time.sleep(0.001)
        os.kill(pid, signal.SIGSTOP)
        while stat(pid)[0] != "T":
            time.sleep(0.001)
        playing.join(0.1)
        if playing.is_alive():
            return playing, results
        os.kill(pid, signal.SIGCONT)  # it was faster
    raise AssertionError("no run could be stopped")


@pytest.mark.long
def test_a_run_that_is_stopped_for_longer_than_its_bound_goes_on() -> None:
    """An operator may stop simulations for a while; no property breaks by that."""
    child = Child("late", run_cpu_s=BOUND_S)
    pid = child._process.pid
    try:
        assert not child.play(0).checker
        playing, results = stopped_in_a_run(child)
        playing.join(1.5 * BOUND_S)
        assert playing.is_alive()
        os.kill(pid, signal.SIGCONT)
        playing.join()
        assert [(result.checker, result.what) for result in results] == [("", "")]
        assert not child.play(0).checker and child._process.pid == pid  # by the same process
    finally:
        child.close()


def test_a_run_that_takes_too_much_processor_time_says_where_it_was() -> None:
    """This shows where a run spins; the process is killed."""
    child = Child("standard", run_cpu_s=0.05)
    try:
        result = child.play(1)
        first, *more = result.what.splitlines()
        assert result.checker == "liveness"
        assert first.startswith("did not end within 0.05 s of processor time, at File ")
        assert any("runs.py" in line and line.endswith("in play") for line in more)
        assert not child.alive
    finally:
        child.close()


def test_a_run_that_waits_for_something_real_is_ended(tmp_path: Path) -> None:
    """It uses no processor time, so it would never end."""
    (tmp_path / "simulation").mkdir()
    (tmp_path / "simulation" / "__init__.py").touch()
    (tmp_path / "simulation" / "runs.py").write_text(WAITS)
    child = Child("standard", root=tmp_path, asleep_looks=2)
    try:
        result = child.play(1)
        assert (result.checker, result.what) == ("liveness", "waited for 1 s for something that is not simulated")
    finally:
        child.close()


def test_a_process_that_dies_tells_its_last_words(tmp_path: Path) -> None:
    """No property of the cluster broke, but the end is still reported."""
    (tmp_path / "simulation").mkdir()
    (tmp_path / "simulation" / "__init__.py").touch()
    (tmp_path / "simulation" / "runs.py").write_text("raise SystemExit('no memory')\n")
    child = Child("standard", root=tmp_path)
    try:
        result = child.play(1)
        assert (result.checker, result.what) == ("no errors", "the process died: no memory")
    finally:
        child.close()
