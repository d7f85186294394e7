"""Arrow batches as segments and back: between Spark's columns and what functions see.

Between regions, cuts and the sink a segment is a row ``(lineage, out, payload)``: where it comes from,
the task that it goes to, and its value as msgpack.  Inputs come in two other shapes, from which
the first region makes that one: tasks of a queue, and whatever columns Spark read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from typing import Any

import msgpack
import pyarrow

from onyxq.core.ids import COUNTER_MAX, make_id
from onyxq.jobs.values import unpack
from onyxq.spark.files import columns

SEGMENTS = "segments"
QUEUE = "queue"
COLUMNS = "columns"
"""The shapes of rows that a region takes."""
END = "<end>"
"""Where the segment goes that says that all inputs have ended: to every cut."""

SCHEMA = "lineage binary, out string, payload binary"
ARROW = pyarrow.schema([("lineage", pyarrow.binary()), ("out", pyarrow.string()), ("payload", pyarrow.binary())])
ROWS_MAX = 10_000
BYTES_MAX = 8 * 1024 * 1024
"""Rows and payload bytes of one Arrow batch, about."""

FILE, BLOCK, PART, PLANNED = "_onyxq_file", "_onyxq_block", "_onyxq_part", "_onyxq_planned_ms"
"""Columns that `onyxq.spark.plan.inputs` adds, for lineage; they are not part of a segment. ``PART`` is the source's
part of the batch: several of them may be one task of Spark's."""

Segment = tuple[bytes, Any, str]
"""Lineage, value, and the task that it goes to if not to all: a window's trigger may say which."""


def segments(batches: Iterable[Any], shape: str, *, entry: str, place: str) -> Iterator[Segment]:
    """The segments of the Arrow batches that came from ``entry``; ``place`` tells batches without files apart."""
    if shape == COLUMNS:
        yield from _from_columns(batches, entry, place)
        return
    for batch in batches:
        yield from _from_queue(batch) if shape == QUEUE else _from_segments(batch, entry)


def _from_segments(batch: Any, entry: str) -> Iterator[Segment]:
    columns = [batch.column(name).to_pylist() for name in ("lineage", "out", "payload")]
    for lineage, out, payload in zip(*columns, strict=True):
        yield lineage, unpack(payload), "" if out == entry else out


def _from_queue(batch: Any) -> Iterator[Segment]:
    columns = [batch.column(name).to_pylist() for name in ("lineage", "payload", "format")]
    for lineage, payload, form in zip(*columns, strict=True):
        yield lineage, (json.loads(payload) if form == "json" else payload), ""


def _from_columns(batches: Iterable[Any], entry: str, place: str) -> Iterator[Segment]:
    """Rows of files are known by file, block and place in it; others by batch, part and place in it."""
    counts: dict[tuple[Any, ...], int] = {}
    for batch in batches:
        for row in columns.segments(batch):
            planned = row.pop(PLANNED)
            where = (entry, row.pop(FILE), row.pop(BLOCK)) if FILE in row else (entry, place, str(row.pop(PART)))
            count = counts.get(where, 0)
            counts[where] = count + 1
            maker = _hash64(*where, str(count // (COUNTER_MAX + 1)))
            yield make_id(planned, 0, maker, count % (COUNTER_MAX + 1)), row, ""


def _hash64(*parts: Any) -> int:
    said = msgpack.packb(parts)
    return int.from_bytes(hashlib.blake2b(said, digest_size=8).digest(), "big")


def batches(rows: Iterable[tuple[str, bytes, bytes]]) -> Iterator[Any]:
    """Arrow batches of rows ``(out, lineage, payload)``."""
    outs: list[str] = []
    lineages: list[bytes] = []
    payloads: list[bytes] = []
    size = 0
    for out, lineage, payload in rows:
        outs.append(out)
        lineages.append(lineage)
        payloads.append(payload)
        size += len(payload)
        if len(outs) >= ROWS_MAX or size >= BYTES_MAX:
            yield _batch(lineages, outs, payloads)
            outs, lineages, payloads, size = [], [], [], 0
    if outs:
        yield _batch(lineages, outs, payloads)


def _batch(lineages: list[bytes], outs: list[str], payloads: list[bytes]) -> Any:
    columns = [pyarrow.array(values, kind.type) for values, kind in zip((lineages, outs, payloads), ARROW, strict=True)]
    return pyarrow.RecordBatch.from_arrays(columns, schema=ARROW)
