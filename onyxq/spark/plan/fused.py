"""A region of a job's workflow as one Python function of whole batches, a part of the cut or sink after it.

A segment passes from task to task by plain calls. So functions, branches, flow conditions and the handling of
exceptions cost a few microseconds. As separate Spark stages each task would cost another transfer between Spark's
machine and Python. What leaves the region is a row for a cut or an output, with the lineage of its segment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any

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


def made(place: Place, region: Region, shape: str, names: tuple[str, ...], batches: Iterable[Any]) -> Iterator[Row]:
    """Yield what a region makes of the Arrow batches of one part of a batch; runs in a worker.

    ``names``: of the columns, if rows have the shape of columns.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    batch = int(context.getLocalProperty("streaming.sql.batchId") or -1) if context else -1
    part = context.partitionId() if context else 0
    fused = _fused(place, region)
    if shape == rows.COLUMNS:
        batches = (one.rename_columns(list(names)) for one in batches)
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
        self._steps = {name: _Step(job, region, name, self._lifecycles, self.way) for name in names}
        self._carries = carries_letters(job, region)
        outputs = dict.fromkeys(to for _, to in region.wanted if isinstance(job.task(to), Output))
        self._names = (*self._steps, *outputs)

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
        waiting = self._left(self._region.entry, lineage, segment, found, only, again=again)
        waiting.reverse()
        while waiting:
            name, lineage, segment = waiting.pop()
            waiting += reversed(self._left(name, lineage, segment, found))
        return found

    def _left(
        self, name: str, lineage: bytes, segment: Any, found: list[Row], only: str = "", *, again: bool = False
    ) -> list[tuple[str, bytes, Any]]:
        """Run a task on a segment.

        Results that leave the region are added to ``found``, the others are returned. A segment at which the task
        fails has one result, its dead letter.
        """
        step, staying, before = self._steps[name], [], len(found)
        kept = step.kept(segment)
        try:
            for ordinal, (to, made) in enumerate([(only, segment)] if again else step.routes(segment)):
                edge = step.edges.get(to)
                if edge is None or (only and to != only):
                    assert not again, "a letter fits the definition of its job"
                    continue  # The task has no wanted edge in this region, or the segment is not for it.
                number, leaves = edge
                after = child(lineage, number, ordinal)
                if leaves:
                    found.append((to, after, step.packed(made)))
                else:
                    staying.append((to, after, made))
        except Exception as error:
            del found[before:]
            letter = step.letter(error, segment if kept is None else unpack(kept))
            found.append((rows.LETTER, of_letter(lineage, self.way, name), pack(letter)))
            return []
        return staying


class _Step:
    """One task of a region."""

    def __init__(self, job: Job, region: Region, name: str, lifecycles: Lifecycles, way: str) -> None:
        self._name = name
        self._lifecycles = lifecycles
        self._way = way
        edges = [edge for edge in region.edges if edge[0] == name]
        self.edges = {edge[1]: (job.workflow.index(edge), edge in region.wanted) for edge in edges}
        """The tasks after it that matter here -> the edge's index in the workflow, and whether it leaves the region."""
        task = job.task(name)
        self._lettered = isinstance(task, Function) and wanted(job, name)
        self._params = dict(task.params) if isinstance(task, Function) else {}
        self._fn: Callable[..., Any] | None = None
        self._called = _called(task.fn) if isinstance(task, Function) else name
        try:
            self._conditions = flow_conditions.compiled(job, name, resolve)
            if isinstance(task, Function):
                self._fn = resolve(task.fn, f"catalog[{job.catalog.index(task)}].fn")
        except BadRequest as error:
            raise of_task(error, task=name, segment=None, restart=False) from error

    def routes(self, segment: Any) -> list[flow_conditions.Route]:
        """Return what the task makes of a segment, and where each result goes.

        An input or a cut returns the segment itself. Raises what the task's functions raise.
        """
        made = [segment] if self._fn is None else self._made(segment)
        return [route for one in made for route in flow_conditions.routes(self._conditions, one, made, segment)]

    def kept(self, segment: Any) -> bytes | None:
        """Return the bytes of a segment that its function may change, although it may become a dead letter."""
        if not self._lettered:
            return None
        try:
            return pack(segment)
        except Unfit:
            return None

    def letter(self, error: Exception, segment: Any) -> dict[str, Any]:
        """Return the dead letter of a segment at which the task raised an exception; raises `TaskFailed`."""
        if not self._lettered:
            raise self._lifecycles.failed(self._name, error, segment) from error
        return self._lifecycles.letter(self._name, error, segment, self._way)

    def packed(self, made: Any) -> bytes:
        """Return the bytes of a value that the task made; raises `Unfit`, which names its function."""
        try:
            return pack(made)
        except Unfit as error:
            raise Unfit(f"{self._called} returned", error.message) from None

    def _made(self, segment: Any) -> list[Any]:
        assert self._fn is not None
        try:
            made = self._fn(segment, **self._params)
        except Exception as error:
            return [error]
        return made if isinstance(made, list) else [] if made is None else [made]


def _called(fn: Ref) -> str:
    """Return a function's name, for messages."""
    if isinstance(fn, str):
        return fn
    return fn.named if isinstance(fn, Pickled) else str(getattr(fn, "__qualname__", type(fn).__name__))
