"""Measures where a peer and its client spend processor time: microseconds per task by subsystem.

The load is that of ``bench.lifecycle``. Each mode runs twice: alone for the processor time per task, and again
while py-spy samples the stacks of all processes for the shares. A sample counts for the innermost function of a
package of OnyxQ, or of a library that is named here, so C extensions and the standard library count for their
caller. Only the thread that holds the interpreter lock is sampled: the disk's time in other threads is not.
ZooKeeper's processes are not sampled.
Run it from the project's root: ``python -m bench.subsystems --systems onyxq-embedded-1``.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.common import cpu_seconds, emit, progress
from bench.competitors.base import Skip, System
from bench.competitors.servers import STOP_SECONDS_MAX, find_program
from bench.drive import Mode, lifecycle
from bench.onyxq_system import OnyxqEmbedded1
from bench.options import document, guarded, joined, parser

MODES = "1x64,100x4"
SAMPLES_PER_S = 250
EVENT_LOOP = "event loop"
OTHER = "other"
LIBRARIES = {
    "trio": EVENT_LOOP,
    "anyio": EVENT_LOOP,
    "asyncio": EVENT_LOOP,
    "sniffio": EVENT_LOOP,
    "outcome": EVENT_LOOP,
    "pyrsistent": "persistent maps",
    "msgpack": "msgpack",
    "bench": "benchmark",
    "log_entries": "log entries",
}
MODULES = {("store", "lmdb_store"): "lmdb", ("system", "procedures"): "procedures"}
"""Modules that count for themselves, because they surround a library or all other packages."""
_PLACE = re.compile(r"\((?P<path>[^()]*)\.py:\d+\)$")


def subsystem(stack: Sequence[str]) -> str:
    """Return the subsystem of a stack of ``function (file:line)``, outermost first."""
    for frame in reversed(stack):
        found = _PLACE.search(frame)
        parts = found["path"].split("/") if found is not None else []
        if "onyxq" in parts[:-1]:
            place = parts[parts.index("onyxq") + 1 :]
            return MODULES.get((place[0], place[-1]), place[0])
        for part in parts:
            if part in LIBRARIES:
                return LIBRARIES[part]
    return OTHER


def shares(lines: Iterable[str]) -> dict[str, float]:
    """Return each subsystem's share of the samples in py-spy's raw format, the largest first."""
    counted: Counter[str] = Counter()
    for line in lines:
        stack, _, count = line.rpartition(" ")
        counted[subsystem(stack.split(";"))] += int(count)
    return {name: count / counted.total() for name, count in counted.most_common()}


def main() -> None:
    """Measure and print the JSON document."""
    made = parser("Processor time per task by subsystem of a peer and of its client.")
    made.set_defaults(systems=[OnyxqEmbedded1.name], runs=1)
    made.add_argument("--modes", default=MODES, help="comma-separated BATCHxLANES")
    made.add_argument("--seconds", type=float, default=5.0, help="duration of each of a mode's two runs")
    options = made.parse_args()
    modes = [Mode.parse(text) for text in options.modes.split(",")]
    settings = {
        "payload_bytes": options.payload,
        "modes": joined(modes),
        "seconds": options.seconds,
        "samples_per_second": SAMPLES_PER_S,
        "figures": "microseconds of processor time per task; by_subsystem: of one run, by the shares of the other",
    }

    def measure(system: System) -> dict[str, Any]:
        sampler = find_program("py-spy", package="py-spy, from PyPI")
        if not isinstance(system, OnyxqEmbedded1):
            raise Skip("only OnyxQ has subsystems")
        return {"modes": {str(mode): guarded(partial(_mode, system, mode, options, sampler)) for mode in modes}}

    emit(document("subsystems", options, measure, settings))


def _mode(system: OnyxqEmbedded1, mode: Mode, options: Any, sampler: str) -> dict[str, Any]:
    run = partial(lifecycle, system, mode, payload_bytes=options.payload)
    progress(f"{system.name}: {mode}")
    run(seconds=options.seconds / 5, warmup_s=0.0)
    sides = {"peers": system.pids(), "client": [os.getpid()]}
    measured = {**sides, "zookeeper": system.zookeeper_pids()}
    before = {side: cpu_seconds(pids) for side, pids in measured.items()}
    found = run(seconds=options.seconds, warmup_s=0.0)
    us = {side: 1e6 * (cpu_seconds(pids) - before[side]) / found["tasks"] for side, pids in measured.items()}
    with TemporaryDirectory() as directory:
        files = {side: [Path(directory) / f"{side}-{pid}" for pid in pids] for side, pids in sides.items()}
        samplers = [
            _sample(sampler, pid, file)
            for side, pids in sides.items()
            for pid, file in zip(pids, files[side], strict=True)
        ]
        try:
            run(seconds=options.seconds, warmup_s=1.0)  # The samplers need a moment to begin.
        finally:
            for process in samplers:
                _end(process)
        parts = {
            side: shares(line for path in paths for line in path.read_text().splitlines())
            for side, paths in files.items()
        }
    return {
        "tasks_per_second": found["tasks_per_second"],
        **{
            side: {
                "us_per_task": round(us[side], 2),
                "by_subsystem": {name: round(us[side] * share, 2) for name, share in parts.get(side, {}).items()},
            }
            for side in measured
        },
    }


def _sample(sampler: str, pid: int, file: Path) -> subprocess.Popen[bytes]:
    argv = [sampler, "record", "--gil", "--nonblocking", "--rate", str(SAMPLES_PER_S), "--duration", "unlimited"]
    return subprocess.Popen(
        [*argv, "--format", "raw", "--output", str(file), "--pid", str(pid)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _end(sampler: subprocess.Popen[bytes]) -> None:
    """Let a sampler write what it has; at an interrupt it ends with an ordinary exit code."""
    sampler.send_signal(signal.SIGINT)
    with suppress(subprocess.TimeoutExpired):
        sampler.wait(STOP_SECONDS_MAX)
    sampler.kill()
    sampler.wait()


if __name__ == "__main__":
    main()
