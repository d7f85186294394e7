"""How a failed attempt ends: retried after a pause, or given back without being counted (design: claims).

A function raises `Retry` or `Snooze` to choose. The option ``backoff`` of a task chooses the pause of all other
failures. Without it the leader chooses, as the task's ``backoff_ms`` or its queue says.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from onyxq.core.errors import BadRequest
from onyxq.system.durations import Seconds, as_seconds

PAUSE_S_MAX = 366 * 86_400
UNKNOWN_FIRST_S, UNKNOWN_MAX_S = 5.0, 600.0
"""Shortest and longest pause of a task that its worker does not know, in seconds."""
UNKNOWN_AGE_PART = 10
"""The pause of an unknown task is its age divided by this: soon after a deployment other workers may know it."""

Backoff: TypeAlias = Sequence[Seconds] | Callable[[int, BaseException], Seconds] | None
"""Pauses before the first, second and further retries, or a function of the retry's number and the error."""

log = logging.getLogger(__name__)


class Retry(Exception):
    """Raise it to end an attempt as failed: ``raise Retry("the relay is busy", after=30)``.

    ``after``: pause before the next attempt, as `Seconds`; default: as for any error. The attempt counts, so the task
    fails for good if no retry is left.
    """

    def __init__(self, reason: str = "", *, after: Seconds | None = None) -> None:
        super().__init__(reason)
        self.pause_ms = None if after is None else pause_ms(after, "after")


class Snooze(Exception):
    """Raise it to give the task back without counting the attempt: ``raise Snooze("not open yet", after=600)``.

    ``after``: pause before the next attempt, as `Seconds`. Nothing bounds how often a task snoozes.
    """

    level = logging.INFO
    """Level of its line in the worker's log."""

    def __init__(self, reason: str = "", *, after: Seconds) -> None:
        super().__init__(reason or "snoozed")
        self.pause_ms = pause_ms(after, "after")


class UnknownTask(Snooze):
    """The application of this worker has no task of that name; another worker may."""

    level = logging.WARNING


class Ending(NamedTuple):
    """How a failed attempt ends."""

    pause_ms: int | None = None
    """Pause before the next attempt, in milliseconds; None: as the leader chooses."""
    counted: bool = True
    level: int = logging.WARNING


def asked(error: BaseException) -> Ending:
    """Return the ending that an error asks for."""
    if isinstance(error, Snooze):
        return Ending(error.pause_ms, counted=False, level=error.level)
    return Ending(error.pause_ms if isinstance(error, Retry) else None)


def backed_off(ending: Ending, backoff: Backoff, retry: int, error: BaseException) -> Ending:
    """Return an ending with the pause before retry number ``retry``, unless it has one."""
    if backoff is None or ending.pause_ms is not None:
        return ending
    try:
        pause = backoff(retry, error) if callable(backoff) else backoff[min(retry, len(backoff)) - 1]
        return ending._replace(pause_ms=pause_ms(pause, "backoff"))
    except Exception:
        # The function is the user's. Its failure must not keep the failed attempt from being reported.
        log.exception("the backoff of the task cannot be computed: the leader chooses the pause")
        return ending


def check_backoff(backoff: Backoff) -> None:
    """Raise `BadRequest` for an option ``backoff`` that is neither a function nor a sequence of pauses."""
    if backoff is None or callable(backoff):
        return
    if isinstance(backoff, str) or not isinstance(backoff, Sequence) or not backoff:
        raise BadRequest("backoff is a sequence of pauses in seconds, or a function that returns one", field="backoff")
    for one in backoff:
        pause_ms(one, "backoff")


def pause_ms(pause: Seconds, field: str) -> int:
    """Return a pause in milliseconds; raise `BadRequest` naming the field if it is none."""
    seconds = as_seconds(pause, field)
    if type(seconds) not in (int, float) or not 0 <= seconds <= PAUSE_S_MAX:
        raise BadRequest(f"{field} must be a duration from 0 to 366 days, not {pause!r}", field=field)
    return round(seconds * 1000)


def unknown_task(name: str, known: Sequence[str], age_s: float) -> UnknownTask:
    """Return the error for a task that this worker does not know; ``age_s``: seconds since it was due."""
    names = ", ".join(sorted(known)) or "none"
    after = min(max(UNKNOWN_FIRST_S, age_s / UNKNOWN_AGE_PART), UNKNOWN_MAX_S)
    return UnknownTask(f"this worker has no task named {name!r}; it knows: {names}", after=after)
