"""Windows: what a leader keeps in memory of its ready index, best tasks first.

A window is only a hint about the order: whether a task is free is asked of the replica,
of the grants on their way and of the store when it is picked, so a piece may stand in a
window twice, or be outdated, and do no harm.  Memory is bounded, for a window and for all of
a node: behind a full window the pieces stay in the store until it is read on.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator

from onyxq.store.interface import Piece, Store

WINDOW_PIECES = 512
"""Pieces read at once."""
WINDOW_PIECES_MAX = 8_192
CROWDED_PIECES = 131_072
"""Pieces in all windows of a node, some 500 bytes each, from which on a window holds few."""
WINDOW_PIECES_LEAST = 64
"""So many at most, then."""

SortKey = tuple[int, int, bytes]
Free = Callable[[Piece], int]
"""The tasks of a piece that may be granted, as a mask."""


class Held:
    """How many pieces the windows of a node hold together."""

    def __init__(self) -> None:
        self.pieces = 0

    @property
    def window_max(self) -> int:
        """How many one window may hold now."""
        return WINDOW_PIECES_MAX if self.pieces < CROWDED_PIECES else WINDOW_PIECES_LEAST


class Window:
    """The best ready pieces of one queue in one partition; ``held`` counts those of all windows."""

    def __init__(self, store: Store, *, partition: int, queue: str, held: Held | None = None) -> None:
        self.partition = partition
        self.queue = queue
        self._store = store
        self._held = held or Held()
        self._heap: list[tuple[SortKey, int, Piece]] = []
        self._count = 0
        self._last: Piece | None = None
        self._complete = False
        """Whether everything that the store holds was read."""

    def add(self, piece: Piece) -> None:
        """A piece became ready (again); the store may still have it among what is due."""
        if self._last is None and not self._complete:
            self._read_on()
        if not self._complete and (self._last is None or piece.sort_key > self._last.sort_key):
            return  # it is read in its turn
        self._push(piece)
        if len(self._heap) > (limit := self._held.window_max):
            keep = heapq.nsmallest(limit // 2, self._heap)
            self._held.pieces -= len(self._heap) - len(keep)
            self._heap, self._last, self._complete = keep, keep[-1][2], False

    def restart(self) -> None:
        """Forget what was read: everything in the store is looked at again."""
        self._held.pieces -= len(self._heap)
        self._heap.clear()
        self._last, self._complete = None, False

    def head(self, free: Free) -> tuple[Piece, int] | None:
        """The best piece with free tasks and their mask; drops those without."""
        while True:
            while self._heap:
                piece = self._heap[0][2]
                if bits := free(piece):
                    return piece, bits
                self.pop()
            if self._complete:
                return None
            self._read_on()

    def ranked(self, free: Free) -> Iterator[tuple[SortKey, int]]:
        """Yield the keys of the pieces in memory and how many tasks of each are free, best first.

        Nothing changes. If the store has more, the last one is of no task: what follows it is not known.
        """
        heap, last = self._heap, None
        places = [(heap[0][:2], 0)] if heap else []
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
        """Drop the head: all its free tasks were taken."""
        heapq.heappop(self._heap)
        self._held.pieces -= 1

    def estimate(self) -> int:
        """About how many tasks are ready, from what is in memory."""
        return sum(piece.bits.bit_count() for _, _, piece in self._heap[:16])

    def _read_on(self) -> None:
        limit = min(WINDOW_PIECES, self._held.window_max)
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
        self._held.pieces += 1
        heapq.heappush(self._heap, (piece.sort_key, self._count, piece))
