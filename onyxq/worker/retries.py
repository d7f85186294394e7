"""How a failed attempt ends: retried after a pause, or given back without being counted (design: claims).

A function raises `Retry` or `Snooze` to choose. The option ``backoff`` of a task chooses the pause of all other
failures. Without it the leader chooses, as the task's ``backoff_ms`` or its queue says.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from attrs import frozen

from onyxq.client.values import wrong
from onyxq.system.durations import Seconds, as_seconds
from onyxq.system.settings import did_you_mean

PAUSE_S_MAX = 366 * 86_400
UNKNOWN_FIRST_S, UNKNOWN_MAX_S = 5.0, 600.0
"""Shortest and longest pause of a task that its worker does not know, in seconds."""
UNKNOWN_AGE_PART = 10
"""The pause of an unknown task is its age divided by this: soon after a deployment other workers may know it."""

Backoff: TypeAlias = Seconds | Sequence[Seconds] | Callable[[int, BaseException], Seconds] | None
"""A pause before each retry, pauses before the first, second and further ones, or a function of number and error."""
Kinds: TypeAlias = type[BaseException] | tuple[type[BaseException], ...] | None
"""Classes of exceptions; None for no choice."""

log = logging.getLogger(__name__)


class Retry(Exception):
    """Raise it to end an attempt as failed: ``raise Retry("the relay is busy", after=30)``.

    ``after``: pause before the next attempt, as `Seconds`; default: as for any error. The attempt counts, so the task
    fails for good if no retry is left.
    """

    def __init__(self, reason: str = "", *, after: Seconds | None = None) -> None:
        super().__init__(reason)
        self.pause_ms = None if after is None else pause_ms(after, "after")


class GiveUp(Exception):
    """Raise it to fail the task for good, whatever retries it has left: ``raise GiveUp("550 no such user")``."""


class ResultRefused(GiveUp):
    """A function has run, but its result cannot be stored. A retry would only run the function again."""

    def __init__(self, name: str, problem: str, hint: str) -> None:
        super().__init__(f"{name} has run, but its result cannot be stored: {problem}. {hint}".rstrip())


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
    final: bool = False
    """Whether the task fails for good."""
    chosen: bool = False
    """Whether the function asked for it, so that the options about exceptions do not count."""
    level: int = logging.WARNING
    reason: str = ""
    """Why the task fails for good, if an option decided it."""


class FailedThere(Exception):
    """Error of a function that ran in another process; the text describes it, a note holds the traceback."""

    def __init__(self, text: str, trace: str, ending: Ending, kinds: Sequence[str]) -> None:
        super().__init__(text)
        self.add_note(trace)
        self.trace = trace
        self.ending = ending
        """The ending that the error asked for."""
        self.kinds = frozenset(kinds)
        """Full names of the error's class and its bases."""


@frozen
class Retrying:
    """The options of a task about retries that its worker follows."""

    backoff: Backoff = None
    retry_on: Kinds = None
    give_up_on: Kinds = None
    retry_for_s: float | None = None

    def ending(self, error: BaseException, retry: int, age_s: float) -> Ending:
        """Return how an attempt ends; ``retry``: number of the next one, ``age_s``: seconds since the task was due."""
        ending = asked(error)
        if not ending.counted or ending.final:
            return ending
        if not ending.chosen and self._gives_up(error):
            return ending._replace(final=True)
        ending = backed_off(ending, self.backoff, retry, error)
        pause_s = (ending.pause_ms or 0) / 1000
        if self.retry_for_s is None or age_s + pause_s <= self.retry_for_s:
            return ending
        return ending._replace(final=True, reason="retry_for_s is over")

    def _gives_up(self, error: BaseException) -> bool:
        if self.give_up_on is not None and _is_of(error, self.give_up_on):
            return True
        return self.retry_on is not None and not _is_of(error, self.retry_on)

    def check(self) -> None:
        """Raise `BadRequest` for an option that is wrong."""
        check_backoff(self.backoff)
        for name in ("retry_on", "give_up_on"):
            for kind in _several(getattr(self, name)):
                if not (isinstance(kind, type) and issubclass(kind, BaseException)):
                    raise wrong(name, "an exception class or a tuple of them", kind)
        if self.retry_for_s is not None:
            pause_ms(self.retry_for_s, "retry_for_s")


def asked(error: BaseException) -> Ending:
    """Return the ending that an error asks for."""
    if isinstance(error, FailedThere):
        return error.ending
    if isinstance(error, Snooze):
        return Ending(error.pause_ms, counted=False, level=error.level)
    if isinstance(error, GiveUp):
        return Ending(final=True, chosen=True)
    return Ending(error.pause_ms, chosen=True) if isinstance(error, Retry) else Ending()


def kinds_of(error: BaseException) -> list[str]:
    """Return the full names of an error's class and its bases: the error itself may not leave its process."""
    return [_full_name(kind) for kind in type(error).__mro__]


def _full_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _is_of(error: BaseException, kinds: Kinds) -> bool:
    if isinstance(error, FailedThere):
        return any(_full_name(kind) in error.kinds for kind in _several(kinds))
    return isinstance(error, tuple(_several(kinds)))


def _several(kinds: Any) -> tuple[Any, ...]:
    return () if kinds is None else kinds if isinstance(kinds, tuple) else (kinds,)


def backed_off(ending: Ending, backoff: Backoff, retry: int, error: BaseException) -> Ending:
    """Return an ending with the pause before retry number ``retry``, unless it has one."""
    if backoff is None or ending.pause_ms is not None:
        return ending
    try:
        pauses = (backoff(retry, error),) if callable(backoff) else _pauses(backoff)
        pause = pauses[min(retry, len(pauses)) - 1]
        return ending._replace(pause_ms=pause_ms(pause, "backoff"))
    except Exception:
        # The function is the user's. Its failure must not keep the failed attempt from being reported.
        log.exception("the backoff of the task cannot be computed: the leader chooses the pause")
        return ending


def check_backoff(backoff: Backoff) -> None:
    """Raise `BadRequest` for an option ``backoff`` that is neither a pause, nor several, nor a function."""
    if backoff is None or callable(backoff):
        return
    pauses = _pauses(backoff)
    if not pauses:
        raise wrong("backoff", "a pause, several pauses, or a function that returns one", backoff)
    for one in pauses:
        pause_ms(one, "backoff")


def _pauses(backoff: Any) -> Sequence[Seconds]:
    """Return the pauses before the first and further retries; one pause is that of all retries."""
    return backoff if isinstance(backoff, Sequence) and not isinstance(backoff, (str, bytes)) else (backoff,)


def pause_ms(pause: Seconds, field: str) -> int:
    """Return a pause in milliseconds; raise `BadRequest` naming the field if it is none."""
    seconds = as_seconds(pause, field)
    if type(seconds) not in (int, float) or not 0 <= seconds <= PAUSE_S_MAX:
        raise wrong(field, "a duration from 0 to 366 days", pause)
    return round(seconds * 1000)


def unknown_task(name: str, known: Sequence[str], age_s: float) -> UnknownTask:
    """Return the error for a task that this worker does not know; ``age_s``: seconds since it was due."""
    names = ", ".join(sorted(known)) or "none"
    after = min(max(UNKNOWN_FIRST_S, age_s / UNKNOWN_AGE_PART), UNKNOWN_MAX_S)
    guess = did_you_mean(name, list(known))
    problem = f"this worker has no task named {name!r}{guess}"
    if guess:
        return UnknownTask(f"{problem} It knows: {names}", after=after)
    return UnknownTask(f"{problem}; it knows: {names}. Import its module, for example with --import", after=after)
