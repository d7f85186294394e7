"""Bodies of task runs as Arrow batches: payloads stay packed, checked against their checksums (design: runs)."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence

import numpy
import pyarrow

from onyxq.errors import Corrupt
from onyxq.facts import TaskRun, unpack_task
from onyxq.spark.lineage import PREFIX_BYTES, source_prefix

ROWS_MAX = 10_000
BYTES_MAX = 8 * 1024 * 1024
"""Rows and payload bytes after which the next Arrow batch begins."""

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
    """Arrow batches of task rows' bodies with their first ids; ``time_ms``: of the batch, for lineage."""
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
    lengths = numpy.concatenate([numpy.frombuffer(run.lengths, "u4") for _, run in runs])
    payloads = b"".join(run.payloads for _, run in runs)
    offsets = numpy.zeros(len(lengths) + 1, "i4")
    numpy.cumsum(lengths, out=offsets[1:])
    _check(payloads, offsets, [one for _, run in runs for one in run.checksums])
    prefixes: dict[bytes, bytes] = {}
    for first, _ in runs:
        prefix = first[:PREFIX_BYTES]
        if prefix not in prefixes:
            prefixes[prefix] = source_prefix(prefix, time_ms)
    formats = [form for _, run in runs for form in [run.header.get("format", "bytes")] * run.count]
    columns = [
        _ids(runs, prefixes),
        _binary(offsets, payloads, len(lengths)),
        pyarrow.array(formats, pyarrow.string()),
        _ids(runs, {prefix: prefix for prefix in prefixes}),
    ]
    return pyarrow.RecordBatch.from_arrays(columns, schema=ARROW)


def _check(payloads: bytes, offsets: numpy.ndarray, checksums: Sequence[int]) -> None:
    view, places = memoryview(payloads), offsets.tolist()
    for start, end, checksum in zip(places, places[1:], checksums, strict=False):
        if zlib.crc32(view[start:end]) != checksum:
            raise Corrupt("a payload does not match its checksum")


def _ids(runs: Sequence[tuple[bytes, TaskRun]], prefixes: dict[bytes, bytes]) -> pyarrow.Array:
    """The ids of all tasks, with other prefixes."""
    count = sum(run.count for _, run in runs)
    made = numpy.empty((count, 20), "u1")
    place = 0
    for first, run in runs:
        end = place + run.count
        made[place:end, :PREFIX_BYTES] = numpy.frombuffer(prefixes[first[:PREFIX_BYTES]], "u1")
        start = int.from_bytes(first[PREFIX_BYTES:], "big")
        counters = numpy.arange(start, start + run.count, dtype=">u4")
        made[place:end, PREFIX_BYTES:] = counters.view("u1").reshape(-1, 4)
        place = end
    return _binary(numpy.arange(0, 20 * count + 1, 20, dtype="i4"), made.tobytes(), count)


def _binary(offsets: numpy.ndarray, data: bytes, count: int) -> pyarrow.Array:
    buffers = [None, pyarrow.py_buffer(offsets), pyarrow.py_buffer(data)]
    return pyarrow.Array.from_buffers(pyarrow.binary(), count, buffers)
