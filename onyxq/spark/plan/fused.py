"""A region of a job's workflow as one Python function of whole batches, a part of the cut or sink after it.

A segment passes from task to task by plain calls. So functions, branches, flow conditions and the handling of
exceptions cost a few microseconds. As separate Spark stages each task would cost another transfer between Spark's
machine and Python. What leaves the region is a row for a cut or an output, with the lineage of its segment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache, partial
from typing import Any, TypeAlias

from attrs import field, frozen

from onyxq.core.errors import BadRequest
from onyxq.jobs import flow_conditions
from onyxq.jobs.encoding import decode
from onyxq.jobs.letters import wanted
from onyxq.jobs.model import Function, Job, Output, Pickled, Ref
from onyxq.jobs.values import Unfit, pack, unpack
from onyxq.spark.failures import of_task
from onyxq.spark.functions import resolve
from onyxq.spark.lineage import child, of_letter
from onyxq.spark.plan import rows
from onyxq.spark.plan.lifecycles import Lifecycles
from onyxq.spark.plan.regions import Region, carries_letters, way_of

Row = tuple[str, bytes, bytes]
"""``(out, lineage, payload)``: the task that it goes to (or ``task/window``), its origin, its value as msgpack."""

Take = Callable[[str, Any], bool]
"""Writes a value to an output if its file takes the value as it is, and returns whether."""


@frozen
class Place:
    """The job of a region, and the version under which it runs."""

    body: bytes = field(repr=False)
    job: str
    version: int


@frozen
class Feed:
    """Rows that reach a cut over one way."""

    frame: Any
    side: int = 0
    """The side of a join."""
    run: Callable[[Iterable[Any]], Iterator[Row]] | None = None
    """The function that makes rows of segments of Arrow batches; None if the rows themselves are the segments."""
    names: tuple[str, ...] = ()
    """Names of the columns if the rows are the segments; ``frame`` has plain ones."""


def made(
    place: Place,
    region: Region,
    shape: str,
    names: tuple[str, ...],
    batches: Iterable[Any],
    take: Take | None = None,
) -> Iterator[Row]:
    """Yield what a region makes of the Arrow batches of one part of a batch; runs in a worker.

    ``names``: of the columns, if rows have the shape of columns. With ``take`` no row needs its lineage, and the
    region may write values itself.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    batch = int(context.getLocalProperty("streaming.sql.batchId") or -1) if context else -1
    part = context.partitionId() if context else 0
    fused = _fused(place, region)
    if shape == rows.COLUMNS:
        batches = (one.rename_columns(list(names)) for one in batches)
        if take is not None and fused.line:
            yield from fused.straight(rows.values(batches, region.entry), {"batch": batch, "part": part}, take)
            return
    segments = rows.segments(batches, shape, entry=region.entry, place=f"{place.job}/{batch}", way=fused.way)
    yield from fused.batch(segments, {"batch": batch, "part": part}, letters=shape == rows.LETTERS)


def run(place: Place, region: Region, shape: str, names: tuple[str, ...], batches: Iterable[Any]) -> Iterator[Any]:
    """Yield the same as Arrow batches; `mapInArrow` calls this in a worker."""
    yield from rows.batches(made(place, region, shape, names, batches))


@lru_cache(maxsize=64)
def _fused(place: Place, region: Region) -> Fused:
    job = decode(place.body)
    return Fused(job, region, {"job": place.job, "version": place.version})


class Fused:
    """The tasks of a region, ready to run.

    ``known`` is passed to lifecycles.
    """

    def __init__(self, job: Job, region: Region, known: dict[str, Any] | None = None) -> None:
        self._region = region
        self.way = way_of(job, region)
        self._lifecycles = Lifecycles(job, known or {"job": job.id})
        names = (region.entry, *region.tasks)
        self._steps: dict[str, _Step] = {}
        for name in reversed(names):  # The tasks after each one come first.
            self._steps[name] = _Step(job, region, name, self._lifecycles, self.way, self._steps)
        self._carries = carries_letters(job, region)
        outputs = dict.fromkeys(to for _, to in region.wanted if isinstance(job.task(to), Output))
        self._names = (*names, *outputs)
        self.line = self._steps[region.entry].line()
        """The tasks, if each segment passes all of them without a branch; otherwise empty."""

    def batch(self, segments: Iterable[rows.Segment], known: dict[str, Any], *, letters: bool = False) -> Iterator[Row]:
        """Yield the rows of all segments of a part of a batch, with calls of lifecycles before and after it.

        ``letters``: whether the segments are dead letters that are sent again, each to the task at which it failed.
        """
        self._lifecycles.around("before_batch", self._names, **known)
        for lineage, segment, only in segments:
            if letters:
                yield from self._again(lineage, segment, only)
            elif only != rows.LETTER:
                yield from self.segment(lineage, segment, only)
            elif self._carries:
                yield rows.LETTER, lineage, pack(segment)
        self._lifecycles.around("after_batch", self._names, **known)

    def straight(self, segments: Iterable[Any], known: dict[str, Any], take: Take) -> Iterator[Row]:
        """Pass all segments of a part of a batch along the line of tasks, and write what they become.

        Yields rows without lineage for the values that are not taken.
        """
        self._lifecycles.around("before_batch", self._names, **known)
        for step in self.line[:-1]:
            segments = step.each(segments)
        yield from self.line[-1].written(segments, take)
        self._lifecycles.around("after_batch", self._names, **known)

    def _again(self, lineage: bytes, segment: Any, only: str) -> list[Row]:
        """Return the rows of a dead letter that is sent again; ``only``: its task, or ``task/window``."""
        task = only.partition("/")[0]
        found = self.segment(lineage, segment, task, again=True)
        return [(only if out == task else out, after, payload) for out, after, payload in found]

    def segment(self, lineage: bytes, segment: Any, only: str = "", *, again: bool = False) -> list[Row]:
        """Return the rows that one segment of the entry becomes, in the order in which tasks made them.

        ``only`` is the task that it goes to first, if it does not go to all. With ``again`` it goes there past the
        conditions of the entry.
        """
        found: list[Row] = []
        self._steps[self._region.entry].take(lineage, segment, found, only, again)
        return found


_Way: TypeAlias = "tuple[str, int, int, _Step | None]"
"""The next task, the edge's index in the workflow, the place of the edge among those that a value takes, and the step
of the next task; None if the edge leaves the region.
"""
_Sent: TypeAlias = tuple[Any, int, tuple[_Way, ...]]
"""A value that a task made, the ordinal (`child`) of its first way, and its ways."""


class _Step:
    """One task of a region."""

    def __init__(
        self, job: Job, region: Region, name: str, lifecycles: Lifecycles, way: str, steps: Mapping[str, _Step]
    ) -> None:
        """``steps``: those of the tasks after it."""
        self._name = name
        self._lifecycles = lifecycles
        self._way = way
        edges = [edge for edge in region.edges if edge[0] == name]
        places = {edge: (job.workflow.index(edge), None if edge in region.wanted else steps[edge[1]]) for edge in edges}
        self._ways: dict[str, tuple[_Way, ...]] = {to: ((to, n, 0, then),) for (_, to), (n, then) in places.items()}
        """The tasks after it that matter here -> the way of a value that goes to this task alone."""
        task = job.task(name)
        self._lettered = isinstance(task, Function) and wanted(job, name)
        """Whether segments at which it fails become dead letters."""
        self._fn: Callable[..., Any] | None = None
        self._called = _called(task.fn) if isinstance(task, Function) else name
        try:
            self._conditions = flow_conditions.compiled(job, name, resolve)
            if isinstance(task, Function):
                fn = resolve(task.fn, f"catalog[{job.catalog.index(task)}].fn")
                self._fn = partial(fn, **task.params) if task.params else fn
        except BadRequest as error:
            raise of_task(error, task=name, segment=None, restart=False) from error
        always = [
            (to, n, place, then)
            for place, to in enumerate(self._conditions.always)
            for _, n, _, then in self._ways.get(to, ())
        ]
        self._free = None if self._conditions.rules else tuple(always)
        """The ways of each value that the task makes; None if conditions decide."""

    def take(self, lineage: bytes, segment: Any, found: list[Row], only: str = "", again: bool = False) -> None:
        """Run the task on a segment, then the tasks after it on what it made; add the rows that leave the region.

        A segment at which the task fails has one row, its dead letter.
        """
        before = len(found)
        staying: list[tuple[_Step, bytes, Any]] = []
        kept = self._kept(segment) if self._lettered else None
        try:
            # A dead letter goes to the task at which it failed; conditions do not count.
            sent = [(segment, 0, self._ways[only])] if again else self._sent(segment)
            for made, first, ways in sent:
                for to, number, place, then in ways:
                    if only and to != only:
                        continue  # The segment is not for this task.
                    after = child(lineage, number, first + place)
                    if then is None:
                        found.append((to, after, self._packed(made)))
                    else:
                        staying.append((then, after, made))
        except Exception as error:
            del found[before:]
            letter = self._letter(error, segment if kept is None else unpack(kept))
            found.append((rows.LETTER, of_letter(lineage, self._way, self._name), pack(letter)))
            return
        for then, after, made in staying:
            then.take(after, made, found)

    def _sent(self, segment: Any) -> list[_Sent]:
        """Return what the task makes of a segment, and which ways it goes.

        An input or a cut returns the segment itself. Raises what the task's functions raise.
        """
        all_new = self._made(segment)
        if len(all_new) == 1 and self._free is not None and not isinstance(all_new[0], Exception):
            return [(all_new[0], 0, self._free)]
        routes = [route for one in all_new for route in flow_conditions.routes(self._conditions, one, all_new, segment)]
        return [(one, ordinal, self._ways[to]) for ordinal, (to, one) in enumerate(routes) if to in self._ways]

    def _made(self, segment: Any) -> list[Any]:
        if self._fn is None:
            return [segment]
        try:
            made = self._fn(segment)
        except Exception as error:
            return [error]
        return made if isinstance(made, list) else [] if made is None else [made]

    def line(self) -> tuple[_Step, ...]:
        """Return this step and those after it if they are one line to outputs, otherwise nothing.

        No task of a line has conditions, dead letters or, but for the last one, several ways.
        """
        if self._free is None or self._conditions.of_exceptions or self._lettered:
            return ()
        after = [then for *_, then in self._free]
        if not any(after):
            return (self,)
        line = after[0].line() if len(after) == 1 and after[0] is not None else ()
        return (self, *line) if line else ()

    def each(self, segments: Iterable[Any]) -> Iterator[Any]:
        """Yield what the task makes of segments; raises `TaskFailed`."""
        for segment in segments:
            yield from self._checked(segment)

    def written(self, segments: Iterable[Any], take: Take) -> Iterator[Row]:
        """Write what the last task of a line makes of segments, and yield rows for values that are not taken."""
        outs = [to for to, *_ in self._free or ()]
        for segment in segments:
            for made in self._checked(segment):
                for out in outs:
                    if not take(out, made):
                        yield out, b"", self._packed_or_failed(made, segment)

    def _checked(self, segment: Any) -> list[Any]:
        """Return what the task makes of a segment without exceptions; raises `TaskFailed`."""
        all_new = self._made(segment)
        for one in all_new:
            if isinstance(one, Exception):
                raise self._lifecycles.failed(self._name, one, segment) from one
        return all_new

    def _packed_or_failed(self, made: Any, segment: Any) -> bytes:
        try:
            return self._packed(made)
        except Unfit as error:
            raise self._lifecycles.failed(self._name, error, segment) from error

    def _kept(self, segment: Any) -> bytes | None:
        """Return the bytes of a segment that its function may change, although it may become a dead letter."""
        try:
            return pack(segment)
        except Unfit:
            return None

    def _letter(self, error: Exception, segment: Any) -> dict[str, Any]:
        """Return the dead letter of a segment at which the task raised an exception; raises `TaskFailed`."""
        if not self._lettered:
            raise self._lifecycles.failed(self._name, error, segment) from error
        return self._lifecycles.letter(self._name, error, segment, self._way)

    def _packed(self, made: Any) -> bytes:
        """Return the bytes of a value that the task made; raises `Unfit`, which names its function."""
        try:
            return pack(made)
        except Unfit as error:
            raise Unfit(f"{self._called} returned", error.message) from None


def _called(fn: Ref) -> str:
    """Return a function's name, for messages."""
    if isinstance(fn, str):
        return fn
    return fn.named if isinstance(fn, Pickled) else str(getattr(fn, "__qualname__", type(fn).__name__))
