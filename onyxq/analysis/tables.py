"""The tables of archives of tasks as Spark sees them, several directories as one.

Repeats are in them: a task is there twice where leaders archived it each on their own.
Columns that were added to the archive later are null in older files.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onyxq.errors import NotFound
from onyxq.parquet.schema import COLUMNS, TASKS

_TYPES = {
    "text": "string",
    "bytes": "binary",
    "number": "bigint",
    "count": "int",
    "time": "timestamp",
    "texts": "array<string>",
    "numbers": "array<bigint>",
}


def read_table(session: Any, directories: Sequence[str], table: str) -> Any:
    """A table of some archives, with the columns ``queue``, ``day`` and ``archived``, when the
    file was written.

    A directory is a path, or a URI that the session can read.  Raises `NotFound` if one of
    them holds no tasks.
    """
    columns = ", ".join(f"{name} {_TYPES[kind]}" for name, kind, _ in COLUMNS[table])
    schema = f"{columns}, queue string, day string"
    found: Any = None
    for directory in directories:
        path = f"{directory.rstrip('/')}/{table}"
        if _exists(session, path):
            one = session.read.schema(schema).parquet(path)
            one = one.withColumn("archived", one["_metadata.file_modification_time"])
            found = one if found is None else found.unionByName(one)
        elif table == TASKS:
            raise NotFound(
                f"{directory} is no archive of tasks: it has no {TASKS}/ in it",
                field="archive",
                hint="Name the directory that the peers were given as task archive.",
            )
    return session.createDataFrame([], f"{schema}, archived timestamp") if found is None else found


def _exists(session: Any, path: str) -> bool:
    context = session.sparkContext
    there = context._jvm.org.apache.hadoop.fs.Path(path)
    return bool(there.getFileSystem(context._jsc.hadoopConfiguration()).exists(there))
