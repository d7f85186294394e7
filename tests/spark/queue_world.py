"""Queries between queues of a cluster in the test's process, under a job's version."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from attrs import define
from pyspark.sql import functions as of

from onyxq.client import Client
from onyxq.core.replica import Job
from onyxq.jobs import model
from onyxq.jobs.encoding import encode
from onyxq.spark.checkpoint import Checkpoints
from onyxq.spark.datasource import register
from onyxq.spark.plan import rows
from onyxq.spark.plan.outputs import FORMAT, Outputs, Struct, regions_of
from tests.interfaces.batches_world import JobsCluster

END_S = 120
SEGMENTS = "lineage binary, out string, payload binary"


@define
class Pipe:
    """A query from one queue to another, with the options of each start."""

    spark: Any
    cluster: JobsCluster
    job: Job
    checkpoint: Path
    source: str
    target: str
    sink: str = FORMAT
    """The format that it writes."""
    between: Callable[[Any], None] | None = None
    """Called by executors for every Arrow batch."""
    second: str = ""
    """Another queue that it reads, if any."""

    def options(self) -> dict[str, str]:
        """Return the options of source and sink."""
        said = {"connect": self.cluster.connect, "job": self.job.id, "version": str(self.job.version)}
        return said | {"checkpoint": str(self.checkpoint)}

    def regions(self) -> dict[str, str]:
        """Return the options of the sink about a job that passes on what it reads."""
        catalog = [model.Input("in", queue=self.source), model.Output("out", queue=self.target)]
        body = encode(model.Job(id=self.job.id, workflow=[("in", "out")], catalog=catalog))
        return regions_of(body, {"made": Struct(entry="in", shape=rows.SEGMENTS)})

    def start(self, *, slots: int = 2, max_rows: int = 1_000, lease_ms: int = 60_000, forever: bool = False) -> Any:
        """Start the query, for the present tasks or for ever."""
        register(self.spark)
        self.spark.dataSource.register(Outputs)
        reading = self.options() | {"slots": str(slots), "max_rows": str(max_rows), "lease_ms": str(lease_ms)}
        sources = [name for name in (self.source, self.second) if name]
        frames = [self.spark.readStream.format("onyxq").options(**reading, queue=name).load() for name in sources]
        frame = frames[0] if len(frames) == 1 else frames[0].unionAll(frames[1])
        frame = frame.mapInArrow(upper(self.between), SEGMENTS).select(
            of.struct("lineage", "out", "payload").alias("made")
        )
        outputs = json.dumps({"out": {"queue": self.target}})
        writer = frame.writeStream.format(self.sink).options(**self.options(), outputs=outputs, folders="[]")
        writer = writer.options(**self.regions(), inputs="null")
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        return writer.trigger(**({"processingTime": "100 milliseconds"} if forever else {"availableNow": True})).start()

    def run(self, **options: Any) -> list[Any]:
        """Run it until the present tasks are processed; return its progress."""
        query = self.start(**options)
        assert query.awaitTermination(END_S), "the query did not end in time"
        return list(query.recentProgress)

    def fail(self, **options: Any) -> str:
        """Run it until it fails; return the error's text."""
        query = self.start(**options)
        try:
            assert query.awaitTermination(END_S), "the query did not end in time"
        except Exception as error:
            return str(error)
        raise AssertionError("the query did not fail")

    def uncommitted(self) -> int:
        """Remove the last commit from Spark's log; return the number of the batch."""
        last = max(int(path.name) for path in (self.checkpoint / "commits").iterdir() if path.name.isdigit())
        for name in (str(last), f".{last}.crc"):
            (self.checkpoint / "commits" / name).unlink(missing_ok=True)
        return last

    def anew(self, checkpoint: Path) -> Pipe:
        """Return the same query under the job's present version, in a folder made from the log's record."""
        job = self.cluster.job(self.job.id)
        described = model.Job(id=job.id, workflow=[], catalog=[])
        base = Checkpoints(str(checkpoint))
        folder = base.fit(described, version=job.version, batch=job.batch, recorded=job.offsets)
        return Pipe(self.spark, self.cluster, job, Path(folder), self.source, self.target)


def upper(between: Callable[[Any], None] | None) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return segments for ``out``: the tasks' payloads in capitals."""

    def work(batches: Iterator[Any]) -> Iterator[Any]:
        import msgpack
        import pyarrow

        for batch in batches:
            if between is not None:
                between(batch)
            payloads = [msgpack.packb(payload.upper()) for payload in batch.column("payload").to_pylist()]
            columns = [batch.column("lineage"), pyarrow.array(["out"] * len(payloads)), pyarrow.array(payloads)]
            yield pyarrow.RecordBatch.from_arrays(columns, names=["lineage", "out", "payload"])

    return work


def filled(client: Client, queue: str, count: int, *, start: int = 0) -> Counter[bytes]:
    """Enqueue tasks; return the expected outputs."""
    payloads = [b"task %d of %s" % (place, queue.encode()) for place in range(start, start + count)]
    client.enqueue_many(queue, payloads, retries=None, backoff_ms=0)
    return Counter(payload.upper() for payload in payloads)


def drained(client: Client, queue: str) -> tuple[Counter[bytes], int]:
    """Return the payloads of all ready tasks of a queue, and the number of runs in which they were granted."""
    found: list[bytes] = []
    runs = 0
    while batch := client.claim(queue, max=1_000, lease_ms=600_000, worker="test"):
        found += batch.payloads
        runs += len(batch.runs)
    return Counter(found), runs


def state_counts(client: Client, queue: str, states: Sequence[str]) -> list[int]:
    """Return how many tasks of a queue are in each state."""
    counts = client.count(queue)[queue]
    return [counts[state] for state in states]
