"""One key group of a task's windows: takes a batch's parts, returns what fires (see `onyxq.jobs.windows`).

State between batches is kept in buckets and a small index. Each window has a clock, its watermark: the newest time of
any segment less the window's ``watermark_ms``, or the time of the batch if segments have no time. All groups see the
same newest times, so their clocks agree.

A batch is processed in this order. Parts are gathered, and triggers that wait for a segment fire right after it.
Parts of extents that were already over are late, and dropped. Batch triggers fire, then timers with a period that has
passed. Then extents that are over by the new clock fire for the last time. When all inputs have ended, all extents do.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgpack
from attrs import field, frozen, mutable

from onyxq.core.ids import ID_BYTES
from onyxq.jobs.key_state import BUCKET_BYTES_MAX, Buckets, Notes, Store, later
from onyxq.jobs.windows import (
    END,
    NEVER,
    Cell,
    Emission,
    Part,
    Windowing,
    at_segment,
    close,
    drop_late,
    fire,
    gather,
    is_within,
    segments_in,
    unsent,
)


@mutable
class Index:
    """State of a group at the start of a batch, besides its buckets."""

    notes: Notes
    """For each bucket and window: the earliest end of an extent, and the triggers with unsent changes."""
    newest: list[int | None]
    """For each window, the latest time of all segments so far."""
    seen_ms: int | None = None
    """When the batch before was planned, in milliseconds since the epoch."""
    late: int = 0
    """Number of late segments so far, counted once per extent that they were in."""

    def pack(self) -> bytes:
        return bytes(msgpack.packb([list(self.notes.items()), self.newest, self.seen_ms, self.late]))

    @classmethod
    def unpack(cls, data: bytes | None, windows: int) -> Index:
        """Return the index of such bytes; without bytes, that of a group that has seen nothing."""
        if data is None:
            return cls({}, [None] * windows)
        notes, newest, seen_ms, late = msgpack.unpackb(data)
        return cls(dict(map(tuple, notes)), newest, seen_ms, late)


Kept = tuple[int, int, Any]
"""Start and end of the last extent of a segment, and anything about it."""


@frozen
class Batch:
    """Input of a group in one batch."""

    now_ms: int
    """When the batch was planned, in milliseconds since the epoch; the same in every repeat."""
    parts: Sequence[tuple[int, bytes, Part]] = ()
    """Index of the window, packed key, part."""
    newest: Sequence[Sequence[int | None]] = ()
    """For each part of the batch and each window, the latest time in it."""
    ended: bool = False
    """Whether all inputs have ended."""
    kept: Mapping[tuple[int, bytes], Sequence[Kept]] = field(factory=dict)
    """Window and packed key -> segments that are wanted back if they are late."""


@frozen
class Fired:
    """An emission with its window and key."""

    window: int
    key: bytes
    emission: Emission


@mutable
class Group:
    """A key group at work on one batch."""

    windowings: Sequence[Windowing]
    index: Index
    store: Store
    bucket_bytes_max: int = BUCKET_BYTES_MAX
    late: list[tuple[int, int, Any]] = field(factory=list, init=False)
    """Index of the window, its clock and what is kept, for each kept segment whose extents were all over."""
    _buckets: Buckets = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._buckets = Buckets(self.store, self.index.notes, self._note, self.bucket_bytes_max)

    def batch(self, batch: Batch) -> Iterator[Fired]:
        """Yield all emissions; the store and the index are updated once the iterator is exhausted."""
        index, before = self.index, self._clocks()
        now_ms = batch.now_ms if index.seen_ms is None else max(batch.now_ms, index.seen_ms)
        cells = yield from self._gathered(batch, before)
        for latest in batch.newest:
            index.newest = [later(one, other) for one, other in zip(index.newest, latest, strict=True)]
        for (window, key), cell in cells.items():
            windowing = self.windowings[window]
            yield from self._said(window, key, fire(windowing, cell, windowing.bits("batch")))
        timers = self._timers(now_ms)
        index.seen_ms = now_ms
        self._buckets.refresh()
        yield from self._due(timers, [NEVER] * len(before) if batch.ended else self._clocks())
        self._buckets.save()
        index.notes = self._buckets.notes

    def restore(self, cells: Iterable[tuple[int, bytes, Cell]]) -> None:
        """Store the cells of another job in a group that has none: index of the window, packed key, extents."""
        for window, key, cell in cells:
            self._buckets.cell(_named(window, key))[:] = cell
        self._buckets.save()
        self.index.notes = self._buckets.notes

    def wake_ms(self) -> int | None:
        """Return the time of the next batch that may have work without new segments; None if there is none."""
        times = []
        for window, windowing in enumerate(self.windowings):
            notes = [note[window] for note in self._buckets.notes.values() if note is not None]
            if windowing.time is None:
                times += [end for end, _ in notes if end is not None and end != NEVER]
            for bit, period_ms in self._periods(windowing):
                if self.index.seen_ms is not None and any(dirty & bit for _, dirty in notes):
                    times.append((self.index.seen_ms // period_ms + 1) * period_ms)
        return min(times, default=None)

    def _clocks(self) -> list[int]:
        """Return the clock of each window; before all times while nothing has been seen."""
        found = []
        for windowing, newest in zip(self.windowings, self.index.newest, strict=True):
            shown = self.index.seen_ms if windowing.time is None else newest
            found.append(-NEVER if shown is None else shown - windowing.window.watermark_ms)
        return found

    def _gathered(self, batch: Batch, clocks: list[int]) -> Generator[Fired, None, dict[tuple[int, bytes], Cell]]:
        """Yield what parts fire as they are gathered, and return the changed cells."""
        cells: dict[tuple[int, bytes], Cell] = {}
        brought: dict[tuple[int, bytes], list[Part]] = {}
        parts: Iterable[tuple[int, bytes, Part]] = batch.parts
        if any(windowing.ordered for windowing in self.windowings):
            # Spark may deal out a repeat of the batch in another order, but segments made of one segment keep theirs.
            parts = sorted(batch.parts, key=lambda one: one[2][5][:ID_BYTES])
        for window, key, part in parts:
            cell, windowing = cells.get((window, key)), self.windowings[window]
            if cell is None:
                cell = cells[window, key] = self._buckets.cell(_named(window, key))
                brought[window, key] = []
                # Only a job that takes over the state, with a shorter watermark_ms, has extents that are over already.
                yield from self._said(window, key, close(windowing, cell, clocks[window]))
            extent = gather(windowing, cell, part)
            bits = at_segment(windowing, extent, part)
            if bits and extent[END] > clocks[window]:
                yield from self._said(window, key, fire(windowing, [extent], bits))
            brought[window, key].append(part)
        for (window, key), cell in cells.items():
            if dropped := drop_late(cell, clocks[window]):
                windowing = self.windowings[window]
                self.index.late += segments_in(windowing, brought[window, key], dropped)
                kept = batch.kept.get((window, key), ())
                late = (one for start, end, one in kept if is_within(windowing, start, end, dropped))
                self.late += [(window, clocks[window], one) for one in late]
        return cells

    def _timers(self, now_ms: int) -> list[int]:
        """Return for each window, as bits, the timers with a period that has passed since the batch before."""
        seen_ms = self.index.seen_ms
        return [
            sum(
                bit
                for bit, period in self._periods(one)
                if seen_ms is not None and seen_ms // period < now_ms // period
            )
            for one in self.windowings
        ]

    def _periods(self, windowing: Windowing) -> Iterator[tuple[int, int]]:
        for place, trigger in enumerate(windowing.triggers):
            if trigger.period_ms is not None:
                yield 1 << place, trigger.period_ms

    def _due(self, timers: list[int], clocks: list[int]) -> Iterator[Fired]:
        for number in sorted(self._buckets.notes):
            note = self._buckets.notes[number]
            if note is None or not any(_is_due(*one) for one in zip(note, timers, clocks, strict=True)):
                continue
            for name, cell in self._buckets.cells(number):
                window, key = parted(name)
                windowing = self.windowings[window]
                yield from self._said(window, key, fire(windowing, cell, timers[window]))
                yield from self._said(window, key, close(windowing, cell, clocks[window]))

    def _said(self, window: int, key: bytes, emissions: Iterator[Emission]) -> Iterator[Fired]:
        for emission in emissions:
            yield Fired(window, key, emission)

    def _note(self, cells: dict[bytes, Cell]) -> list[list[Any]]:
        """Return for each window the earliest end of an extent and the triggers with unsent changes."""
        notes: list[list[Any]] = [[None, 0] for _ in self.windowings]
        for name, cell in cells.items():
            note = notes[parted(name)[0]]
            end = min(extent[END] for extent in cell)
            note[0] = end if note[0] is None else min(note[0], end)
            for extent in cell:
                note[1] |= unsent(extent)
        return notes


def _is_due(note: list[Any], timers: int, clock_ms: int) -> bool:
    end, dirty = note
    return (end is not None and end <= clock_ms) or bool(dirty & timers)


def parted(name: bytes) -> tuple[int, bytes]:
    """Return the index of the window and the packed key of a cell's name."""
    return int.from_bytes(name[:2], "big"), name[2:]


def _named(window: int, key: bytes) -> bytes:
    return window.to_bytes(2, "big") + key
