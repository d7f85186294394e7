"""The embedded log: LMDB on this machine's disk, for the peers of one process.

What ZooKeeper does for many nodes, this does for one: records are durable before anyone
sees them, pulses live in memory (they end with the process anyway).  One writer thread
takes all that waits into one durable transaction, so the event loop never waits for the
disk; readers at the tail are handed records from memory.
"""

from __future__ import annotations

import contextlib
import os
import queue
import struct
import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import msgpack
import trio
from attrs import define, frozen

from onyxq.entry import RECORD_BYTES_MAX
from onyxq.errors import Corrupt, LogUnavailable, TooLarge
from onyxq.locking import lock_file
from onyxq.log.interface import (
    SEGMENT_RECORDS,
    START,
    AppendUnknown,
    Origin,
    Record,
    SessionLost,
    Trimmed,
    segment_of,
    segment_start,
)
from onyxq.peer.clock import Clock, SteadyClock

MAP_BYTES = 64 << 30
"""Address space set aside for the log; disk is used only as it grows."""
GROUP_RECORDS_MAX = 1_000
RECENT_BYTES_MAX = 16 << 20
RECENT_RECORDS_MAX = 10_000
"""Records kept in memory for readers at the tail."""
LOAD_RECORDS, LOAD_BYTES = 256, 4 << 20
"""What a reader that is behind takes from the disk at once."""
TRIM_BATCH_RECORDS = 1_000
IN_USE = "Only one process can have an embedded log open; use its address, another --data, or ZooKeeper."

_NEXT, _ORIGIN, _ENDS = b"next", b"origin", b"ends"
_HEAD = struct.Struct(">qI")
"""Before a record's bytes: its ctime, and the CRC-32 of position, ctime and bytes."""


@frozen
class _Pointer:
    """The origin's row (a msgpack list of these fields); its bytes are a row of their own."""

    position: int
    crc: int
    trimmed: int
    generation: int


@define(eq=False)
class _Job:
    """Work for the writer thread, and where its answer goes."""

    token: trio.lowlevel.TrioToken
    record: bytes | None
    work: Callable[[], Any] | None
    done: trio.Event
    value: Any = None
    error: BaseException | None = None


class EmbeddedBackend:
    """The log in one directory; at most one process has it open.

    Raises `Conflict` on opening if another process (or another backend of this one) has.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, clock: Clock | None = None, segment_records: int = SEGMENT_RECORDS
    ) -> None:
        self._path = Path(path)
        self._segment_records = segment_records
        self._path.mkdir(parents=True, exist_ok=True)
        self._lock = lock_file(self._path / "lock", what=f"the log in {self._path}", hint=IN_USE)
        self._clock = clock or SteadyClock()  # a witness beside the writers' clocks
        try:
            # Sync on commit; no read-ahead: the log is read in order once, or from memory.
            self._env = lmdb.open(str(self._path), map_size=MAP_BYTES, max_dbs=2, readahead=False)
            self._records = self._env.open_db(b"records")
            self._meta = self._env.open_db(b"meta")
            self._next, self._pointer = self._load()
            self._ends = self._load_ends()
        except lmdb.Error as error:
            os.close(self._lock)
            raise LogUnavailable(f"the log in {self._path} cannot be opened: {error}") from error
        self._durable_next, self._durable_ends = self._next, self._ends
        """The writer thread's; `_next` and `_ends` follow them in the event loop."""
        self._recent: OrderedDict[int, Record] = OrderedDict()
        self._recent_bytes = 0
        self._pulses: dict[str, tuple[EmbeddedSession, bytes]] = {}
        self._sessions: set[EmbeddedSession] = set()
        self._grown = trio.lowlevel.ParkingLot()
        self._ended = trio.lowlevel.ParkingLot()
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._closed = False
        self._writer = threading.Thread(target=self._write_loop, name="onyxq-embedded-log", daemon=True)
        self._writer.start()

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], *, clock: Clock | None = None, segment_records: int = SEGMENT_RECORDS
    ) -> EmbeddedBackend:
        """Open, or create, the log in the directory ``path``."""
        return cls(path, clock=clock, segment_records=segment_records)

    @property
    def durable(self) -> bool:
        """Always: records are on disk before they are seen."""
        return True

    async def session(self) -> EmbeddedSession:
        """A new session of this process."""
        if self._closed:
            raise LogUnavailable(f"the log in {self._path} is closed")
        session = EmbeddedSession(self)
        self._sessions.add(session)
        await trio.lowlevel.checkpoint()
        return session

    async def destroy(self) -> None:
        """Delete every record and the origin; open sessions are lost."""
        self._end_sessions()
        await self.submit(work=self._drop_all)
        self._recent.clear()
        self._recent_bytes = 0
        self._next, self._pointer, self._ends = 0, None, ()

    def close(self) -> None:
        """End all sessions, write what waits, close the files and give up the lock; blocks briefly."""
        if self._begin_close():
            self._finish_close()

    async def aclose(self) -> None:
        """As `close`, without blocking the event loop."""
        if self._begin_close():
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(self._finish_close)

    def _begin_close(self) -> bool:
        """Take no more work; False if that was done before."""
        if self._closed:
            return False
        self._closed = True
        self._end_sessions()
        self._jobs.put(None)
        return True

    def _finish_close(self) -> None:
        self._writer.join()
        self._env.close()
        os.close(self._lock)

    def _end_sessions(self) -> None:
        for session in list(self._sessions):
            session.end()

    # --- the writer thread -----------------------------------------------------------

    async def submit(self, *, record: bytes | None = None, work: Callable[[], Any] | None = None) -> Any:
        """Have the writer append ``record`` or do ``work``; its value once that is durable."""
        if self._closed:
            raise LogUnavailable(f"the log in {self._path} is closed")
        job = _Job(trio.lowlevel.current_trio_token(), record, work, trio.Event())
        self._jobs.put(job)
        await job.done.wait()
        if job.error is not None:
            raise job.error
        return job.value

    def _write_loop(self) -> None:
        while True:
            batch = self._take_batch()
            if not batch:
                return
            appends = [job for job in batch if job.record is not None]
            written = self._write_records(appends) if appends else []
            for job in batch:
                if job.work is not None:
                    self._work(job)
            with contextlib.suppress(trio.RunFinishedError):
                batch[0].token.run_sync_soon(self._publish, written, batch)

    def _take_batch(self) -> list[_Job]:
        """All that waits, up to a limit or the first work; empty once closed."""
        job = self._jobs.get()
        batch: list[_Job] = []
        while job is not None:
            batch.append(job)
            if job.work is not None or len(batch) == GROUP_RECORDS_MAX:
                return batch
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return batch
        if batch:
            self._jobs.put(None)
        return batch

    def _write_records(self, jobs: list[_Job]) -> list[Record]:
        now = self._clock.wall_ms()
        first = self._durable_next
        written = [Record(first + n, now, job.record or b"") for n, job in enumerate(jobs)]
        try:
            with self._env.begin(write=True) as transaction:
                for record in written:
                    transaction.put(_key(record.position), _seal(record), db=self._records, append=True)
                transaction.put(_NEXT, msgpack.packb(first + len(jobs)), db=self._meta)
        except lmdb.Error as error:
            for job in jobs:
                job.error = AppendUnknown(f"the log in {self._path} cannot be written: {error}")
            return []
        self._durable_next = first + len(jobs)
        for job, record in zip(jobs, written, strict=True):
            job.value = record.position
        return written

    def _work(self, job: _Job) -> None:
        assert job.work is not None
        try:
            job.value = job.work()
        except lmdb.Error as error:
            job.error = LogUnavailable(f"the log in {self._path} cannot be written: {error}")

    def _publish(self, written: list[Record], batch: list[_Job]) -> None:
        """In trio: what became durable is now seen."""
        for record in written:
            self._recent[record.position] = record
            self._recent_bytes += len(record.data)
        self._ends = self._durable_ends
        if written:
            self._next = written[-1].position + 1
        while self._recent_bytes > RECENT_BYTES_MAX or len(self._recent) > RECENT_RECORDS_MAX:
            _, dropped = self._recent.popitem(last=False)
            self._recent_bytes -= len(dropped.data)
        for job in batch:
            job.done.set()
        self._grown.unpark_all()

    # --- what the writer thread does besides records -----------------------------------

    def _load(self) -> tuple[int, _Pointer | None]:
        with self._env.begin() as transaction:
            following = transaction.get(_NEXT, db=self._meta)
            pointer = transaction.get(_ORIGIN, db=self._meta)
        try:
            return (
                msgpack.unpackb(following) if following else 0,
                _Pointer(*msgpack.unpackb(pointer)) if pointer else None,
            )
        except (TypeError, ValueError, msgpack.UnpackException) as error:
            raise Corrupt(f"the log in {self._path} is malformed: {error}") from None

    def _load_ends(self) -> tuple[int, ...]:
        with self._env.begin() as transaction:
            ends = transaction.get(_ENDS, db=self._meta)
        return tuple(msgpack.unpackb(ends)) if ends else ()

    def _close_segment(self) -> bool:
        """Have the next record be the next segment's first, if this one has had its records."""
        end = self._durable_next
        if end - segment_start(segment_of(end)) < self._segment_records:
            return False
        following, ends = segment_start(segment_of(end) + 1), (*self._durable_ends, end)
        with self._env.begin(write=True) as transaction:
            transaction.put(_NEXT, msgpack.packb(following), db=self._meta)
            transaction.put(_ENDS, msgpack.packb(ends), db=self._meta)
        self._durable_next, self._durable_ends = following, ends
        return True

    def _put_origin(self, position: int, data: bytes, expected: int) -> _Pointer | None:
        _, found = self._load()
        if (found.generation if found else -1) != expected or (found and position <= found.position):
            return None
        pointer = _Pointer(position, zlib.crc32(data), found.trimmed if found else START, expected + 1)
        with self._env.begin(write=True) as transaction:
            if found:
                transaction.delete(_origin_key(found.generation), db=self._meta)
            transaction.put(_origin_key(pointer.generation), data, db=self._meta)
            transaction.put(_ORIGIN, _pack(pointer), db=self._meta)
        return pointer

    def _trim_batch(self, upto: int) -> tuple[_Pointer | None, int]:
        """Delete up to `TRIM_BATCH_RECORDS`; the new pointer and how many were deleted."""
        _, found = self._load()
        if found is None:
            return None, 0
        last = min(upto, found.position)
        if last <= found.trimmed:
            return found, 0
        with self._env.begin(write=True) as transaction, transaction.cursor(db=self._records) as cursor:
            deleted = 0
            cursor.first()
            while (key := cursor.key()) and key <= _key(last) and deleted < TRIM_BATCH_RECORDS:
                cursor.delete()
                deleted += 1
            # What is left begins here; positions that no record has are passed over.
            trimmed = min(last, int.from_bytes(key, "big") - 1) if key else last
            pointer = _Pointer(found.position, found.crc, trimmed, found.generation)
            transaction.put(_ORIGIN, _pack(pointer), db=self._meta)
        return pointer, deleted

    def _drop_all(self) -> None:
        with self._env.begin(write=True) as transaction:
            transaction.drop(self._records, delete=False)
            transaction.drop(self._meta, delete=False)
        self._durable_next, self._durable_ends = 0, ()

    # --- for sessions, in trio ---------------------------------------------------------

    @property
    def following(self) -> int:
        """The position of the next record."""
        return self._next

    @property
    def last(self) -> int:
        """The position of the last record; `START` if there was none."""
        return (self._ends[-1] if self._ends and self._next == segment_start(len(self._ends)) else self._next) - 1

    def place(self, position: int) -> int:
        """Where a record asked for at ``position`` is: at the end of a closed segment that is the next one's start."""
        segment = segment_of(position)
        return segment_start(segment + 1) if segment < len(self._ends) and position >= self._ends[segment] else position

    def fetch(self, position: int) -> list[Record]:
        """Records from ``position`` (below `following`) on: one from memory, else some from disk; none if trimmed."""
        found = self._recent.get(position)
        if found is not None:
            return [found]
        records: list[Record] = []
        size = 0
        with self._env.begin() as transaction, transaction.cursor(db=self._records) as cursor:
            if not cursor.set_key(_key(position)):
                return []
            for key, value in cursor:
                place = int.from_bytes(key, "big")
                if place >= self._next or len(records) == LOAD_RECORDS or size >= LOAD_BYTES:
                    break
                records.append(_unseal(place, value))
                size += len(value)
        return records

    @property
    def origin_position(self) -> int:
        """Position of the origin; `START` if there is none."""
        return self._pointer.position if self._pointer else START

    async def wait_grown(self) -> None:
        """Return at the next record, or when a session ends."""
        await self._grown.park()

    async def read_origin(self) -> Origin | None:
        """The origin from disk; raises `Corrupt`."""
        found = await self.submit(work=self._get_origin)
        if found is None:
            return None
        pointer, data = found
        if data is None or zlib.crc32(data) != pointer.crc:
            raise Corrupt(f"the origin at {pointer.position} does not match its checksum")
        return Origin(pointer.position, data, pointer.trimmed, pointer.generation)

    def _get_origin(self) -> tuple[_Pointer, bytes | None] | None:
        _, found = self._load()
        if found is None:
            return None
        with self._env.begin() as transaction:
            return found, transaction.get(_origin_key(found.generation), db=self._meta)

    async def write_origin(self, position: int, data: bytes, *, expected_version: int) -> bool:
        """See `LogSession.store_origin`."""
        pointer = await self.submit(work=lambda: self._put_origin(position, data, expected_version))
        if pointer is not None:
            self._pointer = pointer
        return pointer is not None

    async def trim(self, upto: int) -> int:
        """See `LogSession.trim`."""
        total = 0
        while True:
            found: tuple[_Pointer | None, int] = await self.submit(work=lambda: self._trim_batch(upto))
            pointer, deleted = found
            if pointer is None:
                return total
            self._pointer = pointer
            for position in [position for position in self._recent if position <= pointer.trimmed]:
                self._recent_bytes -= len(self._recent.pop(position).data)
            total += deleted
            if pointer.trimmed >= min(upto, pointer.position):
                return total

    async def rotate(self) -> bool:
        """See `LogSession.rotate`."""
        closed: bool = await self.submit(work=self._close_segment)
        return closed

    # --- pulses ------------------------------------------------------------------------

    def put_pulse(self, session: EmbeddedSession, peer: str, data: bytes) -> None:
        """Set a pulse that lives as long as ``session``."""
        self._pulses[peer] = (session, data)

    def list_pulses(self) -> dict[str, bytes]:
        """All pulses, by peer."""
        return {peer: self._pulses[peer][1] for peer in sorted(self._pulses)}

    def has_pulse(self, peer: str) -> bool:
        """Whether the peer has a pulse now."""
        return peer in self._pulses

    async def wait_session_end(self) -> None:
        """Return when the next session ends: only then do pulses go."""
        await self._ended.park()

    def forget(self, session: EmbeddedSession) -> None:
        """A session ended: its pulses go, waiters look again."""
        self._sessions.discard(session)
        for peer in [peer for peer, (owner, _) in self._pulses.items() if owner is session]:
            del self._pulses[peer]
        self._ended.unpark_all()
        self._grown.unpark_all()


class EmbeddedSession:
    """A session with the embedded log; see `LogSession`."""

    def __init__(self, backend: EmbeddedBackend) -> None:
        self._backend = backend
        self._lost = trio.Event()
        self._window: dict[int, Record] = {}

    @property
    def connected(self) -> bool:
        """Until it is closed."""
        return not self._lost.is_set()

    async def wait_lost(self) -> None:
        """See `LogSession.wait_lost`."""
        await self._lost.wait()

    async def append(self, data: bytes) -> int:
        """See `LogSession.append`; `AppendUnknown` if the disk refused it."""
        self._check()
        if len(data) > RECORD_BYTES_MAX:
            raise TooLarge(f"a record of {len(data)} bytes; at most {RECORD_BYTES_MAX}")
        position: int = await self._backend.submit(record=data)
        return position

    async def read(self, position: int) -> Record | Trimmed:
        """See `LogSession.read`."""
        await trio.lowlevel.checkpoint()
        while True:
            self._check()
            position = self._backend.place(position)
            record = self._window.pop(position, None)
            if record is not None:
                return record
            if position < self._backend.following:
                found = self._backend.fetch(position)
                if not found:
                    return self._absent(position)
                self._window = {record.position: record for record in found}
                continue
            await self._backend.wait_grown()

    async def tail(self) -> int:
        """See `LogSession.tail`: the position of the last record."""
        self._check()
        await trio.lowlevel.checkpoint()
        return self._backend.last

    async def set_pulse(self, peer: str, data: bytes) -> None:
        """See `LogSession.set_pulse`."""
        self._check()
        self._backend.put_pulse(self, peer, data)
        await trio.lowlevel.checkpoint()

    async def pulses(self) -> dict[str, bytes]:
        """See `LogSession.pulses`."""
        self._check()
        await trio.lowlevel.checkpoint()
        return self._backend.list_pulses()

    async def wait_pulse_gone(self, peer: str) -> None:
        """See `LogSession.wait_pulse_gone`."""
        await trio.lowlevel.checkpoint()
        self._check()
        while self._backend.has_pulse(peer):
            await self._backend.wait_session_end()
            self._check()

    async def origin(self) -> Origin | None:
        """See `LogSession.origin`."""
        self._check()
        return await self._backend.read_origin()

    async def store_origin(self, position: int, data: bytes, *, expected_version: int) -> bool:
        """See `LogSession.store_origin`; also False unless ``position`` is above the present origin's."""
        self._check()
        return await self._backend.write_origin(position, data, expected_version=expected_version)

    async def trim(self, upto: int) -> int:
        """See `LogSession.trim`."""
        self._check()
        return await self._backend.trim(upto)

    async def rotate(self) -> bool:
        """See `LogSession.rotate`."""
        self._check()
        return await self._backend.rotate()

    async def aclose(self) -> None:
        """See `LogSession.aclose`."""
        self.end()
        await trio.lowlevel.checkpoint()

    def end(self) -> None:
        """End the session now."""
        if not self._lost.is_set():
            self._lost.set()
            self._backend.forget(self)

    def _absent(self, position: int) -> Trimmed:
        if position <= self._backend.origin_position:
            return Trimmed(self._backend.origin_position)
        raise Corrupt(f"record {position} of the log is missing, although a later one exists")

    def _check(self) -> None:
        if self._lost.is_set():
            raise SessionLost("the session with the embedded log has ended")


def _crc(position: int, ctime_ms: int, data: bytes) -> int:
    return zlib.crc32(data, zlib.crc32(_HEAD.pack(ctime_ms, position & 0xFFFFFFFF)))


def _seal(record: Record) -> bytes:
    return _HEAD.pack(record.ctime_ms, _crc(record.position, record.ctime_ms, record.data)) + record.data


def _unseal(position: int, value: bytes) -> Record:
    ctime_ms, crc = _HEAD.unpack_from(value)
    data = bytes(value[_HEAD.size :])
    if crc != _crc(position, ctime_ms, data):
        raise Corrupt(f"record {position} of the log does not match its checksum")
    return Record(position, ctime_ms, data)


def _key(position: int) -> bytes:
    return position.to_bytes(8, "big")


def _origin_key(generation: int) -> bytes:
    return b"origin-%d" % generation


def _pack(pointer: _Pointer) -> bytes:
    return bytes(msgpack.packb([pointer.position, pointer.crc, pointer.trimmed, pointer.generation]))
