"""Columns of a stream beside the payload: the fields of JSON payloads, and the fields of each task.

This module does not use Spark. A payload that does not fit the schema goes into a column, makes its task a dead letter,
or fails the batch.
"""

from __future__ import annotations

import json
import logging
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

import pyarrow
from attrs import frozen

from onyxq.client import AsyncClient
from onyxq.core.errors import BadRequest, BatchRefused
from onyxq.core.facts import task_header
from onyxq.core.ids import TaskId
from onyxq.jobs.options import CORRUPT
from onyxq.jobs.values import Unfit
from onyxq.spark.connection import Connection
from onyxq.spark.files.columns import row_fitter, table
from onyxq.spark.queues.arrow import SCHEMA, batch_of
from onyxq.spark.queues.queue_claims import CLAIM_TASKS_MAX, Held
from onyxq.spark.queues.queue_claims import batch_of as claims_of

log = logging.getLogger(__name__)

TASK, LINEAGE = "task", "lineage"
TASK_FIELDS = {
    "id": "binary",
    "queue": "string",
    "token": "bigint",
    "attempts": "int",
    "priority": "int",
    "ordering_key": "string",
    "unique_key": "string",
    "format": "string",
}
"""Field of the column ``task`` -> its type. ``attempts``: number of failed or expired attempts before this one."""
TASK_COLUMN = f"{TASK} struct<{', '.join(f'{name}: {kind}' for name, kind in TASK_FIELDS.items())}>"
ERROR_CHARS_MAX = 500
NO_ERROR = "failed by a Spark program"


def shape_of(schema: str, *, headers: bool) -> str:
    """Return the columns of a stream as Spark writes them."""
    parts = [schema, f"{LINEAGE} binary"] if schema else [SCHEMA]
    return ", ".join([*parts, *([TASK_COLUMN] if headers else [])])


@frozen
class TaskShape:
    """The columns of a stream that parses payloads or has the column ``task``."""

    fields: Any
    """All columns, as an Arrow schema."""
    parsed: bool
    """Whether payloads are parsed."""
    dead_letter: bool
    """Whether a task whose payload does not fit becomes a dead letter."""

    def __attrs_post_init__(self) -> None:
        names = [one.name for one in self.fields]
        for name in names:
            if names.count(name) > 1:
                raise BadRequest(f"option schema: {name} is a column of every stream", field="schema")
        if self.dead_letter and CORRUPT in names:
            raise BadRequest(
                f"option bad_rows cannot be dead_letter: the schema has the column {CORRUPT} for such payloads",
                field="bad_rows",
            )
        if self.parsed:
            row_fitter(one for one in self.fields if one.name != TASK)  # raises for a type that JSON does not have

    def batches(
        self, bodies: Sequence[tuple[bytes, bytes]], time_ms: int, held: Sequence[Held], link: Connection
    ) -> Iterator[Any]:
        """Yield Arrow batches of task rows' bodies.

        ``time_ms``: of the batch; ``held``: its claims. Raises `BadRequest` for a payload that does not fit.
        """
        claims = sorted(held)
        firsts = [one.first for one in claims]
        headers = (header for _, body in bodies for header, count in [task_header(body)] for _ in range(count))
        for batch in batch_of(bodies, time_ms):
            ids = batch.column("id").to_pylist()
            tasks = [
                _task(one, header, claims[bisect_right(firsts, one) - 1])
                for one, header in zip(ids, islice(headers, len(ids)), strict=True)
            ]
            columns: dict[str, Any] = {name: batch.column(name) for name in batch.schema.names}
            columns[TASK], kept = tasks, list(range(len(ids)))
            if self.parsed:
                kept = self._parse(columns, link)
            arrays = [
                _array(columns[one.name], one.type).take(pyarrow.array(kept, pyarrow.int64())) for one in self.fields
            ]
            if kept:
                yield pyarrow.RecordBatch.from_arrays(arrays, schema=self.fields)

    def _parse(self, columns: dict[str, Any], link: Connection) -> list[int]:
        """Add the fields of the payloads to the columns, and return the places of the rows that are kept."""
        payloads, tasks = columns["payload"].to_pylist(), columns[TASK]
        fields = [one for one in self.fields if one.name not in (LINEAGE, TASK, CORRUPT)]
        fit = row_fitter(fields, drop_others=True)
        rows, corrupt, kept = [], [], []
        for place, payload in enumerate(payloads):
            row, why = _fitted(fit, payload)
            if row is None and self.dead_letter:
                _give_up(link, tasks[place], why)
            elif row is None and CORRUPT not in self.fields.names:
                hint = f"Add the column {CORRUPT} string to the schema, or set bad_rows to dead_letter."
                said = f"the payload of task {tasks[place]['id'].hex()} does not fit the schema: {why}"
                raise BadRequest(said, field="schema", hint=hint)
            else:
                kept.append(place)
            rows.append([None] * len(fields) if row is None else row)
            corrupt.append(payload.decode(errors="replace") if row is None else None)
        found = table(pyarrow.schema(fields), rows)
        columns.update(zip(found.column_names, found.columns, strict=True))
        columns[CORRUPT] = corrupt
        return kept


def _fitted(fit: Any, payload: bytes) -> tuple[list[Any] | None, str]:
    """Return the columns of a JSON payload; None, with the reason, if it does not fit."""
    try:
        value = json.loads(payload)
        if type(value) is not dict:
            return None, f"it must be a JSON object, not {payload[:60]!r}"
        return fit(value), ""
    except Unfit as error:
        return None, error.message
    except (ValueError, RecursionError) as error:
        return None, f"it is not JSON: {error}"


def _task(task_id: bytes, header: dict[str, Any], claim: Held) -> dict[str, Any]:
    return {
        "id": task_id,
        "queue": header["queue"],
        "token": claim.token,
        "attempts": claim.attempts,
        "priority": header.get("priority", 0),
        "ordering_key": header.get("ordering_key"),
        "unique_key": header.get("unique_key"),
        "format": header.get("format", "bytes"),
    }


def _array(values: Any, kind: Any) -> Any:
    if isinstance(values, list):
        return pyarrow.array(values, kind)
    return values.combine_chunks() if isinstance(values, pyarrow.ChunkedArray) else values


def _give_up(link: Connection, task: dict[str, Any], why: str) -> None:
    """Make a task a dead letter; in a repeat of the batch this changes nothing."""
    claim = claims_of([Held(TaskId(task["id"]), 1, task["token"])])
    try:
        link.call(lambda client: client.give_up(claim, why[:ERROR_CHARS_MAX]))
    except BatchRefused:
        log.info("task %s is not a dead letter: its claim is no longer valid", task["id"].hex())


# --- failing rows ---------------------------------------------------------------------------------


def fail_rows(link: Connection, rows: Any, *, outcome: str) -> int:
    """Fail the tasks of an Arrow batch's rows, and return the number of tasks whose claims are no longer valid.

    The rows have the column ``task``, and may have ``error``. ``outcome``: one of `onyxq.spark.queues.options.FAILS`.
    """
    tasks = rows.column(TASK).to_pylist()
    errors = rows.column("error").to_pylist() if "error" in rows.schema.names else [None] * len(tasks)
    by_error: dict[str, list[Held]] = {}
    for task, error in zip(tasks, errors, strict=True):
        if task is None:
            raise BadRequest("a row has no task", field=TASK)
        held = Held(TaskId(task["id"]), 1, task["token"])
        by_error.setdefault((error or NO_ERROR)[:ERROR_CHARS_MAX], []).append(held)
    lost = 0
    for error, held_by in by_error.items():
        for start in range(0, len(held_by), CLAIM_TASKS_MAX):
            lost += _fail(link, held_by[start : start + CLAIM_TASKS_MAX], error, outcome)
    return lost


def _fail(link: Connection, held: list[Held], error: str, outcome: str) -> int:
    call = AsyncClient.give_up if outcome == "dead_letter" else AsyncClient.fail
    try:
        link.call(partial(call, claims=claims_of(held), error=error))
    except BatchRefused as refused:
        return sum(part.count for part in refused.refused)
    return 0
