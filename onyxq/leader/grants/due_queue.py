"""What falls due in the partitions that a node leads: loaded ahead of time, offered when its time comes.

The tasks of the next moments are in memory, in order, so that a due time costs no write and
no search.  They are read from the store's due index piece by piece, some time ahead; what is
written with a due time before the point read up to is pushed straight in.  Memory is bounded:
where much is due at a time less of it is read ahead.

A claim takes a while: a coordinator hears of the task, asks for it, and the log decides.  So
what falls due is offered twice: a moment ahead to those who claim ahead and begin it once it is
due, and then, unless it was claimed, to all when it is due.  Where timers come thick and fast,
those of some milliseconds are offered together, at moments that all nodes share: what it takes to
claim and complete a task is mostly the same for many at once.  One that comes alone, and that
nobody claimed ahead, is offered right when it is due.

Behind that, a few times a second, the store moves what fell due and is not done yet from its
due index to the ready one, where it may wait in any number.  A task that is missed here, for
whatever reason, is offered then.
"""

from __future__ import annotations

import heapq
import logging
import math
from collections.abc import Callable, Iterable, Sequence

import trio

from onyxq.core.errors import StoreFailed
from onyxq.store.interface import Batch, Piece, Store

AHEAD_MS = 2_000
"""How far the due index is read ahead."""
LOOK_PIECES_MAX = 256
"""Pieces of one partition read at a time."""
PIECES_MAX = 50_000
"""Pieces in memory from which on nothing more is read ahead."""
TOGETHER_MS = 24
"""Pieces that fall due so soon after others were offered wait for the next whole multiple of this."""
ROUND_MS = 192
"""What falls due between two whole multiples of this is offered ahead together,"""
SOON_MS = 192
"""so long before the first of them: a claim takes less, also where processors are busy."""
PROMOTE_EVERY_MS = 500
"""Partitions are promoted together, at whole multiples of this."""
FAILED_PAUSE_MS = 1_000
LOOK_AGAIN_S = 1.0
"""The wall clock may jump while the monotonic one is waited on."""

log = logging.getLogger(__name__)


class Agenda:
    """For each partition the earliest time at which something is to be done with it."""

    def __init__(self) -> None:
        self._at: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []

    def put(self, partition: int, at_ms: int) -> bool:
        """At this time, unless it is to be earlier; whether nothing comes before it."""
        if at_ms < self._at.get(partition, math.inf):
            self._at[partition] = at_ms
            heapq.heappush(self._heap, (at_ms, partition))
            return self._heap[0][0] == at_ms
        return False

    def next_ms(self) -> int | None:
        """The earliest time."""
        while self._heap and self._at.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def take(self, now_ms: int) -> list[int]:
        """Partitions whose time has come, sorted; they have none any more."""
        found = []
        while (at_ms := self.next_ms()) is not None and at_ms <= now_ms:
            partition = heapq.heappop(self._heap)[1]
            del self._at[partition]
            found.append(partition)
        return sorted(found)

    def drop(self, partition: int) -> None:
        """Nothing is to be done with it."""
        self._at.pop(partition, None)


class Upcoming:
    """See the module's first paragraph."""

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
        """Takes pieces that are due."""
        self._offer_soon = offer_soon
        """Takes pieces that will be due in a moment; they are offered once more then."""
        self._pieces_max = pieces_max
        self._pieces: list[tuple[int, int, Piece]] = []
        """Neither due nor offered ahead."""
        self._soon: list[tuple[int, int, Piece]] = []
        """Offered ahead, not due yet."""
        self._count = 0
        self._read_to: dict[int, int] = {}
        """Of each partition led: due time before which all is in memory, or was offered."""
        self._offered_ms = 0
        """When something was offered last."""
        self._looks = Agenda()
        self._promotions = Agenda()
        self._sooner = trio.Event()
        self._promote_sooner = trio.Event()

    # --- what others tell

    def lead(self, partition: int) -> None:
        """The partition serves from here: what is overdue is promoted at once, the rest in its time."""
        now_ms = self._wall_ms()
        self._read_to[partition] = now_ms
        self._look_at(partition, now_ms)
        if (next_ms := self._store.next_due_ms(partition)) is not None:
            self._promote_at(partition, next_ms if next_ms <= now_ms else _promotion_ms(next_ms))

    def drop(self, partition: int) -> None:
        """The partition is no longer led from here."""
        self._read_to.pop(partition, None)
        self._looks.drop(partition)
        self._promotions.drop(partition)

    def add(self, pieces: Iterable[Piece]) -> None:
        """Pieces that fall due later are in the store."""
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
        """Offer and promote in time until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._promote_in_time)
            while True:
                now_ms = self._wall_ms()
                for partition in self._looks.take(now_ms):
                    self._look(partition, now_ms)
                self._offer_ahead(now_ms)
                self._offer_due(now_ms)
                self._sooner = trio.Event()
                await self._wait(self._next_ms(), self._sooner)

    # --- offering

    @property
    def _room(self) -> int:
        """How many pieces more may be in memory."""
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
        """When the next pieces are offered."""
        due_ms = self._soon[0][0]
        if 0 <= due_ms - self._offered_ms < TOGETHER_MS:
            return _multiple(due_ms, TOGETHER_MS)
        return due_ms

    def _look(self, partition: int, now_ms: int) -> None:
        """Read on in a partition's due index."""
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
            # If all are due in one millisecond, what is left of it is had when it is promoted.
            self._read_to[partition] = max(found[-1].due_ms, start_ms + 1)
            self._looks.put(partition, max(found[limit // 2].due_ms, now_ms + 1))

    def _push(self, piece: Piece) -> None:
        self._count += 1
        heapq.heappush(self._pieces, (piece.due_ms, self._count, piece))
        if self._pieces[0][2] is piece:
            self._sooner.set()

    def _look_at(self, partition: int, at_ms: int) -> None:
        if self._looks.put(partition, at_ms):
            self._sooner.set()

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
            self._promote_sooner.set()

    async def _promote_in_time(self) -> None:
        while True:
            now_ms = self._wall_ms()
            if partitions := self._promotions.take(now_ms):
                await self._promote(partitions, now_ms)
            else:
                self._promote_sooner = trio.Event()
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

    async def _wait(self, at_ms: int | None, sooner: trio.Event) -> None:
        wait_s = math.inf if at_ms is None else min((at_ms - self._wall_ms()) / 1000, LOOK_AGAIN_S)
        with trio.move_on_after(max(wait_s, 0.0)):
            await sooner.wait()


def _promotion_ms(due_ms: int) -> int:
    """When what is due at a time is promoted: together with what is due about then."""
    return _multiple(due_ms, PROMOTE_EVERY_MS)


def _soon_ms(due_ms: int) -> int:
    """When what is due at a time is offered ahead."""
    return _multiple(due_ms, ROUND_MS) - ROUND_MS - SOON_MS


def _multiple(at_ms: int, every_ms: int) -> int:
    """The next whole multiple, the time itself if it is one."""
    return -(-at_ms // every_ms) * every_ms
