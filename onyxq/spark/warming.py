"""A small query that makes a session ready: what a standby runs, and what the class-data archive is made of.

``python -m onyxq.spark.warming FILE`` opens a session, runs the query, and leaves the archive of
the classes that it loaded in FILE; `onyxq.spark.home.build_archive` calls it.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from onyxq.spark import outputs
from onyxq.spark.files import Folder
from onyxq.spark.session import Settings, open_session

_SCHEMA = "lineage binary, out string, payload binary"


def warm(session: Any, work: Path) -> None:
    """Run a query with the parts of every job, files in, a region of Python, a Python sink; returns once it is done."""
    with tempfile.TemporaryDirectory(dir=work, prefix="warm-") as folder:
        source = Path(folder) / "in"
        source.mkdir()
        (source / "lines.txt").write_text("one\ntwo\n")
        lines = session.readStream.schema("value string").text(str(source))
        rows = lines.selectExpr("cast(value as binary) lineage", "'out' out", "X'c0' payload")
        sink = Folder("out", "json", f"{folder}/out", {})
        session.dataSource.register(outputs.Outputs)
        query = (
            rows.mapInArrow(_same, _SCHEMA)
            .writeStream.format(outputs.FORMAT)
            .options(**outputs.options_of([sink], {}, {"job": "warm"}))
            .option("checkpointLocation", f"{folder}/checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()


def _same(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


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
