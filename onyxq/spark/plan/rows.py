"""Conversion between Arrow batches (Spark's columns) and segments (the values of functions).

Between regions, cuts and the sink a segment is a row ``(lineage, out, payload)``: its origin, the task that it goes
to, and its value as msgpack. Inputs have two other shapes, which the first region converts: tasks of a queue, and
the columns of other sources.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import msgpack
import pyarrow
from pyarrow import compute

from onyxq.core.errors import BadRequest
from onyxq.core.ids import COUNTER_MAX, ids_of, make_id
from onyxq.jobs import inherited_state
from onyxq.jobs.key_state import hash64
from onyxq.jobs.letters import letter_in
from onyxq.jobs.values import Unfit, unpack
from onyxq.spark.failures import of_task
from onyxq.spark.files import columns

SEGMENTS = "segments"
QUEUE = "queue"
LETTERS = "letters"
COLUMNS = "columns"
"""The shapes of rows that a region takes are `SEGMENTS`, `QUEUE`, `LETTERS` (sent again) and this one."""
END = inherited_state.END
"""Target of the segment that marks the end of all inputs: it goes to every cut."""
STATE = "<state>"
"""Target of the state that a cut takes over from another job (`onyxq.spark.state_copy`)."""
LETTER = "<letter>"
"""Target of a dead letter: it passes all cuts on its way to the outputs."""

SCHEMA = "lineage binary, out string, payload binary"
ARROW = pyarrow.schema([("lineage", pyarrow.binary()), ("out", pyarrow.string()), ("payload", pyarrow.binary())])
ROWS_MAX = 10_000
BYTES_MAX = 8 * 1024 * 1024
"""Approximate payload bytes of one Arrow batch; `ROWS_MAX` limits the rows."""

PLANNED, PART = "_onyxq_planned_ms", "_onyxq_part"
"""Columns that `onyxq.spark.plan.inputs.placed` adds, for lineage; they are not part of a segment.

``PART`` is the source's part of the batch. One task of Spark may process several of them.
"""

Segment = tuple[bytes, Any, str]
"""Lineage, value, and the only task that it goes to, or empty: a window's trigger may set it.

A late segment that is sent again goes to one window only, ``task/window``: its other windows may have counted it.
"""


def segments(batches: Iterable[Any], shape: str, *, entry: str, place: str, way: str = "") -> Iterator[Segment]:
    """Yield the segments of the Arrow batches from ``entry``.

    ``place`` distinguishes batches. Of dead letters only those of the given ``way`` are yielded.
    """
    if shape == COLUMNS:
        yield from _from_columns(batches, entry, place)
        return
    for batch in batches:
        if shape == LETTERS:
            yield from _from_letters(batch, way)
        else:
            yield from _from_queue(batch, entry) if shape == QUEUE else _from_segments(batch, entry)


def _from_segments(batch: Any, entry: str) -> Iterator[Segment]:
    columns = [batch.column(name).to_pylist() for name in ("lineage", "out", "payload")]
    for lineage, out, payload in zip(*columns, strict=True):
        yield lineage, unpack(payload), "" if out == entry else out


def _from_queue(batch: Any, entry: str) -> Iterator[Segment]:
    columns = [batch.column(name).to_pylist() for name in ("lineage", "payload", "format")]
    for place, (lineage, payload, form) in enumerate(zip(*columns, strict=True)):
        yield lineage, (_from_json(batch, place, payload, entry) if form == "json" else payload), ""


def _from_json(batch: Any, place: int, payload: bytes, entry: str) -> Any:
    """Return the value of a task that was enqueued as JSON; peers do not check that it is."""
    try:
        return json.loads(payload)
    except (ValueError, RecursionError) as error:
        task_id = batch.column("id")[place].as_py().hex()
        wrong = BadRequest(f"task {task_id} has the format json, but its data is not JSON: {error}")
        raise of_task(wrong, task=entry, segment=payload, restart=False) from None


def _from_letters(batch: Any, way: str) -> Iterator[Segment]:
    columns = [batch.column(name).to_pylist() for name in ("lineage", "payload")]
    for lineage, payload in zip(*columns, strict=True):
        letter = letter_in(payload)
        if letter.way == way:
            yield lineage, letter.segment, f"{letter.task}/{letter.window}" if letter.window else letter.task


def values(batches: Iterable[Any], entry: str) -> Iterator[Any]:
    """Yield the values of the segments of Arrow batches of the shape `COLUMNS`, without lineage."""
    for batch in batches:
        yield from _rows(_own(batch), entry)


def _own(batch: Any) -> Any:
    """Return the columns of a segment."""
    return batch.select([name for name in batch.schema.names if name not in (PLANNED, PART)])


def _from_columns(batches: Iterable[Any], entry: str, place: str) -> Iterator[Segment]:
    """Yield segments of rows, identified by their batch, part and index in it."""
    counts: Counter[int] = Counter()
    for batch in batches:
        for lineage, row in zip(_lineages(batch, counts, entry, place), _rows(_own(batch), entry), strict=True):
            yield lineage, row, ""


def _lineages(batch: Any, counts: Counter[int], entry: str, place: str) -> Iterator[bytes]:
    """Yield the lineages of the rows of an Arrow batch; ``counts``: part -> the number of its rows so far.

    Rows of the same part that follow each other have the same time.
    """
    stretches = compute.run_end_encode(batch.column(PART))
    start = 0
    for part, end in zip(stretches.values.to_pylist(), stretches.run_ends.to_pylist(), strict=True):
        planned = batch.column(PLANNED)[start].as_py()
        while start < end:
            block, index = divmod(counts[part], COUNTER_MAX + 1)
            count = min(end - start, COUNTER_MAX + 1 - index)
            maker = hash64(msgpack.packb([entry, place, part, block]))
            counts[part] += count
            start += count
            yield from ids_of(make_id(planned, 0, maker, index), count)


def _rows(batch: Any, entry: str) -> Iterator[dict[str, Any]]:
    try:
        yield from columns.segments(batch)
    except Unfit as error:
        raise of_task(error, task=entry, segment=None, restart=False) from error


def sent(batches: Iterable[Any]) -> Iterator[tuple[str, bytes, bytes]]:
    """Yield the rows ``(out, lineage, payload)`` of Arrow batches of the shape `SEGMENTS`."""
    for batch in batches:
        yield from zip(*(batch.column(name).to_pylist() for name in ("out", "lineage", "payload")), strict=True)


def batches(rows: Iterable[tuple[str, bytes, bytes]]) -> Iterator[Any]:
    """Yield Arrow batches of rows ``(out, lineage, payload)``."""
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
