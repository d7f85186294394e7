"""Reading the bodies of many tasks by their runs, in any state (design: facts, runs).

Any node answers; the leader of the partitions does so without another node.  Bodies are those of task
rows, cut to the runs of the request.  An answer holds
about `ANSWER_BYTES`, and at least one body.  The caller asks for the rest again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import trio
from msgspec import Meta

from onyxq.core.errors import Corrupt, NotLeader, OnyxqError
from onyxq.core.facts import slice_task, task_header
from onyxq.core.ids import Run, TaskId, id_at, mask_of, offset_of, partition_of, runs_of, stretch_of
from onyxq.node.node import Node
from onyxq.node.routing import CALL_TIMEOUT_S, RETRY_PAUSE_MAX_S, RETRY_PAUSE_S, ROUTE_TIMEOUT_S, is_passing, leader_of
from onyxq.operations.checks.runs import check_runs
from onyxq.operations.handlers import Handler, served
from onyxq.operations.table.operation import converted
from onyxq.operations.table.task import READ_BODIES, Bodies, ReadBodies
from onyxq.operations.task_reads import partitions_of

ANSWER_BYTES = 4 * 1024 * 1024

Runs = Sequence[tuple[TaskId, int]]


class Part(ReadBodies):
    """Runs that one leader is asked for."""

    most_bytes: Annotated[int, Meta(ge=0, le=1 << 32)]


class BulkReading:
    """See the module's first paragraph; one per node."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def handlers(self) -> dict[str, Handler]:
        """Return the functions that serve the operations."""
        return served(READ_BODIES, self.read)

    async def read(self, args: ReadBodies) -> Bodies:
        """Return the bodies of runs; raises `OnyxqError`."""
        runs = args.runs
        check_runs(runs, partitions_of(self._node), "runs")
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
        return Bodies(**answer)

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
            if len(own) < len(runs):  # several nodes lead them now: the others are asked next time
                found = await self._insist(leader, own, most)
                taken = set(own)
                return found | {"rest": [*found["rest"], *(run for run in runs if run not in taken)]}

    async def _ask(self, leader: str, runs: Runs, most: int) -> dict[str, Any]:
        if not leader:
            raise NotLeader(f"no node leads partition {partition_of(runs[0][0])} now")
        args = {"runs": [list(run) for run in runs], "most_bytes": most}
        if leader == self._node.node_id:
            return await self.lead_read(args)
        return dict(await self._node.call(leader, "lead.bodies", args, timeout_s=CALL_TIMEOUT_S))

    async def lead_read(self, args: dict[str, Any]) -> dict[str, Any]:
        """Return the bodies of runs in partitions that are led from here; raises `NotLeader`."""
        asked = converted(Part, args)
        runs, most = asked.runs, asked.most_bytes
        for partition in sorted({partition_of(first) for first, _ in runs}):
            self._node.operations.tokens.leader(partition)
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
        """Yield a run that exists, in the pieces that its task rows have; raises `Corrupt`."""
        store, stretch = self._node.store, stretch_of(run.first)
        place, end = offset_of(run.first), offset_of(run.first) + run.count
        while place < end:
            task_id = id_at(stretch, place)
            row = store.task_row(task_id)
            if row is None:
                raise Corrupt(f"the task row at {task_id.hex()} is missing")
            start, body = offset_of(row[0]), row[1]
            _, count = task_header(body)
            size = min(end, start + count) - place
            yield [task_id, slice_task(body, place - start, size)]
            place += size
