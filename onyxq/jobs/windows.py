"""Windows as plain functions: the extents of a time, the state kept for each, and what fires.

An *extent* is one piece of a window's time for one key. It is a list that msgpack holds,
``[start, end, unsent, fired, lanes]``: the number of segments since each trigger last fired, how often the extent
fired, and the states. Triggers that accumulate share a lane. Each trigger that discards has its own, which is emptied
when it fires. A lane is None or ``[state]``. All extents of one key, sorted by their start, are a *cell*. This module
knows nothing of Spark or of the set of keys: see `onyxq.jobs.window_groups`.
"""

from __future__ import annotations

import copy
import datetime
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any

from attrs import frozen

from onyxq.jobs.aggregations import Folding, folding
from onyxq.jobs.flow_conditions import Resolve, Test, loaded
from onyxq.jobs.model import Job, Ref, Trigger, Window
from onyxq.jobs.values import milliseconds, pack_key

NEVER = (1 << 62) - 1
"""End of an extent that is never over; no time is later."""
TIME_MAX = 1 << 53
START, END, UNSENT, FIRED, LANES = range(5)
ALL = -1
"""Bits of all triggers."""

Extent = list[Any]
Cell = list[Extent]
_start = itemgetter(START)


@frozen
class Windowing:
    """One window and its triggers, with their functions loaded."""

    window: Window
    triggers: tuple[Trigger, ...]
    key: Callable[[Any], Any] | None
    """Function for the key of a segment; None if all have the same."""
    time: Callable[[Any], Any] | None
    """Function for the time of a segment in milliseconds; None if it is that of the batch."""
    folding: Folding
    lanes: tuple[int, ...]
    """The lane of each trigger."""
    punctuations: tuple[tuple[int, Test], ...]
    """The place and the predicate of each trigger on punctuation."""
    counts: tuple[tuple[int, int], ...]
    """The place and the number of each trigger on segments."""

    @property
    def parts(self) -> bool:
        """Whether parts of a state can be made where the segments are and merged later."""
        return self.folding.merge is not None and not self.ordered

    @property
    def ordered(self) -> bool:
        """Whether a trigger may fire at any segment, so that the order of segments in a batch matters."""
        return bool(self.counts or self.punctuations)

    def punctuated(self, segment: Any) -> int:
        """Return the triggers that a segment punctuates, as bits."""
        return sum(1 << place for place, holds in self.punctuations if holds(segment, None, ()))

    def bits(self, on: str) -> int:
        """Return the triggers of one kind, as bits."""
        return sum(1 << place for place, trigger in enumerate(self.triggers) if trigger.on == on)


@frozen
class Emission:
    """A state that fired."""

    trigger: Trigger
    number: int
    """How often the extent had fired before."""
    start: int
    end: int
    value: Any
    """The value to emit. It may be the state itself, which continues to change: pack it to keep it."""

    def segment(self, key: Any) -> dict[str, Any]:
        """Return the segment for the tasks after the window's."""
        over = self.end != NEVER
        return {
            "window": self.trigger.window,
            "key": key,
            "start_ms": self.start if over else None,
            "end_ms": self.end if over else None,
            "value": self.value,
        }


def windowings(job: Job, task: str, resolve: Resolve) -> tuple[Windowing, ...]:
    """Return all windows of a task, in the job's order."""
    return tuple(
        _windowing(job, window, resolve, f"windows[{place}]")
        for place, window in enumerate(job.windows)
        if window.task == task
    )


def _windowing(job: Job, window: Window, resolve: Resolve, path: str) -> Windowing:
    places = [place for place, trigger in enumerate(job.triggers) if trigger.window == window.id]
    triggers = [job.triggers[place] for place in places]
    lanes: list[int] = []
    shared = int(any(trigger.refinement == "accumulating" for trigger in triggers))
    own = shared
    for trigger in triggers:
        lanes.append(0 if trigger.refinement == "accumulating" else own)
        own += trigger.refinement == "discarding"
    return Windowing(
        window=window,
        triggers=tuple(triggers),
        key=getter(window.key, resolve, f"{path}.key"),
        time=getter(window.time, resolve, f"{path}.time"),
        folding=folding(window, resolve, path),
        lanes=tuple(lanes),
        punctuations=tuple(
            (number, loaded(trigger.predicate, resolve, f"triggers[{place}].predicate"))
            for number, (place, trigger) in enumerate(zip(places, triggers, strict=True))
            if trigger.on == "punctuation"
        ),
        counts=tuple((number, one.count) for number, one in enumerate(triggers) if one.count is not None),
    )


def getter(ref: Ref | None, resolve: Resolve, path: str) -> Callable[[Any], Any] | None:
    """Return a function that reads a value from a segment: by a field's name, or the given function."""
    if ref is None:
        return None
    return itemgetter(ref) if is_field(ref) else resolve(ref, path)


def is_field(ref: Ref) -> bool:
    """Return whether a key or time names a field of the segment, not a function."""
    return isinstance(ref, str) and ":" not in ref


def time_of(time: Callable[[Any], Any], segment: Any) -> int:
    """Return the time of a segment in whole milliseconds; raise `ValueError` for a value that is not a time."""
    found = time(segment)
    if type(found) is datetime.datetime:
        return milliseconds(found)
    if type(found) not in (int, float) or not -TIME_MAX < found < TIME_MAX:
        raise ValueError(f"a time must be a number of milliseconds or a datetime, not {found!r:.80}")
    return int(found // 1)


def extents_at(window: Window, time_ms: int) -> list[tuple[int, int]]:
    """Return ``(start, end)`` of the extents that hold a segment of that time; ends are exclusive.

    For a session it is the extent that the segment alone would make.
    """
    if window.kind == "global":
        return [(0, NEVER)]
    if window.kind == "session":
        assert window.gap_ms is not None
        return [(time_ms, time_ms + window.gap_ms)]
    assert window.range_ms is not None
    slide = window.range_ms if window.slide_ms is None else window.slide_ms
    last = time_ms - time_ms % slide
    return [(start, start + window.range_ms) for start in range(last, time_ms - window.range_ms, -slide)]


# --- parts: what is folded where the segments are --------------------------------


Part = tuple[int, int, Any, int, int, bytes]
"""One piece of folded segments: start, end, state, number of segments, 0 and nothing.

If the window takes its segments one by one, the third value is one segment instead. Then the last two are the triggers
that it punctuates, as bits, and its lineage.
"""
Placed = tuple[int, bytes, int]
"""Time of a segment in ms, its packed key, and the triggers that it punctuates, as bits."""


class Parts:
    """Segments that one part of a batch adds to one window, folded as far as possible."""

    def __init__(self, windowing: Windowing) -> None:
        self._windowing = windowing
        self._session = windowing.window.kind == "session"
        window = windowing.window
        self._field = window.field if isinstance(window.aggregation, str) and window.aggregation != "count" else None
        self._cells: dict[bytes, list[list[Any]]] = {}
        self._starts: dict[tuple[bytes, int], list[Any]] = {}
        self._sessions = 0
        self._apart: list[tuple[bytes, Part]] = []
        self.newest: int | None = None
        """The latest time seen."""

    def __len__(self) -> int:
        return len(self._starts) + len(self._apart) + self._sessions

    def add(self, segment: Any, now_ms: int, lineage: bytes = b"") -> None:
        """Add a segment of a batch that was planned at ``now_ms``."""
        self.put(segment, self.placed(segment, now_ms), lineage)

    def placed(self, segment: Any, now_ms: int) -> Placed:
        """Return the place of a segment of a batch that was planned at ``now_ms``.

        It calls the window's functions of one segment, and changes nothing. Raises what they raise, and what a segment
        without the window's field raises.
        """
        windowing = self._windowing
        if self._field is not None:
            segment[self._field]
        time_ms = now_ms if windowing.time is None else time_of(windowing.time, segment)
        key: bytes = pack_key(None if windowing.key is None else windowing.key(segment))
        return time_ms, key, windowing.punctuated(segment) if windowing.punctuations else 0

    def put(self, segment: Any, placed: Placed, lineage: bytes = b"") -> None:
        """Add a segment at its place."""
        windowing, (time_ms, key, punctuated) = self._windowing, placed
        self.see(time_ms)
        for start, end in extents_at(windowing.window, time_ms):
            if windowing.parts:
                part = self.part(key, start, end)
                part[2] = windowing.folding.fold(part[2], segment)
                part[3] += 1
            else:
                self._apart.append((key, (start, end, segment, 1, punctuated, lineage)))

    def see(self, time_ms: int) -> None:
        """Note the time of a segment."""
        if self.newest is None or time_ms > self.newest:
            self.newest = time_ms

    def part(self, key: bytes, start: int, end: int) -> list[Any]:
        """Return what was folded for an extent: its start, end, state and number of segments.

        The caller changes the last two in place, those of a session before the next call: a session takes in the others
        that the given time touches.
        """
        if not self._session:
            found = self._starts.get((key, start))
            if found is None:
                found = self._starts[key, start] = [start, end, self._windowing.folding.init(), 0]
            return found
        parts = self._cells.setdefault(key, [])
        first, last = touching(parts, start, end)
        if first == last:
            parts.insert(first, [start, end, self._windowing.folding.init(), 0])
            self._sessions += 1
            return parts[first]
        return self._joined(parts, first, last, start, end)

    def _joined(self, parts: list[list[Any]], first: int, last: int, start: int, end: int) -> list[Any]:
        part, merge = parts[first], self._windowing.folding.merge
        assert merge is not None
        for other in parts[first + 1 : last]:
            part[2] = merge(part[2], other[2])
            part[3] += other[3]
        part[0], part[1] = min(start, part[0]), max(end, parts[last - 1][1])
        del parts[first + 1 : last]
        self._sessions -= last - first - 1
        return part

    def take(self) -> Iterator[tuple[bytes, Part]]:
        """Yield ``(packed key, part)`` for everything that was added, and forget it."""
        apart, self._apart = self._apart, []
        kept, self._starts = self._starts, {}
        cells, self._cells, self._sessions = self._cells, {}, 0
        yield from apart
        for (key, _), (start, end, state, count) in kept.items():
            yield key, (start, end, state, count, 0, b"")
        for key, parts in cells.items():
            for start, end, state, count in parts:
                yield key, (start, end, state, count, 0, b"")


def touching(extents: list[list[Any]], start: int, end: int) -> tuple[int, int]:
    """Return the range of indexes (end exclusive) of sorted, disjoint extents that overlap ``start`` to ``end``."""
    first = bisect_left(extents, start, key=_start)
    if first and extents[first - 1][END] > start:
        first -= 1
    last = first
    while last < len(extents) and extents[last][START] < end:
        last += 1
    return first, last


# --- cells: what is kept ------------------------------------------------------------


def gather(windowing: Windowing, cell: Cell, part: Part) -> Extent:
    """Add a part to a key's extents, and return the extent that it is in."""
    start, end, value, count, *_ = part
    if windowing.window.kind == "session":
        first, last = touching(cell, start, end)
    else:
        first = last = bisect_left(cell, start, key=_start)
        last += first < len(cell) and cell[first][START] == start
    if first == last:
        lanes = max(windowing.lanes) + 1
        cell.insert(first, [start, end, [0] * len(windowing.triggers), 0, [None] * lanes])
    elif last - first > 1 or windowing.window.kind == "session":
        _grow(windowing, cell, first, last, start, end)
    extent = cell[first]
    for lane, kept in enumerate(extent[LANES]):
        extent[LANES][lane] = [_added(windowing, kept, copy.deepcopy(value) if lane else value)]
    extent[UNSENT] = [one + count for one in extent[UNSENT]]
    return extent


def _added(windowing: Windowing, kept: list[Any] | None, value: Any) -> Any:
    if windowing.parts:
        return _merged(windowing, kept, value)
    folding = windowing.folding
    return folding.fold(folding.init() if kept is None else kept[0], value)


def _merged(windowing: Windowing, kept: list[Any] | None, state: Any) -> Any:
    merge = windowing.folding.merge
    assert merge is not None, "sessions and parts need it"
    return state if kept is None else merge(kept[0], state)


def _grow(windowing: Windowing, cell: Cell, first: int, last: int, start: int, end: int) -> None:
    """Join the sessions that a new part touches into one."""
    extent = cell[first]
    for other in cell[first + 1 : last]:
        for lane, kept in enumerate(other[LANES]):
            if kept is not None:
                extent[LANES][lane] = [_merged(windowing, extent[LANES][lane], kept[0])]
        extent[UNSENT] = [one + more for one, more in zip(extent[UNSENT], other[UNSENT], strict=True)]
    extent[START], extent[END] = min(start, extent[START]), max(end, cell[last - 1][END])
    del cell[first + 1 : last]


def drop_late(cell: Cell, clock_ms: int) -> list[tuple[int, int]]:
    """Drop extents that were over before the batch started, and return their starts and ends.

    Such an extent holds only late segments: open ones end after the clock.
    """
    dropped = [(extent[START], extent[END]) for extent in cell if extent[END] <= clock_ms]
    if dropped:
        cell[:] = [extent for extent in cell if extent[END] > clock_ms]
    return dropped


def segments_in(windowing: Windowing, parts: Iterable[Part], dropped: Sequence[tuple[int, int]]) -> int:
    """Return how many segments a key's parts brought to dropped extents, which hold nothing else."""
    return sum(count for start, end, _, count, *_ in parts if is_within(windowing, start, end, dropped))


def is_within(windowing: Windowing, start: int, end: int, extents: Sequence[tuple[int, int]]) -> bool:
    """Return whether what came for ``start`` to ``end`` is in one of the extents."""
    if windowing.window.kind == "session":
        return any(first <= start < last for first, last in extents)
    return (start, end) in extents


def unsent(extent: Extent) -> int:
    """Return the triggers with changes that they have not sent, as bits."""
    bits = 0
    for place, count in enumerate(extent[UNSENT]):
        if count:
            bits |= 1 << place
    return bits


def fire(windowing: Windowing, cell: Cell, bits: int) -> Iterator[Emission]:
    """Fire these triggers for all extents with changes that they have not sent."""
    for extent in cell if bits else ():
        yield from _fired(windowing, extent, bits)


def at_segment(windowing: Windowing, extent: Extent, part: Part) -> int:
    """Return the triggers, as bits, that a segment fires in the extent that has just taken it."""
    bits = part[4]
    for place, count in windowing.counts:
        if extent[UNSENT][place] >= count:
            bits |= 1 << place
    return bits


def close(windowing: Windowing, cell: Cell, clock_ms: int) -> Iterator[Emission]:
    """Fire the last time for extents that are over at that time, and drop them."""
    over = [extent for extent in cell if extent[END] <= clock_ms]
    for extent in over:
        yield from _fired(windowing, extent, ALL)
    if over:
        cell[:] = [extent for extent in cell if extent[END] > clock_ms]


def _fired(windowing: Windowing, extent: Extent, bits: int) -> Iterator[Emission]:
    for place, trigger in enumerate(windowing.triggers):
        if not bits >> place & 1 or not extent[UNSENT][place]:
            continue
        extent[UNSENT][place] = 0
        lane = windowing.lanes[place]
        kept = extent[LANES][lane]
        assert kept is not None, "a trigger that has something to say has a state"
        value = windowing.folding.result(kept[0])
        if trigger.refinement == "discarding":
            extent[LANES][lane] = None
        yield Emission(trigger, extent[FIRED], extent[START], extent[END], value)
        extent[FIRED] += 1
