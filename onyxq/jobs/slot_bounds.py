"""Bounds on the slots that each stage of a job may use at once, from the bounds of the job and of its tasks.

A *cut* is a reduce, join or frame task: Spark may redistribute the segments there. All tasks of a job between two cuts
are one stage. Spark runs a stage as a number of Spark tasks, and each uses one slot. So the smallest bound among the
tasks of a stage applies to the stage. Stages that do not depend on each other run side by side, and share the bounds
that apply to both. Spark reads the tasks before a frame task apart from each other, so there each way to it is a flow
of its own, and may run beside the others.
"""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen

from onyxq.jobs.fields import Problem
from onyxq.jobs.model import FRAME_TASKS, Function, Job, Join, Reduce, Task

SLOTTED = (Function, Reduce, Join)
"""Tasks with bounds of their own."""
OUTPUTS = ""
"""Name of the last stage, which leads to the outputs."""


def bounds(job: Job, slots: int) -> dict[str, int]:
    """Return the largest number of slots of each bounded stage, by the cut that ends it.

    ``slots`` is the number of slots of the job.
    """
    if not _is_bounded(job):
        return {}
    plan, found = _Plan(job), dict[str, list[int]]()
    for flow in plan.flows:
        limits = found.setdefault(flow.stage, [])
        if job.max_slots and not job.own_host:
            limits.append(_share(job.max_slots, len(plan.beside(flow)) + 1))
        for task in job.catalog:
            if task.name in flow.names and isinstance(task, SLOTTED) and (task.max_slots or task.percentage):
                limits.append(_share(_of_task(task, slots), len(plan.ways(flow, task.name))))
    return {stage: min(limits) for stage, limits in found.items() if limits}


def problems(job: Job) -> Iterator[Problem]:
    """Yield the first bound that cannot be kept, because stages that run side by side need a slot each."""
    if not _is_bounded(job):
        return
    spread = next((task.name for task in job.catalog if isinstance(task, FRAME_TASKS)), None)
    if spread is not None and job.max_slots and not job.own_host:
        yield "max_slots", f"cannot be kept: Spark spreads {spread!r} over all slots of its host; set own_host to True"
        return
    plan = _Plan(job)
    for flow in plan.flows:
        together = [flow, *plan.beside(flow)]
        if job.max_slots and not job.own_host and job.max_slots < len(together):
            what = f"is {job.max_slots}, but {', '.join(map(str, together))} run side by side and need a slot each"
            yield "max_slots", f"{what}: give it more, or set own_host to True"
            return
        for place, task in enumerate(job.catalog):
            if task.name not in flow.names or not isinstance(task, SLOTTED):
                continue
            ways = plan.ways(flow, task.name)
            few = task.max_slots is not None and task.max_slots < len(ways)
            if len(ways) > 1 and (few or task.percentage):
                word = "max_slots" if few else "percentage"
                yield (
                    f"catalog[{place}].{word}",
                    f"cannot be kept: {task.name!r} runs for {', '.join(map(str, ways))} side by side",
                )
                return


def _is_bounded(job: Job) -> bool:
    tasks = [task for task in job.catalog if isinstance(task, SLOTTED)]
    return bool(job.max_slots) or any(task.max_slots or task.percentage for task in tasks)


def _of_task(task: Function | Reduce | Join, slots: int) -> int:
    share = slots * task.percentage // 100 if task.percentage else slots
    return min(task.max_slots or slots, max(1, task.min_slots, share))


def _share(most: int, parts: int) -> int:
    return max(1, most // parts)


@frozen
class _Flow:
    """The tasks that Spark may run at once, before a cut or the outputs."""

    stage: str
    """The cut, or `OUTPUTS`."""
    names: frozenset[str]
    """Its tasks, and the cuts at both ends."""
    after: frozenset[str]
    """The cuts whose results it needs."""
    source: str = ""
    """The task before a frame task from which it comes; a window or join has one flow from all tasks before it."""

    def __str__(self) -> str:
        return f"{self.source} to {self.stage}" if self.source else self.stage


class _Plan:
    """The flows of a job, and which of them run side by side."""

    def __init__(self, job: Job) -> None:
        self._cuts = {task.name for task in job.catalog if _is_cut(task)}
        self._before: dict[str, list[str]] = {task.name: [] for task in job.catalog}
        for source, to in job.workflow:
            self._before[to].append(source)
        self.flows: list[_Flow] = []
        for task in job.catalog:
            if isinstance(task, FRAME_TASKS):  # Spark reads the tasks before it apart from each other.
                self.flows += [self._flow(task.name, [source], source) for source in self._before[task.name]]
            elif _is_cut(task):
                self.flows.append(self._flow(task.name, self._before[task.name]))
        ends = {to for _, to in job.workflow} - {source for source, _ in job.workflow}
        self.flows.append(self._flow(OUTPUTS, [name for end in sorted(ends) for name in self._before[end]]))

    def beside(self, flow: _Flow) -> list[_Flow]:
        """Return the flows that run beside this one: neither needs the other's result."""
        if flow.stage == OUTPUTS:
            return []
        return [
            other
            for other in self.flows
            if other is not flow and other.stage not in ("", *flow.after) and flow.stage not in other.after
        ]

    def ways(self, flow: _Flow, name: str) -> list[_Flow]:
        """Return this flow and those beside it that run the same task."""
        return [flow, *(other for other in self.beside(flow) if name in other.names)]

    def _flow(self, stage: str, sources: list[str], source: str = "") -> _Flow:
        names = {stage, *self._leading(sources, self._cuts)}
        after = self._cuts & self._leading(sources, set())
        return _Flow(stage, frozenset(names), frozenset(after), source)

    def _leading(self, ends: list[str], until: set[str]) -> set[str]:
        """Return the tasks at the ends and those from which segments reach them, back to the cuts in ``until``."""
        found: set[str] = set()
        waiting = list(ends)
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                waiting += [] if name in until else self._before[name]
        return found


def _is_cut(task: Task) -> bool:
    return isinstance(task, (Reduce, Join, *FRAME_TASKS))
