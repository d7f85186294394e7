"""Whatever was acknowledged is on the disks of a majority of its partition's members, from then on.

Looked at when an acknowledgement arrives, and for all tasks of a partition whenever its
members change.  Damaged rows count; repairing them is another matter.  What a transaction was said
to have done without being shown yet may still be pending on them, so its updates are not judged.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import ClassVar

from attrs import define, field

from onyxq.core.facts import COMPLETED, COMPLETION, TASK, Update, sealed, update_row
from onyxq.core.ids import TaskId, mask_of, partition_of, stretch_of
from onyxq.core.placement import LOST
from onyxq.core.replica import Partition, Replica
from onyxq.core.step import Step
from onyxq.leader.cohort.pending_facts import key_in
from onyxq.store.index.expected import stretch_rows, true_stretch
from onyxq.store.index.stretches import Stretch
from onyxq.store.integrity.rebuild import marks_in
from onyxq.store.memory import MemoryTables
from onyxq.store.store import Store
from onyxq.store.tables import CheckedTables
from simulation.checkers import Checker


class DiskReads(Store):
    """What is on a node's disk, whether a process runs there or not."""

    def __init__(self, tables: MemoryTables) -> None:
        super().__init__()
        self._tables = CheckedTables(tables, self._met_entry)

    def _stretch(self, stretch: bytes) -> Stretch:
        """Return the record that follows from the rows on the disk where the index is being rebuilt."""
        if stretch[6:8] not in marks_in(self._tables.meta):
            return super()._stretch(stretch)
        found = true_stretch(self._tables, stretch).copy()
        for key, value in stretch_rows(self._tables, stretch):
            if key[2:3] == TASK and not sealed(key, value):
                found.known |= mask_of(key[3:], 1)
            elif key[2:3] == COMPLETION and not sealed(key, value):
                found.done[COMPLETED] |= mask_of(key[3:23], int.from_bytes(key[31:], "big"))
        return found


@define(eq=False)
class EnoughCopies(Checker):
    """See the module's first paragraph; ``disks`` gives every node's, by node id."""

    name: ClassVar[str] = "enough copies"
    disks: Callable[[], Mapping[str, MemoryTables]] = dict
    purged: Container[TaskId] = ()
    """Tasks that were to go."""
    placed: dict[int, tuple[str, ...]] = field(factory=dict)
    """Members of each partition as last looked at."""
    updates: dict[TaskId, list[bytes]] = field(factory=dict)
    """Keys of the rows of acknowledged updates, except those of transactions."""

    def step(self, before: Replica, step: Step) -> None:
        """Look at all of a partition's tasks where its members changed."""
        if before.partitions is step.replica.partitions:
            return
        for number, now in step.replica.partitions.items():
            then = before.partitions.get(number)
            if then is not None and then.members and then.members != now.members:
                known = self.history.enqueued.keys() | self.history.completed.keys()
                self.look(step.replica, now, (task_id for task_id in sorted(known) if partition_of(task_id) == number))

    def acknowledged(self, replica: Replica, task_ids: Iterable[TaskId]) -> None:
        """Something about tasks was acknowledged just now."""
        for task_id in task_ids:
            self.look(replica, replica.partitions[partition_of(task_id)], [task_id])

    def updated(self, replica: Replica, task_id: TaskId, token: int, number: int) -> None:
        """An update of a task was acknowledged just now."""
        self.updates.setdefault(task_id, []).append(update_row(task_id, Update(token, number, 0, b"")).key)
        if task_id not in self.purged:
            placed, disks = replica.partitions[partition_of(task_id)], self.disks()
            self._look_at_updates(placed, [DiskReads(disks[node]) for node in placed.members if node in disks], task_id)

    def _look_at_updates(self, placed: Partition, members: Sequence[DiskReads], task_id: TaskId) -> None:
        lost = sum(LOST in node for node in placed.members)
        for key in self.updates.get(task_id, ()):
            known = lost + sum(disk.get(key) is not None for disk in members)
            if 2 * known <= len(placed.members):
                raise self.broken(
                    f"an update of {task_id.hex()} is on {known} of {len(placed.members)} members' disks: {key.hex()}"
                )

    def look(self, replica: Replica, placed: Partition, task_ids: Iterable[TaskId]) -> None:
        """Compare the members' disks with what was acknowledged about tasks of their partition."""
        disks = self.disks()
        members = [DiskReads(disks[node]) for node in placed.members if node in disks]
        lost = sum(LOST in node for node in placed.members)  # they had it, and count until the partition settles
        for task_id in task_ids:
            if task_id in self.purged:
                continue
            stretch, bit = stretch_of(task_id), mask_of(task_id, 1)
            pending = {id(disk) for disk in members if self._is_pending(replica, disk, task_id)}
            known = lost + sum(bool(disk.known_bits(stretch) & bit) or id(disk) in pending for disk in members)
            if task_id in self.history.enqueued and 2 * known <= len(placed.members):
                raise self.broken(f"task {task_id.hex()} is on {known} of {len(placed.members)} members' disks")
            done = lost + sum(bool(disk.finished_bits(stretch) & bit) or id(disk) in pending for disk in members)
            if task_id in self.history.completed and 2 * done <= len(placed.members):
                raise self.broken(
                    f"the completion of {task_id.hex()} is on {done} of {len(placed.members)} members' disks"
                )
            self._look_at_updates(placed, members, task_id)

    def _is_pending(self, replica: Replica, disk: DiskReads, task_id: TaskId) -> bool:
        """Whether what a committed transaction has done about a task waits on a disk to be shown."""
        name, partition = self.history.unsettled.get(task_id, ""), partition_of(task_id)
        found = replica.transactions.get(name)
        return found is not None and bool(disk.pending(partition, key_in(found, name, partition)))
