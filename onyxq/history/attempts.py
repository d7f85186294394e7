"""The attempts of a task: its claims, read from the rows about it. Pure.

Peers answer with them, and archives keep them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from attrs import asdict, define

from onyxq.core import facts
from onyxq.core.facts import Completion, History, Report, Update

SHOWN_FIRST, SHOWN_LAST = 10, 40
"""Number of a task's first and last attempts that are shown."""
ERROR_CHARS_MAX = 1_024
"""Most characters of the error of an attempt: as many as the log has of it."""

Ended: TypeAlias = tuple[Completion, bytes | None]
"""A completion, and the result of the task in it."""

_ENDS = {facts.RELEASED: "released", facts.RETRIED: "failed", facts.EXPIRED: "expired"}
_NONE = Report(given_up=False, traceback="")


@define
class Attempt:
    """One claim of a task."""

    token: int
    worker: str
    start_ms: int | None
    attempt: int = 0
    """Its number from 1. If a claim does not count as an attempt, the next one has its number."""
    end_ms: int | None = None
    outcome: str | None = None
    retry_ms: int | None = None
    """When the task was due again after a failure or a snooze."""
    error: str | None = None
    given_up: bool = False
    traceback: str | None = None
    until: int | None = None
    """Position of the entry that ended it."""

    @property
    def duration_ms(self) -> int | None:
        """How long it took."""
        return between(self.start_ms, self.end_ms)


def attempts_of(
    history: Sequence[History],
    ended: Mapping[int, Ended],
    reports: Mapping[int, Report],
    *,
    held: tuple[int, str] | None = None,
) -> list[Attempt]:
    """Return the attempts of a task in the order of their tokens.

    ``history`` is in the order of the log. ``ended`` and ``reports`` are completions and reports by token. ``held``:
    token and worker of the claim that is valid now.
    """
    found = {one.token: Attempt(one.token, one.worker, one.at_ms) for one in history if one.event == facts.GRANTED}
    if held is not None and held[0] not in found:
        found[held[0]] = Attempt(*held, None)
    counted: dict[int, int] = {}
    attempts = 0
    for one in history:
        if one.event == facts.GRANTED:
            counted[one.token] = attempts
        elif one.event in _ENDS and one.token in found:
            _return(found[one.token], one, counts=one.attempts != attempts)
        attempts = max(attempts, one.attempts)
    for token in found.keys() & ended.keys():
        _finish(found[token], *ended[token])
    for token, claim in found.items():
        report = reports.get(token, _NONE)
        claim.attempt = counted.get(token, attempts) + 1
        claim.given_up = report.given_up and claim.outcome == "failed"
        claim.traceback = report.traceback or None
    return [found[token] for token in sorted(found)]


def _return(claim: Attempt, event: History, *, counts: bool) -> None:
    """Note that an entry ended a claim. A postponed claim is retried, but counts no attempt."""
    retried = event.event == facts.RETRIED
    claim.end_ms, claim.until, claim.error = event.at_ms, event.position, event.note or None
    claim.outcome = _ENDS[facts.RELEASED if retried and not counts else event.event]
    claim.retry_ms = event.retry_ms if retried else None


def _finish(claim: Attempt, done: Completion, result: bytes | None) -> None:
    """Note that a completion ended a claim."""
    outcome, error = facts.OUTCOMES[done.outcome], b""
    if done.outcome == facts.CANCELLED and facts.CLAIMED not in done.results:
        if claim.outcome is not None:
            return
        outcome = facts.OUTCOMES[facts.FAILED]  # It failed for good, and was discarded after that.
    elif done.outcome in (facts.FAILED, facts.STOPPED):
        error = result or b""
    claim.end_ms, claim.outcome, claim.retry_ms = done.at_ms, outcome, None
    claim.error = error.decode(errors="replace")[:ERROR_CHARS_MAX] or None


def reports_of(updates: Iterable[Update]) -> dict[int, Report]:
    """Return the reports among the updates of a task by the tokens of their claims, the first claim first."""
    # Nodes that are not equal yet may each hold one with another mark: the last one counts.
    found = sorted((one for one in updates if one.seq == facts.REPORT), key=lambda one: (one.token, one.mark))
    return {one.token: facts.report_of(one) for one in found}


def attempts_max(history: Iterable[History], retries: int | None) -> int | None:
    """Return the number of attempts after which a task fails for good; those before a requeue use up no retries."""
    before = max((one.attempts for one in history if one.event == facts.REOPENED), default=0)
    return None if retries is None else before + retries + 1


def between(start_ms: int | None, end_ms: int | None) -> int | None:
    """Return a duration; never negative, although two clocks may have taken the times."""
    return None if start_ms is None or end_ms is None else max(0, end_ms - start_ms)


def attempt_ms(task: Mapping[str, Any]) -> int | None:
    """Return how long the last attempt of a task took, as answers about the task have it; None if it has not ended."""
    claims = task["claims"]
    return claims[-1]["duration_ms"] if claims else None


def shown(attempts: Sequence[Attempt], finished_ms: int | None) -> dict[str, Any]:
    """Return what answers about a task have of its attempts, and of its times."""
    left_out = max(0, len(attempts) - SHOWN_FIRST - SHOWN_LAST)
    kept = [*attempts[:SHOWN_FIRST], *attempts[SHOWN_FIRST + left_out :]]
    started_ms = attempts[0].start_ms if attempts else None
    return {
        "started_ms": started_ms,
        "finished_ms": finished_ms,
        "duration_ms": between(started_ms, finished_ms),
        "claims": [asdict(one, filter=_is_answered) | {"duration_ms": one.duration_ms} for one in kept],
        "claims_left_out": left_out,
    }


def _is_answered(member: Any, _: Any) -> bool:
    return bool(member.name != "until")
