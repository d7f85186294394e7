"""Planted bugs of failing disks: refused writes, and peers that stay on such a disk."""

from __future__ import annotations

import math
from collections.abc import Callable

from onyxq.core.errors import BadRequest, OnyxqError, StoreFailed
from onyxq.leader.cohort.replication import OwnCopy
from onyxq.leader.leader import PartitionLeader
from onyxq.store.condition import Condition
from onyxq.store.interface import Written
from simulation.planted.planted import Planted
from simulation.planted.seams import instead

_Heard = Callable[[OwnCopy, Written | OnyxqError], None]


def _as_if_never_refused(original: Callable[[Condition], None]) -> Callable[[Condition], None]:
    def wrote(condition: Condition) -> None:
        condition.refusal = ""
        original(condition)

    return wrote


def _refused_is_stored(original: _Heard) -> _Heard:
    def heard(copy: OwnCopy, outcome: Written | OnyxqError) -> None:
        original(copy, Written() if isinstance(outcome, (StoreFailed, BadRequest)) else outcome)

    return heard


def _leader_lacks_rows(leader: PartitionLeader) -> None:
    leader._lacks_rows(leader._host.node_id)


DISK_BUGS: tuple[Planted, ...] = (
    Planted(
        "refused writes that reached the disk are not looked for",
        "onyxq.store.condition:Condition.wrote",
        _as_if_never_refused,
        "a task whose write was refused but is on the disk is never granted",
        "failing_disk",
        runs=40,
    ),
    Planted(
        "a leader with a failed write counts as incomplete for ever",
        "onyxq.leader.leader:PartitionLeader._compare_all",
        instead(_leader_lacks_rows),
        "copies are never complete under this leader, and small clusters never settle",
        "failing_disk",
        quick=6,
    ),
    Planted(
        "a peer whose disk refuses writes stays in the ring",
        "onyxq.node.membership:STORE_PATIENCE_S",
        instead(math.inf),
        "partitions stay under-replicated without a report or new copies",
        "failing_disk",
        quick=10,
    ),
    Planted(
        "refused writes count as stored",
        "onyxq.leader.cohort.replication:OwnCopy.heard",
        _refused_is_stored,
        "an acknowledged task is not on the disks of a majority",
        "failing_disk",
        quick=10,
    ),
)
