"""One key group of a join: takes segments of two sides, returns pairs (see `onyxq.jobs.model.Join`).

Segments that may still find a partner are kept. The cell of a key is ``[[place, time, value, paired], ...]``, with
``place`` 0 for left and 1 for right. Without ``within_ms`` all segments are kept. Otherwise a segment is dropped
when all its possible partners would be late. The watermark decides this: the newest time of the side that lags, less
``watermark_ms``. With ``how="left"`` a left segment without a partner is emitted when it is dropped, and when all
inputs have ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgpack
from attrs import field, frozen, mutable

from onyxq.jobs.key_state import BUCKET_BYTES_MAX, Buckets, Notes, Store, later
from onyxq.jobs.model import Join
from onyxq.jobs.windows import NEVER

SIDE, TIME, VALUE, PAIRED = range(4)
Pair = dict[str, Any]


@mutable
class Index:
    """State of a group at the start of a batch, besides its buckets."""

    notes: Notes
    """For each bucket, the earliest time at which a segment in it is dropped."""
    newest: list[int | None]
    """For each side, the latest time of all segments so far."""
    late: int = 0
    """Number of late segments so far."""

    def pack(self) -> bytes:
        return bytes(msgpack.packb([list(self.notes.items()), self.newest, self.late]))

    @classmethod
    def unpack(cls, data: bytes | None) -> Index:
        """Return the index of such bytes; without bytes, that of a group that has seen nothing."""
        if data is None:
            return cls({}, [None, None])
        notes, newest, late = msgpack.unpackb(data)
        return cls(dict(map(tuple, notes)), newest, late)


@frozen
class Batch:
    """Input of a group in one batch."""

    segments: Sequence[tuple[int, bytes, int | None, Any]] = ()
    """Side, packed key, time if the join has one, value."""
    newest: Sequence[Sequence[int | None]] = ()
    """For each part of the batch and each side, the latest time in it."""
    ended: bool = False
    """Whether all inputs have ended."""


@mutable
class Group:
    """A key group at work on one batch."""

    join: Join
    index: Index
    store: Store
    bucket_bytes_max: int = BUCKET_BYTES_MAX
    _buckets: Buckets = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._buckets = Buckets(self.store, self.index.notes, self._note, self.bucket_bytes_max)

    def batch(self, batch: Batch) -> Iterator[Pair]:
        """Yield all pairs; the store and the index are updated once the iterator is exhausted."""
        before = self._watermark()
        for side, key, time_ms, value in batch.segments:
            if time_ms is None or time_ms >= before:
                yield from self._paired(self._buckets.cell(key), [side, time_ms, value, False])
            else:
                self.index.late += 1
        for latest in batch.newest:
            self.index.newest = [later(one, other) for one, other in zip(self.index.newest, latest, strict=True)]
        self._buckets.refresh()
        yield from self._let_go(NEVER if batch.ended else self._watermark())
        self._buckets.save()
        self.index.notes = self._buckets.notes

    def restore(self, cells: Iterable[tuple[bytes, list[Any]]]) -> None:
        """Store the cells of another job in a group that has none: packed key, segments."""
        for key, cell in cells:
            self._buckets.cell(key)[:] = cell
        self._buckets.save()
        self.index.notes = self._buckets.notes

    def _paired(self, cell: list[Any], new: list[Any]) -> Iterator[Pair]:
        for kept in cell:
            if kept[SIDE] != new[SIDE] and self._near(kept[TIME], new[TIME]):
                kept[PAIRED] = new[PAIRED] = True
                left, right = (new, kept) if kept[SIDE] else (kept, new)
                yield {"left": left[VALUE], "right": right[VALUE]}
        cell.append(new)

    def _near(self, one: int | None, other: int | None) -> bool:
        if self.join.within_ms is None:
            return True
        assert one is not None and other is not None, "a join within some time has times"
        return abs(one - other) <= self.join.within_ms

    def _let_go(self, watermark_ms: int) -> Iterator[Pair]:
        """Drop segments that can find no more partners."""
        for number in sorted(self._buckets.notes):
            if self._buckets.notes[number] is None or self._buckets.notes[number] >= watermark_ms:
                continue
            for _, cell in self._buckets.cells(number):
                for kept in cell:
                    lonely = self._last(kept) < watermark_ms and not kept[PAIRED] and kept[SIDE] == 0
                    if lonely and self.join.how == "left":
                        yield {"left": kept[VALUE], "right": None}
                cell[:] = [kept for kept in cell if self._last(kept) >= watermark_ms]

    def _last(self, kept: list[Any]) -> int:
        """Return the latest time that a partner may have."""
        if self.join.within_ms is None:
            return NEVER - 1
        last: int = kept[TIME] + self.join.within_ms
        return last

    def _watermark(self) -> int:
        one, other = self.index.newest
        return -NEVER if one is None or other is None else min(one, other) - self.join.watermark_ms

    def _note(self, cells: dict[bytes, list[Any]]) -> int | None:
        return min((self._last(kept) for cell in cells.values() for kept in cell), default=None)
