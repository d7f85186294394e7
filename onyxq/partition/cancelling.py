"""Cancelling: tasks that nobody works on are finished without being run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onyxq import facts
from onyxq.errors import AlreadyFinished, Conflict, OnyxqError
from onyxq.ids import Run, TaskId, mask_of, partition_of, stretch_of
from onyxq.partition.completing import Completing
from onyxq.partition.finishing import Finish, token_now
from onyxq.partition.host import OperationsHost, Refused
from onyxq.partition.missing import missing
from onyxq.partition.standing import Standing
from onyxq.replica import claimed_bits, pieces_of


class Cancelling:
    """Cancels tasks of the partitions that a node leads."""

    def __init__(self, host: OperationsHost, standing: Standing, completing: Completing) -> None:
        self._host = host
        self._standing = standing
        self._completing = completing

    async def cancel(self, ids: Sequence[TaskId]) -> list[dict[str, Any] | None]:
        """Finish unclaimed tasks as cancelled; an error map or None each."""
        await self._host.floating.readable()
        await self._completing.turn([Run(task_id, 1) for task_id in ids])
        refused: list[list[Refused]] = [[] for _ in ids]
        work: dict[int, list[tuple[int, Finish]]] = {}
        for place, task_id in enumerate(ids):
            run = Run(task_id, 1)
            try:
                leader = self._standing.leader(partition_of(task_id))
                if (row := self._host.store.task_row(task_id)) is None:
                    raise missing(self._host.store, task_id)
                if self._host.store.finished_bits(stretch_of(task_id)) & mask_of(*run):
                    raise AlreadyFinished(f"task {task_id.hex()} is finished already")
                if claimed_bits(pieces_of(self._host.replica, task_id)) & mask_of(
                    *run
                ) or self._host.granter.is_blocked(run):
                    raise Conflict(f"task {task_id.hex()} is claimed")
                self._host.granter.keys.note(task_id, row[1])
                token = token_now(self._host.store, task_id, self._host.replica.position)
                finish = Finish(run, token, facts.CANCELLED, [])
                work.setdefault(leader.partition, []).append((place, finish))
            except OnyxqError as error:
                refused[place].append([task_id, 1, error.to_map()])
        self._host.granter.block(finish.run for finishes in work.values() for _, finish in finishes)
        await self._completing.finish_all(work, refused)
        self._host.granter.unblock([finish.run for finishes in work.values() for _, finish in finishes], readd=True)
        return [parts[0][2] if parts else None for parts in refused]
