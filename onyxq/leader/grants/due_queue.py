"""Delayed tasks of the partitions that a node leads: loaded ahead of time, offered when they are due.

The tasks of the next moments are in memory, in order, so a due time needs no write and no search.
They are read in pages from the store's due index, some time ahead. A new task that is due before
the point read up to is added directly. Memory is bounded: if much is due at one time, less is read
ahead.

A claim takes time: a coordinator must learn of the task and claim it, and the log must decide. So
due tasks are offered twice. Shortly before the due time they are offered to claimers that claim
ahead and start the task once it is due. At the due time, unclaimed tasks are offered to all. If
many timers are due in a short time, those of some milliseconds are offered together, at moments
that all nodes share, because claims and completions of many tasks cost little more than those of
one. A single timer that was not claimed ahead is offered exactly at its due time.

A few times a second, the store also moves unfinished due tasks from its due index to the ready
index, which may hold any number. A task that was missed here is offered then.
"""

from __future__ import annotations

import heapq
import logging
import math
from collections.abc import Callable, Iterable, Sequence

from onyxq.core.errors import StoreFailed
from onyxq.store.interface import Batch, Piece
from onyxq.store.store import Store
from onyxq.system.procedures import Wait, beside

AHEAD_MS = 2_000
"""Time by which the due index is read ahead."""
LOOK_PIECES_MAX = 256
"""Pieces of one partition that are read at a time."""
PIECES_MAX = 50_000
"""Most pieces in memory. With more, nothing is read ahead."""
TOGETHER_MS = 24
"""Pieces that are due less than this time after the last offer wait for the next multiple of it."""
ROUND_MS = 192
"""Pieces that are due between two multiples of this time are offered ahead together."""
SOON_MS = 192
"""Time by which they are offered before the first is due: more than a claim takes, even on busy processors."""
PROMOTE_EVERY_MS = 500
"""Partitions are promoted together, at multiples of this time."""
FAILED_PAUSE_MS = 1_000
LOOK_AGAIN_S = 1.0
"""Longest single wait, because the wall clock may jump meanwhile."""

log = logging.getLogger(__name__)


class Agenda:
    """For each partition, the earliest time at which work on it is due."""

    def __init__(self) -> None:
        self._at: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []

    def put(self, partition: int, at_ms: int) -> bool:
        """Set the time of a partition unless it has an earlier one; return whether it is now the first of all."""
        if at_ms < self._at.get(partition, math.inf):
            self._at[partition] = at_ms
            heapq.heappush(self._heap, (at_ms, partition))
            return self._heap[0][0] == at_ms
        return False

    def next_ms(self) -> int | None:
        """Return the earliest time."""
        while self._heap and self._at.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def take(self, now_ms: int) -> list[int]:
        """Return the partitions whose time has come, sorted, and remove them."""
        found = []
        while (at_ms := self.next_ms()) is not None and at_ms <= now_ms:
            partition = heapq.heappop(self._heap)[1]
            del self._at[partition]
            found.append(partition)
        return sorted(found)

    def drop(self, partition: int) -> None:
        """Remove a partition."""
        self._at.pop(partition, None)


class DueQueue:
    """Offers due tasks of the partitions that a node leads; one per node."""

    def __init__(
        self,
        store: Store,
        *,
        wall_ms: Callable[[], int],
        offer: Callable[[Sequence[Piece]], None],
        offer_soon: Callable[[Sequence[Piece]], None] = lambda pieces: None,
        pieces_max: int = PIECES_MAX,
    ) -> None:
        self._store = store
        self._wall_ms = wall_ms
        self._offer = offer
        """Called with pieces that are due."""
        self._offer_soon = offer_soon
        """Called with pieces that will be due in a moment; they are offered again then."""
        self._pieces_max = pieces_max
        self._pieces: list[tuple[int, int, Piece]] = []
        """Pieces that are neither due nor offered ahead."""
        self._soon: list[tuple[int, int, Piece]] = []
        """Pieces that were offered ahead and are not due yet."""
        self._count = 0
        self._read_to: dict[int, int] = {}
        """Partition led from here -> due time before which all tasks are in memory or were offered."""
        self._offered_ms = 0
        """Time of the last offer."""
        self._looks = Agenda()
        self._promotions = Agenda()
        self._sooner = Wait()
        self._promote_sooner = Wait()

    # --- what others tell

    def lead(self, partition: int) -> None:
        """Start with a partition: promote overdue tasks at once, the others when they are due."""
        now_ms = self._wall_ms()
        self._read_to[partition] = now_ms
        self._look_at(partition, now_ms)
        if (next_ms := self._store.next_due_ms(partition)) is not None:
            self._promote_at(partition, next_ms if next_ms <= now_ms else _promotion_ms(next_ms))

    def drop(self, partition: int) -> None:
        """Stop with a partition that is no longer led from here."""
        self._read_to.pop(partition, None)
        self._looks.drop(partition)
        self._promotions.drop(partition)

    def add(self, pieces: Iterable[Piece]) -> None:
        """Add pieces of the store that are due later."""
        for piece in pieces:
            partition = int.from_bytes(piece.first[6:8], "big")
            read_to_ms = self._read_to.get(partition)
            if read_to_ms is None:
                continue
            self._promote_at(partition, _promotion_ms(piece.due_ms))
            if piece.due_ms >= read_to_ms:
                self._look_at(partition, max(piece.due_ms - AHEAD_MS, read_to_ms - AHEAD_MS // 2))
            elif self._room > 0:
                self._push(piece)
            else:
                self._read_to[partition] = piece.due_ms
                self._look_at(partition, piece.due_ms - AHEAD_MS // 2)

    async def run(self) -> None:
        """Offer and promote tasks in time until cancelled."""
        async with beside() as start:
            start(self._promote_in_time())
            while True:
                now_ms = self._wall_ms()
                for partition in self._looks.take(now_ms):
                    self._look(partition, now_ms)
                self._offer_ahead(now_ms)
                self._offer_due(now_ms)
                self._sooner = Wait()
                await self._wait(self._next_ms(), self._sooner)

    # --- offering

    @property
    def _room(self) -> int:
        """How many more pieces may be in memory."""
        return self._pieces_max - len(self._pieces) - len(self._soon)

    def _offer_ahead(self, now_ms: int) -> None:
        soon = []
        while self._pieces and _soon_ms(self._pieces[0][0]) <= now_ms:
            one = heapq.heappop(self._pieces)
            heapq.heappush(self._soon, one)
            if one[0] > now_ms:
                soon.append(one[2])
        if soon:
            self._offer_soon(soon)

    def _offer_due(self, now_ms: int) -> None:
        due = []
        if self._soon and now_ms < self._offer_ms():
            return
        while self._soon and self._soon[0][0] <= now_ms:
            due.append(heapq.heappop(self._soon)[2])
        if due:
            self._offered_ms = now_ms
            self._offer(due)

    def _offer_ms(self) -> int:
        """Return when the next pieces are offered."""
        due_ms = self._soon[0][0]
        if 0 <= due_ms - self._offered_ms < TOGETHER_MS:
            return _multiple(due_ms, TOGETHER_MS)
        return due_ms

    def _look(self, partition: int, now_ms: int) -> None:
        """Read the next part of a partition's due index."""
        start_ms, end_ms = self._read_to[partition], now_ms + AHEAD_MS
        limit = min(LOOK_PIECES_MAX, self._room)
        if limit <= 0:
            self._looks.put(partition, now_ms + AHEAD_MS // 4)
            return
        found = self._store.due(partition, start_ms, end_ms, limit=limit)
        for piece in found:
            self._push(piece)
        if len(found) < limit:
            self._read_to[partition] = max(start_ms, end_ms)
            if (next_ms := self._store.next_due_ms(partition, end_ms)) is not None:
                self._looks.put(partition, max(next_ms - AHEAD_MS, now_ms + AHEAD_MS // 2))
        else:
            # If all are due in one millisecond, the rest of them is offered when it is promoted.
            self._read_to[partition] = max(found[-1].due_ms, start_ms + 1)
            self._looks.put(partition, max(found[limit // 2].due_ms, now_ms + 1))

    def _push(self, piece: Piece) -> None:
        self._count += 1
        heapq.heappush(self._pieces, (piece.due_ms, self._count, piece))
        if self._pieces[0][2] is piece:
            self._sooner.end()

    def _look_at(self, partition: int, at_ms: int) -> None:
        if self._looks.put(partition, at_ms):
            self._sooner.end()

    def _next_ms(self) -> int | None:
        times = [] if (look_ms := self._looks.next_ms()) is None else [look_ms]
        if self._pieces:
            times.append(_soon_ms(self._pieces[0][0]))
        if self._soon:
            times.append(self._offer_ms())
        return min(times, default=None)

    # --- promoting

    def _promote_at(self, partition: int, at_ms: int) -> None:
        if self._promotions.put(partition, at_ms):
            self._promote_sooner.end()

    async def _promote_in_time(self) -> None:
        while True:
            now_ms = self._wall_ms()
            if partitions := self._promotions.take(now_ms):
                await self._promote(partitions, now_ms)
            else:
                self._promote_sooner = Wait()
                await self._wait(self._promotions.next_ms(), self._promote_sooner)

    async def _promote(self, partitions: Sequence[int], now_ms: int) -> None:
        try:
            written = await self._store.write(Batch(promote=tuple((number, now_ms) for number in partitions)))
        except StoreFailed as error:
            log.warning("due tasks wait: %s", error.message)
            for partition in partitions:
                self._promote_at(partition, now_ms + FAILED_PAUSE_MS)
            return
        self._offer(written.pieces)
        for partition in partitions:
            next_ms = self._store.next_due_ms(partition)
            if next_ms is not None and partition in self._read_to:
                self._promote_at(partition, next_ms if next_ms <= now_ms else _promotion_ms(next_ms))

    async def _wait(self, at_ms: int | None, sooner: Wait) -> None:
        wait_s = math.inf if at_ms is None else min((at_ms - self._wall_ms()) / 1000, LOOK_AGAIN_S)
        await sooner.wait(max(wait_s, 0.0))


def _promotion_ms(due_ms: int) -> int:
    """Return when tasks of a due time are promoted: together with others of about the same time."""
    return _multiple(due_ms, PROMOTE_EVERY_MS)


def _soon_ms(due_ms: int) -> int:
    """Return when tasks of a due time are offered ahead."""
    return _multiple(due_ms, ROUND_MS) - ROUND_MS - SOON_MS


def _multiple(at_ms: int, every_ms: int) -> int:
    """Return the next multiple, or the time itself if it is one."""
    return -(-at_ms // every_ms) * every_ms
