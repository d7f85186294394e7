"""Checks of fencing tokens (design: claims).

Once a newer grant is on its way, older tokens are refused. The token of an expired claim is
accepted until the task is granted again.

A deposed leader does not know the grants of its successor. It must not call their tokens stale,
because the holders would stop working. So a leader that sees a newer token reads the log first.
"""

from __future__ import annotations

from collections.abc import Iterable

from log_entries import renew_claims
from onyxq.core.claims import BAD_RUN
from onyxq.core.errors import BadRequest, NotLeader, OnyxqError
from onyxq.core.ids import TaskId, partition_of
from onyxq.leader.host import OperationsHost
from onyxq.leader.leader import PartitionLeader


class TokenCheck:
    """Checks tokens of the partitions that a node leads."""

    def __init__(self, host: OperationsHost) -> None:
        self._host = host

    def leader(self, partition: int) -> PartitionLeader:
        """Return the serving leader of a partition; raises `NotLeader`, `BadRequest`."""
        if partition >= self._host.replica.settings.partitions:
            raise BadRequest(f"there is no partition {partition}", field="id")
        leader = self._host.leaders.get(partition)
        if leader is None:
            raise NotLeader(f"partition {partition} is not led from here")
        leader.check()
        return leader

    def leader_for(self, task_id: TaskId, token: int, unsure: set[int]) -> PartitionLeader:
        """Return the leader that can check a token; raises `NotLeader` if that is not possible here now."""
        leader = self.leader(partition_of(task_id))
        if leader.partition in unsure and token > self._host.replica.position:
            raise NotLeader(f"token {token} is newer than what this node has read of the log")
        return leader


async def unsure_partitions(host: OperationsHost, named: Iterable[tuple[TaskId, int]]) -> set[int]:
    """Return the partitions of ``(task, token)`` pairs whose tokens this node cannot check now.

    If a token is newer than what this node has read, it reads the log to its end first. For that it submits an
    entry that changes nothing. The verdict shows whether the node still leads, and comes after every earlier
    grant.
    """
    position = host.replica.position
    unsure = set()
    for partition in sorted({partition_of(task_id) for task_id, token in named if token > position}):
        leader = host.leaders.get(partition)
        if leader is None or not leader.ready:
            continue
        if not await _leads(host, leader):
            unsure.add(partition)
    return unsure


async def _leads(host: OperationsHost, leader: PartitionLeader) -> bool:
    """Return whether the log confirms the leadership; everything before the answer has then been read."""
    try:
        _, verdicts = await host.verdicts([renew_claims.Args(leader.partition, leader.epoch, ())])
    except OnyxqError:
        return False
    return verdicts[0] == BAD_RUN  # the entry was not refused for its epoch
