"""Makes a large archive of tasks by columns, because making rows in Python would take longer than checking them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from onyxq.history.parquet.layout import FileName, Place, day_of
from onyxq.history.parquet.schema import CLAIMS, COLUMNS, TASKS, options_of, schema_of

DAYS = 7
FILES_OF_DAY = 16
"""Files of each table; one of them has tasks with ordering keys."""
KEYS = 1_000
DAY_MS = 86_400_000
_DIGITS = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)


class Made(NamedTuple):
    """Numbers of the written archive."""

    tasks: int
    claims: int
    files: int
    bytes: int


def write_archive(directory: Path, claims: int, *, from_ms: int) -> Made:
    """Write an archive of about ``claims`` claims; of every fifth task the second attempt is completed."""
    a_file = max(1, claims * 5 // 6 // (DAYS * FILES_OF_DAY))
    made = Made(0, 0, 0, 0)
    for day in range(DAYS):
        for number in range(FILES_OF_DAY):
            one = _write_file(directory, from_ms + day * DAY_MS, day * FILES_OF_DAY + number, a_file, keyed=not number)
            made = Made(*(some + more for some, more in zip(made, one, strict=True)))
    return made


def _write_file(directory: Path, day_ms: int, number: int, count: int, *, keyed: bool) -> Made:
    """Write the files of one partition, queue and day."""
    partition = number % 64
    place = np.arange(count)
    made = day_ms + place * ((DAY_MS - 1) // count)
    ids = _ids(made, partition, number)
    base = (number * count + place) * 4
    twice = place % 5 == 4
    token = base + np.where(twice, 3, 1)
    granted = made + 40 + place % 900
    finished = granted + 20 + place % 70
    queue = "ordered" if keyed else "work"
    turn = pa.array([[int(ms), 1, int(at)] for at, ms in enumerate(made)]) if keyed else None
    tasks = {
        "id": ids,
        "state": _same("completed", count),
        "priority": _same(0, count),
        "ordering_key": pa.array([f"key {at}" for at in place % KEYS]) if keyed else None,
        "format": _same("bytes", count),
        "data": _same(b"", count),
        "made": pa.array(made),
        "due": pa.array(made),
        "finished": pa.array(finished),
        "attempts": pa.array(twice.astype(np.int32)),
        "depends": pa.array([[]], pa.list_(pa.string())).take(pa.array(np.zeros(count, np.int64))),
        "token": pa.array(token),
        "updates": _same(0, count),
        "turn": turn,
    }
    again = np.flatnonzero(twice)
    order = np.argsort(np.concatenate([place * 2 + 1, again * 2]), kind="stable")
    claims = {
        "id": pa.concat_arrays([ids, ids.take(pa.array(again))]),
        "token": pa.array(np.concatenate([token, base[again] + 1])),
        "worker": _same("worker", count + len(again)),
        "granted": pa.array(np.concatenate([granted, granted[again] - 30])),
        "ended": pa.array(np.concatenate([finished, granted[again] - 10])),
        "outcome": pa.concat_arrays([_same("completed", count), _same("failed", len(again))]),
        "retry": pa.array(np.concatenate([finished, granted[again] - 5]), mask=np.arange(count + len(again)) < count),
        "until": pa.array(np.concatenate([token, base[again] + 2]), mask=np.arange(count + len(again)) < count),
    }
    claims = {name: values.take(pa.array(order)) for name, values in claims.items()}
    name = FileName(partition, day_ms, day_ms + DAY_MS).with_digest(number.to_bytes(4, "big"))
    at = Place(queue, day_of(day_ms)).path
    size = sum(
        _write(directory / table / at / name, table, columns, queue, partition)
        for table, columns in ((TASKS, tasks), (CLAIMS, claims))
    )
    return Made(count, count + len(again), 2, size)


def _write(path: Path, table: str, columns: dict[str, Any], queue: str, partition: int) -> int:
    schema = schema_of(table, queue=queue, partition=partition)
    rows = len(columns["id"])
    arrays = []
    for name, *_ in COLUMNS[table]:
        kind = schema.field(name).type
        values = columns.get(name)
        arrays.append(pa.nulls(rows, kind) if values is None else values.cast(kind))
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_arrays(arrays, schema=schema), path, **options_of(table))
    return path.stat().st_size


def _ids(made: Any, partition: int, maker: int) -> Any:
    """Return ids in hexadecimal, in order."""
    raw = np.zeros((len(made), 20), dtype=np.uint8)
    raw[:, :6] = made.astype(">i8").view(np.uint8).reshape(-1, 8)[:, 2:]
    raw[:, 6:8] = (partition >> 8, partition & 0xFF)
    raw[:, 8:16] = np.frombuffer(maker.to_bytes(8, "big"), dtype=np.uint8)
    raw[:, 16:] = np.arange(len(made)).astype(">i4").view(np.uint8).reshape(-1, 4)
    text = np.stack([_DIGITS[raw >> 4], _DIGITS[raw & 15]], axis=2).reshape(-1)
    offsets = np.arange(0, 40 * len(made) + 1, 40, dtype=np.int32)
    return pa.StringArray.from_buffers(len(made), pa.py_buffer(offsets), pa.py_buffer(text.tobytes()))


def _same(value: Any, count: int) -> Any:
    return pa.repeat(pa.scalar(value), count)
