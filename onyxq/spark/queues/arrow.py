"""Bodies of task runs as Arrow batches.

Payloads stay packed and are checked against their checksums (design: runs).
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterator, Sequence

import numpy
import pyarrow

from onyxq.core.errors import Corrupt
from onyxq.core.facts import TaskRun, unpack_task
from onyxq.core.ids import ID_BYTES
from onyxq.spark.lineage import PREFIX_BYTES, source_prefix

ROWS_MAX = 10_000
BYTES_MAX = 8 * 1024 * 1024
"""Payload bytes after which the next Arrow batch begins; `ROWS_MAX` limits the rows."""

SCHEMA = "lineage binary, payload binary, format string, id binary"
ARROW = pyarrow.schema(
    [
        ("lineage", pyarrow.binary()),
        ("payload", pyarrow.binary()),
        ("format", pyarrow.string()),
        ("id", pyarrow.binary()),
    ]
)


def batch_of(bodies: Sequence[tuple[bytes, bytes]], time_ms: int) -> Iterator[pyarrow.RecordBatch]:
    """Yield Arrow batches of task rows' bodies with their first ids; ``time_ms``: of the batch, for lineage."""
    runs: list[tuple[bytes, TaskRun]] = []
    rows = size = 0
    for first, body in bodies:
        run = unpack_task(body)
        runs.append((first, run))
        rows += run.count
        size += len(run.payloads)
        if rows >= ROWS_MAX or size >= BYTES_MAX:
            yield _batch(runs, time_ms)
            runs, rows, size = [], 0, 0
    if runs:
        yield _batch(runs, time_ms)


def _batch(runs: Sequence[tuple[bytes, TaskRun]], time_ms: int) -> pyarrow.RecordBatch:
    lengths, checksums, formats = array("I"), array("I"), list[str]()
    for _, run in runs:
        lengths.extend(run.lengths)
        checksums.extend(run.checksums)
        formats += [run.header.get("format", "bytes")] * run.count
    payloads = b"".join([run.payloads for _, run in runs])
    offsets = numpy.zeros(len(lengths) + 1, "i4")
    numpy.cumsum(numpy.frombuffer(lengths, "u4"), out=offsets[1:])
    _check(payloads, offsets, checksums)
    own = {first[:PREFIX_BYTES]: first[:PREFIX_BYTES] for first, _ in runs}
    columns = [
        _ids(runs, {prefix: source_prefix(prefix, time_ms) for prefix in own}),
        _binary(offsets, payloads, len(lengths)),
        pyarrow.array(formats, pyarrow.string()),
        _ids(runs, own),
    ]
    return pyarrow.RecordBatch.from_arrays(columns, schema=ARROW)


def _check(payloads: bytes, offsets: numpy.ndarray, checksums: Sequence[int]) -> None:
    view, places = memoryview(payloads), offsets.tolist()
    for start, end, checksum in zip(places, places[1:], checksums, strict=False):
        if zlib.crc32(view[start:end]) != checksum:
            raise Corrupt("a payload does not match its checksum")


def _ids(runs: Sequence[tuple[bytes, TaskRun]], prefixes: dict[bytes, bytes]) -> pyarrow.Array:
    """Return the ids of all tasks, with other prefixes."""
    made: list[bytes] = []
    count = 0
    for first, run in runs:
        prefix = prefixes[first[:PREFIX_BYTES]]
        count += run.count
        if run.count == 1:
            made.append(prefix + first[PREFIX_BYTES:])
            continue
        block = numpy.empty((run.count, ID_BYTES), "u1")
        block[:, :PREFIX_BYTES] = numpy.frombuffer(prefix, "u1")
        start = int.from_bytes(first[PREFIX_BYTES:], "big")
        block[:, PREFIX_BYTES:] = numpy.arange(start, start + run.count, dtype=">u4").view("u1").reshape(-1, 4)
        made.append(block.tobytes())
    offsets = numpy.arange(0, ID_BYTES * count + 1, ID_BYTES, dtype="i4")
    return _binary(offsets, b"".join(made), count)


def _binary(offsets: numpy.ndarray, data: bytes, count: int) -> pyarrow.Array:
    buffers = [None, pyarrow.py_buffer(offsets), pyarrow.py_buffer(data)]
    return pyarrow.Array.from_buffers(pyarrow.binary(), count, buffers)
