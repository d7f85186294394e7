"""Outputs that are not folders of files: tables and topics of other systems, and functions of the user.

Executors write hidden files (`onyxq.spark.files.staging`), as for folders. After the log has committed the batch, the
driver passes the files to the output. If the driver dies before it has finished, the next driver passes the same files
with the same `Batch` again, and the output recognizes the repeat. So the log decides whether a batch counts, and the
output counts it once.

The module of an output has these functions:

* ``check(folder, schema)`` raises an `OnyxqError` if the output cannot take these columns. It is called before any row
  is written.
* ``write(folder, files, batch)`` writes the rows of a committed batch. It reads the columns from the files, because a
  new driver knows them from there only.
* ``prepare(folder, files, batch)``, which is optional, does the steps that can fail before the log commits the batch.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from attrs import frozen
from pyarrow import fs, parquet

from onyxq.core.errors import OnyxqError, Unavailable
from onyxq.jobs.options import CALL, TABLES
from onyxq.jobs.values import unpack_all
from onyxq.spark.failures import TaskFailed
from onyxq.spark.files.formats import decoded
from onyxq.spark.files.staging import Folder

ROWS_MAX = 10_000
"""Rows that are read at once."""
_MODULES = {
    "delta": "onyxq.spark.sinks.delta",
    "kafka": "onyxq.spark.sinks.kafka",
    "postgres": "onyxq.spark.sinks.postgres",
    CALL: "onyxq.spark.sinks.calls",
}
"""Format of an output -> its module, which may need packages that OnyxQ does not."""


@frozen
class Batch:
    """A committed batch, as an output counts it."""

    job: str
    output: str
    run: str
    """Distinguishes jobs that had the same id one after the other."""
    number: int
    version: int
    """The allocation of the driver that writes: a later driver has a higher one."""

    @property
    def writer(self) -> str:
        """The name under which the output counts batches."""
        return f"onyxq/{self.job}/{self.output}/{self.run}"


class Prepared(Protocol):
    """A batch that its output can take at once."""

    def commit(self) -> None:
        """Make the batch count."""

    def close(self) -> None:
        """Roll back unless it was committed."""


@frozen
class Files:
    """The hidden files of a batch for one output."""

    system: fs.FileSystem
    paths: Sequence[str]

    def schema(self) -> Any:
        """Return the columns, which are the same in all files."""
        with self.system.open_input_file(self.paths[0]) as stream:
            return parquet.ParquetFile(stream).schema_arrow

    def batches(self) -> Iterator[Any]:
        """Yield the rows as batches of Arrow."""
        for path in self.paths:
            with self.system.open_input_file(path) as stream:
                yield from parquet.ParquetFile(stream).iter_batches(ROWS_MAX)

    def packed(self) -> Iterator[Any]:
        """Yield the values that are packed one after the other."""
        for path in self.paths:
            with self.system.open_input_stream(path, compression=None) as stream:
                yield from unpack_all(stream)


def is_table(folder: Folder) -> bool:
    """Return whether the output is one of these, rather than a folder of visible files."""
    return folder.format in TABLES


def check(folder: Folder, schema: str) -> None:
    """Raise an `OnyxqError` if the output cannot be reached, or cannot take these columns (an Arrow schema, base64).

    ``schema`` is empty before the columns are known.
    """
    if is_table(folder):
        with _named(folder):
            _module(folder).check(folder, decoded(schema) if schema else None)


def prepare(folder: Folder, files: Files, batch: Batch) -> Prepared | None:
    """Do the steps that can fail before the log commits the batch; None if there are none."""
    with _named(folder):
        do = getattr(_module(folder), "prepare", None)
        found: Prepared | None = None if do is None else do(folder, files, batch)
        return found


def write(folder: Folder, files: Files, batch: Batch) -> None:
    """Write the rows of a committed batch to the output, which ignores a repeat."""
    with _named(folder):
        _module(folder).write(folder, files, batch)


def _module(folder: Folder) -> Any:
    return importlib.import_module(_MODULES[folder.format])


@contextlib.contextmanager
def _named(folder: Folder) -> Iterator[None]:
    """Name the output in errors of other packages. These errors may be temporary, so the job is restarted."""
    try:
        yield
    except (OnyxqError, TaskFailed):
        raise
    except Exception as error:
        raise Unavailable(f"output {folder.name}: {type(error).__name__}: {str(error).strip()}") from error
