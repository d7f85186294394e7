"""A job's workflow on given segments, in this process: without a cluster, and without Spark if no task needs it.

The same code as on Spark runs functions, flow conditions, windows, triggers and joins. Segments are packed and unpacked
where Spark would do so. Lifecycles, formats of inputs and outputs, and restarts are left out. A job with frame tasks
runs on a Spark session of this process instead, as `onyxq.spark.preview` says.
"""

from __future__ import annotations

import copy
import importlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

from attrs import define, field

from onyxq.core.errors import BadRequest, Incomplete
from onyxq.core.limits import NAME_CHARACTERS_MAX
from onyxq.jobs import flow_conditions, join_pairs, letters, window_groups
from onyxq.jobs.file_sample import first_rows
from onyxq.jobs.function_imports import import_problem
from onyxq.jobs.job_check import check
from onyxq.jobs.key_state import later
from onyxq.jobs.model import FRAME_TASKS, Function, Input, Job, Join, Output, Preview, Reduce, Ref, Task
from onyxq.jobs.values import pack, pack_key, unpack
from onyxq.jobs.windows import Parts, extents_at, getter, time_of, windowings

ON_SPARK, INSTALLED = "onyxq.spark.preview", "onyxq.spark.home"
"""Modules that run previews on Spark, and that find what is missing for it.

They are loaded by name: other previews need no Spark.
"""
Routed = tuple[str, Any]
"""``(from, segment)``: a segment, and the task that it comes from."""
Made = tuple[str, Any]
"""``(to, segment)``: a segment of a cut, and the only task that it goes to; empty: all tasks after the cut."""


def of_files(
    job: Job, count: int, rows: Mapping[str, Iterable[Any]], *, batch_rows: int | None, ended: bool, spark: Any
) -> Preview:
    """Run a job's workflow on ``rows``, and on the first ``count`` rows of all other inputs; see `Job.preview`."""
    inputs = _checked(job, rows, batch_rows)
    if count < 1:
        raise BadRequest(f"count must be at least 1, not {count}", field="count")
    if _needs_spark(job, spark):
        return _on_spark(job, rows, count=count, batch_rows=batch_rows, ended=ended, session=spark)
    others = {task.name: first_rows(task, count) for task in inputs if task.name not in rows}
    return preview(job, {**rows, **others}, batch_rows=batch_rows, ended=ended)


def preview(
    job: Job,
    rows: Mapping[str, Iterable[Any]],
    *,
    batch_rows: int | None = None,
    ended: bool = True,
    spark: Any = None,
) -> Preview:
    """Run a job's workflow on segments of its inputs, and return what reaches its outputs.

    ``rows``: name of an input -> its segments, such as ``{"value": line}`` for the format ``text``; other inputs are
    empty. ``batch_rows``: largest number of segments of each input in a batch; default: all are one batch. ``ended``:
    whether the inputs end after these segments, so that every window is emitted. ``spark``: a session of Spark that
    runs the job. By default a job with a `Frame`, `Sql` or `BatchFunction` runs in the active session, or in one on
    this machine, which stays open. Other jobs need no Spark.

    Raises `BadRequest` if the job is not valid, or has no input of a name in ``rows``, and `Incomplete` if it needs
    Spark and something for it is not installed. Raises the exception of a function, with a note that names the task and
    the segment; on Spark `TaskFailed`, which names them.
    """
    given = _checked(job, rows, batch_rows)
    if _needs_spark(job, spark):
        return _on_spark(job, rows, count=None, batch_rows=batch_rows, ended=ended, session=spark)
    inputs = {task.name: list(rows.get(task.name, ())) for task in given}
    workflow = _Workflow(job)
    size = batch_rows or max(1, *map(len, inputs.values()))
    count = max(1, *(-(-len(found) // size) for found in inputs.values()))
    for number in range(count):
        part = {name: found[number * size : (number + 1) * size] for name, found in inputs.items()}
        workflow.batch(part)
    if ended:
        workflow.batch({}, ended=True)
    late = {name: cut.late for name, cut in workflow.cuts.items()}
    return Preview(workflow.outputs, late, workflow.letters)


def _checked(job: Job, rows: Mapping[str, Iterable[Any]], batch_rows: int | None) -> list[Input]:
    """Return the inputs of a job; raises `BadRequest` if the job or an argument of its preview is not valid."""
    check(job, importable=True)
    inputs = [task for task in job.catalog if isinstance(task, Input)]
    names = [task.name for task in inputs]
    for name in rows:
        if name not in names:
            raise BadRequest(f"rows has {name!r}, which is not an input; inputs are {', '.join(names)}", field="rows")
    if batch_rows is not None and batch_rows < 1:
        raise BadRequest(f"batch_rows must be at least 1, not {batch_rows}", field="batch_rows")
    return inputs


def _needs_spark(job: Job, session: Any) -> bool:
    """Return whether a preview runs on Spark; raises `Incomplete` if it must, and cannot."""
    frame = next((task for task in job.catalog if isinstance(task, FRAME_TASKS)), None)
    if frame is None or session is not None:
        return session is not None
    lacking: Incomplete | None = importlib.import_module(INSTALLED).missing()
    if lacking is not None:
        what = f"{frame.name!r} is a {type(frame).__name__}, which only Spark can run: {lacking.message}"
        raise Incomplete(what, hint=lacking.advice)
    return True


def _on_spark(job: Job, rows: Mapping[str, Iterable[Any]], **more: Any) -> Preview:
    run: Callable[..., Preview] = importlib.import_module(ON_SPARK).run
    return run(job, rows, **more)


class _Workflow:
    """The tasks of a job, ready to run batch by batch."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._order = job.ordered()
        self._conditions = {name: flow_conditions.compiled(job, name, _resolved) for name in self._order}
        self.letters: dict[str, list[Any]] = {one: [] for one in self._order if letters.wanted(job, one)}
        self.outputs: dict[str, list[Any]] = {one.name: [] for one in job.catalog if isinstance(one, Output)}
        self.cuts: dict[str, _Windows | _Pairs] = {
            one.name: _Windows(job, one.name, self.letters.get(one.name)) if isinstance(one, Reduce) else _Pairs(one)
            for one in job.catalog
            if isinstance(one, (Reduce, Join))
        }

    def batch(self, segments: Mapping[str, Sequence[Any]], *, ended: bool = False) -> None:
        """Run all tasks once, each after those before it."""
        now_ms = time.time_ns() // 1_000_000
        waiting: dict[str, list[Routed]] = {name: [("", one) for one in segments.get(name, ())] for name in self._order}
        for name in self._order:
            if name in self.outputs:
                self.outputs[name] += [one for _, one in waiting[name]]
            elif name in self.cuts:
                for to, made in self.cuts[name].batch(waiting[name], now_ms, ended=ended):
                    self._route(name, made, [made], waiting, only=to)
            else:
                for _, one in waiting[name]:
                    kept = copy.deepcopy(one) if name in self.letters else None  # The function may change it.
                    self._route(name, one, self._made(name, one), waiting, kept=kept)

    def _made(self, name: str, segment: Any) -> list[Any]:
        task = self._job.task(name)
        if not isinstance(task, Function):
            return [segment]
        try:
            made = _resolved(task.fn, name)(segment, **task.params)
        except Exception as error:
            return [error]
        return made if isinstance(made, list) else [] if made is None else [made]

    def _handed(self, to: str, value: Any) -> list[Any]:
        """Return a segment as the next task gets it; nothing if it refuses the segment, which is then a dead letter."""
        try:
            return [handed_over(self._job.task(to), value)]
        except Refused:
            if to not in self.letters:
                raise
            self.letters[to].append(value)
            return []

    def _route(
        self,
        name: str,
        segment: Any,
        made: Sequence[Any],
        waiting: dict[str, list[Routed]],
        *,
        only: str = "",
        kept: Any = None,
    ) -> None:
        """Pass the segments that a task made of a segment to the tasks after it.

        ``only``: to this task alone. ``kept``: the segment as a dead letter.
        """
        try:
            if name in self.cuts:
                made = [unpack(pack(one)) for one in made]  # a window's state changes while more of it is emitted
            found = [
                route for one in made for route in flow_conditions.routes(self._conditions[name], one, made, segment)
            ]
            handed = [(to, one) for to, value in found if only in ("", to) for one in self._handed(to, value)]
        except Exception as error:
            if name in self.letters and name not in self.cuts and not isinstance(error, Refused):
                self.letters[name].append(kept)
                return
            error.add_note(f"task {name}, segment {segment!r:.500}")
            raise
        for to, value in handed:
            waiting[to].append((name, value))


class Refused(BadRequest):
    """A segment that an output refuses."""


def handed_over(task: Task, value: Any) -> Any:
    """Return a segment as the next task gets it; raises `Refused` for one that an output refuses, or `Unfit`."""
    if isinstance(task, Function):
        return value
    made = unpack(pack(value))
    key = task.ordering_key if isinstance(task, Output) else None
    found = made.get(key) if key is not None and isinstance(made, dict) else None
    if key is not None and (type(found) not in (str, int) or not 1 <= len(str(found)) <= NAME_CHARACTERS_MAX):
        needs = f"must be a string or an integer of the segment, of 1 to {NAME_CHARACTERS_MAX} characters"
        raise Refused(f"output {task.name}: {key!r}, its ordering key, {needs}", field="ordering_key")
    return made


def _resolved(ref: Ref, place: str) -> Callable[..., Any]:
    """Return the function that a reference names."""
    if callable(ref):
        return ref
    if not isinstance(ref, str):
        raise BadRequest(f"{place}: a pickled function cannot be previewed", field=place, hint="Give the function.")
    if problem := import_problem(ref):
        raise BadRequest(f"{place} {problem}", field=place)
    module, _, parts = ref.partition(":")
    start: Any = importlib.import_module(module)
    found: Callable[..., Any] = reduce(getattr, parts.split("."), start)
    return found


# --- tasks that keep segments ---------------------------------------------------------------------


class Buckets(dict[int, bytes]):
    """The buckets of a cut, in memory."""

    def load(self, number: int) -> bytes | None:
        """Return the bytes under a number."""
        return self.get(number)

    def save(self, number: int, data: bytes | None) -> None:
        """Store bytes under a number, or delete them."""
        if data is None:
            self.pop(number, None)
        else:
            self[number] = data


class _Windows:
    """The windows of one task."""

    def __init__(self, job: Job, task: str, dead: list[Any] | None) -> None:
        self._windows = windowings(job, task, _resolved)
        self._dead = dead
        """Its dead letters; None if it has none."""
        self._store, self._index = Buckets(), window_groups.Index.unpack(None, len(self._windows))

    @property
    def late(self) -> int:
        return self._index.late

    def batch(self, segments: Sequence[Routed], now_ms: int, *, ended: bool) -> Iterator[Made]:
        """Yield what the windows emit."""
        folds = [Parts(one) for one in self._windows]
        kept: dict[tuple[int, bytes], list[window_groups.Kept]] = {}
        for _, segment in segments:
            self._add(folds, segment, now_ms, kept)
        parts = [(place, key, piece) for place, fold in enumerate(folds) for key, piece in fold.take()]
        group = window_groups.Group(self._windows, self._index, self._store)
        newest = [[fold.newest for fold in folds]] if segments else []
        for fired in group.batch(window_groups.Batch(now_ms, parts, newest, ended, kept)):
            segment = fired.emission.segment(unpack(fired.key))
            for to in fired.emission.trigger.emit_to or ("",):
                yield to, segment
        if self._dead is not None:
            self._dead += [segment for _, _, segment in group.late]

    def _add(
        self,
        folds: Sequence[Parts],
        segment: Any,
        now_ms: int,
        kept: dict[tuple[int, bytes], list[window_groups.Kept]],
    ) -> None:
        """Add a segment to all windows, and keep it for those for which it may be late."""
        dead = copy.deepcopy(segment) if self._dead is not None else None  # A function may change it.
        try:
            placed = [fold.placed(segment, now_ms) for fold in folds]
        except Exception:
            if self._dead is None:
                raise
            self._dead.append(dead)
            return
        for number, (fold, place) in enumerate(zip(folds, placed, strict=True)):
            fold.put(segment, place)
            time_ms, key, _ = place
            last = extents_at(self._windows[number].window, time_ms)[0]
            kept.setdefault((number, key), []).append((*last, dead))


@define
class _Pairs:
    """One join."""

    join: Join
    _store: Buckets = field(factory=Buckets)
    _index: join_pairs.Index = field(factory=lambda: join_pairs.Index.unpack(None))

    @property
    def late(self) -> int:
        return self._index.late

    def batch(self, segments: Sequence[Routed], now_ms: int, *, ended: bool) -> Iterator[Made]:
        """Yield the pairs."""
        on, time_in = getter(self.join.on, _resolved, "on"), getter(self.join.time, _resolved, "time")
        assert on is not None, "a join has a key"
        newest: list[int | None] = [None, None]
        found = []
        for source, value in segments:
            side = int(source != self.join.left)
            time_ms = None if time_in is None else time_of(time_in, value)
            newest[side] = later(newest[side], time_ms)
            found.append((side, pack_key(on(value)), time_ms, value))
        group = join_pairs.Group(self.join, self._index, self._store)
        for pair in group.batch(join_pairs.Batch(found, [newest] if segments else [], ended)):
            yield "", pair
