"""Reading the ZooKeeper log: a window of pipelined gets and one persistent watch.

The watch gives one event per record created (and per record deleted), always before the record
can be read.  So the number of events bounds how many records can exist beyond a position found
empty.  At the tail no get is outstanding, and each record costs one event and one get.  Records
that this session appended itself are passed on without a get.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio
from kazoo.exceptions import NoNodeError

from onyxq.core.errors import Corrupt, LogUnavailable
from onyxq.core.log.interface import SEQUENCE_BITS, Record, Trimmed, segment_of, segment_start
from onyxq.log.kazoo_client import BROKEN, Link, Reply, exists, get

AHEAD_MAX = 64
"""Outstanding gets, plus records held, ahead of the reader."""
AHEAD_FIRST = 4
ASK_TOGETHER = 16
"""Gets that are sent together once the window is nearly full.

With one system call for each get, a peer would start slowly.
"""
RECHECK_S = 5.0
"""Seconds that a reader waits at the tail before it looks again without an event."""
END = b"\xc1end of segment"
"""Contents of a segment's last child. No msgpack, and so no record, begins like this."""


class Layout:
    """Paths of one cluster in ZooKeeper."""

    def __init__(self, cluster: str) -> None:
        self.root = f"/onyxq/{cluster}"
        self.log = f"{self.root}/log"
        self.pulses = f"{self.root}/pulse"
        self.origins = f"{self.root}/origin"
        self.pointer = f"{self.origins}/pointer"

    def segment(self, number: int) -> str:
        """Return the directory of a segment's records."""
        return f"{self.log}/{number}"

    def record(self, position: int) -> str:
        """Return the path of a record."""
        return f"{self.segment(segment_of(position))}/e-{position & ((1 << SEQUENCE_BITS) - 1):010d}"

    def position(self, segment: int, path: str) -> int:
        """Return the position of a record created at ``path``."""
        return segment_start(segment) + int(path[-10:])


class Reader:
    """One session's window on the log. One read at a time."""

    def __init__(self, link: Link, layout: Layout, *, origin_position: Callable[[Any], int]) -> None:
        self._link = link
        self._layout = layout
        self._origin_position = origin_position
        self._next = -1
        """Position requested, or to be requested next; -1 before the first read."""
        self._found: dict[int, Record] = {}
        self._ends: dict[int, int] = {}
        """Positions found that look like the segment's end -> id of their transaction."""
        self._asked: dict[int, int] = {}
        """Outstanding gets: position -> events counted when it was sent."""
        self._front = 0
        """Position below which the whole window was requested, found or refused."""
        self._refused: set[int] = set()
        """Positions found empty although a later record exists."""
        self._end = 0
        """Position below which every record was written."""
        self._events = 0
        self._slack: int | None = None
        """Smallest value, in this connection, of a position found empty minus the events counted at its request.

        No record at or above slack + events can exist yet. None: unknown.
        """
        self._doubt = False
        """Whether the slack stems from a position that may be empty because it was trimmed."""
        self._own_flights = 0
        self._ahead = AHEAD_FIRST
        self._generation = 0
        self._segment = -1
        self._error: BaseException | None = None
        self._busy = False
        self._changed = trio.Event()
        link.on_connect.append(self._on_connect)
        link.on_end.append(self._wake)

    async def read(self, position: int) -> Record | Trimmed:
        if self._busy:
            raise trio.BusyResourceError("a session has one reader at a time")
        self._busy = True
        try:
            self._seek(position)
            return await self._await_next(position)
        finally:
            self._busy = False

    # --- own appends: called by the session ------------------------------------------

    def depart(self) -> None:
        """Note that an append of this session is in flight: the next event is probably its own."""
        self._own_flights += 1

    def arrive(self, record: Record | None) -> None:
        """Note that an append came back, with the record if it is known to have landed."""
        self._own_flights -= 1
        if record is not None and segment_of(record.position) == self._segment and record.data != END:
            self._end = max(self._end, record.position + 1)
            if 0 <= self._next <= record.position < self._next + AHEAD_MAX:
                self._keep(record)
        self._pump()

    # --- the window -------------------------------------------------------------------

    async def _await_next(self, position: int) -> Record | Trimmed:
        while True:
            self._link.check()
            if self._error is not None:
                raise LogUnavailable(f"ZooKeeper refuses to read the log: {self._error!r}")
            record = self._found.pop(position, None)
            if record is not None and record.data == END and await self._ends_segment(position):
                position = segment_start(self._segment + 1)
                self._seek(position)
                continue
            if record is not None:
                self._next = position + 1
                self._pump()
                await trio.lowlevel.checkpoint()
                return record
            if position in self._refused or (self._doubt and position not in self._asked):
                trimmed = await self._judge(position)
                if trimmed is not None:
                    return trimmed
                continue
            await self._wait(position)

    async def _wait(self, position: int) -> None:
        changed = self._changed
        with trio.move_on_after(RECHECK_S) as waited:
            await changed.wait()
        if waited.cancelled_caught and self._link.connected and position not in self._asked:
            self._ask(position)

    async def _ends_segment(self, position: int) -> bool:
        """Return whether the apparent segment's end at a position is the real one."""
        following = await self._link.insist(exists(self._layout.segment(self._segment + 1)))
        return following is not None and following.czxid == self._ends.get(position)

    async def _judge(self, position: int) -> Trimmed | None:
        """Distinguish a trimmed record from one not written yet.

        None if the record was found, or is to be requested again. The record is read before the
        pointer, and the pointer moves before records are deleted. So if the record is absent while the
        pointer is still lower, it was not written yet.
        """
        await self._link.wait_connected()
        generation, events, end = self._generation, self._events, self._end
        record = self._link.start(get(self._layout.record(position)))
        pointer = self._link.start(get(self._layout.pointer))
        try:
            if await self._take(position, record):
                return None
            try:
                origin = self._origin_position((await pointer.wait())[0])
            except NoNodeError:
                origin = -1
            if position <= origin:  # and it may have been written in between
                if await self._take(position, self._link.start(get(self._layout.record(position)))):
                    return None
                if segment_of(origin) == self._segment:
                    self._end = max(self._end, origin + 1)
                self._slack, self._doubt = None, False
                return Trimmed(origin)
        except BROKEN:
            await self._link.pause()
            return None
        if position < end:
            raise Corrupt(f"record {position} of the log is missing, although a later one exists")
        if generation == self._generation:
            self._refused.discard(position)
            self._front = min(self._front, position)
            self._doubt = False
            self._tighten(position, events)
            self._pump()
        return None

    async def _take(self, position: int, reply: Reply) -> bool:
        """Keep the record that a get found; return False if it found none."""
        try:
            data, stat = await reply.wait()
        except NoNodeError:
            return False
        self._on_found(position, data, stat)
        return True

    def _seek(self, position: int) -> None:
        if self._next < 0 or segment_of(position) != self._segment:
            self._link.client.unwatch(self._layout.segment(self._segment))
            self._segment = segment_of(position)
            self._next = position
            self._end = 0
            self._found.clear()
            self._ends.clear()
            self._on_connect()
        elif position != self._next:
            self._generation += 1
            self._front = position
            self._asked.clear()
            self._refused.clear()
            self._found = {p: record for p, record in self._found.items() if position <= p < position + AHEAD_MAX}
            self._next = position
        self._pump()

    def _on_connect(self) -> None:
        """Set the watch on a new connection before reading, so that no record is missed in between.

        Records of the previous connection are forgotten: the log may have gone back meanwhile.
        """
        self._generation += 1
        self._front = 0
        self._found.clear()
        self._asked.clear()
        self._refused.clear()
        self._slack, self._doubt = None, False
        if self._next < 0 or not self._link.connected:
            return
        path = self._layout.segment(self._segment)
        self._link.then(lambda client: client.watch_persistently(path, self._post_event), self._on_watched)
        self._pump()

    def _post_event(self) -> None:
        self._link.post(self._on_event)

    def _on_watched(self, value: Any, error: BaseException | None) -> None:
        if error is not None and not isinstance(error, BROKEN):
            self._error = error
            self._wake()

    def _on_event(self) -> None:
        self._events += 1
        self._pump()

    def _pump(self) -> None:
        """Send the gets that may find something."""
        if self._next < 0 or not self._link.connected:
            return
        limit = self._next + self._ahead
        if self._slack is not None:
            # Events of own appends in flight are left out: their records arrive with the answer.
            limit = min(limit, max(self._end, self._slack + self._events - self._own_flights))
        wanted = [
            position
            for position in range(max(self._next, self._front), limit)
            if position not in self._asked and position not in self._found and position not in self._refused
        ]
        under_way = len(self._asked) + len(self._found)
        if self._next not in wanted and len(wanted) < ASK_TOGETHER and under_way > AHEAD_MAX - ASK_TOGETHER:
            return  # the reader has enough records for now
        with self._link.client.together():
            for position in wanted:
                self._ask(position)
        self._front = max(self._front, limit)

    def _ask(self, position: int) -> None:
        generation, events = self._generation, self._events
        self._asked[position] = events

        def answered(value: Any, error: BaseException | None) -> None:
            if generation != self._generation:
                return
            self._asked.pop(position, None)
            if error is None:
                self._on_found(position, *value)
            elif isinstance(error, NoNodeError):
                self._on_absent(position, events)
            elif not isinstance(error, BROKEN):
                self._error = error
                self._wake()

        self._link.then(get(self._layout.record(position)), answered)

    def _on_found(self, position: int, data: bytes, stat: Any) -> None:
        self._end = max(self._end, position + 1)
        self._refused.discard(position)
        self._ahead = min(AHEAD_MAX, self._ahead * 2)
        if data == END:
            self._ends[position] = stat.czxid
        if position >= self._next:
            self._keep(Record(position, stat.ctime, data))
        self._pump()

    def _on_absent(self, position: int, events: int) -> None:
        self._ahead = AHEAD_FIRST
        self._front = min(self._front, position)
        if position >= self._end:
            self._doubt = True
            self._tighten(position, events)
        if position < self._end or position == self._next:
            self._refused.add(position)
            if position == self._next:
                self._wake()
        self._pump()

    def _tighten(self, position: int, events: int) -> None:
        slack = position - events
        self._slack = slack if self._slack is None else min(self._slack, slack)

    def _keep(self, record: Record) -> None:
        self._found[record.position] = record
        if record.position == self._next:
            self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
