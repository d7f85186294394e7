"""``onyxq`` as a program that kills itself, like ``kill -9``, at a step of a log collection or archiving.

``DIE_AT`` names the step, and ``DIE_COUNT`` how many times it is passed before. Snapshots have
several chunks, and trims several batches, so that there are steps in between.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from onyxq.history.archive import Archive
from onyxq.history.file_format import HistoryFileWriter
from onyxq.history.parquet import records
from onyxq.history.parquet.records import RecordTable, RecordWriter
from onyxq.interfaces.cli.main import main
from onyxq.log import zookeeper_origin
from onyxq.log.zookeeper_origin import Origins
from onyxq.node.collector import Collector

STEPS: dict[str, tuple[type, str]] = {
    "before the chunks": (Origins, "store"),
    "between the chunks": (Origins, "_write_chunk"),
    "before the pointer": (Origins, "_set_pointer"),
    "behind the pointer": (Origins, "_delete_older_chunks"),
    "before trimming": (Collector, "_trim"),
    "between trims": (Origins, "_trim_batch"),
}
"""Step -> the class and method before which it is."""

ARCHIVE_STEPS: dict[str, tuple[type, str]] = {
    "before the archive": (Archive, "writer"),
    "within the archive": (HistoryFileWriter, "add"),
    "behind the archive": (Origins, "store"),
}
"""Steps of a collector with an archive, in the same form."""

TABLE_STEPS: dict[str, tuple[type, str]] = {
    "before the table": (RecordTable, "writer"),
    "within the table": (RecordWriter, "add"),
    "between its files": (RecordWriter, "finish"),
    "behind the table": (Origins, "store"),
}
"""Steps of a collector that writes the table of records, in the same form."""


def arm(step: str, count: int) -> None:
    """Let this process die when it reaches the step after ``count`` passes."""
    owner, name = (STEPS | ARCHIVE_STEPS | TABLE_STEPS)[step]
    passed: Callable[..., Any] = getattr(owner, name)
    left = count

    def dying(*args: Any, **kwargs: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return passed(*args, **kwargs)

    setattr(owner, name, dying)
    zookeeper_origin.CHUNK_BYTES = 500
    zookeeper_origin.TRIM_BATCH_RECORDS = 20
    records.ROWS_MAX = 50


if __name__ == "__main__":
    arm(os.environ["DIE_AT"], int(os.environ["DIE_COUNT"]))
    main()
