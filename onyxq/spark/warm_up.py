"""A small query that makes a session ready: what a standby runs, and what the class-data archive is made of.

``python -m onyxq.spark.warm_up FILE`` opens a session, runs the query, and leaves the archive of
the classes that it loaded in FILE; `onyxq.spark.home.build_archive` calls it.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

from onyxq.jobs.encoding import encode
from onyxq.jobs.model import Function, Input, Job, Output
from onyxq.spark.plan.compile import Setting, compiled
from onyxq.spark.session import Settings, of_its_own, open_session
from onyxq.system.directories import TEMPORARY

FORMAT = "onyxq-warming"
PARTS = 2


def warm(session: Any, work: Path) -> None:
    """Run a job with the parts of every job: source and sink in Python, a region between; returns once it is done."""
    with tempfile.TemporaryDirectory(dir=work / TEMPORARY, prefix="warm-") as folder:
        job = Job(
            id="warming",
            workflow=[("in", "same"), ("same", "out")],
            catalog=[
                Input("in", format=FORMAT, bounded=True),
                Function("same", "builtins:dict"),
                Output("out", format="json", path=f"{folder}/out"),
            ],
        )
        own = of_its_own(session)
        own.dataSource.register(Lines)
        setting = Setting(version=0, slots=1, checkpoint=f"{folder}/checkpoint", connect=None)
        compiled(own, job, encode(job), setting).start().awaitTermination()


class Lines(DataSource):
    """A source of a few rows."""

    @classmethod
    def name(cls) -> str:
        """What it is called in ``format``."""
        return FORMAT

    def schema(self) -> str:
        """One column."""
        return "value string"

    def streamReader(self, schema: Any) -> LinesReader:
        """The reader of the rows."""
        return LinesReader()


class LinesReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One batch of as many partitions as `PARTS`, with a row each."""

    def initialOffset(self) -> dict[str, int]:
        """Nothing was given."""
        return {"given": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        """There is but one batch."""
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """All of it is there."""

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """The end."""
        return {"given": 1}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Two, or none."""
        return [InputPartition(place) for place in range(PARTS)] if end["given"] > start["given"] else []

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """A row."""
        yield pyarrow.RecordBatch.from_pydict({"value": ["warm"]})


def main(archive: str) -> None:
    """Make the archive in a session of its own."""
    with tempfile.TemporaryDirectory(prefix="onyxq-warming-") as folder:
        session = open_session(Settings(work=Path(folder), archive_to=archive))
        machine = session.sparkContext._gateway.proc
        warm(session, Path(folder))
        session.stop()
        machine.stdin.close()  # it ends by itself, and writes the archive on its way out
        machine.wait()


if __name__ == "__main__":
    main(sys.argv[1])
