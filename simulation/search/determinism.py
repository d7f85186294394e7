"""Determinism shown: a run is repeated by another interpreter and compared by position (design: simulation).

The second interpreter hashes strings with another seed, so whatever depends on the order
of a set or on ``hash()`` comes out differently.  Compared are the bytes of every record,
which are what peers decided, and the canonical bytes of the replica after it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from hashlib import blake2b

from attrs import frozen

from onyxq.core import snapshot
from simulation.search.search import Search

TIMEOUT_S = 300.0


@frozen
class Mark:
    """One position: digests of the record and of the replica after it."""

    position: int
    record: str
    replica: str

    def line(self) -> str:
        """The mark in one line."""
        return f"{self.position} {self.record} {self.replica}"


def marks(seed: int, steps: int = Search.steps) -> list[Mark]:
    """Return a run's marks, one for each record that landed."""
    log = Search(seed).run(steps).cluster.log
    return [
        Mark(record.position, _digest(record.data), _digest(snapshot.pack(replica)))
        for record, replica in zip(log.records, log.replicas[1:], strict=False)
    ]


def _digest(data: bytes) -> str:
    return blake2b(data, digest_size=12).hexdigest()


def elsewhere(seed: int, steps: int = Search.steps, *, hash_seed: int = 1) -> list[Mark]:
    """The same run's marks from another interpreter, whose strings hash differently."""
    command = [
        sys.executable,
        "-m",
        "simulation.search.determinism",
        "--emit",
        "--seed",
        str(seed),
        "--steps",
        str(steps),
    ]
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    return [_mark(line) for line in done.stdout.splitlines()]


def _mark(line: str) -> Mark:
    position, record, replica = line.split()
    return Mark(int(position), record, replica)


def difference(here: Sequence[Mark], there: Sequence[Mark]) -> str:
    """The first position at which two runs differ and in what, in words; empty if they are equal."""
    for mine, other in zip(here, there, strict=False):
        if mine == other:
            continue
        if mine.position != other.position:
            return f"position {mine.position} in one run is {other.position} in the other"
        what = "the record" if mine.record != other.record else "the replica behind an equal record"
        return f"position {mine.position}: {what} differs"
    if len(here) != len(there):
        return f"one run has {len(here)} records, the other {len(there)}"
    return ""


def compare(seed: int, steps: int = Search.steps, *, hash_seed: int = 1) -> str:
    """Carry a run out here and elsewhere; the first difference, or empty."""
    return difference(marks(seed, steps), elsewhere(seed, steps, hash_seed=hash_seed))


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare runs from consecutive seeds; see ``--help``."""
    parser = argparse.ArgumentParser(
        prog="python -m simulation.search.determinism", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--seed", type=int, default=1, help="first seed")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--steps", type=int, default=Search.steps, help="moves per run")
    parser.add_argument("--emit", action="store_true", help="print one run's marks instead of comparing")
    asked = parser.parse_args(arguments)
    if asked.emit:
        for mark in marks(asked.seed, asked.steps):
            print(mark.line())
        return 0
    failed = 0
    for seed in range(asked.seed, asked.seed + asked.runs):
        found = compare(seed, asked.steps, hash_seed=seed % 1000 + 1)
        print(f"seed {seed}: {found or 'equal'}", flush=True)
        failed += bool(found)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
