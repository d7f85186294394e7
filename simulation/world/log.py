"""The log in memory: deterministic, and broken on request.

Implements `LogSession` with what ZooKeeper can do to a peer: connections that break while
an append is in flight (which then exists, twice, or not at all, perhaps only later),
sessions that expire, records that arrive late, a clock that jumps.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import islice

import trio
from attrs import define, evolve, field, frozen

from onyxq.core.entry import RECORD_BYTES_MAX
from onyxq.core.errors import Corrupt, LogUnavailable, TooLarge
from onyxq.core.log.interface import (
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
from onyxq.system.clock import WallClock
from simulation.probes import OF_WORLDS, Probes
from simulation.world.scheduling import Nap

CHUNK_BYTES = 16 << 10
"""Small, so that the origins of small clusters have several."""
NOTICED_S = 0.1
"""How long a session takes itself for connected although it is not."""


@frozen
class _Break:
    """What happens to a session's next append."""

    landed: int
    late: bool


@define(eq=False)
class MemoryBackend:
    """One cluster's log in memory; ``clock`` stamps the records."""

    clock: WallClock
    append_delay_s: Callable[[], float] | None = None
    """Returns how long each append takes; None: no time."""
    read_delay_s: Callable[[], float] | None = None
    """Returns how long each record takes to reach a reader; None: no time."""
    available: bool = True
    """Whether new sessions are possible."""
    records: dict[int, Record] = field(factory=dict)
    landed_s: dict[int, float] = field(factory=dict)
    """When each record became visible, by trio's clock."""
    following: int = 0
    segment_records: int = SEGMENT_RECORDS
    """Records after which a segment may be closed."""
    ends: list[int] = field(factory=list)
    """For each closed segment, the position after its last record."""
    on_collecting: Callable[[MemorySession, str], Awaitable[None]] | None = None
    """Called as a session that collects comes to a step: ``chunk`` (several), ``pointer``, ``stored``,
    ``trim`` (several), ``trimmed``; it may break the session, or never return."""
    trim_batch_records: int = 1_000
    stored: Origin | None = None
    sessions: list[MemorySession] = field(factory=list)
    """Open ones, in the order they were opened."""
    pulse_owners: dict[str, tuple[MemorySession, bytes]] = field(factory=dict)
    probes: Probes = field(factory=lambda: Probes(OF_WORLDS))
    _changed: trio.Event = field(factory=trio.Event)
    _grown: trio.Event = field(factory=trio.Event)
    _readers: dict[Nap, float] = field(factory=dict)
    """Who waits for a record, and how long it takes to get there."""
    _travellers: dict[Nap, None] = field(factory=dict)
    """Waits of requests and answers that are on their way."""

    async def session(self) -> MemorySession:
        """A new session; raises `LogUnavailable` while ``available`` is False."""
        await trio.lowlevel.checkpoint()
        if not self.available:
            raise LogUnavailable("the log is down")
        session = MemorySession(self)
        self.sessions.append(session)
        return session

    async def look(self, position: int) -> Record | Trimmed | None:
        """See `LogBackend.look`."""
        await trio.lowlevel.checkpoint()
        if not self.available:
            raise LogUnavailable("the log is down")
        if position in self.records:
            return self.records[position]
        origin = self.stored.position if self.stored is not None else START
        return Trimmed(origin) if position <= origin else None

    async def destroy(self) -> None:
        """Forget everything; open sessions are lost."""
        for session in list(self.sessions):
            self.expire(session)
        self.records.clear()
        self.following, self.stored = 0, None
        self.ends.clear()
        await trio.lowlevel.checkpoint()

    # --- faults ----------------------------------------------------------------------

    def disconnect(self, session: MemorySession) -> None:
        """Break the connection: reads wait, appends (also those in flight) raise `AppendUnknown`."""
        if session.reached:
            session.broken_s = trio.current_time()
        session.reached = False
        session.breakages += 1
        self.notify()

    def reconnect(self, session: MemorySession) -> None:
        """Restore the connection; appends that were to land late do now."""
        if session in self.sessions:
            session.connections += not session.reached
            session.reached = True
            for data in session.late:
                self.probes.reached("a record that landed only later")
                self.land(data)
            session.late.clear()
        self.notify()

    def expire(self, session: MemorySession) -> None:
        """End the session as its owner sees it: lost; its pulse is gone."""
        if session in self.sessions:
            self.sessions.remove(session)
        session.reached = False
        session.breakages += 1
        session.late.clear()
        session.lost.set()
        for peer in [peer for peer, (owner, _) in self.pulse_owners.items() if owner is session]:
            del self.pulse_owners[peer]
        self.notify()

    def break_append(self, session: MemorySession, *, landed: int, late: bool = False) -> None:
        """Have the session's next append raise `AppendUnknown` with the record there ``landed``
        (0, 1, 2) times; ``late``: only once the session reconnects."""
        session.breaks.append(_Break(landed, late))

    def inject(self, data: bytes) -> int:
        """Append bytes past all sessions, as a stranger with access to ZooKeeper could."""
        return self.land(data)

    # --- for sessions ------------------------------------------------------------------

    def land(self, data: bytes) -> int:
        """Make a record visible and give its position."""
        position = self.following
        self.records[position] = Record(position, self.clock.wall_ms(), data)
        self.landed_s[position] = trio.current_time()
        self.following = position + 1
        self._grow()
        for nap, delay_s in self._readers.items():
            nap.end_at(min(nap.until, self.landed_s[position] + delay_s))
        return position

    @property
    def last(self) -> int:
        """The position of the last record; `START` if there was none."""
        following, ends = self.following, self.ends
        return (ends[-1] if ends and following == segment_start(len(ends)) else following) - 1

    def rotate(self) -> bool:
        """Close the segment if it has had its records."""
        segment = segment_of(self.following)
        if self.following - segment_start(segment) < self.segment_records:
            return False
        self.ends.append(self.following)
        self.following = segment_start(segment + 1)
        self.notify()
        return True

    def place(self, position: int) -> int:
        """Where a record asked for at ``position`` is: at the end of a closed segment that is the next one's start."""
        segment = segment_of(position)
        return segment_start(segment + 1) if segment < len(self.ends) and position >= self.ends[segment] else position

    def notify(self) -> None:
        """Wake everyone who waits for a change."""
        self._changed.set()
        self._changed = trio.Event()
        self._grow()
        for nap in (*self._readers, *self._travellers):
            nap.end()

    def _grow(self) -> None:
        self._grown.set()
        self._grown = trio.Event()

    async def wait_changed(self) -> None:
        """Return at the next change of anything but the records."""
        await self._changed.wait()

    async def travel(self, until_s: float) -> None:
        """Return at that time, or at the next change of anything but the records."""
        nap = Nap(until_s)
        self._travellers[nap] = None
        try:
            await nap.wait()
        finally:
            del self._travellers[nap]

    async def wait_record(self, delay_s: float) -> None:
        """Return ``delay_s`` after the next record landed, or at the next change of anything else."""
        nap = Nap()
        self._readers[nap] = delay_s
        try:
            await nap.wait()
        finally:
            del self._readers[nap]

    async def wait_grown(self) -> None:
        """Return at the next record, or change of anything else."""
        await self._grown.wait()


@define(eq=False)
class MemorySession:
    """A session with the log in memory; see `LogSession`."""

    backend: MemoryBackend
    reached: bool = True
    """Whether it is connected in truth."""
    broken_s: float = 0.0
    """When the connection broke last."""
    lost: trio.Event = field(factory=trio.Event)
    breaks: list[_Break] = field(factory=list)
    late: list[bytes] = field(factory=list)
    breakages: int = 0
    """How often the connection broke."""
    connections: int = 1
    """See `LogSession.connections`."""
    reads: int = 0
    """How many records were read."""
    paused: bool = False
    """Records do not reach the reader for now; all else works."""
    read_pace_s: float = 0.0
    """Time that the reader needs for each record."""

    @property
    def connected(self) -> bool:
        """See `LogSession.connected`; that a connection broke is noticed late."""
        return self.reached or (not self.lost.is_set() and trio.current_time() < self.broken_s + NOTICED_S)

    async def wait_lost(self) -> None:
        """See `LogSession.wait_lost`."""
        await self.lost.wait()

    async def append(self, data: bytes) -> int:
        """See `LogSession.append`."""
        await trio.lowlevel.checkpoint()
        self._check()
        if len(data) > RECORD_BYTES_MAX:
            raise TooLarge(f"a record of {len(data)} bytes; at most {RECORD_BYTES_MAX}")
        if not self.reached:
            raise AppendUnknown("the log cannot be reached")
        if self.breaks:
            self.backend.probes.reached("an append with an unknown outcome")
            self._land_broken(data, self.breaks.pop(0))
            raise AppendUnknown("the connection broke during an append")
        if self.backend.append_delay_s is None:
            return self.backend.land(data)
        return await self._append_slowly(data, self.backend.append_delay_s())

    async def _append_slowly(self, data: bytes, delay_s: float) -> int:
        """Half of the time the request travels, half the answer; a connection that breaks
        on the way there leaves no record, on the way back one."""
        breakages = self.breakages
        while True:
            segments = len(self.backend.ends)
            await self._travel(delay_s / 2, breakages)
            if segments < len(self.backend.ends):  # it landed behind the end, where nobody reads
                await self._travel(delay_s / 2, breakages)
                continue
            position = self.backend.land(data)
            await self._travel(delay_s / 2, breakages)
            return position

    async def _travel(self, seconds: float, breakages: int) -> None:
        until_s = trio.current_time() + seconds
        while self.breakages == breakages and trio.current_time() < until_s:
            await self.backend.travel(until_s)
        self._check()
        if self.breakages != breakages:
            self.backend.probes.reached("an append with an unknown outcome")
            raise AppendUnknown("the connection broke during an append")

    def _land_broken(self, data: bytes, fault: _Break) -> None:
        if fault.landed > 1:
            self.backend.probes.reached("an append that landed twice")
        for _ in range(fault.landed):
            if fault.late:
                self.late.append(data)
            else:
                self.backend.land(data)

    async def read(self, position: int) -> Record | Trimmed:
        """See `LogSession.read`."""
        await trio.lowlevel.checkpoint()
        if self.read_pace_s:
            await trio.sleep(self.read_pace_s)
        delay_s = self.backend.read_delay_s() if self.backend.read_delay_s is not None else 0.0
        while True:
            self._check()
            backend = self.backend  # a fault may have put another one in its place
            position = backend.place(position)
            if not self.reached or self.paused or position >= backend.following:
                await backend.wait_record(delay_s)
                continue
            visible_s = backend.landed_s.get(position, 0.0) + delay_s
            if visible_s <= trio.current_time():
                return self._look(position)
            await Nap(visible_s).wait()

    def _look(self, position: int) -> Record | Trimmed:
        record = self.backend.records.get(position)
        if record is not None:
            self.reads += 1
            return record
        if self.backend.stored is not None and position <= self.backend.stored.position:
            self.backend.probes.reached("a trim under a reader")
            return Trimmed(self.backend.stored.position)
        raise Corrupt(f"record {position} of the log is missing, although a later one exists")

    async def look(self, position: int) -> Record | Trimmed | None:
        """See `LogSession.look`."""
        await self._reach()
        return await self.backend.look(position)

    async def tail(self) -> int:
        """See `LogSession.tail`."""
        await self._reach()
        return self.backend.last

    async def set_pulse(self, peer: str, data: bytes) -> None:
        """See `LogSession.set_pulse`."""
        await self._reach()
        self.backend.pulse_owners[peer] = (self, data)
        self.backend.notify()

    async def pulses(self) -> dict[str, bytes]:
        """See `LogSession.pulses`."""
        await self._reach()
        return {peer: data for peer, (_, data) in sorted(self.backend.pulse_owners.items(), key=lambda item: item[0])}

    async def wait_pulse_gone(self, peer: str) -> None:
        """See `LogSession.wait_pulse_gone`."""
        await self._reach()
        while not self.reached or peer in self.backend.pulse_owners:
            await self.backend.wait_changed()
            self._check()

    async def origin(self) -> Origin | None:
        """See `LogSession.origin`."""
        await self._reach()
        return self.backend.stored

    async def store_origin(self, position: int, data: bytes, *, expected_version: int) -> bool:
        """See `LogSession.store_origin`; also False unless ``position`` is above the present origin's."""
        for _ in range(1 + len(data) // CHUNK_BYTES):
            await self._collecting("chunk")
        await self._collecting("pointer")
        found = self.backend.stored
        if (found.version if found else -1) != expected_version or (found and position <= found.position):
            return False
        self.backend.stored = Origin(position, data, found.trimmed if found else START, expected_version + 1)
        await self._collecting("stored")
        return True

    async def trim(self, upto: int) -> int:
        """See `LogSession.trim`."""
        deleted = 0
        while True:
            await self._collecting("trim")
            found, backend = self.backend.stored, self.backend
            last = min(upto, found.position) if found else START
            if found is None or last <= found.trimmed:
                break
            gone = [position for position in islice(backend.records, backend.trim_batch_records) if position <= last]
            for position in gone:
                del backend.records[position]
                backend.landed_s.pop(position, None)
            # What is left begins at the next record; positions that no record has are passed over.
            trimmed = min(last, next(iter(backend.records), last + 1) - 1)
            backend.stored = evolve(found, trimmed=trimmed)
            deleted += len(gone)
        await self._collecting("trimmed")
        return deleted

    async def rotate(self) -> bool:
        """See `LogSession.rotate`."""
        await self._reach()
        return self.backend.rotate()

    async def aclose(self) -> None:
        """See `LogSession.aclose`."""
        self.backend.expire(self)
        await trio.lowlevel.checkpoint()

    async def _collecting(self, step: str) -> None:
        """Begin a step of a collection, at which a fault may end it."""
        await self._reach()
        if self.backend.on_collecting is not None:
            await self.backend.on_collecting(self, step)
            self._check()

    async def _reach(self) -> None:
        """Wait until connected; raises `SessionLost`."""
        await trio.lowlevel.checkpoint()
        self._check()
        while not self.reached:
            await self.backend.wait_changed()
            self._check()

    def _check(self) -> None:
        if self.lost.is_set():
            raise SessionLost("the session has ended")


@define(eq=False)
class NodeLog:
    """The log as one node reaches it."""

    backend: MemoryBackend
    reachable: bool = True
    session_now: MemorySession | None = None
    read_pace_s: float = 0.0
    """See `MemorySession.read_pace_s`."""

    async def session(self) -> MemorySession:
        """A new session; raises `LogUnavailable`."""
        if not self.reachable:
            await trio.sleep(1.0)
            raise LogUnavailable("the log cannot be reached from this node")
        self.session_now = await self.backend.session()
        self.session_now.read_pace_s = self.read_pace_s
        return self.session_now

    async def look(self, position: int) -> Record | Trimmed | None:
        """See `LogBackend.look`."""
        if not self.reachable:
            await trio.sleep(1.0)
            raise LogUnavailable("the log cannot be reached from this node")
        return await self.backend.look(position)

    async def destroy(self) -> None:
        """Delete the cluster's log."""
        await self.backend.destroy()
