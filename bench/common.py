"""Parts that all benchmarks share: a description of the machine, medians of several runs, JSON output.

A benchmark prints one JSON document on stdout, so that results can be kept and compared. Progress
goes to stderr.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any


def machine() -> dict[str, Any]:
    """Return what the figures depend on: processor, memory, kernel, Python."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_mib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_before": round(os.getloadavg()[0], 2),
    }


def median_of(runs: int, fn: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
    """Call ``fn`` ``runs`` times and return the median of every number that it returned.

    Nested maps are treated alike; other values are those of the last run. ``spread`` has the lowest and highest
    value of each number at the top level.
    """
    results = [fn() for _ in range(runs)]
    spread = {
        key: [min(result[key] for result in results), max(result[key] for result in results)]
        for key, value in results[-1].items()
        if _is_number(value)
    }
    return {**medians(results), "runs": runs, "spread": spread}


def medians(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the median of every number in maps of one shape."""
    return {key: _median([result[key] for result in results]) for key in results[-1]}


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """Return median, 99th percentile and maximum of durations, in milliseconds."""
    ordered = sorted(seconds)
    if not ordered:
        return {"p50_ms": 0.0, "p99_ms": 0.0, "max_ms": 0.0}
    last = len(ordered) - 1
    picks = {"p50_ms": ordered[last // 2], "p99_ms": ordered[round(last * 0.99)], "max_ms": ordered[-1]}
    return {key: round(value * 1000, 3) for key, value in picks.items()}


def cpu_seconds(pids: Iterable[int]) -> float:
    """Return the processor time that processes have used so far."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def progress(text: str) -> None:
    """Print on stderr what is being measured."""
    print(text, file=sys.stderr, flush=True)


def emit(doc: Mapping[str, Any]) -> None:
    """Print the benchmark's one JSON document."""
    print(json.dumps(doc, indent=2), flush=True)


def _median(values: list[Any]) -> Any:
    if isinstance(values[-1], Mapping):
        return medians(values)
    if not all(map(_is_number, values)):
        return values[-1]
    middle = statistics.median(values)
    return round(middle, 3) if isinstance(middle, float) else middle


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor()
