"""The files of one bucket: each row goes to the file of its table, queue and day.

Everything here blocks, and runs in a worker thread. A file has a temporary name that readers ignore until it
is complete and durable. Then it replaces an existing file of its name. Leftovers of a crash are removed when
their partition is archived again.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from onyxq.core.ids import ms_of
from onyxq.history.parquet.bucket import Progress, Run
from onyxq.history.parquet.layout import FileName, Place, day_of
from onyxq.history.parquet.rows import Row, claim_rows, size_of, task_rows, update_row
from onyxq.history.parquet.schema import CLAIMS, COLUMNS, TASKS, UPDATES, options_of, pyarrow, schema_of
from onyxq.system.directories import PRIVATE, NewFile, sync_directory

PLACES_MAX = 100
"""Maximum number of queues and days that are written at a time.

For the others the bucket is read again.
"""
BUFFER_BYTES_MAX = 16 * 1024 * 1024
GROUP_BYTES_MAX = 4 * 1024 * 1024
"""Maximum bytes of a row group.

To find one task, a reader reads one row group.
"""
PART = ".part"


class ParquetFile:
    """A file of one table; see `NewFile` for when it gets its name. All of it blocks and may raise `OSError`."""

    def __init__(self, table: str, directory: Path, name: str, **about: str | int) -> None:
        """Prepare a file; it is created by `open`, or with the first rows.

        ``name``: begins the temporary name. ``about``: metadata.
        """
        self.table = table
        self.directory = directory
        self.rows = 0
        self.waiting_bytes = 0
        self._schema = schema_of(table, **about)
        self._waiting: list[Row] = []
        self._part = directory / f".{name}.{uuid.uuid4().hex}{PART}"
        self._file: NewFile | None = None
        self._writer: Any = None

    def add(self, row: Row) -> int:
        """Add a row, and return about how many bytes it takes."""
        size = size_of(row)
        self._waiting.append(row)
        self.rows += 1
        self.waiting_bytes += size
        return size

    def open(self) -> None:
        """Create the file under its temporary name, if that is not done."""
        if self._file is None:
            self.directory.mkdir(parents=True, exist_ok=True, mode=PRIVATE)
            self._file = NewFile(self._part)
            options = options_of(self.table)
            self._writer = pyarrow().parquet.ParquetWriter(self._file.stream, self._schema, **options)

    def flush(self) -> None:
        """Write the waiting rows as a row group."""
        if not self._waiting:
            return
        self.open()
        pa = pyarrow()
        columns = zip(*self._waiting, strict=True)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, self._schema, strict=True)]
        self._waiting = []
        self.waiting_bytes = 0
        self._writer.write_table(pa.Table.from_arrays(arrays, schema=self._schema))

    def finish(self) -> None:
        """Make the file durable under its temporary name."""
        self.flush()
        if self._file is not None:
            self._writer.close()
            self._file.finish()

    def publish(self, name: str) -> None:
        """Give the file its name."""
        if self._file is not None:
            self._file.publish(self.directory / name)

    def abort(self) -> None:
        """Remove the file."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._writer.close()
            self._file.abort()


def sync_names(root: Path, directories: Iterable[Path]) -> None:
    """Make the names in some directories below ``root`` durable, and those of the directories themselves."""
    found = {root}
    for above in directories:
        while above != root:
            found.add(above)
            above = above.parent
    for directory in sorted(found):
        sync_directory(directory)


class BucketFiles:
    """The files of a bucket.

    Rows of places beyond `PLACES_MAX` are left out; `left` holds those places.
    """

    def __init__(self, directory: Path, name: FileName, parts: Sequence[bytes]) -> None:
        self._directory = directory
        self._partition = name.partition
        self._name = name.with_digest(*parts)
        self._files: dict[tuple[str, Place], ParquetFile] = {}
        self.places: set[Place] = set()
        """Queues and days that are written."""
        self._bytes = 0
        self.left: set[Place] = set()

    def add(self, found: Iterable[Run | Progress], but: frozenset[Place]) -> None:
        """Add what was read, except for the places in ``but``; raises `OSError` and `Corrupt`."""
        for one in found:
            place = Place(one.queue, day_of(ms_of(one.first if isinstance(one, Run) else one.task_id)))
            if place in but or not self._has_room(place):
                continue
            if isinstance(one, Run):
                self._add(TASKS, place, task_rows(one))
                self._add(CLAIMS, place, claim_rows(one))
            else:
                self._add(UPDATES, place, [update_row(one)])

    def _has_room(self, place: Place) -> bool:
        if place not in self.places and len(self.places) >= PLACES_MAX:
            self.left.add(place)
            return False
        self.places.add(place)
        return True

    def _add(self, table: str, place: Place, rows: Iterable[Row]) -> None:
        file = self._files.get((table, place))
        for row in rows:
            if file is None:
                file = self._files[table, place] = self._file(table, place)
            self._bytes += file.add(row)
            if file.waiting_bytes >= GROUP_BYTES_MAX:
                self._flush(file)
            elif self._bytes >= BUFFER_BYTES_MAX:
                self._flush(max(self._files.values(), key=lambda other: other.waiting_bytes))

    def _flush(self, file: ParquetFile) -> None:
        self._bytes -= file.waiting_bytes
        file.flush()

    def _file(self, table: str, place: Place) -> ParquetFile:
        directory = self._directory / table / place.path
        for left in directory.glob(f".{self._partition:05d}-*{PART}"):
            left.unlink(missing_ok=True)
        return ParquetFile(table, directory, self._name, queue=place.queue, partition=self._partition)

    def finish(self) -> None:
        """Make all files durable, then visible; raises `OSError`."""
        for file in self._files.values():
            file.finish()
        for file in self._files.values():
            file.publish(self._name)
        if self._files:
            sync_names(self._directory, {file.directory for file in self._files.values()})

    def abort(self) -> None:
        """Remove the files that are not complete."""
        for file in self._files.values():
            with contextlib.suppress(OSError):
                file.abort()

    def written(self) -> dict[str, int]:
        """Return the number of rows per table, and of files."""
        rows = dict.fromkeys(COLUMNS, 0)
        for (table, _), file in self._files.items():
            rows[table] += file.rows
        return {**rows, "files": len(self._files)}
