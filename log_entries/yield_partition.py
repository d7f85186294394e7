"""Give up the leadership of a partition that cannot become ready or cannot write.

Submitted by the leader of the epoch: it is cut off from its cohort, or its disk is full. The next
live candidate leads, in turn. ``yields`` counts the turns, so that leaders pause longer each time.
If there is only one candidate, it tries again at a higher epoch.
"""

from __future__ import annotations

from attrs import evolve, frozen

from onyxq.core.entry import APPLIED, Stamp, Verdict
from onyxq.core.placement import yielded
from onyxq.core.replica import Replica

VERSION = 1


@frozen
class Args:
    """The partition, and the epoch that is given up."""

    partition: int
    epoch: int


def apply(replica: Replica, args: Args, stamp: Stamp) -> tuple[Replica, Verdict]:
    """Pass the leadership to the next candidate."""
    found = replica.partitions.get(args.partition)
    if found is None:
        return replica, "no such partition"
    if found.epoch != args.epoch:
        return replica, "stale epoch"
    if found.leader != stamp.peer:
        return replica, "not the leader"
    return evolve(replica, partitions=replica.partitions.set(args.partition, yielded(replica, found))), APPLIED
