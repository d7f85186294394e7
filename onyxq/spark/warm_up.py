"""A small query that makes a session ready.

A standby runs it, and the class-data archive is made from it.

``python -m onyxq.spark.warm_up FILE`` opens a session, runs the query, and writes the archive of the classes that
it loaded to FILE; `onyxq.spark.home.build_archive` calls it.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
from pyspark.sql.datasource import DataSource, InputPartition

from onyxq.jobs.encoding import encode
from onyxq.jobs.model import Function, Input, Job, Output
from onyxq.spark import java
from onyxq.spark.plan.compile import Setting, compiled
from onyxq.spark.plan.end_of_input import OneBatch
from onyxq.spark.session import Settings, of_its_own, open_session
from onyxq.system.directories import TEMPORARY

FORMAT = "onyxq-warming"


def warm(session: Any, work: Path) -> None:
    """Run a job with the parts that every job has: source and sink in Python, with a region; wait for its end."""
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
        return FORMAT

    def schema(self) -> str:
        return "value string"

    def streamReader(self, schema: Any) -> LinesReader:
        return LinesReader()


class LinesReader(OneBatch):
    """One batch with some partitions of one row each."""

    parts = 2

    def read(self, partition: InputPartition) -> Iterator[Any]:
        yield pyarrow.RecordBatch.from_pydict({"value": ["warm"]})


def main(archive: str) -> None:
    """Build the archive in a session of its own."""
    with tempfile.TemporaryDirectory(prefix="onyxq-warming-") as folder:
        session = open_session(Settings(work=Path(folder), quick_start=True, archive_to=archive))
        machine = java.process(session)
        warm(session, Path(folder))
        session.stop()
        machine.stdin.close()  # It ends on its own, and writes the archive as it exits.
        machine.wait()


if __name__ == "__main__":
    main(sys.argv[1])
