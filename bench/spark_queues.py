"""Measures queues as Spark's source and sink, and user functions; parts of `bench.spark`."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench.common import progress
from bench.drive import make_payloads
from onyxq import Client
from onyxq.jobs.encoding import encode
from onyxq.jobs.model import Function, Input, Job, Output
from onyxq.spark.datasource import register
from onyxq.spark.plan import rows
from onyxq.spark.plan.fused import Place, run
from onyxq.spark.plan.regions import stages

ENQUEUED_AT_ONCE = 1_000
BATCH_ROWS = 10_000
PAYLOAD_BYTES = 100
SINGLE_TASKS = 20
"""Tasks whose way through a micro-batch is measured."""
STREAM_S_MAX = 900.0


def same(segment: Any) -> Any:
    """Return the segment: a user's function that costs nothing."""
    return segment


# --- source and sink ----------------------------------------------------------------------------


def queues(session: Any, address: str, tasks: int, directory: Path) -> dict[str, Any]:
    """Measure rows per second of source and sink, beside Spark's own, and the time of a task from queue to queue."""
    register(session)
    found: dict[str, Any] = {}
    with Client(address) as client:
        progress(f"enqueueing {tasks} tasks")
        for start in range(0, tasks, ENQUEUED_AT_ONCE):
            client.enqueue_many("in", make_payloads(start, ENQUEUED_AT_ONCE, PAYLOAD_BYTES))
        progress("source")
        taken = _from_queue(session, address, "in").writeStream.format("noop")
        found["source_rows_per_s"] = _rate(taken, tasks, directory / "source", available=True)
        progress("Spark's rate source")
        found["rate_source_rows_per_s"] = _rate(_rows(session).writeStream.format("noop"), tasks, directory / "rate")
        progress("sink")
        written = _rows(session).writeStream.format("onyxq").option("connect", address).option("queue", "out")
        found["sink_rows_per_s"] = _rate(written, tasks, directory / "sink")
        stored = sum(client.count("out")["out"].values())
        if stored < tasks:
            raise AssertionError(f"{stored} tasks are there of {tasks}")
        progress("Spark's Parquet sink")
        files = _rows(session).writeStream.format("parquet").option("path", str(directory / "files"))
        found["parquet_sink_rows_per_s"] = _rate(files, tasks, directory / "parquet")
        progress("one task at a time")
        found |= _single(session, client, address, directory / "single")
    return found


def _from_queue(session: Any, address: str, queue: str) -> Any:
    options = {"connect": address, "queue": queue, "max_rows": str(BATCH_ROWS)}
    return session.readStream.format("onyxq").options(**options).load()


def _rows(session: Any) -> Any:
    """Return Spark's own rows with a payload, with batches as large as those of a queue."""
    rate = session.readStream.format("rate-micro-batch").option("rowsPerBatch", BATCH_ROWS)
    return (
        rate.option("numPartitions", session.sparkContext.defaultParallelism)
        .load()
        .selectExpr(f"cast(rpad(cast(value as string), {PAYLOAD_BYTES}, 'x') as binary) as payload")
    )


def _rate(writer: Any, wanted: int, checkpoint: Path, *, available: bool = False) -> int:
    """Return rows per second, from the end of the first batch to the last one's end."""
    writer = writer.option("checkpointLocation", str(checkpoint))
    query = (writer.trigger(availableNow=True) if available else writer).start()
    began_s = time.perf_counter()
    first_s, first_rows, rows_done = 0.0, 0, 0
    seen = -1
    while rows_done < wanted:
        if query.exception() is not None:
            raise query.exception()
        if time.perf_counter() - began_s > STREAM_S_MAX:
            raise TimeoutError(f"{rows_done} rows of {wanted} within {STREAM_S_MAX:.0f} s")
        for one in query.recentProgress:
            if one["batchId"] > seen and one["numInputRows"]:
                seen = one["batchId"]
                rows_done += one["numInputRows"]
                if not first_s:
                    first_s, first_rows = time.perf_counter(), rows_done
        time.sleep(0.005)
    took_s = time.perf_counter() - first_s
    query.stop()
    return round((rows_done - first_rows) / took_s)


def _single(session: Any, client: Any, address: str, checkpoint: Path) -> dict[str, Any]:
    """Return milliseconds from the enqueue of one task to the claim of its result, while the stream is idle."""
    stream = _from_queue(session, address, "one").select("payload")
    query = (
        stream.writeStream.format("onyxq")
        .options(connect=address, queue="two", checkpointLocation=str(checkpoint))
        .trigger(processingTime="0 seconds")
        .start()
    )
    times = []
    try:
        for number in range(SINGLE_TASKS + 1):
            began_s = time.perf_counter()
            client.enqueue("one", b"%d" % number)
            (claim,) = client.claim(["two"], wait_ms=120_000)
            times.append(time.perf_counter() - began_s)
            client.complete(claim)
        batches = [one["durationMs"] for one in query.recentProgress if one["numInputRows"]]
    finally:
        query.stop()
    kept = sorted(times[1:])
    return {
        "first_task_ms": round(times[0] * 1_000),
        "task_p50_ms": round(statistics.median(kept) * 1_000),
        "task_max_ms": round(kept[-1] * 1_000),
        "batch_p50_ms": round(statistics.median(one["triggerExecution"] for one in batches)),
    }


# --- functions ----------------------------------------------------------------------------------


def functions(session: Any, segments: int, directory: Path) -> dict[str, Any]:
    """Measure microseconds per segment and core: three user functions by rows, and by whole Arrow batches."""
    progress(f"user functions on {segments} segments")
    cores = session.sparkContext.defaultParallelism
    frame = session.read.parquet(str(_segments(directory, segments, cores)))
    found: dict[str, Any] = {"segments": segments, "cores": cores}
    nothing_s = _took(frame)
    cases: dict[str, Callable[[Iterable[Any]], Iterator[Any]]] = {
        "arrow_as_it_is_us": _as_it_is,
        "arrow_wise_us": _filtered,
        "row_wise_one_function_us": partial(_fused, _job(1)),
        "row_wise_three_functions_us": partial(_fused, _job(3)),
    }
    for name, work in cases.items():
        took_s = _took(frame.mapInArrow(work, rows.SCHEMA))
        found[name] = round((took_s - nothing_s) * cores / segments * 1e6, 2)
    return found


def _segments(directory: Path, count: int, files: int) -> Path:
    """Write segments in as many files as there are cores."""
    directory.mkdir(parents=True, exist_ok=True)
    each = count // files
    for number in range(files):
        lineage = np.arange(each, dtype=">i8").view(np.uint8).reshape(-1, 8)
        ids = np.concatenate([np.full((each, 12), number, np.uint8), lineage], axis=1)
        offsets = pa.py_buffer(np.arange(0, 20 * each + 1, 20, dtype=np.int32))
        columns = [
            pa.Array.from_buffers(pa.binary(), each, [None, offsets, pa.py_buffer(ids.tobytes())]),
            pa.repeat(pa.scalar("in"), each),
            pa.repeat(pa.scalar(b"\xc4\x64" + b"x" * PAYLOAD_BYTES), each),  # msgpack: a byte string of that length
        ]
        pq.write_table(pa.Table.from_arrays(columns, schema=rows.ARROW), directory / f"{number}.parquet")
    return directory


def _took(frame: Any) -> float:
    """Return the seconds of the second run, when workers already exist."""
    for _ in range(2):
        began_s = time.perf_counter()
        frame.write.format("noop").mode("append").save()
    return time.perf_counter() - began_s


def _as_it_is(batches: Iterable[Any]) -> Iterator[Any]:
    yield from batches


def _filtered(batches: Iterable[Any]) -> Iterator[Any]:
    """Filter whole columns: values shorter than a byte are dropped."""
    for batch in batches:
        yield batch.filter(pc.greater(pc.binary_length(batch["payload"]), 0))


def _job(count: int) -> bytes:
    names = ["in", *(f"f{number}" for number in range(count)), "out"]
    tasks = [Function(name, fn="bench.spark_queues:same") for name in names[1:-1]]
    workflow = list(zip(names, names[1:], strict=False))
    return encode(
        Job(id="bench", workflow=workflow, catalog=[Input("in", queue="a"), *tasks, Output("out", queue="b")])
    )


def _fused(body: bytes, batches: Iterable[Any]) -> Iterator[Any]:
    """Join all functions into one, as a job's region does."""
    from onyxq.jobs.encoding import decode

    ((region,),) = stages(decode(body))[-1].sides
    yield from run(Place(body, "bench", 1), region, rows.SEGMENTS, (), batches)
