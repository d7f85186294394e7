"""Runs of tasks as rows of the archive's tables, one per task, claim and update.

Pure. The values of a row are in the order of `onyxq.history.parquet.schema.COLUMNS`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from onyxq.core import facts
from onyxq.core.facts import Completion, History
from onyxq.core.ids import TaskId, ms_of, offset_of, stretch_of
from onyxq.history.parquet.bucket import Progress, Run, ids_in

Row = tuple[Any, ...]
End = tuple[Completion, bytes | None]
"""A completion, and the result of one of its tasks."""

_RETURNED = (facts.RETRIED, facts.EXPIRED, facts.REOPENED)
_ENDS = {facts.RELEASED: "released", facts.RETRIED: "failed", facts.EXPIRED: "expired"}


def task_rows(run: Run) -> Iterator[Row]:
    """Yield a row per task of a run, in id order."""
    decoded = facts.unpack_task(run.body)
    payloads = decoded.all_payloads()
    header, start = run.header, offset_of(run.first)
    depends = [one.hex() for one in header.get("depends", ())]
    for task_id, done, result in _finished(run):
        offset = offset_of(task_id)
        said = [event for mask, event in run.history if mask >> offset & 1 and event.event in _RETURNED]
        due = [event.retry_ms for event in said if event.event in (facts.RETRIED, facts.REOPENED)]
        requeued = [event.at_ms for event in said if event.event == facts.REOPENED]
        failed = done.outcome in (facts.FAILED, facts.STOPPED)
        yield (
            task_id.hex(),
            facts.OUTCOMES[done.outcome],
            header.get("priority", 0),
            header.get("ordering_key"),
            header.get("unique_key"),
            header.get("format", "bytes"),
            payloads[offset - start] if run.data is None else run.data,
            ms_of(task_id),
            due[-1] if due else ms_of(task_id),
            header.get("expires_ms"),
            done.at_ms,
            run.retries,
            max([0, *(event.attempts for event in said)]),
            depends,
            requeued[-1] if requeued else None,
            None if done.outcome == facts.CANCELLED else done.token,
            len(run.updates.get(task_id, ())),
            result if done.outcome == facts.COMPLETED else None,
            (result or b"").decode(errors="replace") if failed else None,
            header.get("order") if "ordering_key" in header else None,
        )


def claim_rows(run: Run) -> Iterator[Row]:
    """Yield a row per claim of each task, in the order of ids and tokens."""
    stretch = stretch_of(run.first)
    by_id: dict[TaskId, dict[int, End]] = {}
    for bits, first, done in run.ended:
        for task_id in ids_in(stretch, bits):
            by_id.setdefault(task_id, {})[done.token] = (done, _result(done, first, task_id))
    for task_id in ids_in(stretch, run.bits):
        offset = offset_of(task_id)
        said = [event for mask, event in run.history if mask >> offset & 1]
        if said:
            hexed = task_id.hex()
            yield from ((hexed, *claim) for claim in _claims(said, by_id[task_id]))


def _claims(said: Sequence[History], ended: dict[int, End]) -> list[Row]:
    """Return each claim on one task, in the order of tokens.

    A row holds token, worker, start, end, outcome, error, time of the next attempt, and the position of the end
    if the log has it.
    """
    claims: dict[int, Row] = {
        one.token: (one.token, one.worker, one.at_ms, None, None, None, None, None)
        for one in said
        if one.event == facts.GRANTED
    }
    attempts = 0
    for one in said:
        if one.event in _ENDS and one.token in claims:
            retry_ms = one.retry_ms if one.event == facts.RETRIED else None
            # A postponed claim is retried, but counts no attempt.
            event = facts.RELEASED if one.event == facts.RETRIED and one.attempts == attempts else one.event
            end = (one.at_ms, _ENDS[event], one.note or None, retry_ms, one.position)
            claims[one.token] = (*claims[one.token][:3], *end)
        attempts = max(attempts, one.attempts)
    for token in claims.keys() & ended.keys():
        done, result = ended[token]
        outcome, error = facts.OUTCOMES[done.outcome], None
        if done.outcome == facts.CANCELLED and facts.CLAIMED not in done.results:
            if claims[token][4] is not None:
                continue
            outcome = facts.OUTCOMES[facts.FAILED]  # It failed for good, and was discarded after that.
        elif done.outcome in (facts.FAILED, facts.STOPPED):
            error = (result or b"").decode(errors="replace")
        claims[token] = (*claims[token][:3], done.at_ms, outcome, error, None, claims[token][-1])
    return [claims[token] for token in sorted(claims)]


def update_row(one: Progress) -> Row:
    """Return the row of an update."""
    return (one.task_id.hex(), one.update.token, one.update.seq, one.update.at_ms, one.update.data)


def _finished(run: Run) -> Iterator[tuple[TaskId, Completion, bytes | None]]:
    """Yield each task with its completion and result, in id order."""
    stretch = stretch_of(run.first)
    by_id = {
        task_id: (done, _result(done, first, task_id))
        for bits, first, done in run.done
        for task_id in ids_in(stretch, bits)
    }
    for task_id in ids_in(stretch, run.bits):
        yield (task_id, *by_id[task_id])


def _result(done: Completion, first: TaskId, task_id: TaskId) -> bytes | None:
    return done.results[offset_of(task_id) - offset_of(first)] if done.results else None


def size_of(row: Row) -> int:
    """Return about how many bytes a row takes in memory."""
    return 200 + sum(len(value) for value in row if isinstance(value, bytes))
