"""Whether a leader can say that a token does not stand (design: claims).

A leader that was deposed and does not know it has not heard of what its successor granted.
It must not call such a token stale: that would tell its holder to stop.
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


class JudgingHost(Protocol):
    """What judging needs of its node."""

    replica: Replica

    @property
    def leaders(self) -> Mapping[int, PartitionLeader]:
        """Partitions led from here."""
        ...

    async def verdicts(self, entries: Sequence[Any]) -> tuple[int, Sequence[str]]:
        """Submit entries; position and verdicts. Raises `LogUnavailable`."""
        ...


async def unsure_partitions(host: JudgingHost, named: Iterable[tuple[TaskId, int]]) -> set[int]:
    """Partitions for which ``(task, token)`` are named of which the node cannot tell whether they stand.

    Where a token lies beyond what it has read of the log, the log is read to its end: an
    entry that changes nothing says by its verdict whether this node still leads, and is read
    behind every grant that was made before.
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


async def _leads(host: JudgingHost, leader: PartitionLeader) -> bool:
    """Whether the log says so now; what it said before has been read then."""
    try:
        _, verdicts = await host.verdicts([renew_claims.Args(leader.partition, leader.epoch, ())])
    except OnyxqError:
        return False
    return verdicts[0] == BAD_RUN  # not refused for its epoch
