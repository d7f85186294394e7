"""The hidden files of one task of a batch: what executors write before the batch is committed.

An output has one file, or one for each partition. A file that has reached the size that the output allows is closed,
and the next row begins another one.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Mapping
from typing import Any

from attrs import evolve, frozen
from pyarrow import fs

from onyxq.jobs.options import FRAME, TABLES, names_in
from onyxq.jobs.values import Unfit, pack, unpack
from onyxq.spark.files.formats import WRITERS, Writer, decoded, described, refused
from onyxq.spark.files.partitions import Partitions
from onyxq.spark.places import located

HIDDEN = "_onyxq"
OPEN_MAX = 32
"""Largest number of open files of a Spark task for an output; then the file with the oldest last row is closed."""


@frozen
class Folder:
    """A file output of a job, in the form that executors get."""

    name: str
    format: str
    path: str
    options: dict[str, str]
    schema: str = ""
    """Names and types of the columns (an Arrow schema, base64), or empty: found in the segments."""
    fn: str = ""
    """The function of an output with ``foreach_batch``, as `onyxq.spark.sinks.calls.reference` encodes it."""
    calls: str = ""
    """The address at which the host calls this function with a DataFrame (`onyxq.spark.sinks.frame_calls`)."""

    @property
    def takes_frame(self) -> bool:
        """Whether its function gets a DataFrame."""
        return self.options.get("rows") == FRAME

    def system(self) -> tuple[fs.FileSystem, str]:
        """Return the file system, and the path in it."""
        return located(self.path)

    def hidden(self, job: str) -> tuple[fs.FileSystem, str]:
        """Return the file system, and the folder in it for a job's hidden files."""
        system, path = self.system()
        return system, f"{path}/{HIDDEN}/{job}"

    @property
    def finds_columns(self) -> bool:
        """Whether its columns are found in its segments."""
        return not self.schema or self.options.get("other_fields") == "add"

    def partitions(self) -> Partitions | None:
        """Return the partitions of its files, or None; raises `BadRequest`."""
        if "partition_by" not in self.options:
            return None
        try:
            return Partitions(decoded(self.schema), names_in(self.options["partition_by"]))
        except Unfit as error:
            raise refused(self, error) from None

    def of_files(self) -> Folder:
        """Return the output with the columns of its files: without columns that are names of folders.

        A table makes its own partitions, so its files have all columns.
        """
        found = self.partitions()
        return self if found is None or self.format in TABLES else evolve(self, schema=described(found.rest))


@frozen
class Written:
    """A hidden file that one task of a batch wrote."""

    out: str
    name: str
    schema: str = ""
    """The columns that were found in its segments, as `Folder.schema`; empty if they were given."""
    folder: str = ""
    """The partition, ``a=1/b=x``."""


class Staging:
    """The hidden files of one task of a batch, for all outputs that get segments.

    ``found`` returns the columns of an output's earlier files; it is called for outputs whose columns are found.
    """

    def __init__(
        self,
        folders: Mapping[str, Folder],
        *,
        job: str,
        batch: int,
        part: int,
        found: Callable[[Folder], str] = lambda _: "",
    ) -> None:
        self._folders = folders
        self._job = job
        self.part = f"part-{batch:08d}-{part:05d}"
        """Its batch and part, with which the names of its files begin."""
        self._found = found
        self._files: dict[str, _Files] = {}

    def add(self, out: str, payload: bytes) -> None:
        """Write a segment, as msgpack, to an output; raises `BadRequest` if it does not fit."""
        self._of(out).add(payload)

    def take(self, out: str, value: Any) -> bool:
        """Write a segment that is not packed, if the file of the output takes it as it is; return whether it does."""
        return self._of(out).take(value)

    def add_batch(self, out: str, batch: Any) -> None:
        """Write rows of an Arrow batch with the columns of an output that takes columns."""
        self._of(out).add_batch(batch)

    def _of(self, out: str) -> _Files:
        if out not in self._files:
            folder = self._folders[out]
            found = self._found(folder) if folder.finds_columns else ""
            stem = f"{self.part}-{secrets.token_hex(4)}"  # Outputs may share a path.
            self._files[out] = _Files(folder, self._job, stem, found)
        return self._files[out]

    def finish(self) -> list[Written]:
        """Close all files."""
        return [one for files in self._files.values() for one in files.finish()]

    def discard(self) -> None:
        """Remove what was written."""
        for files in self._files.values():
            files.discard()


class _File:
    """An open hidden file."""

    def __init__(self, name: str, writer: Writer) -> None:
        self.name = name
        self.writer = writer
        self.rows = 0


class _Files:
    """The hidden files of one output."""

    def __init__(self, folder: Folder, job: str, stem: str, found: str) -> None:
        self._output = folder
        self._stem = stem
        self._found = found
        self._partitions = folder.partitions()
        self._written_as = folder.of_files()
        self._rows_max = int(folder.options.get("file_rows_max", 0))
        self._bytes_max = int(folder.options.get("file_bytes_max", 0))
        self._is_one = self._partitions is None and not self._rows_max and not self._bytes_max
        """Whether all rows go to one file."""
        self._system, self._aside = folder.hidden(job)
        self._open: dict[str, _File] = {}
        """Partition -> file, in the order of their last rows."""
        self._closed: list[Written] = []
        self._count = itertools.count()

    def add(self, payload: bytes) -> None:
        """Write a segment; raises `BadRequest` if it does not fit."""
        place = ""
        if self._partitions is not None:
            try:
                found, rest = self._partitions.of(unpack(payload))
            except Unfit as error:
                raise refused(self._output, error) from None
            if self._output.format not in TABLES:
                place, payload = found, pack(rest)
        file = self._open.pop(place, None) or self._begun()
        self._open[place] = file
        file.writer.add(payload)
        file.rows += 1
        if file.rows == self._rows_max or 0 < self._bytes_max <= file.writer.size:
            self._close(place)

    def take(self, value: Any) -> bool:
        """Write a value if the one file takes it as it is; return whether it does."""
        if not self._is_one:
            return False
        file = self._only()
        taken = file.writer.take(value)
        file.rows += taken
        return taken

    def _only(self) -> _File:
        """Return the one file of an output without partitions."""
        file = self._open.get("") or self._begun()
        self._open[""] = file
        return file

    def add_batch(self, batch: Any) -> None:
        """Write the rows of an Arrow batch into the one file."""
        file = self._only()
        file.writer.add_batch(batch)
        file.rows += batch.num_rows

    def finish(self) -> list[Written]:
        """Close the open files, and return all."""
        for place in list(self._open):
            self._close(place)
        return self._closed

    def discard(self) -> None:
        """Remove all files."""
        for file in self._open.values():
            file.writer.abandon()
        for name in [*(file.name for file in self._open.values()), *(one.name for one in self._closed)]:
            self._system.delete_file(f"{self._aside}/{name}")

    def _begun(self) -> _File:
        if len(self._open) >= OPEN_MAX:
            self._close(next(iter(self._open)))
        name = f"{self._stem}-{next(self._count):05d}.{self._output.format}"
        self._system.create_dir(self._aside, recursive=True)
        stream: Any = self._system.open_output_stream(f"{self._aside}/{name}", compression=None)
        return _File(name, WRITERS[self._output.format](stream, self._written_as, self._found))

    def _close(self, place: str) -> None:
        file = self._open[place]
        if file.rows:
            schema = file.writer.close()
            self._closed.append(Written(self._output.name, file.name, schema, place))
        else:
            file.writer.abandon()
            self._system.delete_file(f"{self._aside}/{file.name}")
        del self._open[place]
