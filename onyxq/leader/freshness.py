"""Checks whether a leader is recent enough to call a token stale (design: claims).

A deposed leader does not know the grants of its successor. It must not call their tokens stale,
because the holders would stop working.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from log_entries import renew_claims
from onyxq.core.claims import BAD_RUN
from onyxq.core.errors import OnyxqError
from onyxq.core.ids import TaskId, partition_of
from onyxq.core.replica import Replica
from onyxq.leader.leader import PartitionLeader


class FreshnessHost(Protocol):
    """What these checks need of their node."""

    replica: Replica

    @property
    def leaders(self) -> Mapping[int, PartitionLeader]:
        """The partitions that this node leads."""
        ...

    async def verdicts(self, entries: Sequence[Any]) -> tuple[int, Sequence[str]]:
        """Submit entries and return their position and verdicts; raises `LogUnavailable`."""
        ...


async def unsure_partitions(host: FreshnessHost, named: Iterable[tuple[TaskId, int]]) -> set[int]:
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


async def _leads(host: FreshnessHost, leader: PartitionLeader) -> bool:
    """Return whether the log confirms the leadership; everything before the answer has then been read."""
    try:
        _, verdicts = await host.verdicts([renew_claims.Args(leader.partition, leader.epoch, ())])
    except OnyxqError:
        return False
    return verdicts[0] == BAD_RUN  # the entry was not refused for its epoch
