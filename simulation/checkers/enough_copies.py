"""Whatever was acknowledged is on the disks of a majority of its partition's members, from then on.

Looked at when an acknowledgement arrives, and for all tasks of a partition whenever its
members change.  Damaged rows count; repairing them is another matter.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from typing import ClassVar

from attrs import define, field

from onyxq.ids import TaskId, mask_of, partition_of, stretch_of
from onyxq.replica import Partition, Replica
from onyxq.step import Step
from onyxq.store.memory import MemoryTables
from onyxq.store.reading import StoreReads
from simulation.checkers import Checker


class DiskReads(StoreReads):
    """What is on a node's disk, whether a process runs there or not."""

    def __init__(self, tables: MemoryTables) -> None:
        super().__init__()
        self._tables = tables


@define(eq=False)
class EnoughCopies(Checker):
    """See the module's first paragraph; ``disks`` gives every node's, by node id."""

    name: ClassVar[str] = "enough copies"
    disks: Callable[[], Mapping[str, MemoryTables]] = dict
    purged: Container[TaskId] = ()
    """Tasks that were to go."""
    placed: dict[int, tuple[str, ...]] = field(factory=dict)
    """Members of each partition as last looked at."""

    def step(self, before: Replica, step: Step) -> None:
        """Look at all of a partition's tasks where its members changed."""
        if before.partitions is step.replica.partitions:
            return
        for number, now in step.replica.partitions.items():
            then = before.partitions.get(number)
            if then is not None and then.members and then.members != now.members:
                known = self.history.enqueued.keys() | self.history.completed.keys()
                self.look(now, (task_id for task_id in sorted(known) if partition_of(task_id) == number))

    def acknowledged(self, replica: Replica, task_ids: Iterable[TaskId]) -> None:
        """Something about tasks was acknowledged just now."""
        for task_id in task_ids:
            self.look(replica.partitions[partition_of(task_id)], [task_id])

    def look(self, placed: Partition, task_ids: Iterable[TaskId]) -> None:
        """Compare the members' disks with what was acknowledged about tasks of their partition."""
        disks = self.disks()
        members = [DiskReads(disks[node]) for node in placed.members if node in disks]
        for task_id in task_ids:
            if task_id in self.purged:
                continue
            stretch, bit = stretch_of(task_id), mask_of(task_id, 1)
            known = sum(bool(disk.known_bits(stretch) & bit) for disk in members)
            if task_id in self.history.enqueued and 2 * known <= len(placed.members):
                raise self.broken(f"task {task_id.hex()} is on {known} of {len(placed.members)} members' disks")
            done = sum(bool(disk.finished_bits(stretch) & bit) for disk in members)
            if task_id in self.history.completed and 2 * done <= len(placed.members):
                raise self.broken(
                    f"the completion of {task_id.hex()} is on {done} of {len(placed.members)} members' disks"
                )
