"""The tables ``tasks``, ``claims`` and ``attempts``, from the cluster and from archives, without duplicates.

A task is purged only after its copy in the archive is durable. So the cluster is read before the archives, and no task
is missed. If both have a task, the cluster's row counts. Ids begin with a time, so the work is divided by spans of
time: one process reads the ids of a span from all sources.
"""

from __future__ import annotations

import glob
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

from onyxq.core import facts
from onyxq.core.facts import History
from onyxq.core.ids import ms_of
from onyxq.core.limits import TIME_MS_MAX
from onyxq.history.attempts import Attempt, attempts_of
from onyxq.history.live_log import Call
from onyxq.history.parquet.layout import FAR_MS, day_of, encoded, named
from onyxq.history.parquet.reader import check_archives, rows_in
from onyxq.history.parquet.schema import TASKS as ARCHIVED_TASKS
from onyxq.history.parquet.schema import pyarrow
from onyxq.history.tables.columns import ARCHIVED, ATTEMPTS, CLAIMS, TASKS, Row, fitted, newest, table_of
from onyxq.history.tables.selection import FINISHED, Selection

PAGE_TASKS = 1_000
CHUNK_TASKS = 10_000
"""Tasks of the cluster that are joined with archives at a time."""
CHUNK_BYTES = 8 * 1024 * 1024
"""Bytes of archives' files in one span: rows take about ten times that in memory."""


@frozen
class Span:
    """A span of ids, by the times with which they begin, in ms; both ends are included."""

    since_ms: int
    until_ms: int


def spans(call: Call | None, archives: Sequence[Path], selection: Selection, *, parts: int = 1) -> list[Span]:
    """Return spans of ids that together cover a selection.

    Each span has at most about `CHUNK_BYTES` of archives. ``parts`` is the least number of spans for the cluster's
    tasks. Raises `NotFound` if a directory is not an archive.
    """
    check_archives(archives)
    since_ms, until_ms = selection.since_ms, selection.until_ms
    borders: set[int] = set()
    size = 0
    for from_ms, length in sorted(_sizes(archives, selection)):
        if size + length > CHUNK_BYTES and size:
            borders.add(from_ms)
            size = 0
        size += length
    if call is not None and parts > 1:
        borders |= set(_steps(call, selection, parts))
    starts = [since_ms, *sorted(one for one in borders if since_ms < one <= until_ms)]
    ends = [*(one - 1 for one in starts[1:]), until_ms]
    return [Span(*one) for one in zip(starts, ends, strict=True)] if since_ms <= until_ms else []


def _sizes(archives: Sequence[Path], selection: Selection) -> Iterator[tuple[int, int]]:
    """Yield the first time and the bytes of each file of tasks."""
    span = Span(selection.since_ms, selection.until_ms)
    for queue in _queues(selection):
        for file in _files(archives, ARCHIVED_TASKS, queue, span):
            name = named(file.name)
            if name is not None:
                yield name.from_ms, file.stat().st_size


def _queues(selection: Selection) -> tuple[str | None, ...]:
    return (None,) if selection.queues is None else selection.queues


def _steps(call: Call, selection: Selection, parts: int) -> Iterator[int]:
    """Yield times that divide the time from the cluster's first selected task to its last one into equal parts."""
    ends = []
    for queue in _queues(selection):
        asked = _request(queue, Span(selection.since_ms, selection.until_ms)) | {"limit": 1}
        for newest_first in (False, True):
            ends += [ms_of(one["id"]) for one in call("list", asked | {"newest_first": newest_first})["tasks"]]
    if ends:
        yield from range(min(ends), max(ends), max(1, -(-(max(ends) - min(ends)) // parts)))


def read_span(
    call: Call | None, archives: Sequence[Path], table: str, *, selection: Selection, span: Span
) -> Iterator[Any]:
    """Yield the rows of a table about the tasks of a span, as Arrow tables with all columns.

    Columns that are not selected may be null. ``call`` None: only the archives. Raises `Forbidden` if the caller may
    not read a queue.
    """
    for queue in _queues(selection):
        for views, low, high in _chunks(call, archives, queue, selection=selection, span=span):
            live = _live(call, table, views)
            rows = _with_archived(live, archives, table, queue, selection=selection, ids=(low, high))
            if table == ATTEMPTS:
                rows = _attempts(rows)
            if table == TASKS and selection.states is not None:
                rows = rows.filter(pyarrow().compute.is_in(rows["state"], pyarrow().array(sorted(selection.states))))
            if rows.num_rows:
                yield rows


def _chunks(
    call: Call | None, archives: Sequence[Path], queue: str | None, *, selection: Selection, span: Span
) -> Iterator[tuple[list[dict[str, Any]], str, str]]:
    """Yield the cluster's tasks of a queue in id order, with the first and the last id, as text, of each chunk."""
    low, end = f"{span.since_ms:012x}", f"{span.until_ms:012x}g"  # "g" sorts after every hex digit
    if call is None:
        yield [], low, end
        return
    asked = _request(queue, span) | {"state": _asked_state(selection, archives)}
    views: list[dict[str, Any]] = []
    while True:
        page = call("list", asked)
        views += page["tasks"]
        after = page["after"]
        if after is None or len(views) >= CHUNK_TASKS:
            high = end if after is None else min(end, after.hex())
            yield views, low, high
            if after is None or high == end:
                return
            views, low = [], f"{after.hex()}0"  # after that id, before the next one
        asked = asked | {"after": after}


def _request(queue: str | None, span: Span) -> dict[str, Any]:
    """Return the arguments of ``list`` for the tasks of a span."""
    until_ms = None if span.until_ms >= TIME_MS_MAX else span.until_ms
    return {"queue": queue, "since_ms": span.since_ms, "until_ms": until_ms, "limit": PAGE_TASKS}


def _asked_state(selection: Selection, archives: Sequence[Path]) -> str | None:
    """Return the state of the tasks that the cluster is asked for; None: tasks in all states.

    If the cluster has a task, its copy in an archive does not count, even if the two states differ. So if archives can
    have the selected state, the cluster's tasks in all states must be known.
    """
    states = selection.states
    if states is None or len(states) != 1 or (archives and states & FINISHED):
        return None
    return next(iter(states))


def _live(call: Call | None, table: str, views: Sequence[dict[str, Any]]) -> Any:
    """Return the rows of tasks as the cluster has them."""
    if table == TASKS:
        return table_of(TASKS, [_task(view) for view in views])
    return table_of(CLAIMS, [row for view in views for row in _claims(call, view)])


def _task(view: dict[str, Any]) -> Row:
    return (
        view["id"].hex(),
        *(view[name] for name in ("queue", "state", "priority", "ordering_key", "unique_key", "format", "data")),
        *(view[name] for name in ("created_ms", "at_ms", "expires_ms", "finished_ms")),
        *(view[name] for name in ("retries", "attempts", "attempts_max")),
        [one.hex() for one in view["depends"]],
        *(view[name] for name in ("updates", "result", "error", "unique_until", "unique_period_ms", "on_conflict")),
        None if view["flow"] is None else view["flow"].hex(),
        False,
    )


def _claims(call: Call | None, view: dict[str, Any]) -> Iterator[Row]:
    shown = [Attempt(**{name: one[name] for name in _SHOWN}) for one in view["claims"]]
    if view["claims_left_out"] and call is not None:
        shown += _left_out(call("task_history", {"id": view["id"]})["history"], {one.token for one in shown})
    for one in sorted(shown, key=lambda one: one.token):
        yield (
            *(view["id"].hex(), view["queue"], one.token, one.attempt, one.worker, one.start_ms, one.end_ms),
            *(one.outcome, one.error, one.retry_ms, one.given_up, one.traceback, False),
        )


_SHOWN = (
    *("token", "worker", "start_ms", "attempt", "end_ms", "outcome", "retry_ms", "error", "given_up", "traceback"),
)


def _left_out(history: Sequence[dict[str, Any]], known: set[int]) -> list[Attempt]:
    """Return the claims in a task's history that ``list`` leaves out; they have no tracebacks."""
    found = [one for one in attempts_of([History(**event) for event in history], {}, {}) if one.token not in known]
    reopened = [event["position"] for event in history if event["event"] == facts.REOPENED]
    for one, after in zip(found, [*(one.token for one in found[1:]), max(reopened, default=0)], strict=True):
        if one.outcome is None and any(one.token < position <= after for position in reopened):
            one.outcome = "failed"  # for good: it was a dead letter until then
    return found


# --- archives ------------------------------------------------------------------------------------


def _with_archived(
    live: Any, archives: Sequence[Path], table: str, queue: str | None, *, selection: Selection, ids: tuple[str, str]
) -> Any:
    """Return the rows of the cluster and of archives with ids from ``ids[0]`` to ``ids[1]``, without duplicates."""
    pa = pyarrow()
    states = selection.states
    if table == TASKS and states is not None and not states & FINISHED:
        return live
    found = [*_archived(archives, table, queue, columns=selection.columns, ids=ids)]
    if not found:
        return live
    old = pa.concat_tables(found)
    if table == TASKS:
        unknown = pa.compute.invert(pa.compute.is_in(old["id"], live["id"].combine_chunks()))
        return pa.concat_tables([live, newest(old.filter(unknown), ("id",), ("finished", "attempts"))])
    return newest(pa.concat_tables([live, old]), ("id", "token"), ("ended",))


def _archived(
    archives: Sequence[Path], table: str, queue: str | None, *, columns: frozenset[str] | None, ids: tuple[str, str]
) -> Iterator[Any]:
    needed = None if columns is None or table == ATTEMPTS else columns | _ALWAYS
    span = Span(int(ids[0][:12], 16), int(ids[1][:12], 16))
    for file in _files(archives, ARCHIVED[table], queue, span):
        found = rows_in(file, ARCHIVED[table], *ids, columns=needed)
        if found is not None and (queue is None or found[0] == queue):
            yield fitted(CLAIMS if table == ATTEMPTS else table, found[1], queue=found[0], archived=True)


_ALWAYS = frozenset(("id", "token", "state", "finished", "attempts", "ended"))
"""Columns by which copies of a thing are compared, or rows are selected."""


def _files(archives: Sequence[Path], table: str, queue: str | None, span: Span) -> Iterator[Path]:
    """Yield the files of an archive's table that may have tasks of a queue and of a span."""
    place = "queue=*" if queue is None else f"queue={glob.escape(encoded(queue))}"
    first, last = (day_of(min(ms, FAR_MS - 1)) for ms in (span.since_ms, span.until_ms))
    for directory in archives:
        for file in sorted((directory / table).glob(f"{place}/day=*/*.parquet")):
            name = named(file.name)
            day = file.parent.name.removeprefix("day=")
            if name is not None and first <= day <= last:
                if name.from_ms <= span.until_ms and span.since_ms < name.before_ms:
                    yield file


def _attempts(claims: Any) -> Any:
    """Return the attempts of claims; the outcome of an attempt is that of its last claim."""
    pa = pyarrow()
    last = pa.compute.ScalarAggregateOptions(skip_nulls=False, min_count=0)
    of_last = ("queue", "worker", "ended", "outcome", "error", "retry", "given_up", "traceback", "archived")
    rows = claims.sort_by([("id", "ascending"), ("token", "ascending")])
    found = rows.group_by(["id", "attempt"], use_threads=False).aggregate(
        [("token", "count"), ("granted", "first", last), *((name, "last", last) for name in of_last)]
    )
    names = {"token_count": "claims", "granted_first": "started", **{f"{name}_last": name for name in of_last}}
    return fitted(ATTEMPTS, found.rename_columns([names.get(name, name) for name in found.column_names]))
