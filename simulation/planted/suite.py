"""Plants each bug in a copy of the tree and has its workload look for it."""

from __future__ import annotations

import queue
import shutil
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

from attrs import frozen

from simulation.planted.bugs import PLANTED, Planted
from simulation.runs import ROOT, Child

PACKAGES = ("onyxq", "log_entries", "simulation")


class NotPlanted(AssertionError):
    """The line that a bug takes the place of is gone, or stands there more than once: the bug must be told anew."""


@frozen
class Verdict:
    """Whether a planted bug was found."""

    planted: Planted
    found: bool
    runs: int
    """Seeds that were played."""
    seconds: float
    checker: str = ""
    seed: int = 0
    what: str = ""

    def row(self) -> dict[str, Any]:
        """For a table."""
        return {
            "planted": self.planted.name,
            "found": self.found,
            "checker": self.checker,
            "workload": self.planted.workload,
            "runs": self.runs,
            "seconds": round(self.seconds, 1),
            "what": self.what,
        }


def planted_texts(planted: Planted, root: Path = ROOT) -> dict[str, str]:
    """The texts of files with the bug in them, by path; raises `NotPlanted`."""
    texts: dict[str, str] = {}
    for file, before, after in ((planted.file, planted.before, planted.after), *planted.more):
        lines = (texts.get(file) or (root / file).read_text("utf-8")).splitlines(keepends=True)
        places = [place for place, line in enumerate(lines) if line.strip() == before]
        if len(places) != 1:
            raise NotPlanted(f"{planted.name}: {file} has {len(places)} lines {before!r}, not one")
        line = lines[places[0]]
        indentation = line[: len(line) - len(line.lstrip())]
        lines[places[0]] = f"{indentation}{after}\n"
        texts[file] = "".join(lines)
    return texts


def plant(planted: Planted, directory: Path) -> None:
    """Make ``directory`` a copy of the tree with the bug in it; raises `NotPlanted`."""
    texts = planted_texts(planted)
    for package in PACKAGES:
        shutil.copytree(ROOT / package, directory / package)  # with what is compiled, which counts by file times
    for file, text in texts.items():
        (directory / file).write_text(text, "utf-8")
        Path(cache_from_source(directory / file)).unlink(missing_ok=True)


def look_for(planted: Planted, seeds: Iterable[int] | None = None) -> Verdict:
    """Play seeds with the bug planted until one breaks something."""
    wanted = seeds if seeds is not None else range(1, planted.runs + 1)
    began_s = time.monotonic()
    runs = 0
    with tempfile.TemporaryDirectory(prefix="onyxq-planted-") as directory:
        plant(planted, Path(directory))
        child = Child(planted.workload, root=Path(directory))
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
    """Look for all of them, ``jobs`` at a time; verdicts as they come. Raises `NotPlanted` before it begins."""
    for one in planted:
        planted_texts(one)
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
    """Those that were not found."""
    return [verdict for verdict in verdicts if not verdict.found]
