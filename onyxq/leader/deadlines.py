"""Deadlines: tasks that were not started by the time that their user named fail for that reason."""

from __future__ import annotations

import logging
from typing import Any

from onyxq.core.errors import Corrupt, OnyxqError
from onyxq.core.facts import task_header
from onyxq.core.ids import Run, TaskId, mask_of, stretch_of
from onyxq.core.replica import claim_of
from onyxq.core.task_headers import EXPIRES_MS, failure_of
from onyxq.leader.completion_rows import Finish, token_now
from onyxq.leader.completions import Completions
from onyxq.leader.host import OperationsHost
from onyxq.leader.leader import PartitionLeader
from onyxq.system.procedures import pause

LOOK_EVERY_S = 0.5
TASKS_MAX = 256
"""Expired tasks of a partition that are failed together."""

log = logging.getLogger(__name__)


class Deadlines:
    """Fails expired tasks of the partitions that a node leads."""

    def __init__(self, host: OperationsHost, completions: Completions) -> None:
        self._host = host
        self._completions = completions

    async def run(self) -> None:
        """Look for expired tasks until cancelled."""
        while True:
            await pause(LOOK_EVERY_S)
            now_ms = self._host.wall_ms()
            for partition in self._host.granter.led():
                next_ms = self._host.store.next_expiry_ms(partition)
                leader = self._host.leaders.get(partition)
                if next_ms is not None and next_ms <= now_ms and leader is not None and leader.ready:
                    await self._fail(leader, now_ms)

    async def _fail(self, leader: PartitionLeader, now_ms: int) -> None:
        # A task that was granted in time is not expired; its grant may not be stored yet.
        await self._host.settled()
        ids = self._host.store.expiring(leader.partition, now_ms, limit=TASKS_MAX)
        finishes = [finish for task_id in ids if (finish := self._expired(task_id)) is not None]
        if not finishes:
            return
        refused: list[list[Any]] = [[] for _ in finishes]
        try:
            await self._completions.finish_all({leader.partition: list(enumerate(finishes))}, refused)
        except OnyxqError as error:
            log.info("partition %d: expired tasks will be failed later: %s", leader.partition, error.message)

    def _expired(self, task_id: TaskId) -> Finish | None:
        host, run = self._host, Run(task_id, 1)
        stretch, mask = stretch_of(task_id), mask_of(task_id, 1)
        if (host.leader_state.unsure(stretch) | host.leader_state.blocked(run)) & mask:
            return None
        if claim_of(host.replica, task_id) is not None:
            return None
        try:
            row = host.store.task_row(task_id)
        except Corrupt:
            row = None  # the store lists its tasks again once it is repaired
        if row is None:
            return None
        host.leader_state.keys.note(task_id, row[1])
        header, _ = task_header(row[1])
        note = f"expired: no worker started it before {header.get(EXPIRES_MS)}".encode()
        return Finish(
            run, token_now(host.store, task_id, host.replica.position), failure_of(host.replica, header), [note]
        )
