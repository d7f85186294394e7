"""Measures tasks per second through enqueue, claim and complete: OnyxQ and other systems.

Every system is measured with single tasks, 64 of them in flight, and with batches of 100 and 1,000.
One client process both produces and consumes, and writes are durable. Run it from the project's
root: ``python -m bench.lifecycle --systems onyxq-embedded-1,redis-streams``.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from bench.common import emit, median_of, progress
from bench.competitors.base import System
from bench.drive import Mode, lifecycle
from bench.options import document, guarded, joined, parser

MODES = "1x64,100x4,1000x4"


def main() -> None:
    """Measure and print the JSON document."""
    options = _options()
    settings = {
        "payload_bytes": options.payload,
        "modes": joined(options.modes),
        "mode": "BATCHxLANES: tasks in each call, by that number of lanes at once",
        "worker": "one client process; each lane enqueues a batch, claims as many tasks, completes them, and again",
        "seconds": options.seconds,
        "warmup_seconds": options.warmup,
        "runs": options.runs,
    }

    def measure(system: System) -> dict[str, Any]:
        return {"modes": {str(mode): guarded(partial(_mode, system, mode, options)) for mode in options.modes}}

    emit(document("lifecycle", options, measure, settings))


def _options() -> argparse.Namespace:
    made = parser("Tasks per second through enqueue, claim and complete.")
    made.add_argument("--modes", type=_modes, default=MODES, help="comma-separated BATCHxLANES")
    made.add_argument("--seconds", type=float, default=5.0, help="duration of one measurement")
    made.add_argument("--warmup", type=float, default=1.0, help="seconds of warm-up before each measurement")
    return made.parse_args()


def _modes(text: str) -> list[Mode]:
    return [Mode.parse(each) for each in text.split(",")]


def _mode(system: System, mode: Mode, options: argparse.Namespace) -> dict[str, Any]:
    if mode.batch > 1 and not system.batches:
        return {"skipped": f"{system.name} has no calls for batches"}
    mode = mode._replace(lanes=min(mode.lanes, system.lanes_max))
    progress(f"{system.name}: {mode}")
    found = median_of(
        options.runs,
        lambda: lifecycle(
            system, mode, seconds=options.seconds, warmup_s=options.warmup, payload_bytes=options.payload
        ),
    )
    return {"batch": mode.batch, "lanes": mode.lanes, **found}


if __name__ == "__main__":
    main()
