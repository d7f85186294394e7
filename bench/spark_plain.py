"""Plain Spark that does what a measured job does, as a process of its own: the system beside `bench.spark_jobs`.

    python -m bench.spark_plain SLOTS WORK INPUT OUTPUT FORMAT FILES_PER_BATCH CHECKPOINT

A stream of Parquet files through WORK to Parquet (Spark's own sink) or to a Delta table (``foreachBatch`` with the
package deltalake), with Spark's own settings. WORK is a query, or ``MODULE:FUNCTION``: a function of one row as a dict,
which `mapInArrow` calls. The program prints its batches and the memory of its processes as JSON.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from onyxq.spark.session import descendants

SCHEMA = "id bigint, user string, amount double"
RESULT = "id bigint, user string, total double"
"""The columns that the work returns."""
FILES_PER_BATCH = 4


class Batch(NamedTuple):
    """A batch that read rows."""

    at_ms: int
    duration_ms: int
    rows: int


def rate(batches: Sequence[Batch]) -> int:
    """Return rows per second of all batches but the first, from the second one's start to the last one's end."""
    took_ms = batches[-1].at_ms + batches[-1].duration_ms - batches[1].at_ms
    return round(1000 * sum(one.rows for one in batches[1:]) / took_ms)


def peak_mib(pid: int) -> int:
    """Return the sum of the largest resident memories of a process and its descendants."""
    found = 0
    for one in (pid, *descendants(pid)):
        try:
            said = Path(f"/proc/{one}/status").read_text("ascii")
        except OSError:
            continue  # it has ended
        found += sum(int(line.split()[1]) for line in said.splitlines() if line.startswith("VmHWM:"))
    return found // 1024


def main() -> None:
    """Run the stream to its end."""
    from pyspark.sql import SparkSession

    slots, work, source, out, kind, files_per_batch, checkpoint = sys.argv[1:]
    session = (
        SparkSession.builder.master(f"local[{slots}]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    stream = session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", files_per_batch).parquet(source)
    stream.createOrReplaceTempView("rows")
    worked = session.sql(work) if work.startswith("select ") else _mapped(stream, work)
    writer = worked.writeStream.trigger(availableNow=True).option("checkpointLocation", checkpoint)
    writer = _to_delta(writer, out) if kind == "delta" else writer.format(kind).option("path", out)
    running = writer.start()
    running.awaitTermination()
    batches = [
        Batch(
            round(datetime.fromisoformat(one["timestamp"]).timestamp() * 1000),
            one["batchDuration"],
            one["numInputRows"],
        )
        for one in running.recentProgress
        if one["numInputRows"]
    ]
    print(json.dumps({"batches": batches, "memory_mib": peak_mib(os.getpid())}))
    session.stop()


def _mapped(rows: Any, name: str) -> Any:
    """Return what a function makes of each row; rows for which it returns None are left out."""
    module, _, attribute = name.partition(":")
    fn = getattr(importlib.import_module(module), attribute)
    columns = pa.schema([("id", pa.int64()), ("user", pa.string()), ("total", pa.float64())])

    def work(batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            made = [one for row in batch.to_pylist() if (one := fn(row)) is not None]
            yield pa.RecordBatch.from_pylist(made, columns)

    return rows.mapInArrow(work, RESULT)


def _to_delta(writer: Any, out: str) -> Any:
    from deltalake import write_deltalake

    return writer.foreachBatch(lambda rows, number: write_deltalake(out, rows.toArrow(), mode="append"))


if __name__ == "__main__":
    main()
