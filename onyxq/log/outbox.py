"""The outbox: a peer's entries on their way into the log, each record exactly once.

One record is in flight at a time.  While none is, an entry is sent at once.  While one is,
entries gather and are sent together, so light load is fast and heavy load cheap.  A record whose
append has an unknown outcome is sent again under the same number.  `step` applies a number once,
so if the first append landed, the repeat changes nothing.

Every peer reads every record, so the records of many busy peers would fill each peer's processor.
An outbox therefore paces itself by the records that the others write: `Pace`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import trio
from attrs import define, field

from onyxq.core.entry import RECORD_BYTES_MAX
from onyxq.core.errors import LogUnavailable
from onyxq.core.log.clock import Measured
from onyxq.core.log.interface import AppendUnknown, LogSession
from onyxq.core.log.record import encode_record
from onyxq.core.step import Outcome
from onyxq.system import failures
from onyxq.system.clock import WallClock
from onyxq.system.procedures import Wait
from onyxq.system.signal import Signal

RECORD_ENTRIES_BYTES_MAX = RECORD_BYTES_MAX - 4096
RESEND_PAUSE_S = 0.2
LAZY_S = 0.05
"""Longest time, in seconds, that entries without a waiter (releases) wait for others to join."""
ENTRIES_MAX = 20_000

FREE_PER_S = 1_000.0
"""Rate of the other peers' records up to which an outbox does not pause, in records per second."""
PAUSE_PER_RATE_S = 0.0005
"""Pause after a record for each record per second of the others above `FREE_PER_S`, in seconds."""
PAUSE_MAX_S = 0.2
RATE_S = 1.0
"""Time constant with which the rate follows the log, in seconds."""
GATHER_S = 0.001
"""Time after a pause in which those who waited for its end may add entries, in seconds."""

Done = Callable[[int, Sequence[str] | None], None]
"""Callback with the record's position and the verdicts of the submitted entries, in order.

It gets (-1, None) if the session ended before they were read back (outcome unknown).
"""


@define(eq=False)
class _Submission:
    entries: list[bytes]
    done: Done | None
    positions: list[int] = field(factory=list)
    verdicts: list[str] = field(factory=list)


@define
class Pace:
    """How fast a peer may write, by the records that the others write.

    Up to a rate it never pauses: light load is not delayed, nor is a peer that is alone.  Above that rate the pause
    rises, so the records of many busy peers grow instead of multiplying.
    """

    _rate: float = 0.0
    _since_s: float = 0.0

    def note(self, now_s: float) -> None:
        """Count a record of another peer."""
        self._rate, self._since_s = self.rate(now_s) + 1 / RATE_S, now_s

    def rate(self, now_s: float) -> float:
        """Return the records per second of the other peers lately."""
        return self._rate * math.exp((self._since_s - now_s) / RATE_S)

    def pause_s(self, now_s: float) -> float:
        """Return the shortest time until this peer's next record, in seconds."""
        return pause_at(self.rate(now_s))


def pause_at(others_per_s: float) -> float:
    """Return the pause after a record, in seconds, while the others write a number of records per second."""
    return min(max(0.0, others_per_s - FREE_PER_S) * PAUSE_PER_RATE_S, PAUSE_MAX_S)


class Outbox:
    """Appends the entries that one peer submits."""

    def __init__(
        self,
        session: LogSession,
        *,
        peer: str,
        clock: WallClock,
        measure: Callable[[], Measured],
        on_append: Callable[[float], None],
        encode: Callable[[Any], bytes],
    ) -> None:
        self.peer = peer
        self.cluster_id = ""
        self.number = 0
        """Number of the last record made."""
        self._session = session
        self._clock = clock
        self._measure = measure
        self._on_append = on_append
        self._encode = encode
        self._waiting: deque[tuple[_Submission, bytes]] = deque()
        self._lazy: deque[tuple[_Submission, bytes]] = deque()
        self._unread: dict[int, list[tuple[_Submission, bytes]]] = {}
        """Records sent or being sent, by number, until they are read back."""
        self._landed: dict[int, int] = {}
        """Positions of the records in ``_unread`` that are known to have landed, by number."""
        self._pace = Pace()
        self._added = 0
        """Number of entries submitted so far, except lazy ones."""
        self._done = 0
        """Number of these whose record was written and whose pause is over."""
        self._wake = Wait()
        self._flushed = Signal()
        self._lazy_since: float | None = None
        self._flight_since: float | None = None
        self._empty_wanted = False
        self.closed = False
        self.sent_at = trio.current_time()
        """Second of trio's clock at which the last record was appended."""

    # --- what others ask of it

    def submit(self, entries: Sequence[Any], done: Done | None = None, *, lazy: bool = False) -> None:
        """Queue entries; ``done`` is called with their verdicts.

        Raises `LogUnavailable` when closed or full, `TooLarge` for an entry over its limit, and
        `NotEnabled` for an entry that may not be used yet.
        """
        if self.closed or len(self._waiting) > ENTRIES_MAX:
            raise LogUnavailable("the log cannot be written now")
        packed = [self._encode(entry) for entry in entries]
        with failures.serving("an entry"):
            failures.begin()
            self._add(packed, done, lazy=lazy)

    def _add(self, packed: list[bytes], done: Done | None, *, lazy: bool) -> None:
        submission = _Submission(packed, done)
        queue = self._lazy if lazy else self._waiting
        queue.extend((submission, entry) for entry in packed)
        if not lazy:
            self._added += len(packed)
            self._wake.end()
        elif self._lazy_since is None:  # later ones are sent with the first, whose time is known
            self._lazy_since = trio.current_time()
            self._wake.end()

    def submit_empty(self) -> None:
        """Let log time advance: send an empty record, unless another is sent anyway."""
        self._empty_wanted = True
        self._wake.end()

    def holds(self, entry: Any) -> bool:
        """Return whether an equal entry is on its way already."""
        packed = self._encode(entry)
        if any(packed == other for _, other in self._waiting):
            return True
        return any(packed == other for record in self._unread.values() for _, other in record)

    def stalled_s(self) -> float:
        """Return for how many seconds the record in flight has waited; 0.0 without one."""
        return trio.current_time() - self._flight_since if self._flight_since is not None else 0.0

    async def flushed(self) -> None:
        """Return when all entries submitted before are written, and the next record may be filled."""
        added = self._added
        while self._done < added and not self.closed:
            await self._flushed.wait()

    def note_read(self, writer: str) -> None:
        """Count a record that was read, for the pace of this peer's own records."""
        if writer != self.peer:
            self._pace.note(trio.current_time())

    def pause_s(self) -> float:
        """Return the shortest time from one record to the next at present, in seconds."""
        return self._pace.pause_s(trio.current_time())

    def applied(self, number: int, position: int, outcomes: Sequence[Outcome]) -> None:
        """Report verdicts after the reader applied this peer's record ``number``."""
        self._landed.pop(number, None)
        record = self._unread.pop(number, None)
        if record is None:
            return
        for (submission, _), outcome in zip(record, outcomes, strict=True):
            submission.verdicts.append(outcome.verdict)
            if len(submission.verdicts) == len(submission.entries) and submission.done:
                submission.done(position, submission.verdicts)

    def _landed_by(self, number: int, position: int) -> bool:
        """Return whether a record is known to be in the log, not after ``position``."""
        return self._landed.get(number, position + 1) <= position

    def skipped(self, number: int, position: int) -> None:
        """Report unknown outcomes after the reader reached ``position`` without reading all records.

        That concerns records up to ``number``, and those that landed up to ``position``: for a peer
        that left, an origin may have forgotten the number. Their verdicts cannot be learned any more.
        """
        for behind in sorted(self._unread):
            if behind <= number or self._landed_by(behind, position):
                self._landed.pop(behind, None)
                _tell_unknown(self._unread.pop(behind))

    def close(self) -> None:
        """Close after the end of the session: all waiters learn that the outcome is unknown."""
        self.closed = True
        pending = [item for record in self._unread.values() for item in record]
        _tell_unknown([*pending, *self._waiting, *self._lazy])
        self._unread.clear()
        self._landed.clear()
        self._waiting.clear()
        self._lazy.clear()
        self._flushed.fire()

    # --- its task

    async def run(self) -> None:
        """Append until cancelled or the session is lost (`SessionLost`)."""
        while True:
            await self._something_to_send()
            record, added = self._take(), self._added - len(self._waiting)
            self.number += 1
            self._unread[self.number] = record
            self._flight_since = trio.current_time()
            await self._append(self.number, [entry for _, entry in record])
            self._on_append(trio.current_time() - self._flight_since)
            self._flight_since = None
            self.sent_at = trio.current_time()
            pause_s = self.pause_s()
            if pause_s:
                await trio.sleep(pause_s)
            self._done = added
            self._flushed.fire()
            if pause_s:
                await trio.sleep(GATHER_S)

    async def _append(self, number: int, entries: list[bytes]) -> None:
        while number in self._unread:
            # Measured anew each time: an old time would make this peer's clock look slow.
            wall_ms, measured = self._clock.wall_ms(), self._measure()
            data = encode_record(self.cluster_id, self.peer, number, wall_ms, entries, measured=measured)
            try:
                position = await self._session.append(data)
            except AppendUnknown:
                # If it landed, the reader soon reports that; otherwise it is sent again.
                await trio.sleep(RESEND_PAUSE_S)
                continue
            if number in self._unread:
                self._landed[number] = position
            return

    async def _something_to_send(self) -> None:
        while not self._waiting and not self._empty_wanted:
            wait_s = float("inf")
            if self._lazy_since is not None:
                wait_s = self._lazy_since + LAZY_S - trio.current_time()
                if wait_s <= 0:
                    return
            self._wake = Wait()
            await self._wake.wait(wait_s)

    def _take(self) -> list[tuple[_Submission, bytes]]:
        taken: list[tuple[_Submission, bytes]] = []
        size = 0
        for queue in (self._waiting, self._lazy):
            while queue and size + len(queue[0][1]) <= RECORD_ENTRIES_BYTES_MAX:
                taken.append(queue.popleft())
                size += len(taken[-1][1])
        if not self._lazy:
            self._lazy_since = None
        self._empty_wanted = False
        return taken


def _tell_unknown(items: Sequence[tuple[_Submission, bytes]]) -> None:
    """Report once to each submission among ``items`` that its outcome is unknown."""
    for submission in dict.fromkeys(submission for submission, _ in items):
        if submission.done:
            submission.done(-1, None)
