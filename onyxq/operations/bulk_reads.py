"""Reading the bodies of many tasks by their runs, whatever has become of them (design: facts, runs).

Any node answers; who asks the leader of the partitions saves a step.  Bodies are those of task
rows, cut to what was asked for, with the data that replaced a unique task's.  An answer holds
about `ANSWER_BYTES`, and at least one body: what is left is asked for again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import trio

from onyxq.core.errors import Corrupt, NotLeader, OnyxqError, Unavailable
from onyxq.core.facts import pack_task, slice_task, task_header
from onyxq.core.ids import Run, TaskId, id_at, mask_of, offset_of, partition_of, runs_of, stretch_of
from onyxq.core.task_headers import UNIQUE_KEY
from onyxq.node.node import Node
from onyxq.node.routing import CALL_TIMEOUT_S, RETRY_PAUSE_MAX_S, RETRY_PAUSE_S, ROUTE_TIMEOUT_S, is_passing, leader_of
from onyxq.operations.arguments import batches

ANSWER_BYTES = 4 * 1024 * 1024

Runs = Sequence[tuple[TaskId, int]]


class BulkReading:
    """See the module's first paragraph; one per node."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def _partitions(self) -> int:
        if self._node.replica.cluster is None:
            raise Unavailable("the cluster is not known here yet")
        return self._node.replica.settings.partitions

    async def read(self, args: dict[str, Any]) -> dict[str, Any]:
        """``bodies`` (first id and body each), ``missing`` (runs of which there is no task) and ``rest`` (runs
        that the answer had no room for). Raises `OnyxqError`."""
        runs = batches.read(args, self._partitions())
        answer: dict[str, Any] = {"bodies": [], "missing": [], "rest": []}
        left = ANSWER_BYTES
        for leader, part in self._by_leader(runs):
            if left <= 0:
                answer["rest"] += part
                continue
            found = await self._insist(leader, part, left)
            for name in answer:
                answer[name] += found[name]
            left -= sum(len(body) for _, body in found["bodies"])
        return answer

    def _by_leader(self, runs: Runs) -> list[tuple[str, list[tuple[TaskId, int]]]]:
        found: dict[str, list[tuple[TaskId, int]]] = {}
        for run in runs:
            found.setdefault(leader_of(self._node, partition_of(run[0])), []).append(run)
        return sorted(found.items())

    async def _insist(self, leader: str, runs: Runs, most: int) -> dict[str, Any]:
        until = trio.current_time() + ROUTE_TIMEOUT_S
        pause = RETRY_PAUSE_S
        while True:
            try:
                return await self._ask(leader, runs, most)
            except OnyxqError as error:
                if not is_passing(error) or trio.current_time() + pause > until:
                    raise
                with trio.move_on_after(pause):
                    await self._node.moved()
                await trio.sleep(pause / 4)
                pause = min(2 * pause, RETRY_PAUSE_MAX_S)
            leader, own = self._by_leader(runs)[0]
            if len(own) < len(runs):  # they are led by several now: the others are asked next time
                found = await self._insist(leader, own, most)
                taken = set(own)
                return found | {"rest": [*found["rest"], *(run for run in runs if run not in taken)]}

    async def _ask(self, leader: str, runs: Runs, most: int) -> dict[str, Any]:
        if not leader:
            raise NotLeader(f"nobody leads partition {partition_of(runs[0][0])} now")
        args = {"runs": [list(run) for run in runs], "most_bytes": most}
        if leader == self._node.node_id:
            return await self.lead_read(args)
        return dict(await self._node.call(leader, "lead.bodies", args, timeout_s=CALL_TIMEOUT_S))

    async def lead_read(self, args: dict[str, Any]) -> dict[str, Any]:
        """The same of partitions that are led from here; raises `NotLeader`."""
        runs, most = batches.lead_read(args, self._partitions())
        for partition in sorted({partition_of(first) for first, _ in runs}):
            self._node.operations.leader(partition)
        bodies: list[Any] = []
        missing: list[Any] = []
        for place, (first, count) in enumerate(runs):
            if most <= 0 and bodies:
                return {"bodies": bodies, "missing": missing, "rest": [list(run) for run in runs[place:]]}
            stretch, mask = stretch_of(first), mask_of(first, count)
            known = self._node.store.known_bits(stretch) & mask
            missing += map(list, runs_of(stretch, mask & ~known))
            for run in runs_of(stretch, known):
                for found in self._bodies(run):
                    bodies.append(found)
                    most -= len(found[1])
        return {"bodies": bodies, "missing": missing, "rest": []}

    def _bodies(self, run: Run) -> Iterator[list[Any]]:
        """A run that there is, in the pieces that task rows cut it into; raises `Corrupt`."""
        store, stretch = self._node.store, stretch_of(run.first)
        place, end = offset_of(run.first), offset_of(run.first) + run.count
        while place < end:
            task_id = id_at(stretch, place)
            row = store.task_row(task_id)
            if row is None:
                raise Corrupt(f"the task row at {task_id.hex()} is missing")
            start, body = offset_of(row[0]), row[1]
            header, count = task_header(body)
            size = min(end, start + count) - place
            replaced = store.data(task_id) if UNIQUE_KEY in header else None
            if replaced is not None:
                yield [task_id, pack_task(header, [replaced])]
            else:
                yield [task_id, slice_task(body, place - start, size)]
            place += size
