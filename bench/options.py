"""Options and reporting of the programs that measure several systems."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any

from bench.common import machine, progress
from bench.competitors import COMPETITORS
from bench.competitors.base import Skip, System
from bench.drive import started
from bench.onyxq_system import ONYXQ

SYSTEMS: dict[str, Callable[[], System]] = {**ONYXQ, **COMPETITORS}
GROUPS = {"all": tuple(SYSTEMS), "onyxq": tuple(ONYXQ), "competitors": tuple(COMPETITORS)}


def parser(description: str) -> argparse.ArgumentParser:
    """Return a parser with the options that these programs share."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    made.add_argument(
        "--systems",
        type=_systems,
        default="all",
        help=f"comma-separated: {', '.join(SYSTEMS)}, or one of {', '.join(GROUPS)}",
    )
    made.add_argument("--runs", type=int, default=3, help="number of measurements; the figures are their medians")
    made.add_argument("--payload", type=int, default=100, help="bytes per task, at least 8")
    made.add_argument(
        "--directory", type=Path, default=None, help="directory of the data (default: the temporary directory)"
    )
    return made


def _systems(text: str) -> list[str]:
    names = [name for word in text.split(",") for name in GROUPS.get(word, (word,))]
    unknown = [name for name in names if name not in SYSTEMS]
    if unknown:
        raise argparse.ArgumentTypeError(f"no such system: {', '.join(unknown)} (there are {', '.join(SYSTEMS)})")
    return list(dict.fromkeys(names))


def end_on_signal() -> None:
    """Turn SIGTERM into an ordinary exit, so that servers are stopped and directories removed."""

    def leave(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, leave)


def document(
    benchmark: str,
    options: argparse.Namespace,
    measure: Callable[[System], dict[str, Any]],
    settings: dict[str, Any],
) -> dict[str, Any]:
    """Measure every chosen system, one after the other; return the program's JSON document.

    A system that is not installed is ``{"skipped": reason}``; one that failed is ``{"error": reason}``.
    """
    end_on_signal()
    head = {"benchmark": benchmark, "machine": machine(), "settings": settings}
    return {**head, "systems": {name: _measured(name, options, measure) for name in options.systems}}


def _measured(name: str, options: argparse.Namespace, measure: Callable[[System], dict[str, Any]]) -> dict[str, Any]:
    progress(f"{name}: starting")
    system = SYSTEMS[name]()
    try:
        with started(system, options.directory):
            return {"settings": system.settings(), **measure(system)}
    except Skip as reason:
        progress(f"{name}: skipped: {reason}")
        return {"skipped": str(reason)}
    except Exception as error:  # a broken system must not lose the figures of the others
        progress(f"{name}: failed: {reason_of(error)}")
        return {"error": reason_of(error)}


def reason_of(error: BaseException) -> str:
    """Return the first leaf of an exception group, in one line."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"


def guarded(measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the measurement, or ``{"error": reason}``, so that other modes continue after a failed one."""
    try:
        return measure()
    except Exception as error:  # reported in the document
        progress(f"  failed: {reason_of(error)}")
        return {"error": reason_of(error)}


def joined(values: Iterable[object]) -> str:
    """Join values as they are given on the command line."""
    return ",".join(map(str, values))
