"""Measures milliseconds from enqueue to the start of the handler at 100 tasks a second.

One client process has the producers and the waiting workers, so both ends use one clock. Run it
from the project's root: ``python -m bench.latency --systems onyxq``.
"""

from __future__ import annotations

import argparse
from typing import Any

from bench.arrivals import WARMUP_S, latency
from bench.common import emit, median_of, progress
from bench.competitors.base import System
from bench.options import document, guarded, parser


def main() -> None:
    """Measure and print the JSON document."""
    options = _options()
    settings = {
        "payload_bytes": options.payload,
        "tasks_per_second": options.rate,
        "seconds": options.seconds,
        "warmup_seconds": WARMUP_S,
        "producers": options.producers,
        "workers": options.workers,
        "worker": "one client process: producers that take turns, and workers that wait for one task at a time",
        "runs": options.runs,
    }

    def measure(system: System) -> dict[str, Any]:
        progress(f"{system.name}: {options.rate} tasks/s")
        return guarded(lambda: median_of(options.runs, lambda: _once(system, options)))

    emit(document("latency", options, measure, settings))


def _options() -> argparse.Namespace:
    made = parser("Milliseconds from enqueue to the start of the handler.")
    made.add_argument("--rate", type=int, default=100, help="tasks per second")
    made.add_argument("--seconds", type=float, default=10.0, help="duration of one measurement")
    made.add_argument("--producers", type=int, default=4, help="producers that take turns")
    made.add_argument("--workers", type=int, default=8, help="waiting workers")
    return made.parse_args()


def _once(system: System, options: argparse.Namespace) -> dict[str, Any]:
    return latency(
        system,
        per_second=options.rate,
        seconds=options.seconds,
        producers=options.producers,
        workers=options.workers,
        payload_bytes=options.payload,
    )


if __name__ == "__main__":
    main()
