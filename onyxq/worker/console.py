"""What a worker says about itself and its tasks, in lines of its log (design: interfaces).

The lines go to the loggers of this package: outcomes of tasks at level info, failed attempts and signals at level
warning. ``onyxq worker start`` prints them. The fields of `onyxq.worker.logs` say which task a line is about.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Sequence
from types import TracebackType
from typing import NamedTuple

from onyxq.client import OF_QUEUE
from onyxq.client.policy import Retries
from onyxq.core.limits import NAME_CHARACTERS_MAX

FRAMES_MAX = 8
"""Largest number of frames in the traceback of a failed attempt."""
NAMED_MAX = 5
"""Largest number of running tasks that are named when a worker stops."""
BACKOFF_MAX_MS = 3_600_000
"""Longest pause that leaders choose before a retry; the same as theirs, which workers cannot import."""

log = logging.getLogger(__name__)

_OURS = {"onyxq", "trio", "outcome", "anyio", "asyncio", "concurrent", "contextlib", "importlib", "threading"}
"""Modules whose frames are left out at the beginning of a traceback: OnyxQ and what runs or imports code for it."""


def default_name() -> str:
    """Return ``host:pid``, the name of a worker that was given none."""
    end = f":{os.getpid()}"
    return socket.gethostname()[: NAME_CHARACTERS_MAX - len(end)] + end


def duration(seconds: float) -> str:
    """Return a duration as text: ``4 ms``, ``0.12 s``, ``3 min 20 s``, ``2 h 5 min``."""
    if seconds < 0.01:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.2f}".rstrip("0").rstrip(".") + " s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest_s = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest_s} s" if rest_s else f"{minutes} min"
    hours, rest_min = divmod(minutes, 60)
    return f"{hours} h {rest_min} min" if rest_min else f"{hours} h"


class Policy(NamedTuple):
    """How often a task is retried and when, as far as its worker knows."""

    retries: Retries = OF_QUEUE
    backoff_ms: int | None = None

    def next_attempt(self, failed: int, pause_ms: int | None) -> str:
        """Return what follows after ``failed`` attempts, such as ``retry 2 of 5 in 1.2 s``.

        ``pause_ms``: the pause that the worker asked for. Without it the leader chooses between half of the back-off
        and all of it.
        """
        if isinstance(self.retries, int) and failed == self.retries + 1:
            return "no retry left"
        of = f" of {self.retries}" if isinstance(self.retries, int) else ""
        if isinstance(self.retries, int) and failed > self.retries:
            # Attempts before a requeue use up no retries, and the worker does not know their number.
            return f"retried, unless this was attempt {self.retries + 1} since it was requeued"
        return f"retry {failed}{of}{self._after(failed, pause_ms)}"

    def _after(self, failed: int, pause_ms: int | None) -> str:
        if pause_ms is not None:
            return f" in {duration(pause_ms / 1000)}"
        if self.backoff_ms is None:
            return ""
        most_s = min(self.backoff_ms << min(failed - 1, 20), BACKOFF_MAX_MS) / 1000
        return f" in {duration(most_s / 2)} to {duration(most_s)}"


def ended(
    name: str,
    outcome: str,
    took_s: float,
    what: str = "",
    error: BaseException | None = None,
    *,
    level: int = logging.INFO,
) -> None:
    """Log the end of an attempt; with an error, as a warning and with a short traceback."""
    level = level if error is None else logging.WARNING
    if log.isEnabledFor(level):
        about = {"outcome": outcome, "duration_ms": round(took_s * 1000)}
        trace = None if error is None else (type(error), error, trimmed(error.__traceback__))
        rest = f", {what}" if what else ""
        log.log(level, "%s %s in %s%s", name, outcome, duration(took_s), rest, exc_info=trace, extra=about)


def trimmed(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the first frames if they are not the user's, and only with the last frames."""
    while trace is not None and trace.tb_frame.f_globals.get("__name__", "").partition(".")[0] in _OURS:
        trace = trace.tb_next
    frames, last = 0, trace
    while last is not None:
        frames, last = frames + 1, last.tb_next
    for _ in range(frames - FRAMES_MAX):
        assert trace is not None
        trace = trace.tb_next
    return trace


def stopping(running: Sequence[tuple[str, float]], drain_s: float, *, reported: int = 0) -> str:
    """Return what a worker waits for after the first signal.

    ``running``: name and age in seconds of each task. ``reported``: number of tasks whose outcomes are being stored.
    """
    if not running and not reported:
        return "stopping: no task is running"
    waiting = f"stopping: waiting up to {duration(drain_s)}"
    if not running:
        return f"{waiting} until {outcomes(reported)} stored. Ctrl-C again waits a few seconds only"
    named = [f"{name} ({duration(age_s)})" for name, age_s in running[:NAMED_MAX]]
    rest = f" and {len(running) - NAMED_MAX} more" if len(running) > NAMED_MAX else ""
    also = f", and until {outcomes(reported)} stored" if reported else ""
    tasks = f"{counted(len(running))}: {', '.join(named)}{rest}{also}"
    return f"{waiting} for {tasks}. Ctrl-C again gives them back now"


def stopping_now(running: int, reported: int) -> str:
    """Return what a worker does after the second signal; the arguments are the numbers of such tasks."""
    given_back = [f"giving back {counted(running)}"] if running else []
    waiting = [f"waiting a few seconds until {outcomes(reported)} stored"] if reported else []
    return f"stopping now: {', '.join(given_back + waiting) or 'no task is running'}. Ctrl-C again ends this process"


def left(held: int) -> str:
    """Return what follows for tasks that a worker can neither finish nor give back; ``held``: their number."""
    return f"{counted(held)} will run again when {'its lease ends' if held == 1 else 'their leases end'}"


def outcomes(number: int) -> str:
    """Return ``the outcome of 1 task is``, or the same of several."""
    return f"the {'outcome' if number == 1 else 'outcomes'} of {counted(number)} {'is' if number == 1 else 'are'}"


def counted(number: int, noun: str = "task") -> str:
    """Return ``1 task`` or ``2 tasks``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
