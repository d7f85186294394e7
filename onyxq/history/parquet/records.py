"""Records of the log as a table, by day: the entries, and their verdicts.

``records/day=<YYYY-MM-DD>/<first position>-<last position>.parquet`` holds the records from the
first to the last position in its name. Each entry has a row with its verdict. A record that was a no-op as a whole
has one row. The day is that of the log's clock, UTC. Files follow each other without overlap. A file appears only
when it is complete, and records that are in a file are not written again.

Verdicts are computed by applying the log, so reading starts at a known origin.
"""

from __future__ import annotations

import glob
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from attrs import define, frozen

from onyxq.core import snapshot
from onyxq.core.diff import plain
from onyxq.core.errors import Conflict, NotFound
from onyxq.core.log.interface import START, Origin, Record
from onyxq.core.replica import EMPTY, Cluster, Replica
from onyxq.core.step import Step, step
from onyxq.history.archive import Part, Range, best, groups, joined
from onyxq.history.dump import Dump
from onyxq.history.parquet.files import GROUP_BYTES_MAX, PART, ParquetFile, sync_names
from onyxq.history.parquet.layout import SUFFIX, day_of
from onyxq.history.parquet.schema import RECORDS, pyarrow
from onyxq.system.directories import writing
from onyxq.system.extensions import installed

ROWS_MAX = 200_000
"""Maximum number of rows in a file."""
FILE_NAME = re.compile(r"(\d{19})-(\d{19})\.parquet")
"""Name of a file: positions of its first and last record."""

Row = tuple[Any, ...]


@define
class Written:
    """Numbers of what was archived."""

    records: int = 0
    entries: int = 0
    files: int = 0
    first: int | None = None
    last: int | None = None


def write_records(pieces: Sequence[Part], directory: Path, *, until: int | None = None) -> Iterator[Written]:
    """Write the history that the directory does not have, and yield the progress, always the same object.

    ``until``: the last position to write. Raises `Corrupt` at a damaged block, `BadRequest` if the directory
    cannot be written, `Conflict` if it has records of another cluster, and `Incomplete` without pyarrow.
    """
    pyarrow()
    written = Written()
    yield written
    for dump in groups(pieces):
        after = reached(covered(directory), dump.start.position)
        if after > dump.start.position:
            _check_cluster(directory, after, dump.cluster_id)
        found = best(pieces, after) if after > dump.start.position else dump
        yield from _write(dump if found is None else found, directory, until, written)


def covered(directory: Path) -> list[Range]:
    """Return the ranges that the files of a directory hold, in order."""
    return ranges(path.name for path in (directory / RECORDS).glob(f"day=*/*{SUFFIX}"))


def ranges(names: Iterable[str]) -> list[Range]:
    """Return the ranges that files of such names hold, in order.

    Other names are ignored.
    """
    return joined(Range(int(name[1]), int(name[2])) for name in map(FILE_NAME.fullmatch, names) if name)


def reached(ranges: Sequence[Range], position: int) -> int:
    """Return the last position up to which everything after ``position`` is in the ranges."""
    return max([position, *(one.last for one in ranges if one.first <= position + 1)])


def _check_cluster(directory: Path, position: int, cluster_id: str) -> None:
    """Raise `Conflict` if the file that has a position is of another cluster. An empty id may be that of any.

    Raises `NotFound` if the file was moved away meanwhile.
    """
    names = ((FILE_NAME.fullmatch(path.name), path) for path in (directory / RECORDS).glob(f"day=*/*{SUFFIX}"))
    found = [path for name, path in names if name and int(name[1]) <= position <= int(name[2])]
    if not found:
        raise _moved(directory)
    for path in found if cluster_id else ():
        if _cluster_of(path) not in ("", cluster_id):
            raise Conflict(
                f"{path} has records of another cluster at positions of this one",
                field="directory",
                hint="Give each cluster a directory of its own, or move the files of the other one away.",
            )


def _cluster_of(path: Path) -> str:
    """Return the id of the cluster that a file is of; empty if it has none, or cannot be read."""
    pa = pyarrow()
    try:
        metadata: dict[bytes, bytes] = pa.parquet.read_schema(path).metadata or {}
        return metadata.get(b"onyxq.cluster", b"").decode()
    except (pa.ArrowException, OSError):
        if not path.exists():
            raise _moved(path) from None
        return ""


def _moved(path: Path) -> NotFound:
    return NotFound(
        f"{path} was moved away meanwhile, or a part of it",
        field="directory",
        hint="A peer looks again in a few seconds. Run a command again.",
    )


@frozen
class RecordTable:
    """One peer's access to a directory with the table."""

    directory: Path
    node: str

    def reached(self, old: Origin | None, cluster: Cluster | None = None) -> int:
        """Return the position up to which it has every record after the origin ``old``.

        Raises `Conflict` if these seem to be there, but are of another cluster than ``cluster``, and `NotFound` if
        files are moved away at this time.
        """
        start = START if old is None else old.position
        found = reached(covered(self.directory), start)
        if found > start and cluster is not None:
            _check_cluster(self.directory, found, cluster.id)
        return found

    def writer(self, cluster: Cluster, old: Origin | None, last: int) -> RecordWriter:
        """Return a writer for the records after ``old``; it takes all of them, as verdicts follow from the log."""
        start = EMPTY if old is None else snapshot.unpack(old.data)
        return RecordWriter(self.directory, start, owner=self.node)


class RecordWriter:
    """Takes records in the order of the log, applies them, and writes those that a directory does not have.

    All of it blocks.

    ``start``: the replica before the first record. Gaps between existing files are filled. A file
    is dropped if another process wrote its records meanwhile. ``owner`` has one writer at a time; unfinished files
    of its earlier processes are removed. Raises `BadRequest` if the directory cannot be written.
    """

    def __init__(self, directory: Path, start: Replica, written: Written | None = None, *, owner: str = "") -> None:
        self.written = Written() if written is None else written
        self._directory = directory
        self._owner = owner
        if owner:
            with writing(directory, "directory"):
                for left in (directory / RECORDS).glob(f"day=*/.*.{glob.escape(owner)}.*{PART}"):
                    left.unlink(missing_ok=True)
        self._replica = start
        self._held = covered(directory)
        self._after = reached(self._held, start.position)
        self._file: ParquetFile | None = None
        self._first, self._day = START, ""
        """First position and day of the current file."""

    @property
    def last(self) -> int:
        """Position of the last record that was taken."""
        return self._replica.position

    def add_all(self, records: Iterable[Record]) -> None:
        """Take records; see `add`."""
        for record in records:
            self.add(record)

    def add(self, record: Record) -> bool:
        """Take a record, and return whether it is written; raises `OlderThanCluster`."""
        if record.position <= self.last:
            return False
        done = step(self._replica, record, installed())
        self._replica = done.replica
        position = record.position
        if position <= self._after:
            return False
        day = day_of(done.ctime_ms)
        there = any(one.first <= position <= one.last for one in self._held)
        if self._file is not None and (there or self._day != day or self._file.rows >= ROWS_MAX):
            self.finish()
        if not there:
            self._write(position, day, rows_of(done))
        self._after = position
        return not there

    def _write(self, position: int, day: str, rows: Iterator[Row]) -> None:
        with writing(self._directory, "directory"):
            if self._file is None:
                self._first, self._day = self._after + 1, day
                directory = self._directory / RECORDS / f"day={day}"
                cluster = "" if self._replica.cluster is None else self._replica.cluster.id
                self._file = ParquetFile(RECORDS, directory, f"{self._first:019d}.{self._owner}", cluster=cluster)
                self._file.open()
                self.written.files += 1
            for row in rows:
                self._file.add(row)
                self.written.entries += row[4] is not None
            if self._file.waiting_bytes >= GROUP_BYTES_MAX:
                self._file.flush()
        self.written.records += 1
        self.written.first = position if self.written.first is None else self.written.first
        self.written.last = position

    def finish(self) -> None:
        """Make the current file durable, and give it its name."""
        file = self._file
        if file is None:
            return
        if any(one.first <= self._after and self._first <= one.last for one in covered(self._directory)):
            self.abort()
            return
        with writing(self._directory, "directory"):
            file.finish()
            file.publish(f"{self._first:019d}-{self._after:019d}{SUFFIX}")
            sync_names(self._directory, [file.directory])
        self._file = None

    def abort(self) -> None:
        """Drop the current file."""
        if self._file is not None:
            self._file.abort()
            self._file = None


def _write(dump: Dump, directory: Path, until: int | None, written: Written) -> Iterator[Written]:
    writer = RecordWriter(directory, dump.start, written)
    try:
        for record in dump.records:
            if until is not None and record.position > until:
                break
            if writer.add(record):
                yield written
        writer.finish()
    finally:
        writer.abort()


def rows_of(done: Step) -> Iterator[Row]:
    """Yield the rows of a record's step, in the order of the columns."""
    head = (done.replica.position, done.ctime_ms, done.peer, done.number)
    for outcome in done.outcomes:
        args = json.dumps(plain(outcome.args), ensure_ascii=False, separators=(",", ":"))
        yield (*head, outcome.index, outcome.name, outcome.version, args, outcome.verdict)
    if done.problem:
        yield (*head, None, None, None, None, done.problem)
