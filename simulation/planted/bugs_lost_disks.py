"""Planted bugs about lost disks: what an emptied node must not be counted for, answer or forget."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from attrs import evolve

from onyxq.core.replica import EMPTY, Replica
from onyxq.node.store_admission import Admission
from simulation.planted.planted import Planted
from simulation.planted.seams import instead, returning


def _counts_as_before(replica: Replica, node: str, store: str) -> Replica:
    return replica


def _promises_nothing(
    original: Callable[[Admission, Replica], Awaitable[None]],
) -> Callable[[Admission, Replica], Awaitable[None]]:
    async def admit(admission: Admission, replica: Replica) -> None:
        await original(admission, evolve(replica, partitions=EMPTY.partitions))

    return admit


LOST_DISK_BUGS: tuple[Planted, ...] = (
    Planted(
        "an emptied node counts as a member",
        "onyxq.core.placement:voided",
        instead(_counts_as_before),
        "an emptied node and one that missed a task are a majority, and the task is lost",
        "emptied_and_missed",
        quick=2,
    ),
    Planted(
        "an emptied node answers before it joins",
        "onyxq.node.store_admission:Admission.is_known",
        returning(True),
        "a takeover counts on a copy that is gone",
        "emptied_before_it_joins",
        more=(("onyxq.leader.cohort.member:ADMISSION_S", instead(0.0)),),
        quick=4,
    ),
    Planted(
        "an emptied node promises again what it had promised",
        "onyxq.node.store_admission:Admission._admit",
        _promises_nothing,
        "a deposed leader acknowledges completions with the help of a node that had promised its successor's epoch",
        "promise_lost",
        quick=2,
    ),
)
