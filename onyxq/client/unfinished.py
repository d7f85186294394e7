"""What an unfinished task waits for, in words for people (design: interfaces)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onyxq.client.values import ClaimRecord, Task
from onyxq.core.errors import TimedOut
from onyxq.operations.table.missing_workers import MORE_TIME, missing_worker
from onyxq.system.durations import exact_span, span

Answer = Mapping[str, Any] | None
"""The answer to one of the `questions`; None if it is not known."""

QUESTION_TIMEOUT_MS = 2_000
"""Longest time for an answer to one of the `questions`, in milliseconds."""
UNNAMED = "(unnamed)"


def questions(task: Task) -> list[tuple[str, dict[str, Any]]]:
    """Return the methods, each with its arguments, whose answers `late` needs."""
    return [("queue.get", {"queue": task.queue}), ("workers", {})] if task.state == "ready" else []


def late(task: Task, limit_ms: float, now_ms: int, answers: Sequence[Answer], *, field: str) -> TimedOut:
    """Return the error of a wait that ended before its task: it names the state, the reason and what to do."""
    why, hint = _reason(task, now_ms, answers)
    problem = f"task {task.id.hex()} is {task.state} after {exact_span(round(limit_ms))}"
    return TimedOut(f"{problem}: {why}" if why else problem, field=field, hint=hint)


def last_failure(task: Task) -> str | None:
    """Return why the last attempt that counts did not complete the task; None if there is none."""
    over = [claim for claim in task.claims if claim.error is not None or claim.outcome == "expired"]
    if not over:
        return None
    lapsed = f"worker {over[-1].worker or UNNAMED} stopped answering, and its lease ended"
    return over[-1].error or lapsed


def next_retry(task: Task, now_ms: int) -> str:
    """Return which retry a scheduled task waits for, such as ``retry 3 of 25 in 4 s``; empty before a failure."""
    if task.state != "scheduled" or not task.attempts:
        return ""
    number = f"retry {task.attempts}"
    if task.retries is not None and task.attempts_max is not None:
        # Attempts before the task was requeued use up no retries.
        number = f"retry {task.retries + 1 - (task.attempts_max - task.attempts)} of {task.retries}"
    return f"{number} in {span(max(0, task.at_ms - now_ms))}"


def _reason(task: Task, now_ms: int, answers: Sequence[Answer]) -> tuple[str, str | None]:
    """Return why a task is not finished, and what to do; None for the usual hint."""
    if task.state == "scheduled":
        due, error = next_retry(task, now_ms), last_failure(task)
        if not due:
            return f"it is due in {span(max(0, task.at_ms - now_ms))}", MORE_TIME
        return (f"{due}: {error}" if error else due), f"{MORE_TIME} Each attempt: onyxq task get {task.id.hex()}"
    if task.state == "claimed" and task.claims:
        claim: ClaimRecord = task.claims[-1]
        since = span(max(0, now_ms - claim.start_ms))
        return f"worker {claim.worker or UNNAMED} has run attempt {claim.attempt} for {since}", MORE_TIME
    if task.state == "ready" and answers:
        return _why_ready(task.queue, *answers)
    return "", None


def _why_ready(name: str, queue: Answer, workers: Answer) -> tuple[str, str | None]:
    if queue is not None and queue["settings"]["paused"]:
        return f"queue {name!r} is paused", f"Resume it with: onyxq queue resume {name}"
    if queue is None or workers is None or queue["depth"]["claimed"]:
        return "", None
    missing = missing_worker([name], workers)
    return ("", None) if missing is None else (missing.problem, missing.hint)
