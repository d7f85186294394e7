"""Each planned time of a periodic task is run exactly once, under any faults of the peers that fire it.

Judged of periodic tasks with an interval in seconds that miss no time (``missed="all"``).
"""

from __future__ import annotations

from typing import ClassVar

from attrs import define, field

from log_entries import fire_periodic, pause_periodic, set_periodic
from onyxq.core.entry import APPLIED
from onyxq.core.ids import TaskId, ms_of
from onyxq.core.replica import Replica
from onyxq.core.step import Step
from simulation.checkers import Checker
from simulation.checkers.ledger import Ledger


@define
class Plan:
    """A periodic task as the log tells of it."""

    queue: str
    every_ms: int
    next_ms: int
    fired: set[int] = field(factory=set)
    """The times that were passed as run."""


@define(eq=False)
class PeriodicOnce(Checker):
    """See the module's first paragraph."""

    name: ClassVar[str] = "periodic once"
    ledger: Ledger
    plans: dict[str, Plan] = field(factory=dict)

    def step(self, before: Replica, step: Step) -> None:
        """Follow the plans of one record."""
        for outcome in step.outcomes:
            args = outcome.args
            if outcome.verdict != APPLIED:
                continue
            if isinstance(args, set_periodic.Args):
                self._set(args, step.replica)
            elif isinstance(args, pause_periodic.Args) and args.name in self.plans:
                self.plans[args.name].next_ms = step.replica.periodic[args.name].next_ms
            elif isinstance(args, fire_periodic.Args) and args.name in self.plans:
                self._fire(args, step)

    def _set(self, args: set_periodic.Args, after: Replica) -> None:
        every, seconds = args.schedule.split(" ")[0], args.schedule.split(" ")[-1]
        if every != "every" or args.missed != "all":
            self.plans.pop(args.name, None)
            return
        plan = self.plans.setdefault(args.name, Plan(args.queue, 0, 0))
        plan.every_ms, plan.next_ms = int(seconds[:-1]) * 1000, after.periodic[args.name].next_ms

    def _fire(self, args: fire_periodic.Args, step: Step) -> None:
        plan = self.plans[args.name]
        if args.fired_ms != plan.next_ms:
            raise self.broken(f"{args.name} was fired for {args.fired_ms} at {step.replica.position}: not its time")
        times = range(args.fired_ms, args.next_ms, plan.every_ms)
        if args.count != len(times) or (args.next_ms - args.fired_ms) % plan.every_ms:
            raise self.broken(f"{args.name} was fired {args.count} times for {list(times)} at {step.replica.position}")
        plan.fired |= {*times}
        plan.next_ms = args.next_ms

    def finish(self) -> None:
        """Compare the tasks that there are with the times that were passed."""
        for name, plan in self.plans.items():
            made: dict[int, TaskId] = {}
            for task in self.ledger.read.values():
                if task.queue != plan.queue:
                    continue
                other = made.setdefault(ms_of(task.id), task.id)
                if other != task.id:
                    raise self.broken(f"{name} ran twice for {ms_of(task.id)}: {other.hex()} and {task.id.hex()}")
            if lost := sorted(plan.fired - made.keys()):
                raise self.broken(f"{name} never ran for {lost}")
            if more := sorted(time_ms for time_ms in made.keys() - plan.fired if time_ms < plan.next_ms):
                raise self.broken(f"{name} ran for {more}, which were not its times")
