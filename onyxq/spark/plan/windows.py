"""Windows on Spark: each part of a batch is folded into partial states, which go to the groups of their keys.

The groups merge them into the windows, and the windows fire. All windows of a reduce task share one cut
(`onyxq.spark.plan.groups`). `onyxq.jobs.windows` and `onyxq.jobs.window_groups` define windows, and when they fire.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from attrs import frozen

from onyxq.core.errors import BadRequest
from onyxq.jobs import letters
from onyxq.jobs.encoding import decode, encode
from onyxq.jobs.model import Input, Job, Trigger, Window
from onyxq.jobs.values import pack, unpack
from onyxq.jobs.window_groups import Batch, Fired, Group, Index, Kept
from onyxq.jobs.windows import Parts, Placed, Windowing, extents_at, windowings
from onyxq.spark.failures import of_task
from onyxq.spark.files import columns
from onyxq.spark.functions import resolve
from onyxq.spark.plan import column_parts, rows
from onyxq.spark.plan.fused import Feed
from onyxq.spark.plan.groups import Cut, Dealt, Given, Inherited, Made, State, cut, late


def apply(
    feeds: Sequence[Feed], job: Job, windows: Sequence[Window], triggers: Sequence[Trigger], most: int | None = None
) -> Any:
    """Return the segments that the windows of one task emit, given all that reaches it."""
    timed = any(window.time is None and window.kind != "global" for window in windows)
    timed = timed or any(trigger.on == "timer" for trigger in triggers)
    return cut(
        feeds,
        Gathering(encode(job), windows[0].task),
        job,
        most=most,
        timed=timed and not all(task.bounded for task in job.catalog if isinstance(task, Input)),
    )


@frozen
class Gathering(Cut):
    """The windows of one task as a cut."""

    def dealer(self) -> Folding:
        return Folding(self)

    def gather(self, given: Given, state: State) -> Iterator[Made]:
        group, windows = self._group(state), self.windowings()
        batch = Batch(
            now_ms=given.now_ms,
            parts=[(kind, key, tuple(part)) for kind, key, part in given.dealt if kind < len(windows)],
            newest=given.notes,
            ended=given.ended,
            kept=_kept(given.dealt, len(windows)),
        )
        keys: dict[bytes, Any] = {}
        for fired in self._watched(group.batch(batch)):
            if fired.key not in keys:
                keys[fired.key] = unpack(fired.key)
            segment = fired.emission.segment(keys[fired.key])
            for out in fired.emission.trigger.emit_to or (self.task,):
                yield out, segment
        state.index = group.index.pack()
        for place, watermark_ms, (time_ms, segment) in group.late:
            name, value = windows[place].window.id, unpack(segment)
            yield (
                rows.LETTER,
                letters.late(task=self.task, window=name, segment=value, time_ms=time_ms, watermark_ms=watermark_ms),
            )
        if given.notes:
            yield late(group.index.late)

    def restore(self, inherited: Sequence[Inherited], state: State) -> None:
        windows = self.windowings()
        places = {one.window.id: place for place, one in enumerate(windows)}
        index = Index.unpack(None, len(windows))
        cells = []
        for name, key, value in inherited:
            if not name:
                index.late = value
            elif key is None:
                index.newest[places[name]], index.seen_ms = value
            else:
                cells.append((places[name], key, value))
        group = Group(windows, index, state)
        group.restore(cells)
        state.index = group.index.pack()

    def wake_ms(self, state: State) -> int | None:
        return self._group(state).wake_ms()

    def windowings(self) -> tuple[Windowing, ...]:
        """Return the windows with their functions resolved."""
        return _windowings(self.body, self.task)

    def _group(self, state: State) -> Group:
        windows = self.windowings()
        return Group(windows, Index.unpack(state.index, len(windows)), state)

    def _watched(self, fired: Iterator[Fired]) -> Iterator[Fired]:
        try:
            yield from fired
        except Exception as error:
            raise self.failed(error, None) from error


class Folding:
    """Folds one part of a batch into parts of states, window by window."""

    def __init__(self, work: Gathering) -> None:
        self._work = work
        windows = work.windowings()
        self._parts = [Parts(windowing) for windowing in windows]
        every = tuple(enumerate(self._parts))
        self._of = {"": every, work.task: every}
        """The task, or ``task/window`` -> the windows that take a segment, each with its number."""
        self._of |= {f"{work.task}/{one.window.id}": (every[number],) for number, one in enumerate(windows)}
        self._lettered = _has_letters(work.body, work.task)
        self._timed = [(number, one.window) for number, one in enumerate(windows) if _may_be_late(one)]
        self._kept: list[Dealt] = []

    def add(self, lineage: bytes, side: int, value: Any, now_ms: int, to: str = "") -> dict[str, Any] | None:
        kept = pack(value) if self._lettered else None  # A function may change it.
        parts = self._of[to]
        try:
            placed = [part.placed(value, now_ms) for _, part in parts]
        except Exception as error:
            if kept is None:
                raise self._work.failed(error, value) from error
            letter = self._work.letter(error, unpack(kept), self._work.task)
            window = to.partition("/")[2]
            return {**letter, "window": window} if window else letter
        try:
            for (_, part), place in zip(parts, placed, strict=True):
                part.put(value, place, lineage)
        except Exception as error:
            raise self._work.failed(error, value) from error
        if self._lettered:
            self._keep(dict(zip((number for number, _ in parts), placed, strict=True)), kept)
        return None

    def _keep(self, placed: Mapping[int, Placed], kept: bytes | None) -> None:
        """Keep a segment for the windows in which it may be late; ``placed``: number of a window -> its place."""
        for number, window in self._timed:
            if number in placed:
                time_ms, key, _ = placed[number]
                self._kept.append((len(self._parts) + number, key, (*extents_at(window, time_ms)[0], time_ms, kept)))

    def add_columns(self, batch: Any, side: int, now_ms: int) -> None:
        windows = zip(self._work.windowings(), self._parts, strict=True)
        left = [parts for window, parts in windows if not column_parts.folded(window, parts, batch, now_ms)]
        for segment in columns.segments(batch) if left else ():
            try:
                for part in left:
                    part.add(segment, now_ms)
            except Exception as error:
                raise self._work.failed(error, segment) from error

    def __len__(self) -> int:
        return sum(map(len, self._parts)) + len(self._kept)

    def take(self) -> Iterator[Dealt]:
        kept, self._kept = self._kept, []
        yield from kept
        for window, part in enumerate(self._parts):
            for key, piece in part.take():
                yield window, key, piece

    def note(self) -> list[int | None]:
        return [part.newest for part in self._parts]

    def watermark_ms(self) -> int | None:
        """Return the lowest watermark of all windows, in ms."""
        seen = [(part.newest, one.window) for part, one in zip(self._parts, self._work.windowings(), strict=True)]
        marks = [ms - window.watermark_ms for ms, window in seen if ms is not None and window.time is not None]
        return min(marks, default=None)


def _may_be_late(windowing: Windowing) -> bool:
    return windowing.time is not None and windowing.window.kind != "global"


def _kept(dealt: Sequence[Dealt], windows: int) -> dict[tuple[int, bytes], list[Kept]]:
    """Return the segments among what was dealt out: they follow the windows' own kinds."""
    found: dict[tuple[int, bytes], list[Kept]] = {}
    for kind, key, value in dealt:
        if kind >= windows:
            start, end, *rest = value
            found.setdefault((kind - windows, key), []).append((start, end, rest))
    return found


@lru_cache(maxsize=64)
def _has_letters(body: bytes, task: str) -> bool:
    return letters.wanted(decode(body), task)


@lru_cache(maxsize=64)
def _windowings(body: bytes, task: str) -> tuple[Windowing, ...]:
    try:
        return windowings(decode(body), task, resolve)
    except BadRequest as error:
        raise of_task(error, task=task, segment=None, restart=False) from error
