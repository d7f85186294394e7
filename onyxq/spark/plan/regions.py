"""A job's workflow cut into stages: what Spark must do, and in one piece each what it need not know.

A *cut* is a task that keeps state across segments: a reduce or a join.  Between inputs, cuts and
outputs there are only functions and flow conditions: all that lies between is one *region*, and
becomes one Python function (`onyxq.spark.plan.fused`), however many tasks and branches it has.

A stage is what flows into one cut, or into all outputs together.  Its regions hold only the tasks
that lead there, so nothing is run for segments that nobody waits for.  Where one input feeds a cut
and outputs as well, the functions on both ways run once for each.
"""

from __future__ import annotations

from attrs import frozen

from onyxq.jobs.model import Function, Input, Job, Join, Output, Reduce

Edge = tuple[str, str]


@frozen
class Region:
    """The stateless tasks between one entry and the edges that are wanted of it."""

    entry: str
    """An input or a cut, whose segments come in."""
    tasks: tuple[str, ...]
    """Functions, each after those it gets segments from."""
    edges: tuple[Edge, ...]
    """All edges that segments take, in the workflow's order."""
    wanted: tuple[Edge, ...]
    """Those of them that lead out of the region."""


@frozen
class Stage:
    """What flows into a cut, or (``task`` None) into the outputs."""

    task: str | None
    sides: tuple[tuple[Region, ...], ...]
    """The regions that feed it; a join has two sides, left and right."""


def stages(job: Job) -> tuple[Stage, ...]:
    """The stages in the order in which they depend on each other; the outputs come last."""
    found = []
    for name in ordered(job):
        task = job.task(name)
        if isinstance(task, Reduce):
            found.append(Stage(name, (regions(job, tuple((before, name) for before in job.before(name))),)))
        elif isinstance(task, Join):
            found.append(Stage(name, tuple(regions(job, ((side, name),)) for side in (task.left, task.right))))
    outs = tuple(edge for edge in job.workflow if isinstance(job.task(edge[1]), Output))
    return (*found, Stage(None, (regions(job, outs),)))


def regions(job: Job, wanted: tuple[Edge, ...]) -> tuple[Region, ...]:
    """A region for each input or cut from which segments reach the wanted edges, in the catalog's order."""
    leading = _leading(job, wanted)
    entries = [task.name for task in job.catalog if isinstance(task, (Input, Reduce, Join))]
    return tuple(_region(job, entry, leading) for entry in entries if any(edge[0] == entry for edge in leading))


def ordered(job: Job) -> list[str]:
    """All tasks, each after those before it; among equals in the catalog's order."""
    found: list[str] = []
    waiting = [task.name for task in job.catalog]
    while waiting:
        name = next(name for name in waiting if all(before in found for before in job.before(name)))
        found.append(name)
        waiting.remove(name)
    return found


def stateful(job: Job) -> bool:
    """Whether Spark keeps state for it, so that it cannot go on from offsets alone."""
    return any(isinstance(task, (Reduce, Join)) for task in job.catalog)


def _leading(job: Job, wanted: tuple[Edge, ...]) -> dict[Edge, bool]:
    """Edges on a way to the wanted ones that passes only functions; whether each is wanted itself."""
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
        tasks=tuple(name for name in ordered(job) if name in reached and name != entry),
        edges=edges,
        wanted=tuple(edge for edge in edges if leading[edge]),
    )
