"""Records of the log as a table, by day: the entries, and their verdicts.

``records/day=<YYYY-MM-DD>/<first position>-<last position>.parquet`` holds the records from the
first to the last position in its name. Each entry has a row with its verdict. A record that was a no-op as a whole
has one row. The day is that of the log's clock, UTC. Files follow each other without overlap. A file appears only
when it is complete, and records that are in a file are not written again.

Verdicts are computed by applying the log, so reading starts at a known origin.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from attrs import define, frozen

from onyxq.core.diff import plain
from onyxq.core.errors import BadRequest
from onyxq.core.step import Step
from onyxq.history.archive import Part, best, groups
from onyxq.history.blocks import sync_directory
from onyxq.history.dump import Dump
from onyxq.history.parquet.layout import SUFFIX, day_of
from onyxq.history.parquet.schema import VERSION, pyarrow
from onyxq.history.replay import steps
from onyxq.system.directories import PRIVATE, create

RECORDS = "records"
ROWS_MAX = 200_000
"""Maximum number of rows in a file."""
GROUP_ROWS = 20_000
PART = ".part"
_NAME = re.compile(r"(\d{19})-(\d{19})\.parquet")

Row = tuple[Any, ...]


@define
class Written:
    """Numbers of what was archived."""

    records: int = 0
    entries: int = 0
    files: int = 0
    first: int | None = None
    last: int | None = None


@frozen
class Range:
    """Positions that files hold without a gap."""

    first: int
    last: int


def write_records(pieces: Sequence[Part], directory: Path, *, until: int | None = None) -> Iterator[Written]:
    """Write the history that the directory does not have, and yield the progress, always the same object.

    ``until``: the last position to write. Raises `Corrupt` at a damaged block, `BadRequest` if the directory
    cannot be written, and `Incomplete` without pyarrow.
    """
    pyarrow()
    written = Written()
    yield written
    for dump in groups(pieces):
        after = reached(covered(directory), dump.start.position)
        found = best(pieces, after) if after > dump.start.position else dump
        yield from _write(dump if found is None else found, directory, until, written)


def covered(directory: Path) -> list[Range]:
    """Return the ranges that the files of a directory hold, in order."""
    return ranges(path.name for path in (directory / RECORDS).glob(f"day=*/*{SUFFIX}"))


def ranges(names: Iterable[str]) -> list[Range]:
    """Return the ranges that files of such names hold, in order.

    Other names are ignored.
    """
    found = map(_NAME.fullmatch, names)
    out: list[Range] = []
    for first, last in sorted((int(name[1]), int(name[2])) for name in found if name):
        if out and first <= out[-1].last + 1:
            out[-1] = Range(out[-1].first, max(last, out[-1].last))
        else:
            out.append(Range(first, last))
    return out


def reached(ranges: Sequence[Range], position: int) -> int:
    """Return the last position up to which everything after ``position`` is in the ranges."""
    return max([position, *(one.last for one in ranges if one.first <= position + 1)])


class RecordWriter:
    """Takes steps in the order of the log, and writes those that a directory does not have.

    All of it blocks.

    ``start``: the position of the replica before the first step. Gaps between existing files are filled. A file
    is dropped if another process wrote its records meanwhile. ``owner`` has one writer at a time; unfinished files
    of its earlier processes are removed. Raises `BadRequest` if the directory cannot be written.
    """

    def __init__(self, directory: Path, start: int, written: Written | None = None, *, owner: str = "") -> None:
        self.written = Written() if written is None else written
        self._directory = directory
        self._owner = owner
        if owner:
            with _named(directory):
                for left in (directory / RECORDS).glob(f"day=*/.*.{glob.escape(owner)}.*{PART}"):
                    left.unlink(missing_ok=True)
        self._held = covered(directory)
        self._after = reached(self._held, start)
        self._file: _File | None = None

    def add(self, done: Step) -> bool:
        """Take a step, and return whether its record is written."""
        position = done.replica.position
        if position <= self._after:
            return False
        day = day_of(done.ctime_ms)
        there = any(one.first <= position <= one.last for one in self._held)
        if self._file is not None and (there or self._file.day != day or self._file.rows >= ROWS_MAX):
            self.finish()
        if not there:
            self._write(position, day, list(_rows(done)))
        self._after = position
        return not there

    def _write(self, position: int, day: str, rows: Sequence[Row]) -> None:
        with _named(self._directory):
            if self._file is None:
                self._file = _File(self._directory, day, self._after + 1, self._owner)
                self.written.files += 1
            self._file.add(position, rows)
        self.written.records += 1
        self.written.entries += sum(row[4] is not None for row in rows)
        self.written.first = position if self.written.first is None else self.written.first
        self.written.last = position

    def finish(self) -> None:
        """Make the current file durable, and give it its name."""
        if self._file is not None:
            taken = any(one.first <= self._after and self._file.first <= one.last for one in covered(self._directory))
            if taken:
                self.abort()
                return
            with _named(self._directory):
                self._file.finish()
            self._file = None

    def abort(self) -> None:
        """Drop the current file."""
        if self._file is not None:
            self._file.abort()
            self._file = None


@contextlib.contextmanager
def _named(directory: Path) -> Iterator[None]:
    """Turn an `OSError` into an error that names the directory."""
    try:
        yield
    except OSError as error:
        raise BadRequest(f"{directory} cannot be written: {error.strerror}", field="directory") from None


def _write(dump: Dump, directory: Path, until: int | None, written: Written) -> Iterator[Written]:
    writer = RecordWriter(directory, dump.start.position, written)
    try:
        for done in steps(dump.start, dump.records, until=until):
            if writer.add(done):
                yield written
        writer.finish()
    finally:
        writer.abort()


def _rows(done: Step) -> Iterator[Row]:
    head = (done.replica.position, done.ctime_ms, done.peer, done.number)
    for outcome in done.outcomes:
        args = json.dumps(plain(outcome.args), ensure_ascii=False, separators=(",", ":"))
        yield (*head, outcome.index, outcome.name, outcome.version, args, outcome.verdict)
    if done.problem:
        yield (*head, None, None, None, None, done.problem)


def schema() -> Any:
    """Return the Arrow schema of a file."""
    pa = pyarrow()
    fields = [
        pa.field("position", pa.int64(), nullable=False),
        pa.field("time", pa.timestamp("ms", tz="UTC"), nullable=False),
        pa.field("peer", pa.string(), nullable=False),
        pa.field("number", pa.int64(), nullable=False),
        pa.field("index", pa.int32()),
        pa.field("entry", pa.string()),
        pa.field("version", pa.int32()),
        pa.field("args", pa.string()),
        pa.field("verdict", pa.string(), nullable=False),
    ]
    return pa.schema(fields, metadata={"onyxq.version": str(VERSION), "onyxq.table": RECORDS})


class _File:
    """A file that gets its name once it is complete and durable."""

    def __init__(self, directory: Path, day: str, first: int, owner: str) -> None:
        pa = pyarrow()
        self.day = day
        self.rows = 0
        self.first = self._last = first
        self._waiting: list[Row] = []
        self._directory = directory / RECORDS / f"day={day}"
        self._directory.mkdir(parents=True, exist_ok=True, mode=PRIVATE)
        self._part = self._directory / f".{first:019d}.{owner}.{uuid.uuid4().hex}{PART}"
        self._file: IO[bytes] | None = create(self._part)
        self._writer = pa.parquet.ParquetWriter(self._file, schema(), compression="zstd")

    def add(self, position: int, rows: Sequence[Row]) -> None:
        """Add a record's rows."""
        self._last = position
        self.rows += len(rows)
        self._waiting += rows
        if len(self._waiting) >= GROUP_ROWS:
            self._flush()

    def _flush(self) -> None:
        pa = pyarrow()
        if self._waiting:
            columns = zip(*self._waiting, strict=True)
            arrays = [pa.array(column, field.type) for column, field in zip(columns, schema(), strict=True)]
            self._writer.write_table(pa.Table.from_arrays(arrays, schema=schema()))
            self._waiting = []

    def finish(self) -> None:
        """Make the file durable, and give it its name."""
        self._flush()
        self._writer.close()
        assert self._file is not None
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._file = None
        self._part.replace(self._directory / f"{self.first:019d}-{self._last:019d}{SUFFIX}")
        sync_directory(self._directory)

    def abort(self) -> None:
        """Remove the file, unless it is finished."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._writer.close()
                self._file.close()
            self._part.unlink(missing_ok=True)
