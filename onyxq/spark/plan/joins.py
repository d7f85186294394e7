"""Joins on Spark: segments of two sides meet in the group of their key (`onyxq.jobs.join_pairs`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from attrs import frozen

from onyxq.core.errors import BadRequest
from onyxq.jobs.encoding import decode, encode
from onyxq.jobs.join_pairs import Batch, Group, Index
from onyxq.jobs.key_state import later
from onyxq.jobs.model import Job, Join, Task
from onyxq.jobs.values import pack_key
from onyxq.jobs.windows import getter, time_of
from onyxq.spark.failures import of_task
from onyxq.spark.files import columns
from onyxq.spark.functions import resolve
from onyxq.spark.plan.fused import Feed
from onyxq.spark.plan.groups import Cut, Dealt, Given, Inherited, Made, State, cut, late


def join(feeds: Sequence[Feed], job: Job, task: Task, most: int | None = None) -> Any:
    """Return the pairs of segments of two sides."""
    return cut(feeds, Pairing(encode(job), task.name), job, most=most, timed=False)


@frozen
class Pairing(Cut):
    """One join as a cut."""

    def dealer(self) -> Keying:
        return Keying(self)

    def gather(self, given: Given, state: State) -> Iterator[Made]:
        group = Group(_join(self.body, self.task), Index.unpack(state.index), state)
        segments = [(side, key, time_ms, value) for side, key, (time_ms, value) in given.dealt]
        for pair in group.batch(Batch(segments, given.notes, given.ended)):
            yield self.task, pair
        state.index = group.index.pack()
        if given.notes:
            yield late(group.index.late)

    def restore(self, inherited: Sequence[Inherited], state: State) -> None:
        index = Index.unpack(None)
        cells = []
        for name, key, value in inherited:
            if not name:
                index.late = value
            elif key is None:
                index.newest = value
            else:
                cells.append((key, value))
        group = Group(_join(self.body, self.task), index, state)
        group.restore(cells)
        state.index = group.index.pack()


class Keying:
    """Finds key and time of the segments of one part of a batch."""

    def __init__(self, work: Pairing) -> None:
        self._work = work
        self._on, self._time = _functions(work.body, work.task)
        self._dealt: list[Dealt] = []
        self._newest: list[int | None] = [None, None]

    def add(self, lineage: bytes, side: int, value: Any, now_ms: int, to: str = "") -> None:
        try:
            time_ms = None if self._time is None else time_of(self._time, value)
            key = pack_key(self._on(value))
        except Exception as error:
            raise self._work.failed(error, value) from error
        self._newest[side] = later(self._newest[side], time_ms)
        self._dealt.append((side, key, (time_ms, value)))

    def add_columns(self, batch: Any, side: int, now_ms: int) -> None:
        for segment in columns.segments(batch):
            self.add(b"", side, segment, now_ms)

    def __len__(self) -> int:
        return len(self._dealt)

    def take(self) -> Iterator[Dealt]:
        dealt, self._dealt = self._dealt, []
        yield from dealt

    def note(self) -> list[int | None]:
        return self._newest

    def watermark_ms(self) -> None:
        """Return None: a part is often of one side, and the other side decides."""


@lru_cache(maxsize=64)
def _join(body: bytes, task: str) -> Join:
    found = decode(body).task(task)
    assert isinstance(found, Join)
    return found


@lru_cache(maxsize=64)
def _functions(body: bytes, task: str) -> tuple[Callable[[Any], Any], Callable[[Any], Any] | None]:
    job, entry = decode(body), _join(body, task)
    path = f"catalog[{job.catalog.index(entry)}]"
    try:
        on = getter(entry.on, resolve, f"{path}.on")
        time = getter(entry.time, resolve, f"{path}.time")
    except BadRequest as error:
        raise of_task(error, task=task, segment=None, restart=False) from error
    assert on is not None
    return on, time
