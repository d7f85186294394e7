"""A region of a job's workflow as one Python function, which Spark calls with whole batches of segments.

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
from onyxq.jobs.model import Function, Job, Output, Pickled, Ref
from onyxq.jobs.values import Unfit, pack
from onyxq.spark.failures import of_task
from onyxq.spark.functions import resolve
from onyxq.spark.lineage import child
from onyxq.spark.plan import rows
from onyxq.spark.plan.lifecycles import Lifecycles
from onyxq.spark.plan.regions import Region

Row = tuple[str, bytes, bytes]
"""``(out, lineage, payload)``: the task that it goes to, its origin, its value as msgpack."""


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
    run: Callable[[Iterable[Any]], Iterator[Any]] | None = None
    """The function that makes Arrow batches of segments; None if the rows themselves are the segments."""
    names: tuple[str, ...] = ()
    """Names of the columns if the rows are the segments; ``frame`` has plain ones."""


def run(place: Place, region: Region, shape: str, names: tuple[str, ...], batches: Iterable[Any]) -> Iterator[Any]:
    """Yield the output of one part of a batch; ``names``: of its columns, if rows have the shape of columns.

    `mapInArrow` calls this in a worker.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    batch = int(context.getLocalProperty("streaming.sql.batchId") or -1) if context else -1
    part = context.partitionId() if context else 0
    fused = _fused(place, region)
    if shape == rows.COLUMNS:
        batches = (one.rename_columns(list(names)) for one in batches)
    segments = rows.segments(batches, shape, entry=region.entry, place=f"{place.job}/{batch}")
    yield from rows.batches(fused.batch(segments, {"batch": batch, "part": part}))


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
        self._lifecycles = Lifecycles(job, known or {"job": job.id})
        self._steps = {name: _Step(job, region, name, self._lifecycles) for name in (region.entry, *region.tasks)}
        self._wanted = frozenset(region.wanted)
        outputs = dict.fromkeys(to for _, to in region.wanted if isinstance(job.task(to), Output))
        self._names = (*self._steps, *outputs)

    def batch(self, segments: Iterable[rows.Segment], known: dict[str, Any]) -> Iterator[Row]:
        """Yield the rows of all segments of a part of a batch, with calls of lifecycles before and after it."""
        self._lifecycles.around("before_batch", self._names, **known)
        for lineage, segment, only in segments:
            yield from self.segment(lineage, segment, only)
        self._lifecycles.around("after_batch", self._names, **known)

    def segment(self, lineage: bytes, segment: Any, only: str = "") -> list[Row]:
        """Return the rows that one segment of the entry becomes, in the order in which tasks made them.

        ``only`` is the task that it goes to first, if it does not go to all.
        """
        found: list[Row] = []
        waiting = self._left(self._region.entry, lineage, segment, found, only)
        waiting.reverse()
        while waiting:
            name, lineage, segment = waiting.pop()
            waiting += reversed(self._left(name, lineage, segment, found))
        return found

    def _left(
        self, name: str, lineage: bytes, segment: Any, found: list[Row], only: str = ""
    ) -> list[tuple[str, bytes, Any]]:
        """Run a task on a segment.

        Results that leave the region are added to ``found``, the others are returned.
        """
        step, staying = self._steps[name], []
        for ordinal, (to, made) in enumerate(step.routes(segment)):
            edge = step.edges.get(to)
            if edge is None or (only and to != only):
                continue  # The task has no wanted edge in this region, or the segment is not for it.
            after = child(lineage, edge, ordinal)
            if (name, to) in self._wanted:
                found.append((to, after, step.packed(made, segment)))
            else:
                staying.append((to, after, made))
        return staying


class _Step:
    """One task of a region."""

    def __init__(self, job: Job, region: Region, name: str, lifecycles: Lifecycles) -> None:
        self._name = name
        self._lifecycles = lifecycles
        self.edges = {to: job.workflow.index((name, to)) for source, to in region.edges if source == name}
        """The tasks after it that matter here -> index of the edge in the workflow."""
        task = job.task(name)
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

        An input or a cut returns the segment itself.
        """
        try:
            made = [segment] if self._fn is None else self._made(segment)
            found = [route for one in made for route in flow_conditions.routes(self._conditions, one, made, segment)]
        except Exception as error:
            raise self._lifecycles.failed(self._name, error, segment) from error
        return found

    def packed(self, made: Any, segment: Any) -> bytes:
        """Return the bytes of a value that the task made of a segment."""
        try:
            return pack(made)
        except Unfit as error:
            said = Unfit(f"{self._called} returned", error.message)
            raise self._lifecycles.failed(self._name, said, segment) from None

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
