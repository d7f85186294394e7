"""Runs of tasks as rows of the archive's tables, one per task, claim and update.

Pure. The values of a row are in the order of `onyxq.history.parquet.schema.COLUMNS`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from onyxq.core import facts
from onyxq.core.facts import Completion
from onyxq.core.ids import TaskId, ms_of, offset_of, stretch_of
from onyxq.core.task_headers import FLOW, due_of, unique_options
from onyxq.history.attempts import Ended, attempts_max, attempts_of, reports_of
from onyxq.history.parquet.bucket import Progress, Run, ids_in

Row = tuple[Any, ...]

_RETURNED = (facts.RETRIED, facts.EXPIRED, facts.REOPENED)


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
            payloads[offset - start],
            ms_of(task_id),
            due[-1] if due else due_of(header, task_id),
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
            attempts_max(said, run.retries),
            *unique_options(header).values(),
            header[FLOW].hex() if FLOW in header else None,
        )


def claim_rows(run: Run) -> Iterator[Row]:
    """Yield a row per claim of each task, in the order of ids and tokens."""
    stretch = stretch_of(run.first)
    by_id: dict[TaskId, dict[int, Ended]] = {}
    for bits, first, done in run.ended:
        for task_id in ids_in(stretch, bits):
            by_id.setdefault(task_id, {})[done.token] = (done, _result(done, first, task_id))
    for task_id in ids_in(stretch, run.bits):
        offset = offset_of(task_id)
        said = [event for mask, event in run.history if mask >> offset & 1]
        if said:
            reports = reports_of(run.reports.get(task_id, ()))
            for one in attempts_of(said, by_id[task_id], reports):
                yield (
                    task_id.hex(),
                    one.token,
                    one.worker,
                    one.start_ms,
                    one.end_ms,
                    one.outcome,
                    one.error,
                    one.retry_ms,
                    one.until,
                    one.attempt,
                    one.given_up,
                    one.traceback,
                )


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
    return 200 + sum(len(value) for value in row if isinstance(value, (bytes, str)))
