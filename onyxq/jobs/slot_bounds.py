"""Bounds on the slots that each stage of a job may use at once, from the bounds of the job and of its tasks.

A *cut* is a reduce, join or frame task: Spark may redistribute the segments there. All tasks of a job between two cuts
are one stage. Spark runs a stage as a number of Spark tasks, and each uses one slot. So the smallest bound among the
tasks of a stage applies to the stage. Stages that do not depend on each other run side by side, and share the bounds
that apply to both.
"""

from __future__ import annotations

from collections.abc import Iterator

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
    plan, found = _Plan(job), dict[str, int]()
    for stage, names in plan.stages.items():
        limits = [_share(job.max_slots, len(plan.beside[stage]) + 1)] if job.max_slots and not job.own_host else []
        for task in job.catalog:
            if task.name in names and isinstance(task, SLOTTED) and (task.max_slots or task.percentage):
                limits.append(_share(_of_task(task, slots), len(plan.ways(stage, task.name))))
        if limits:
            found[stage] = min(limits)
    return found


def problems(job: Job) -> Iterator[Problem]:
    """Yield the first bound that cannot be kept, because stages that run side by side need a slot each."""
    if not _is_bounded(job):
        return
    spread = next((task.name for task in job.catalog if isinstance(task, FRAME_TASKS)), None)
    if spread is not None and job.max_slots and not job.own_host:
        yield "max_slots", f"cannot be kept: Spark spreads {spread!r} over all slots of its host; set own_host to True"
        return
    plan = _Plan(job)
    for stage, names in plan.stages.items():
        together = [stage, *plan.beside[stage]]
        if job.max_slots and not job.own_host and job.max_slots < len(together):
            what = f"is {job.max_slots}, but {', '.join(together)} run side by side and need a slot each"
            yield "max_slots", f"{what}: give it more, or set own_host to True"
            return
        for place, task in enumerate(job.catalog):
            if task.name not in names or not isinstance(task, SLOTTED):
                continue
            ways = plan.ways(stage, task.name)
            few = task.max_slots is not None and task.max_slots < len(ways)
            if len(ways) > 1 and (few or task.percentage):
                word = "max_slots" if few else "percentage"
                yield (
                    f"catalog[{place}].{word}",
                    f"cannot be kept: {task.name!r} runs for {', '.join(ways)} side by side",
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


class _Plan:
    """The stages of a job, and which of them run side by side."""

    def __init__(self, job: Job) -> None:
        self._cuts = {task.name for task in job.catalog if _is_cut(task)}
        self._before: dict[str, list[str]] = {task.name: [] for task in job.catalog}
        for source, to in job.workflow:
            self._before[to].append(source)
        cuts = [task.name for task in job.catalog if _is_cut(task)]
        ends = sorted({to for _, to in job.workflow} - {source for source, _ in job.workflow})
        self.stages = {cut: frozenset([cut, *self._leading([cut], self._cuts)]) for cut in cuts}
        """Cut that ends a stage -> names of the stage's tasks, and of the cuts at both ends."""
        self.stages[OUTPUTS] = frozenset(self._leading(ends, self._cuts))
        earlier = {cut: self._leading([cut], set()) for cut in cuts}
        self.beside: dict[str, list[str]] = {
            cut: [other for other in cuts if other != cut and other not in earlier[cut] and cut not in earlier[other]]
            for cut in cuts
        }
        """Cut that ends a stage -> cuts that end the stages that run beside it: neither needs the other's result."""
        self.beside[OUTPUTS] = []

    def ways(self, stage: str, name: str) -> list[str]:
        """Return this stage and the stages beside it that run the same task."""
        return [stage, *(other for other in self.beside[stage] if name in self.stages[other])]

    def _leading(self, ends: list[str], until: set[str]) -> set[str]:
        """Return the tasks from which segments reach the ends, back to the cuts in ``until``."""
        found: set[str] = set()
        waiting = [name for end in ends for name in self._before[end]]
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                waiting += [] if name in until else self._before[name]
        return found


def _is_cut(task: Task) -> bool:
    return isinstance(task, (Reduce, Join, *FRAME_TASKS))
