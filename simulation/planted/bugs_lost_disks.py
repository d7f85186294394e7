"""Planted bugs of lost disks: an emptied node counts, answers or promises too early."""

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
        "an emptied node and a node that missed a task form a majority, and the task is lost",
        "emptied_and_missed",
        quick=2,
    ),
    Planted(
        "an emptied node answers before it joins",
        "onyxq.node.store_admission:Admission.is_known",
        returning(True),
        "a takeover relies on a lost copy",
        "emptied_before_it_joins",
        more=(("onyxq.leader.cohort.member:ADMISSION_S", instead(0.0)),),
        quick=4,
    ),
    Planted(
        "an emptied node forgets its promises",
        "onyxq.node.store_admission:Admission._admit",
        _promises_nothing,
        "a node that had promised the epoch of a successor accepts completions of the deposed leader",
        "promise_lost",
        quick=2,
    ),
)
