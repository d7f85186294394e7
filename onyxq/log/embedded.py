"""The embedded log: files on this machine's disk, for the peers of one process.

It replaces ZooKeeper on a single node.  Records are durable before any reader sees them.  Pulses
live in memory, since they end with the process anyway.  One writer thread writes all waiting
records as one group with one flush, so the event loop never waits for the disk.  Readers at the
tail get records from memory.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import trio
from attrs import define

from onyxq.core.entry import RECORD_BYTES_MAX
from onyxq.core.errors import LogDamaged, LogUnavailable, TooLarge
from onyxq.core.log.interface import (
    SEGMENT_RECORDS,
    AppendUnknown,
    Origin,
    Record,
    SessionLost,
    Trimmed,
    segment_of,
    segment_start,
)
from onyxq.log.embedded_file import LogFile
from onyxq.system.clock import SteadyClock, WallClock
from onyxq.system.directories import PRIVATE
from onyxq.system.directory_lock import lock_file

GROUP_RECORDS_MAX, GROUP_BYTES_MAX = 1_000, 512 << 10
RECENT_BYTES_MAX = 16 << 20
RECENT_RECORDS_MAX = 10_000
"""Number of records kept in memory for readers at the tail; also limited by `RECENT_BYTES_MAX`."""
IN_USE = "Only one process can have an embedded log open; use its address, another --data, or ZooKeeper."

T = TypeVar("T")


@define(eq=False)
class _Job:
    """Work for the writer thread, and its result."""

    token: trio.lowlevel.TrioToken
    record: bytes | None
    work: Callable[[], Any] | None
    done: trio.Event
    value: Any = None
    error: BaseException | None = None


class EmbeddedBackend:
    """The log in one directory; at most one process has it open.

    Raises `Conflict` on opening if another process (or another backend of this one) has it open.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, clock: WallClock | None = None, segment_records: int = SEGMENT_RECORDS
    ) -> None:
        self._path = Path(path)
        self._path.mkdir(parents=True, exist_ok=True, mode=PRIVATE)
        self._lock = lock_file(self._path / "lock", what=f"the log in {self._path}", hint=IN_USE)
        self._clock = clock or SteadyClock()
        try:
            self.file = LogFile(self._path)
        except BaseException:
            os.close(self._lock)
            raise
        self.close_segment = partial(self.file.close_segment, segment_records)
        self._next = self.file.next
        """Position of the next record for readers; the file belongs to the writer thread."""
        self.refusal = ""
        """Why the last append failed; empty if it did not."""
        self._recent: OrderedDict[int, Record] = OrderedDict()
        self._recent_bytes = 0
        self.pulses: dict[str, tuple[EmbeddedSession, bytes]] = {}
        self._sessions: set[EmbeddedSession] = set()
        self.grown = trio.lowlevel.ParkingLot()
        """Readers that wait for the next record, or the end of a session."""
        self.ended = trio.lowlevel.ParkingLot()
        """Waiters for the end of a session. Pulses end with their session only."""
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._closed = False
        self._writer = threading.Thread(target=self._write_loop, name="onyxq-embedded-log", daemon=True)
        self._writer.start()

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], *, clock: WallClock | None = None, segment_records: int = SEGMENT_RECORDS
    ) -> EmbeddedBackend:
        """Open, or create, the log in the directory ``path``."""
        return cls(path, clock=clock, segment_records=segment_records)

    def _check_open(self) -> None:
        """Raise `LogUnavailable` once the log is closed."""
        if self._closed:
            raise LogUnavailable(
                f"the log in {self._path} is closed", hint="The process that had it open is stopping. Start it again."
            )

    async def session(self) -> EmbeddedSession:
        """Return a new session of this process."""
        self._check_open()
        session = EmbeddedSession(self)
        self._sessions.add(session)
        await trio.lowlevel.checkpoint()
        return session

    async def look(self, position: int) -> Record | Trimmed | None:
        await trio.lowlevel.checkpoint()
        self._check_open()
        found = self.fetch(position)[:1] if position < self._next else []
        if found and found[0].position == position:
            return found[0]
        return Trimmed(self.origin_position) if position <= self.origin_position else None

    async def destroy(self) -> None:
        """Delete every record and the origin, and end all open sessions."""
        self._end_sessions()
        await self.submit(work=self.file.drop_all)
        self._recent.clear()
        self._recent_bytes = 0

    def close(self) -> None:
        """End all sessions, write waiting records, close the files and release the lock; blocks briefly."""
        if self._begin_close():
            self._finish_close()

    async def aclose(self) -> None:
        """Close the log as `close` does, without blocking the event loop."""
        if self._begin_close():
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(self._finish_close)

    def _begin_close(self) -> bool:
        """Stop accepting work; return False if the log was closed before."""
        if self._closed:
            return False
        self._closed = True
        self._end_sessions()
        self._jobs.put(None)
        return True

    def _finish_close(self) -> None:
        self._writer.join()
        self.file.close()
        os.close(self._lock)

    def _end_sessions(self) -> None:
        for session in list(self._sessions):
            session.end()

    # --- the writer thread -----------------------------------------------------------

    async def submit(self, *, record: bytes | None = None, work: Callable[[], Any] | None = None) -> Any:
        """Have the writer append ``record`` or do ``work``; return the result once it is durable."""
        self._check_open()
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
                batch[0].token.run_sync_soon(self._publish, written, batch, self.file.next)

    def _take_batch(self) -> list[_Job]:
        """Return all waiting jobs, up to the limits or the first ``work``; empty once closed."""
        job = self._jobs.get()
        batch: list[_Job] = []
        size = 0
        while job is not None:
            batch.append(job)
            size += len(job.record or b"")
            if job.work is not None or len(batch) == GROUP_RECORDS_MAX or size >= GROUP_BYTES_MAX:
                return batch
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return batch
        if batch:
            self._jobs.put(None)
        return batch

    def _write_records(self, jobs: list[_Job]) -> list[Record]:
        data = [job.record or b"" for job in jobs]
        try:
            written = self._do(lambda: self.file.append(data, self._clock.wall_ms()))
        except Exception as error:
            self.refusal = str(error)
            for job in jobs:
                job.error = AppendUnknown(error.message) if isinstance(error, LogUnavailable) else error
            return []
        self.refusal = ""
        for job, record in zip(jobs, written, strict=True):
            job.value = record.position
        return written

    def _work(self, job: _Job) -> None:
        assert job.work is not None
        try:
            job.value = self._do(job.work)
        except Exception as error:
            job.error = error

    def _do(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except OSError as error:
            raise LogUnavailable(f"the disk refuses the log in {self._path}: {error}") from error

    def _publish(self, written: list[Record], batch: list[_Job], following: int) -> None:
        """Show readers the durable records. Runs in trio."""
        for record in written:
            self._recent[record.position] = record
            self._recent_bytes += len(record.data)
        self._next = following
        while self._recent_bytes > RECENT_BYTES_MAX or len(self._recent) > RECENT_RECORDS_MAX:
            _, dropped = self._recent.popitem(last=False)
            self._recent_bytes -= len(dropped.data)
        for job in batch:
            job.done.set()
        self.grown.unpark_all()

    # --- for sessions, in trio ---------------------------------------------------------

    @property
    def following(self) -> int:
        """Position of the next record."""
        return self._next

    @property
    def last(self) -> int:
        """Position of the last record; `START` if there was none."""
        ends = self.file.state.ends
        return (ends[-1] if ends and self._next == segment_start(len(ends)) else self._next) - 1

    def place(self, position: int) -> int:
        """Return the position from which to read on for ``position``.

        At the end of a closed segment, that is the next segment's start.
        """
        segment, ends = segment_of(position), self.file.state.ends
        return segment_start(segment + 1) if segment < len(ends) and position >= ends[segment] else position

    def fetch(self, position: int) -> list[Record]:
        """Return records from ``position`` (below `following`) on; none if they are trimmed.

        It returns one record from memory, or else several from disk.
        """
        found = self._recent.get(position)
        if found is not None:
            return [found]
        return self.file.fetch(position, self._next)

    @property
    def origin_position(self) -> int:
        """Position of the origin; `START` if there is none."""
        return self.file.state.origin

    async def trim(self, upto: int) -> int:
        deleted: int = await self.submit(work=lambda: self.file.trim(upto))
        for position in [position for position in self._recent if position <= self.file.state.trimmed]:
            self._recent_bytes -= len(self._recent.pop(position).data)
        return deleted

    def forget(self, session: EmbeddedSession) -> None:
        """Remove an ended session and its pulses, and wake all waiters."""
        self._sessions.discard(session)
        for peer in [peer for peer, (owner, _) in self.pulses.items() if owner is session]:
            del self.pulses[peer]
        self.ended.unpark_all()
        self.grown.unpark_all()


class EmbeddedSession:
    """A session with the embedded log; see `LogSession`."""

    def __init__(self, backend: EmbeddedBackend) -> None:
        self._backend = backend
        self._lost = trio.Event()
        self._window: dict[int, Record] = {}

    @property
    def connected(self) -> bool:
        """Whether the session is open and the disk accepts records."""
        return not self._lost.is_set() and not self._backend.refusal

    @property
    def connections(self) -> int:
        """Number of connections, always one: the log is in this process."""
        return 1

    async def wait_lost(self) -> None:
        await self._lost.wait()

    async def append(self, data: bytes) -> int:
        """Append a record; see `LogSession.append`. Raises `AppendUnknown` if the disk refused it."""
        self._check()
        if len(data) > RECORD_BYTES_MAX:
            raise TooLarge(f"a record of {len(data)} bytes; at most {RECORD_BYTES_MAX}")
        position: int = await self._backend.submit(record=data)
        return position

    async def read(self, position: int) -> Record | Trimmed:
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
            await self._backend.grown.park()

    async def look(self, position: int) -> Record | Trimmed | None:
        self._check()
        return await self._backend.look(position)

    async def tail(self) -> int:
        self._check()
        await trio.lowlevel.checkpoint()
        return self._backend.last

    async def set_pulse(self, peer: str, data: bytes) -> None:
        self._check()
        self._backend.pulses[peer] = (self, data)
        await trio.lowlevel.checkpoint()

    async def pulses(self) -> dict[str, bytes]:
        self._check()
        await trio.lowlevel.checkpoint()
        return {peer: data for peer, (_, data) in sorted(self._backend.pulses.items())}

    async def wait_pulse_gone(self, peer: str) -> None:
        await trio.lowlevel.checkpoint()
        self._check()
        while peer in self._backend.pulses:
            await self._backend.ended.park()
            self._check()

    async def origin(self) -> Origin | None:
        self._check()
        found: Origin | None = await self._backend.submit(work=self._backend.file.origin)
        return found

    async def store_origin(self, position: int, data: bytes, *, expected_version: int) -> bool:
        """Replace the origin; see `LogSession.store_origin`.

        Returns False also unless ``position`` is above the present origin's.
        """
        self._check()
        file = self._backend.file
        stored: bool = await self._backend.submit(work=lambda: file.put_origin(position, data, expected_version))
        return stored

    async def trim(self, upto: int) -> int:
        self._check()
        return await self._backend.trim(upto)

    async def rotate(self) -> bool:
        self._check()
        closed: bool = await self._backend.submit(work=self._backend.close_segment)
        return closed

    async def aclose(self) -> None:
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
        raise LogDamaged(f"record {position} of the log is missing, although a later one exists")

    def _check(self) -> None:
        if self._lost.is_set():
            raise SessionLost("the session with the embedded log has ended")
