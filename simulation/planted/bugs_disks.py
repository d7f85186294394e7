"""Planted bugs about disks that fail: what a refused write leaves behind, and who may serve on such a disk."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

from onyxq.core.errors import BadRequest, OnyxqError, StoreFailed
from onyxq.leader.leader import PartitionLeader
from onyxq.store.condition import Condition
from simulation.planted.planted import Planted
from simulation.planted.seams import instead

_Write = Callable[..., Awaitable[list[OnyxqError | None]]]


def _as_if_never_refused(original: Callable[[Condition], None]) -> Callable[[Condition], None]:
    def wrote(condition: Condition) -> None:
        condition.refusal = ""
        original(condition)

    return wrote


def _refused_is_stored(original: _Write) -> _Write:
    async def write(*args: object, **options: object) -> list[OnyxqError | None]:
        errors = await original(*args, **options)
        return [None if isinstance(error, (StoreFailed, BadRequest)) else error for error in errors]

    return write


def _leader_lacks_rows(leader: PartitionLeader) -> None:
    leader._lacks_rows(leader._host.node_id)


DISK_BUGS: tuple[Planted, ...] = (
    Planted(
        "nobody looks for refused writes that landed",
        "onyxq.store.condition:Condition.wrote",
        _as_if_never_refused,
        "a task whose write was refused, and is on the disk nevertheless, is never handed out",
        "failing_disk",
        runs=40,
        quick=30,
    ),
    Planted(
        "a leader that missed a write counts as incomplete for ever",
        "onyxq.leader.leader:PartitionLeader._compare_all",
        instead(_leader_lacks_rows),
        "copies are never whole again under this leader, and nothing settles in small clusters",
        "failing_disk",
        quick=6,
    ),
    Planted(
        "a peer stays whose disk takes nothing",
        "onyxq.node.membership:STORE_PATIENCE_S",
        instead(math.inf),
        "partitions are under-replicated, and nobody is told or makes other copies",
        "failing_disk",
        quick=10,
    ),
    Planted(
        "what a disk refused counts as stored",
        "onyxq.node.node:Node._write_here",
        _refused_is_stored,
        "an acknowledged task is not on the disks of a majority",
        "failing_disk",
        quick=10,
    ),
)
