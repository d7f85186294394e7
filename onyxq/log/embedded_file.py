"""The files of the embedded log: records in the order of the log, and the origin.

``N.records`` are files of a fixed size that are written from start to end in groups (`onyxq.log.embedded_groups`),
each with one flush.  Each file begins with the log's state, and each change of the state is a group too.
``origin-N`` is the origin of generation N.  Trimming deletes whole files.  A file is filled with zeros when it is
made.  So a file that was cut off is noticed, a full disk tears no group, and a flush need not change the file's size.

After a write or flush that failed, it is unknown what the disk has.  The next write first overwrites that place with
zeros and flushes them.  The kernel may count a page as written that is not.  So an opened log writes its last group
again.  The process that made the last file may have died before the file's name was durable.  So an opened log also
flushes its directory.

One thread writes, the event loop's thread reads records.  A damaged file is never replaced here: only an operator
decides to begin a new log from the copies in the nodes' stores (`onyxq.history.recovery`).
"""

from __future__ import annotations

import logging
import os
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, NoReturn

import msgpack
from attrs import astuple, define, evolve, field, frozen

from onyxq.core.errors import Corrupt, LogDamaged, LogUnavailable
from onyxq.core.facts import seal, unseal
from onyxq.core.log.interface import START, Origin, Record, segment_of, segment_start
from onyxq.core.log.stored import pack_records, unpack_records
from onyxq.log.embedded_groups import RECORDS, SECTOR_BYTES, STATE, begins_group, pack_group, unpack_group
from onyxq.system.directories import sync_directory, write_durably

FORMAT = 1
FILE_BYTES = 2 << 20
"""Size of each file of records; about twice that of the largest group."""
LOAD_BYTES = 128 << 10
"""Most bytes that a late reader takes from the disk at once, unless one group is larger."""

_log = logging.getLogger(__name__)


@frozen
class State:
    """What is known of the log besides its records."""

    next: int = 0
    """Position of the next record, when the state was written."""
    oldest: int = 1
    """Number of the oldest file that belongs to the log."""
    origin: int = START
    """Position of the origin; `START` if there is none."""
    trimmed: int = START
    generation: int = -1
    """Number of the origin; -1 if there is none."""
    ends: tuple[int, ...] = ()
    """End position of each closed segment."""


class _Place(NamedTuple):
    """Where a group of records is in its file, and the position of the first one."""

    first: int
    offset: int
    size: int


@define(eq=False)
class _File:
    """One file of records."""

    number: int
    first: int
    """Position of the next record when it was made."""
    next: int
    state: State
    size: int = 0
    """Offset at which the next group begins."""
    groups: list[_Place] = field(factory=list)


class LogFile:
    """The files of the embedded log. All methods but `fetch` belong to one thread.

    They raise `LogDamaged`, and `OSError` if the disk refuses something.  Then the data to be
    written may or may not be stored.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handle = -1
        self._unsure_bytes = 0
        """Size of what a failed write may have left after the last group."""
        self._files: tuple[_File, ...] = ()
        try:
            self._open()
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise LogUnavailable(f"the log in {path} cannot be opened: {error}") from error
            raise

    @property
    def next(self) -> int:
        """Position of the next record."""
        return self._files[-1].next

    @property
    def state(self) -> State:
        """The present state, also for other threads."""
        return self._files[-1].state

    def close(self) -> None:
        """Close the files."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    # --- opening

    def _open(self) -> None:
        numbers = sorted(int(path.stem) for path in self._path.glob("*.records") if path.stem.isdigit())
        if not numbers:
            if list(self._path.glob("origin-*")):
                self._damaged("it has an origin, but no file of records")
            self._begin_file(1, State())
            return
        last, image = self._scan(numbers[-1])
        files = [self._scan(number)[0] for number in range(last.state.oldest, last.number)]
        for before, after in pairwise([*files, last]):
            if before.next != after.first:
                self._damaged(f"records from {before.next} to {after.first - 1} are missing")
        self._use((*files, last))
        sync_directory(self._path)
        start = max([0, *(group.offset for group in last.groups[-1:])])
        written = max(last.size, len(image.rstrip(b"\0")))
        self._put(image[start : last.size] + bytes(written - last.size), start)
        for path in self._path.iterdir():
            if path.suffix == ".new" or (path.name.startswith("origin-") and path != self._origin_name(self.state)):
                path.unlink()
        self._drop(numbers)

    def _scan(self, number: int) -> tuple[_File, bytes]:
        """Return what a file contains, and its bytes; raises `LogDamaged`."""
        try:
            image = self._name(number).read_bytes()
        except FileNotFoundError:
            self._damaged(f"{self._name(number).name} is missing")
        if len(image) != FILE_BYTES:
            self._damaged(f"{self._name(number).name} has {len(image)} bytes instead of {FILE_BYTES}")
        view, file = memoryview(image), _File(number, START, START, State())
        try:
            while file.size < len(image) and (found := unpack_group(number, file.size, view[file.size :])):
                if found.kind == STATE:
                    self._take_state(file, found.body)
                else:
                    records = unpack_records(found.body, after=file.next - 1)
                    file.groups.append(_Place(file.next, file.size, found.size))
                    file.next += len(records)
                file.size += found.size
        except Corrupt:
            self._mismatch(file.next, number, file.size)
        end = len(image.rstrip(b"\0"))
        later = range(file.size + SECTOR_BYTES, end, SECTOR_BYTES)
        if not file.size or any(begins_group(number, at, view[at:]) for at in later):
            self._mismatch(file.next, number, file.size)
        return file, image

    def _take_state(self, file: _File, body: bytes) -> None:
        """Let a state that was read be that of its file; raises `LogUnavailable` for another format."""
        written, *values = msgpack.unpackb(body, use_list=False)
        if written != FORMAT:
            raise LogUnavailable(
                f"the log in {self._path} has format {written}, this version reads {FORMAT}",
                hint="Use the version of OnyxQ that wrote it.",
            )
        file.state = State(*values)
        file.next = file.state.next
        file.first = file.first if file.size else file.next

    def _damaged(self, why: str) -> NoReturn:
        raise LogDamaged(f"the log in {self._path} is damaged: {why}")

    def _mismatch(self, position: int, number: int, offset: int) -> NoReturn:
        what = f"record {position}" if position >= 0 else "its beginning"
        self._damaged(f"{what} does not match its checksum ({self._name(number).name}, byte {offset})")

    # --- writing

    def _put(self, data: bytes, offset: int) -> None:
        """Write bytes of the last file durably."""
        done = 0
        while done < len(data):
            done += os.pwrite(self._handle, memoryview(data)[done:], offset + done)
        os.fdatasync(self._handle)

    def _settle(self) -> None:
        """Remove what a failed write may have left."""
        if self._unsure_bytes:
            self._put(bytes(self._unsure_bytes), self._files[-1].size)
            self._unsure_bytes = 0
            _log.warning("the log in %s continues after a write that failed", self._path)

    def _write(self, kind: bytes, body: bytes) -> _Place:
        """Write a group durably, after the others; return its place."""
        self._settle()
        file = self._files[-1]
        data = pack_group(file.number, file.size, kind, body)
        if file.size + len(data) > FILE_BYTES:
            file.size = FILE_BYTES  # Nothing may follow in this file, even if the next one cannot be made now.
            file = self._begin_file(file.number + 1, evolve(file.state, next=file.next))
            data = pack_group(file.number, file.size, kind, body)
        self._unsure_bytes = len(data)
        self._put(data, file.size)
        self._unsure_bytes = 0
        place = _Place(file.next, file.size, len(data))
        file.size += len(data)
        return place

    def _begin_file(self, number: int, state: State) -> _File:
        """Make the next file, which has its name once it is complete and durable."""
        data = pack_group(number, 0, STATE, _packed(state))
        write_durably(self._name(number), data.ljust(FILE_BYTES, b"\0"))
        file = _File(number, state.next, state.next, state, len(data))
        self._use((*self._files, file))
        return file

    def _use(self, files: tuple[_File, ...]) -> None:
        """Let these be the files, and open the last one for writing."""
        handle = os.open(self._name(files[-1].number), os.O_RDWR | os.O_CLOEXEC)
        self.close()
        self._handle, self._files = handle, files

    def _set_state(self, state: State) -> None:
        self._write(STATE, _packed(state))
        self._files[-1].state, self._files[-1].next = state, state.next

    def append(self, data: Sequence[bytes], ctime_ms: int) -> list[Record]:
        """Write records after the last one and return them."""
        records = [Record(position, ctime_ms, one) for position, one in enumerate(data, self.next)]
        place = self._write(RECORDS, pack_records(records))
        self._files[-1].groups.append(place)
        self._files[-1].next += len(records)
        return records

    def close_segment(self, segment_records: int) -> bool:
        """Begin the next segment with the next record if this one is full; return whether it was."""
        end = self.next
        if end - segment_start(segment_of(end)) < segment_records:
            return False
        ends = (*self.state.ends, end)
        self._set_state(evolve(self.state, next=segment_start(len(ends)), ends=ends))
        return True

    def drop_all(self) -> None:
        """Delete every record and the origin."""
        self._settle()
        number, old = self._files[-1].number + 1, self.state
        self._files[-1].size = FILE_BYTES
        self._begin_file(number, State(oldest=number))
        self._drop(range(old.oldest, number))
        self._origin_name(old).unlink(missing_ok=True)

    # --- reading

    def fetch(self, position: int, end: int) -> list[Record]:
        """Return some records from ``position`` to below ``end``; none if the first one was trimmed."""
        file = next((one for one in reversed(self._files) if one.first <= position), None)
        if file is None or not file.groups or position <= self.state.trimmed:
            return []
        stop = len(file.groups)
        at = max(0, bisect_right(file.groups, position, key=lambda group: group.first) - 1)
        start = file.groups[at].offset
        try:
            with self._name(file.number).open("rb", buffering=0) as stream:
                data = memoryview(os.pread(stream.fileno(), max(file.groups[at].size, LOAD_BYTES), start))
        except FileNotFoundError:  # trimmed meanwhile
            return []
        except OSError as error:
            raise LogUnavailable(f"the log in {self._path} cannot be read: {error}") from error
        records: list[Record] = []
        for group in file.groups[at:stop]:
            if records and group.offset + group.size - start > len(data):
                break
            try:
                found = unpack_group(file.number, group.offset, data[group.offset - start :])
                records += unpack_records(found.body if found else b"", after=group.first - 1)
            except Corrupt:
                self._mismatch(group.first, file.number, group.offset)
        return [record for record in records if position <= record.position < end]

    # --- the origin

    def origin(self) -> Origin | None:
        """Return the origin, or None."""
        state = self.state
        if state.generation < 0:
            return None
        path = self._origin_name(state)
        try:
            data = unseal(path.name.encode(), path.read_bytes())
        except (Corrupt, FileNotFoundError):
            self._damaged(f"the origin at {state.origin} does not match its checksum ({path.name})")
        return Origin(state.origin, data, state.trimmed, state.generation)

    def put_origin(self, position: int, data: bytes, expected: int) -> bool:
        """Replace the origin of generation ``expected``.

        Return False if the present origin has another generation, or is not older.
        """
        old = self.state
        if old.generation != expected or position <= old.origin:
            return False
        self._settle()  # Otherwise it could be the state of an earlier try, with the origin of this one.
        state = evolve(old, next=self.next, origin=position, generation=expected + 1)
        path = self._origin_name(state)
        write_durably(path, seal(path.name.encode(), data))
        self._set_state(state)
        self._origin_name(old).unlink(missing_ok=True)
        return True

    def trim(self, upto: int) -> int:
        """Delete records up to ``upto``, but none after the origin; return how many."""
        state = self.state
        last = min(upto, state.origin, self.next - 1)
        if last <= state.trimmed:
            return 0
        deleted = self._count(last) - self._count(state.trimmed)
        kept = [before.number for before, after in pairwise(self._files) if after.first > last + 1]
        oldest = min([*kept, self._files[-1].number])
        self._set_state(evolve(state, next=self.next, trimmed=last, oldest=oldest))
        self._drop([file.number for file in self._files])
        return deleted

    def _count(self, position: int) -> int:
        """Return the number of records that the log ever had up to a position."""
        starts = [segment_start(number) for number in range(len(self.state.ends) + 1)]
        ends = (*self.state.ends, self.next)
        return sum(max(0, min(position + 1, end) - start) for start, end in zip(starts, ends, strict=True))

    def _drop(self, numbers: Sequence[int]) -> None:
        """Delete those of these files that do not belong to the log any more."""
        oldest = self.state.oldest
        self._files = tuple(file for file in self._files if file.number >= oldest)
        for number in numbers:
            if number < oldest:
                self._name(number).unlink(missing_ok=True)

    def _name(self, number: int) -> Path:
        return self._path / f"{number}.records"

    def _origin_name(self, state: State) -> Path:
        return self._path / f"origin-{state.generation}"


def _packed(state: State) -> bytes:
    data: bytes = msgpack.packb([FORMAT, *astuple(state)])
    return data
