"""Windows on Spark: segments of a reduce task are folded where they are, then gathered by key, and fire.

All windows of a task are one cut (`onyxq.spark.plan.groups`). `onyxq.jobs.windows` and `onyxq.jobs.window_groups`
define windows, and when they fire.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from attrs import frozen

from onyxq.core.errors import BadRequest
from onyxq.jobs.encoding import decode, encode
from onyxq.jobs.model import Input, Job, Trigger, Window
from onyxq.jobs.values import unpack
from onyxq.jobs.window_groups import Batch, Fired, Group, Index
from onyxq.jobs.windows import Parts, Windowing, windowings
from onyxq.spark.failures import of_task
from onyxq.spark.files import columns
from onyxq.spark.functions import resolve
from onyxq.spark.plan import column_parts
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
        group = self._group(state)
        batch = Batch(
            now_ms=given.now_ms,
            parts=[(window, key, tuple(part)) for window, key, part in given.dealt],
            newest=given.notes,
            ended=given.ended,
        )
        keys: dict[bytes, Any] = {}
        for fired in self._watched(group.batch(batch)):
            if fired.key not in keys:
                keys[fired.key] = unpack(fired.key)
            segment = fired.emission.segment(keys[fired.key])
            for out in fired.emission.trigger.emit_to or (self.task,):
                yield out, segment
        state.index = group.index.pack()
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
        self._parts = [Parts(windowing) for windowing in work.windowings()]

    def add(self, lineage: bytes, side: int, value: Any, now_ms: int) -> None:
        self._add(self._parts, value, now_ms, lineage)

    def add_columns(self, batch: Any, side: int, now_ms: int) -> None:
        windows = zip(self._work.windowings(), self._parts, strict=True)
        left = [parts for window, parts in windows if not column_parts.folded(window, parts, batch, now_ms)]
        for segment in columns.segments(batch) if left else ():
            self._add(left, segment, now_ms, b"")

    def _add(self, parts: Sequence[Parts], segment: Any, now_ms: int, lineage: bytes) -> None:
        try:
            for part in parts:
                part.add(segment, now_ms, lineage)
        except Exception as error:
            raise self._work.failed(error, segment) from error

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def take(self) -> Iterator[Dealt]:
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


@lru_cache(maxsize=64)
def _windowings(body: bytes, task: str) -> tuple[Windowing, ...]:
    try:
        return windowings(decode(body), task, resolve)
    except BadRequest as error:
        raise of_task(error, task=task, segment=None, restart=False) from error
