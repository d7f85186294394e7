"""Finds a task in archives, with its claims and updates.

The day in its id, the names of files and the statistics of their row groups limit what is read. The same task
may be found several times: in the archives of several nodes, or of a repeat after a crash. Then the copy that
finished last counts, and each claim and update counts once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

from onyxq.core.errors import Corrupt, NotFound, OnyxqError
from onyxq.core.ids import TaskId, ms_of
from onyxq.history.attempts import Attempt, shown
from onyxq.history.parquet.layout import FAR_MS, day_of, named
from onyxq.history.parquet.schema import CLAIMS, TASKS, UPDATES, pyarrow, queue_in, schema_of
from onyxq.system.directories import open_regular

Found = dict[str, Any]
"""A row: values by column, times in ms since the epoch, and the queue."""


@frozen
class ArchivedTask:
    """A task as it was when it was archived."""

    task: dict[str, Any]
    """As in an answer of the method ``get``."""
    updates: tuple[dict[str, Any], ...]
    """As in an answer of the method ``task_log``."""


def find(directories: Sequence[Path], task_id: TaskId) -> ArchivedTask | None:
    """Return the task with an id, or None if no archive holds it.

    Raises `NotFound` if a directory does not exist or is not an archive, `Corrupt` if a file that may hold the task
    cannot be read, and `Incomplete` without pyarrow.
    """
    pyarrow()
    check_archives(directories)
    rows = list(_rows(directories, TASKS, task_id))
    if not rows:
        return None
    task = max(rows, key=lambda row: (row["finished"], row["attempts"]))
    claims: dict[int, Found] = {}
    for claim in _rows(directories, CLAIMS, task_id):
        known = claims.get(claim["token"])
        if known is None or (known["ended"] or 0) < (claim["ended"] or 0):
            claims[claim["token"]] = claim
    updates = {(one["token"], one["seq"]): one for one in _rows(directories, UPDATES, task_id)}
    return ArchivedTask(
        _view(task, [claims[token] for token in sorted(claims)]),
        tuple(_update(updates[key]) for key in sorted(updates)),
    )


def check_archives(directories: Sequence[Path]) -> None:
    """Raise `NotFound` if a directory does not exist or is not an archive."""
    for directory in directories:
        if not directory.is_dir():
            raise NotFound(f"there is no directory {directory}", field="archive", hint="Name the archive's directory.")
        if not (directory / TASKS).is_dir():
            raise NotFound(
                f"{directory} is not an archive of tasks: it contains no {TASKS}/",
                field="archive",
                hint="Give the directory that peers have as task_archive.",
            )


def _rows(directories: Sequence[Path], table: str, task_id: TaskId) -> Iterator[Found]:
    """Yield the rows about a task in the files of a table."""
    if ms_of(task_id) >= FAR_MS:
        return
    hexed = task_id.hex()
    for directory in directories:
        for file in sorted((directory / table).glob(f"queue=*/day={day_of(ms_of(task_id))}/*.parquet")):
            name = named(file.name)
            if name is not None and name.may_hold(task_id) and (found := rows_in(file, table, hexed, hexed)):
                queue, rows = found
                yield from ({**row, "queue": queue} for row in _plain(rows).to_pylist())


def rows_in(
    file: Path, table: str, low: str, high: str, *, columns: Collection[str] | None = None
) -> tuple[str, Any] | None:
    """Return the queue of a file, and its rows whose ids are from ``low`` to ``high``, as an Arrow table.

    ``columns``: only these and the id, if the file has them. None: another process removed the file. Raises `Corrupt`.
    """
    pa = pyarrow()
    try:
        with open_regular(file) as stream, pa.parquet.ParquetFile(stream, pre_buffer=False) as opened:
            queue = queue_in(opened.schema_arrow.metadata, table=table, path=str(file))
            _check_types(opened.schema_arrow, table, str(file))
            names = [name for name in opened.schema_arrow.names if columns is None or name == "id" or name in columns]
            # No threads of pyarrow: if one still holds the stream at exit, a signal ends the process.
            groups = opened.read_row_groups(_groups(opened.metadata, low, high), names, use_threads=False)
            compute, ids = pa.compute, groups["id"]
            within = compute.and_(compute.greater_equal(ids, low), compute.less_equal(ids, high))
            return queue, groups.filter(within)
    except OnyxqError:
        raise
    except FileNotFoundError:
        return None
    except (pa.ArrowException, OSError, KeyError) as error:
        raise Corrupt(
            f"{file} cannot be read: {error}", hint="Bring the file back from a copy, or take it out of the archive."
        ) from error


def _groups(metadata: Any, low: str, high: str) -> list[int]:
    """Return the numbers of the row groups that may hold ids from ``low`` to ``high``, by their statistics."""
    paths = [metadata.schema.column(number).path for number in range(metadata.num_columns)]
    ids = paths.index("id") if "id" in paths else None
    if ids is None:
        return []

    def may_hold(number: int) -> bool:
        statistics = metadata.row_group(number).column(ids).statistics
        return statistics is None or not statistics.has_min_max or (statistics.min <= high and low <= statistics.max)

    return [number for number in range(metadata.num_row_groups) if may_hold(number)]


def _check_types(schema: Any, table: str, path: str) -> None:
    """Raise `Corrupt` for a file whose columns have other types than those of an archive."""
    for wanted in schema_of(table):
        place = schema.get_field_index(wanted.name)
        if place >= 0 and schema.field(place).type != wanted.type:
            raise Corrupt(
                f"{path}: column {wanted.name} is {schema.field(place).type}, not {wanted.type}",
                hint="Take it out of the archive's directory.",
            )


def _plain(rows: Any) -> Any:
    """Return the rows with times as numbers."""
    pa = pyarrow()
    fields = [pa.field(one.name, pa.int64()) if pa.types.is_timestamp(one.type) else one for one in rows.schema]
    return rows.cast(pa.schema(fields))


def _view(row: Found, claims: list[Found]) -> dict[str, Any]:
    return {
        "id": bytes.fromhex(row["id"]),
        "queue": row["queue"],
        "data": row["data"],
        "format": row["format"],
        "priority": row["priority"],
        "ordering_key": row["ordering_key"],
        "unique_key": row["unique_key"],
        "state": row["state"],
        "at_ms": row["due"],
        "expires_ms": row["expires"],
        "retries": row["retries"],
        "depends": [bytes.fromhex(one) for one in row["depends"]],
        "created_ms": row["made"],
        "attempts": row["attempts"],
        "attempts_max": row["attempts_max"],
        **shown([_attempt(one) for one in claims], row["finished"]),
        "updates": row["updates"],
        "result": row["result"],
        "error": row["error"],
        "unique_until": row["unique_until"],
        "unique_period_ms": row["unique_period_ms"],
        "on_conflict": row["on_conflict"],
        "flow": None if row["flow"] is None else bytes.fromhex(row["flow"]),
        "callback": None,  # a task is archived after its callback is made or given up
    }


def _attempt(row: Found) -> Attempt:
    return Attempt(
        token=row["token"],
        worker=row["worker"],
        start_ms=row["granted"],
        attempt=row["attempt"],
        end_ms=row["ended"],
        outcome=row["outcome"],
        retry_ms=row["retry"],
        error=row["error"],
        given_up=row["given_up"],
        traceback=row["traceback"],
        until=row["until"],
    )


def _update(row: Found) -> dict[str, Any]:
    return {"token": row["token"], "seq": row["seq"], "data": row["data"], "at_ms": row["stored"]}
