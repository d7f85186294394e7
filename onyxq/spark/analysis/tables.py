"""The tables of task archives in Spark, several directories as one.

They contain repeats: a task is there twice if two leaders archived it. Columns that were added to the archive later
are null in older files.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onyxq.core.errors import NotFound
from onyxq.history.parquet.schema import COLUMNS, TASKS
from onyxq.spark import java

TYPES = {
    "text": "string",
    "bytes": "binary",
    "number": "bigint",
    "count": "int",
    "time": "timestamp",
    "texts": "array<string>",
    "numbers": "array<bigint>",
    "flag": "boolean",
}
"""Kind of a column -> its type in Spark."""
PIECE_BYTES = 4 * 1024 * 1024
"""Bytes of an archive in one piece of work: rows take about ten times that in memory."""
PIECES_MAX = 4_000
FRESH_S = 60
"""Seconds after archiving during which the file of a task's claims may not be visible yet."""


def read_table(session: Any, directories: Sequence[str], table: str) -> Any:
    """Return a table of some archives, with the columns ``queue``, ``day`` and ``archived``.

    ``archived`` is the time when the file was written.
    A directory is a path, or a URI that the session can read. Raises `NotFound` if one of them holds no tasks.
    """
    columns = ", ".join(f"{name} {TYPES[kind]}" for name, kind, _ in COLUMNS[table])
    schema = f"{columns}, queue string, day string"
    found: Any = None
    for directory in directories:
        path = f"{directory.rstrip('/')}/{table}"
        if _exists(session, path):
            one = session.read.schema(schema).parquet(path)
            one = one.withColumn("archived", one["_metadata.file_modification_time"])
            found = one if found is None else found.unionByName(one)
        elif table == TASKS or not _exists(session, f"{directory.rstrip('/')}/{TASKS}"):
            raise NotFound(
                f"{directory} is not an archive of tasks: it contains no {TASKS}/",
                field="archive",
                hint="Give the directory that peers have as task_archive.",
            )
    return session.createDataFrame([], f"{schema}, archived timestamp") if found is None else found


def session_for(session: Any, directories: Sequence[str]) -> Any:
    """Return a session of the same Spark that divides archives into pieces according to their size.

    Adaptive execution is off: with it, observed metrics are lost.
    """
    context = java.classic(session).sparkContext
    sizes = 0
    for directory in directories:
        files, path = _files(session, directory)
        sizes += files.getContentSummary(path).getLength() if files.exists(path) else 0
    pieces = min(max(context.defaultParallelism, sizes // PIECE_BYTES), PIECES_MAX)
    own = session.newSession()
    own.conf.set("spark.sql.adaptive.enabled", False)
    own.conf.set("spark.sql.shuffle.partitions", pieces)
    own.conf.set("spark.sql.session.timeZone", "UTC")
    own.conf.set("spark.sql.sources.partitionColumnTypeInference.enabled", False)
    return own


def files_below(session: Any, path: str) -> list[str]:
    """Return the names of all files below a path; none if it does not exist."""
    files, there = _files(session, path)
    names = []
    if files.exists(there):
        found = files.listFiles(there, True)
        while found.hasNext():
            names.append(str(found.next().getPath().getName()))
    return names


def _exists(session: Any, path: str) -> bool:
    files, there = _files(session, path)
    return bool(files.exists(there))


def _files(session: Any, path: str) -> tuple[Any, Any]:
    """Return Hadoop's file system of a path, and its object for the path."""
    there = java.packages(session).org.apache.hadoop.fs.Path(path)
    return there.getFileSystem(java.hadoop_configuration(session)), there
