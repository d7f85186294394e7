"""Nothing unfinished or within its retention is purged, and nothing purged comes back.

Looked at when a watermark rises, on the disks as they are then; at every grant, answer and
reading back; and at the end, when no disk may hold a row of what is purged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, cast

from attrs import define, field

from log_entries import purge
from onyxq.client.values import Task
from onyxq.core.entry import APPLIED
from onyxq.core.errors import Corrupt
from onyxq.core.facts import COMPLETION, KINDS, unpack_completion
from onyxq.core.ids import TaskId, mask_of, partition_of, stretch_of
from onyxq.core.purged import Watermark, is_purged, watermark_of
from onyxq.core.queues import settings_of
from onyxq.core.replica import Replica
from onyxq.core.step import Step
from onyxq.store.memory import MemoryTables
from simulation.checkers import Checker, granted_in
from simulation.checkers.enough_copies import DiskReads
from simulation.probes import Probes

CLOCKS_APART_MS = 6_000
"""Largest difference between the clock of a leader and that of the peer that noted the completion."""


@define(eq=False)
class PurgedStaysPurged(Checker):
    """See the module's first paragraph."""

    name: ClassVar[str] = "purged stays purged"
    probes: Probes
    disks: Callable[[], Mapping[str, MemoryTables]] = dict
    true_ms: Callable[[], int] = int
    replica: Replica = field(factory=Replica)

    def step(self, before: Replica, step: Step) -> None:
        """Judge watermarks that rise, and grants."""
        for task_id in granted_in(step):
            self._stays(task_id, "granted")
        self.replica = step.replica
        for outcome in step.outcomes:
            if isinstance(outcome.args, purge.Args) and outcome.verdict == APPLIED:
                self._rises(outcome.args.partition, before)

    def __contains__(self, task_id: object) -> bool:
        """Whether a task is purged."""
        placed = self.replica.partitions.get(partition_of(task_id)) if isinstance(task_id, bytes) else None
        return placed is not None and is_purged(placed, cast(bytes, task_id))

    def _rises(self, partition: int, before: Replica) -> None:
        then, now = watermark_of(before.partitions[partition]), watermark_of(self.replica.partitions[partition])
        if not now.reaches(then):
            raise self.broken(f"the watermark of partition {partition} sinks from {then} to {now}")
        known = [one for one in sorted(self.history.enqueued) if partition_of(one) == partition]
        gone = [one for one in known if now.covers(one) and not then.covers(one)]
        if gone:
            self.probes.reached("acknowledged tasks were purged")
        if now.kept:
            self.probes.reached("something was kept below a watermark")
        if then.kept - now.kept:
            self.probes.reached("something that was kept was purged")
        for task_id in gone:
            self._was_due(task_id)
        self._waited_for(gone)

    def _was_due(self, task_id: TaskId) -> None:
        """A task that goes is finished, as one of the disks that have it says, and was so for its retention."""
        bit, queue = mask_of(task_id, 1), self.history.enqueued[task_id].queue
        disks = [DiskReads(tables) for tables in self.disks().values()]
        known = [disk for disk in disks if disk.known_bits(stretch_of(task_id)) & bit]
        done = [disk for disk in known if disk.finished_bits(stretch_of(task_id)) & bit]
        if known and not done:
            raise self.broken(f"{task_id.hex()} is purged and unfinished on every disk that has it")
        rows = {body for disk in done for body in _completions(disk, task_id)}
        passed_ms = self.true_ms() - max((unpack_completion(body).at_ms for body in rows), default=0)
        if passed_ms + CLOCKS_APART_MS < settings_of(self.replica, queue).retention_ms:
            raise self.broken(f"{task_id.hex()} of {queue} is purged {passed_ms} ms after its end")

    def _waited_for(self, gone: list[TaskId]) -> None:
        """No acknowledged task that waits depends on one that failed and goes."""
        for task_id in gone:
            for dependent in self.history.dependents.get(task_id, ()):
                if dependent not in self and self._failed(task_id) and self._waits(dependent):
                    raise self.broken(f"{task_id.hex()} failed and is purged; {dependent.hex()} waits for it")

    def _failed(self, task_id: TaskId) -> bool:
        return any(task_id in DiskReads(tables).failed(partition_of(task_id)) for tables in self.disks().values())

    def _waits(self, task_id: TaskId) -> bool:
        """Whether a task waits for its dependencies on every disk that has it."""
        bit, disks = mask_of(task_id, 1), [DiskReads(tables) for tables in self.disks().values()]
        known = [disk for disk in disks if disk.known_bits(stretch_of(task_id)) & bit]  # its row may be damaged
        rows = [first for disk in known for first, _ in disk.waiting(partition_of(task_id), limit=10_000)]
        return bool(known) and rows.count(task_id) == len(known)

    def _stays(self, task_id: TaskId, what: str) -> None:
        if task_id in self:
            raise self.broken(f"{task_id.hex()} was purged, and is {what}")

    def heard(self, task_id: TaskId) -> None:
        """A worker was given a task."""
        self._stays(task_id, "given to a worker")

    def read_back(self, task: Task) -> None:
        """A task was read after the faults."""
        self._stays(task.id, "read")

    def watch(self, node: str, replica: Replica, tables: MemoryTables) -> None:
        """No row of what a node knows to be purged comes to its disk; called again and again."""
        for number, placed in replica.partitions.items():
            mark = watermark_of(placed)
            if not mark.before_ms:
                continue
            rows = {
                key
                for kind in KINDS
                for key, _ in tables.rows.ascend(number.to_bytes(2, "big") + kind)
                if key[:3] == number.to_bytes(2, "big") + kind and mark.covers(key[3:23])
            }
            known, before = self._seen.get((node, number), (Watermark(), set[bytes]()))
            if known == mark and rows - before:
                row = min(rows - before)
                raise self.broken(f"a row of kind {row[2:3]!r} of the purged task {row[3:23].hex()} came to {node}")
            self._seen[node, number] = mark, rows

    def look(self, disks: Mapping[str, list[tuple[bytes, bytes]]]) -> bool:
        """Whether no disk of these holds a row of what is purged."""
        marks = {number: watermark_of(placed) for number, placed in self.replica.partitions.items()}
        self._left = [
            f"node {node} still has a row of kind {key[2:3]!r} of the purged task {key[3:23].hex()}"
            for node, rows in disks.items()
            for key, _ in rows
            if marks.get(int.from_bytes(key[:2], "big"), Watermark()).covers(key[3:23])
        ]
        return not self._left

    _seen: dict[tuple[str, int], tuple[Watermark, set[bytes]]] = field(factory=dict)
    _left: list[str] = field(factory=list)

    def finish(self) -> None:
        """No disk held such a row any more when it was last looked at."""
        if self._left:
            raise self.broken(f"{self._left[0]}, and {len(self._left) - 1} more rows are left")


def _completions(disk: DiskReads, task_id: TaskId) -> list[bytes]:
    """Completions of a task on a disk; none if one is damaged there."""
    try:
        return [body for _, body in disk.covering(COMPLETION, task_id)]
    except Corrupt:
        return []
