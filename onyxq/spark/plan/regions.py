"""A job's workflow cut into stages: the parts that Spark must know, and the rest as one function each.

A *cut* is a task that keeps state across segments (a reduce or a join), or one that computes frames of columns.
Between inputs, cuts and outputs there are only functions and flow conditions. Everything between them is one *region*,
and becomes one Python function (`onyxq.spark.plan.fused`), however many tasks and branches it has. Some edges have no
region: over them columns go as they are.

A stage is the flow into one cut, or into all outputs together. Its regions hold only the tasks that lead there, so
no function runs for segments that are not needed. If one input feeds a cut and also outputs, the functions on both
ways run once for each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from attrs import frozen

from onyxq.jobs import flow_conditions, letters
from onyxq.jobs.frame_check import gives_columns
from onyxq.jobs.model import FRAME_TASKS, Frame, Function, Input, Job, Join, Output, Reduce, Sql
from onyxq.jobs.options import takes_columns
from onyxq.spark.plan.rows import END

Edge = tuple[str, str]
CUTS = (Reduce, Join, *FRAME_TASKS)


@frozen
class Region:
    """The stateless tasks between one entry and the wanted edges."""

    entry: str
    """The input or cut whose segments come in."""
    tasks: tuple[str, ...]
    """Functions, each after those from which it gets segments."""
    edges: tuple[Edge, ...]
    """All edges that segments take, in the workflow's order."""
    wanted: tuple[Edge, ...]
    """The edges that lead out of the region."""


@frozen
class Stage:
    """The flow into a cut, or (``task`` None) into the outputs."""

    task: str | None
    sides: tuple[tuple[Region, ...], ...]
    """The regions that feed it.

    A join has two sides, left and right. A frame task has one for each task before it that gives segments.
    """
    columns: tuple[Edge, ...] = ()
    """The edges over which columns reach it as they are."""


def stages(job: Job) -> tuple[Stage, ...]:
    """Return the stages in the order in which they depend on each other; the outputs come last."""
    found = []
    for name in job.ordered():
        task = job.task(name)
        if isinstance(task, Reduce):
            found.append(Stage(name, (regions(job, tuple((before, name) for before in job.before(name))),)))
        elif isinstance(task, Join):
            found.append(Stage(name, tuple(regions(job, ((side, name),)) for side in (task.left, task.right))))
        elif isinstance(task, FRAME_TASKS):
            found.append(_stage(job, name, tuple((before, name) for before in job.before(name))))
    outs = tuple(edge for edge in job.workflow if isinstance(job.task(edge[1]), Output))
    columns = tuple(edge for edge in outs if columnar(job, edge))
    return (*found, Stage(None, (regions(job, tuple(edge for edge in outs if edge not in columns)),), columns))


def _stage(job: Job, name: str, edges: tuple[Edge, ...]) -> Stage:
    """Return the stage of a frame task."""
    columns = tuple(edge for edge in edges if columnar(job, edge))
    return Stage(name, tuple(regions(job, (edge,)) for edge in edges if edge not in columns), columns)


def columnar(job: Job, edge: Edge) -> bool:
    """Return whether rows go over an edge as columns: to a frame task, or from one to an output of files."""
    source, to = edge
    task = job.task(to)
    if isinstance(task, Output):
        files = takes_columns(task) and isinstance(job.task(source), FRAME_TASKS)
        return files and not flow_conditions.of_task(job, source)
    return isinstance(task, FRAME_TASKS) and gives_columns(job, source)


def is_plain(job: Job, region: Region) -> bool:
    """Return whether a cut may take the rows of a region's entry as they are: no function sees or sends them.

    A trigger that fires at segments, and dead letters, need their lineage, which the region makes.
    """
    if region.tasks or flow_conditions.of_task(job, region.entry):
        return False
    ((_, cut),) = region.wanted
    if letters.wanted(job, cut):
        return False
    windows = [window.id for window in job.windows if window.task == cut]
    called = [one for one in job.lifecycles if one.task in ("all", region.entry)]
    return not any(one.window in windows and one.on in ("segments", "punctuation") for one in job.triggers) and not any(
        one.before_batch or one.after_batch for one in called
    )


def uses(stages: tuple[Stage, ...]) -> Counter[str]:
    """Return how often stages use the rows of each input or cut; outputs of columns together use them once."""
    found = Counter(region.entry for stage in stages for side in stage.sides for region in side)
    for stage in stages:
        found.update({source for source, _ in stage.columns})
    return found


def regions(job: Job, wanted: tuple[Edge, ...]) -> tuple[Region, ...]:
    """Return a region for each input or cut whose segments reach the wanted edges, in the catalog's order."""
    leading = _leading(job, wanted)
    entries = [task.name for task in job.catalog if isinstance(task, (Input, *CUTS))]
    return tuple(_region(job, entry, leading) for entry in entries if any(edge[0] == entry for edge in leading))


def streams(job: Job) -> list[str] | None:
    """Return the inputs in the order in which Spark notes their offsets, once for each use in the plan.

    `END` is the source that ends all inputs. None if frame tasks decide the order.
    """
    if any(isinstance(task, FRAME_TASKS) for task in job.catalog):
        return None
    return [name for name in _plan(job) if name == END or isinstance(job.task(name), Input)]


def operators(job: Job) -> list[str]:
    """Return the windows' and joins' tasks in the order in which Spark numbers their state; no frame tasks."""
    return [name for name in _plan(job) if name != END and isinstance(job.task(name), (Reduce, Join))]


def _plan(job: Job) -> Iterator[str]:
    """Yield the inputs and cuts of the query's plan from its root on, each before what it reads."""
    found = {stage.task: stage for stage in stages(job)}
    waiting: list[str | None] = [None]
    while waiting:
        name = waiting.pop()
        if name is not None:
            yield name
        if name not in found:
            continue
        below: list[str | None] = []
        for side in found[name].sides:
            below += [region.entry for region in side]
            below += [END] if name is not None else []
        waiting += reversed(below)


def timed(job: Job) -> bool:
    """Return whether tasks of the job may keep state up to Spark's watermark."""
    return any(isinstance(task, (Frame, Sql)) for task in job.catalog)


def way_of(job: Job, region: Region) -> str:
    """Return what names the stage of a region in dead letters (`onyxq.jobs.letters`): its cut; empty: the outputs."""
    source, to = region.wanted[0]
    task = job.task(to)
    if isinstance(task, Join):
        return f"{source}/{to}"
    return "" if isinstance(task, Output) else to


def carries_letters(job: Job, region: Region) -> bool:
    """Return whether the region passes on the dead letters that come out of its entry: one region of each cut does."""
    if not letters.any_in(job):
        return False
    return region == next(
        one for stage in stages(job) for side in stage.sides for one in side if one.entry == region.entry
    )


def _leading(job: Job, wanted: tuple[Edge, ...]) -> dict[Edge, bool]:
    """Return edge -> whether it is wanted, for all edges that lead to wanted ones through functions only."""
    found = dict.fromkeys(wanted, True)
    waiting = [source for source, _ in wanted]
    while waiting:
        name = waiting.pop()
        if isinstance(job.task(name), Function):
            for before in job.before(name):
                if (before, name) not in found:
                    found[before, name] = False
                    waiting.append(before)
    return found


def _region(job: Job, entry: str, leading: dict[Edge, bool]) -> Region:
    reached, waiting = {entry}, [entry]
    while waiting:
        name = waiting.pop()
        for source, to in leading:
            if source == name and not leading[source, to] and to not in reached:
                reached.add(to)
                waiting.append(to)
    edges = tuple(edge for edge in job.workflow if edge in leading and edge[0] in reached)
    return Region(
        entry=entry,
        tasks=tuple(name for name in job.ordered() if name in reached and name != entry),
        edges=edges,
        wanted=tuple(edge for edge in edges if leading[edge]),
    )
