"""What clients heard, compared with the disks of the members while partitions move (design: simulation).

Whatever was acknowledged is on the disks of a majority of the members, from then on. It is judged when a client hears
of it and when members change, and now and then, because nodes drop copies.

Where an operator forces a partition, data may be lost that no kept member has. The model expects no more of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from attrs import define, field

from log_entries import force_partition, settle_partition
from onyxq.core.entry import APPLIED
from onyxq.core.ids import TaskId, mask_of, partition_of, stretch_of
from onyxq.core.placement import LOST
from onyxq.core.replica import EMPTY, Replica
from onyxq.core.step import Step
from onyxq.store.memory import MemoryTables
from simulation.checkers import Broken
from simulation.checkers.enough_copies import DiskReads
from simulation.search.facts_model import Model, Task


@define(eq=False)
class MovesModel(Model):
    """See the module's first paragraph; ``disks`` gives the disk of each node, by its id."""

    disks: Callable[[], Mapping[str, MemoryTables]] = dict
    reached: Callable[[str], None] = lambda _: None
    """Counts a probe; see `simulation.probes.MOVES`."""
    replica: Replica = EMPTY
    """The replica after the last record."""
    forced: set[int] = field(factory=set)
    """Partitions that were forced and have not settled since: any member may have the only copy."""
    missing: set[TaskId] = field(factory=set)
    """Tasks that no kept member had when their partition was forced."""
    undone: set[TaskId] = field(factory=set)
    """Tasks whose end no kept member had, although it had begun."""

    # --- the log

    def step(self, before: Replica, step: Step) -> None:
        """Judge the grants of a record, and the copies of partitions whose members it changed."""
        super().step(before, step)
        self.replica = step.replica
        for outcome in step.outcomes:
            if outcome.verdict == APPLIED and isinstance(outcome.args, force_partition.Args):
                self.reached("a partition was forced")
                self._give_up(outcome.args.partition)
            elif outcome.verdict == APPLIED and isinstance(outcome.args, settle_partition.Args):
                self.reached("a partition settled on other nodes")
                self.forced.discard(outcome.args.partition)
        if before.partitions is not step.replica.partitions:
            for number, placed in sorted(step.replica.partitions.items()):
                then = before.partitions[number]
                if placed.members != then.members:
                    self._look(number, self._of(number))
                if then.target not in (placed.target, then.members):
                    self.reached("a target changed before its copies had arrived")

    def _give_up(self, number: int) -> None:
        """Expect no more of what no kept member has."""
        self.forced.add(number)
        kept = self._members(number)
        for task in self._of(number):
            stretch, bit = stretch_of(task.id), mask_of(task.id, 1)
            known = any(disk.known_bits(stretch) & bit for disk in kept)
            if not known:
                self.missing.add(task.id)
                task.acked = 0
            if not known or (task.ending and not any(disk.finished_bits(stretch) & bit for disk in kept)):
                self.undone.add(task.id)
                task.completed, task.cancelled, task.over = None, False, 0

    # --- answers

    def acked(self, task: Task) -> None:
        """Note that a task is stored; an answer may be from before its partition was forced."""
        if task.id not in self.missing:
            super().acked(task)
            self._look(partition_of(task.id), [task])

    def completed(self, task: Task, token: int, result: bytes) -> None:
        """A worker heard that its completion is stored."""
        if task.id not in self.undone:
            super().completed(task, token, result)
            self._look(partition_of(task.id), [task])

    def stale(self, task: Task, token: int, replica: Replica, *, completing: bool) -> None:
        """A worker heard that its claim is not valid; ``completing``: when it asked to complete the task."""
        if task.id not in self.undone:
            super().stale(task, token, replica, completing=completing)

    # --- copies

    def look(self, *, moving: bool = False) -> None:
        """Judge the copies of all partitions, or only of those that are ``moving``."""
        for number, placed in sorted(self.replica.partitions.items()):
            if not moving or placed.members != placed.target:
                self._look(number, self._of(number))

    def _of(self, number: int) -> list[Task]:
        return [task for task in self.tasks.values() if partition_of(task.id) == number]

    def _members(self, number: int) -> list[DiskReads]:
        """Return the disks of a partition's members, without copies that were lost."""
        disks = self.disks()
        return [DiskReads(disks[name]) for name in self.replica.partitions[number].members if LOST not in name]

    def _look(self, number: int, tasks: Iterable[Task]) -> None:
        """Compare the members' disks with what was acknowledged; raises `Broken`."""
        members, size = self._members(number), len(self.replica.partitions[number].members)
        enough = 1 if number in self.forced else size // 2 + 1
        for task in tasks:
            stretch, bit = stretch_of(task.id), mask_of(task.id, 1)
            if task.acked:
                known = sum(bool(disk.known_bits(stretch) & bit) for disk in members)
                if known < enough:
                    raise Broken(f"enough copies: {task.hex} is on {known} of {size} members' disks")
            if task.completed is not None:
                done = sum(bool(disk.finished_bits(stretch) & bit) for disk in members)
                if done < enough:
                    raise Broken(f"enough copies: the end of {task.hex} is on {done} of {size} members' disks")
