"""Windows: the parts of the ready index that a leader has in memory, best tasks first.

A window is only a hint about the order. When a task is picked, the replica, the grants on their way
and the store decide whether it may be granted. So a piece may be in a window twice or be outdated
without harm. Memory is bounded for a window and for all windows of a node. If a window is full,
further pieces stay in the store until they are read.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator

from onyxq.store.interface import Piece
from onyxq.store.store import Store

WINDOW_PIECES = 512
"""Pieces that are read at once."""
WINDOW_PIECES_MAX = 8_192
CROWDED_PIECES = 131_072
"""Pieces in all windows of a node, about 500 bytes each, above which every window has a smaller limit."""
WINDOW_PIECES_LEAST = 64
"""That smaller limit, in pieces."""

SortKey = tuple[int, int, bytes]
Free = Callable[[Piece], int]
"""Returns the grantable tasks of a piece, as a mask."""


class PieceCounter:
    """Counts the pieces in all windows of a node."""

    def __init__(self) -> None:
        self.pieces = 0

    @property
    def window_max(self) -> int:
        """How many pieces one window may have now."""
        return WINDOW_PIECES_MAX if self.pieces < CROWDED_PIECES else WINDOW_PIECES_LEAST


class Window:
    """The best ready pieces of one queue in one partition; ``counter`` counts those of all windows."""

    def __init__(self, store: Store, *, partition: int, queue: str, counter: PieceCounter | None = None) -> None:
        self.partition = partition
        self.queue = queue
        self._store = store
        self._counter = counter or PieceCounter()
        self._heap: list[tuple[SortKey, int, Piece]] = []
        self._count = 0
        self._last: Piece | None = None
        self._complete = False
        """Whether all pieces of the store were read."""

    def add(self, piece: Piece) -> None:
        """Add a piece that became ready (again); the store may still have it in its due index."""
        if self._last is None and not self._complete:
            self._read_on()
        if not self._complete and (self._last is None or piece.sort_key > self._last.sort_key):
            return  # it will be read in its turn
        self._push(piece)
        if len(self._heap) > (limit := self._counter.window_max):
            keep = heapq.nsmallest(limit // 2, self._heap)
            self._counter.pieces -= len(self._heap) - len(keep)
            self._heap, self._last, self._complete = keep, keep[-1][2], False

    def restart(self) -> None:
        """Forget the pieces, so that all of the store is read again."""
        self._counter.pieces -= len(self._heap)
        self._heap.clear()
        self._last, self._complete = None, False

    def head(self, free: Free) -> tuple[Piece, int] | None:
        """Return the best piece with grantable tasks, and their mask; drop pieces without such tasks."""
        while True:
            while self._heap:
                piece = self._heap[0][2]
                if bits := free(piece):
                    return piece, bits
                self.pop()
            if self._complete:
                return None
            self._read_on()

    def after_head(self, free: Free) -> Iterator[tuple[SortKey, int]]:
        """Yield the sort keys of the pieces after the head and how many tasks of each are grantable, best first.

        Only pieces in memory count. Nothing changes. If the store has more pieces, the last item has a count of 0:
        the tasks after it are unknown.
        """
        heap = self._heap
        places = [(heap[0][:2], 0)] if heap else []
        last = heap[0][0] if heap else None
        while places:
            (key, _), place = heapq.heappop(places)
            for child in (2 * place + 1, 2 * place + 2):
                if child < len(heap):
                    heapq.heappush(places, (heap[child][:2], child))
            if key != last and (bits := free(heap[place][2])):
                yield key, bits.bit_count()
            last = key
        if not self._complete and self._last is not None:
            yield self._last.sort_key, 0

    def pop(self) -> None:
        """Drop the head, whose grantable tasks were all taken."""
        heapq.heappop(self._heap)
        self._counter.pieces -= 1

    def estimate(self) -> int:
        """Return about how many tasks are ready, from the pieces in memory."""
        return sum(piece.bits.bit_count() for _, _, piece in self._heap[:16])

    def _read_on(self) -> None:
        limit = min(WINDOW_PIECES, self._counter.window_max)
        pieces = self._store.ready(self.partition, self.queue, after=self._last, limit=limit)
        self._extend(pieces)
        self._complete = len(pieces) < limit
        if pieces:
            self._last = pieces[-1]

    def _extend(self, pieces: Iterable[Piece]) -> None:
        for piece in pieces:
            self._push(piece)

    def _push(self, piece: Piece) -> None:
        self._count += 1
        self._counter.pieces += 1
        heapq.heappush(self._heap, (piece.sort_key, self._count, piece))
