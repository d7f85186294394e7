"""Plants each bug in a process of its own and runs its workload until the bug is found."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from attrs import frozen

from simulation.planted.bugs import PLANTED
from simulation.planted.planted import Planted
from simulation.planted.seams import check
from simulation.runs import Child


@frozen
class Verdict:
    """Whether a planted bug was found."""

    planted: Planted
    found: bool
    runs: int
    """Number of seeds that were played."""
    seconds: float
    checker: str = ""
    seed: int = 0
    what: str = ""

    def row(self) -> dict[str, Any]:
        """Return the verdict as a row of a table."""
        return {
            "planted": self.planted.name,
            "found": self.found,
            "checker": self.checker,
            "workload": self.planted.workload,
            "runs": self.runs,
            "seconds": round(self.seconds, 1),
            "what": self.what,
        }


def look_for(planted: Planted, seeds: Iterable[int] | None = None) -> Verdict:
    """Play seeds with the bug planted until a checker fails."""
    wanted = seeds if seeds is not None else range(1, planted.runs + 1)
    began_s = time.monotonic()
    runs = 0
    child = Child(planted.workload, bug=planted.name)
    try:
        for seed in wanted:
            runs += 1
            result = child.play(seed)
            if result.checker:
                took_s = time.monotonic() - began_s
                return Verdict(planted, True, runs, took_s, result.checker, seed, result.what)
    finally:
        child.close()
    return Verdict(planted, False, runs, time.monotonic() - began_s)


def run_suite(planted: Sequence[Planted] = PLANTED, *, jobs: int = 1) -> Iterator[Verdict]:
    """Search for all planted bugs, ``jobs`` at a time; yield verdicts as they come.

    Raises `NotPlanted` before the first run if a seam is missing.
    """
    for one in planted:
        for path, fault in one.faults:
            check(path, fault)
    left: queue.SimpleQueue[Planted] = queue.SimpleQueue()
    for one in planted:
        left.put(one)
    verdicts: queue.SimpleQueue[Verdict | BaseException] = queue.SimpleQueue()

    def work() -> None:
        while True:
            try:
                one = left.get_nowait()
            except queue.Empty:
                return
            try:
                verdicts.put(look_for(one))
            except BaseException as error:
                verdicts.put(error)
                return

    for _ in range(min(jobs, len(planted))):
        threading.Thread(target=work, daemon=True).start()
    for _ in planted:
        verdict = verdicts.get()
        if isinstance(verdict, BaseException):
            raise verdict
        yield verdict


def missed(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Return the verdicts of bugs that were not found."""
    return [verdict for verdict in verdicts if not verdict.found]
