"""The tables of tasks, claims, attempts and log entries for SQL and Spark: names and types of their columns.

A row may come from the cluster, an archive or the log's history. Pure except for pyarrow.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from onyxq.history.parquet import schema
from onyxq.history.parquet.schema import pyarrow

TASKS, CLAIMS, ATTEMPTS, ENTRIES = "tasks", "claims", "attempts", "entries"
Row: TypeAlias = tuple[Any, ...]

_ARCHIVED = {name: {column: kind for column, kind, _ in columns} for name, columns in schema.TABLES.items()}
_QUEUE, _IS_ARCHIVED = ("queue", "text"), ("archived", "flag")


def _like(table: str, *names: str) -> tuple[tuple[str, str], ...]:
    """Return columns of an archive's table, with the same names and kinds."""
    return tuple((name, _ARCHIVED[table][name]) for name in names)


COLUMNS: dict[str, tuple[tuple[str, str], ...]] = {
    TASKS: (
        *_like(schema.TASKS, "id"),
        _QUEUE,
        *_like(schema.TASKS, "state", "priority", "ordering_key", "unique_key", "format", "data"),
        *_like(schema.TASKS, "made", "due", "expires", "finished", "retries", "attempts", "attempts_max", "depends"),
        *_like(schema.TASKS, "updates", "result", "error", "unique_until", "unique_period_ms"),
        *_like(schema.TASKS, "on_conflict", "flow"),
        _IS_ARCHIVED,
    ),
    CLAIMS: (
        *_like(schema.CLAIMS, "id"),
        _QUEUE,
        *_like(schema.CLAIMS, "token", "attempt", "worker", "granted", "ended", "outcome", "error", "retry"),
        *_like(schema.CLAIMS, "given_up", "traceback"),
        _IS_ARCHIVED,
    ),
    ATTEMPTS: (
        *_like(schema.CLAIMS, "id"),
        _QUEUE,
        *_like(schema.CLAIMS, "attempt"),
        ("claims", "number"),
        *_like(schema.CLAIMS, "worker"),
        ("started", "time"),
        *_like(schema.CLAIMS, "ended", "outcome", "error", "retry", "given_up", "traceback"),
        _IS_ARCHIVED,
    ),
    ENTRIES: tuple((name, kind) for name, kind, _ in schema.TABLES[schema.RECORDS]),
}
"""Per table the names and kinds of its columns."""
ARCHIVED = {TASKS: schema.TASKS, CLAIMS: schema.CLAIMS, ATTEMPTS: schema.CLAIMS}
"""Per table of tasks the table of an archive that its rows come from."""


def arrow_schema(table: str) -> Any:
    """Return the Arrow schema of a table; times have microseconds, as SQL engines expect."""
    kinds = schema.types(unit="us")
    return pyarrow().schema([(name, kinds[kind]) for name, kind in COLUMNS[table]])


def table_of(table: str, rows: Sequence[Row]) -> Any:
    """Return rows as an Arrow table; their times are in ms since the epoch."""
    pa, kinds = pyarrow(), schema.types()
    names = [name for name, _ in COLUMNS[table]]
    columns: Iterable[Iterable[Any]] = zip(*rows, strict=True) if rows else ((),) * len(names)
    arrays = [pa.array(values, kinds[kind]) for values, (_, kind) in zip(columns, COLUMNS[table], strict=True)]
    return pa.table(arrays, names=names).cast(arrow_schema(table))


def fitted(table: str, rows: Any, **constants: Any) -> Any:
    """Return rows with exactly the columns of a table: a missing column has its constant, or nulls."""
    pa, wanted = pyarrow(), arrow_schema(table)
    columns = []
    for one in wanted:
        if one.name in constants:
            columns.append(pa.repeat(pa.scalar(constants[one.name], one.type), rows.num_rows))
        elif one.name in rows.column_names:
            columns.append(rows[one.name].cast(one.type))
        else:
            columns.append(pa.nulls(rows.num_rows, one.type))
    return pa.table(columns, schema=wanted)


def newest(rows: Any, keys: Sequence[str], order: Sequence[str]) -> Any:
    """Return one row for each combination of ``keys``, sorted by them: the row with the greatest ``order``.

    ``keys`` are never null. A null in ``order`` counts as smallest.
    """
    pa = pyarrow()
    if rows.num_rows < 2:
        return rows
    compute, last = pa.compute, rows.num_rows - 1
    sorting = [*((key, "ascending") for key in keys), *((name, "descending") for name in order)]
    rows = rows.take(compute.sort_indices(rows, sort_keys=sorting))
    again = pa.repeat(pa.scalar(value=True), last)
    for key in keys:
        column = rows[key].combine_chunks()
        again = compute.and_(again, compute.equal(column.slice(1), column.slice(0, last)))
    return rows.filter(pa.chunked_array([pa.array([True]), compute.invert(again)]))
