"""The leader of a partition's epoch says that it serves.

Submitted by the leader once a majority of members has reached the epoch and their facts
are merged into its own.  From here on it grants claims.  Changes ``ready``, and forgets
how often leadership was given up before.
"""

from __future__ import annotations

from attrs import evolve, frozen

from onyxq.core.entry import APPLIED, Stamp, Verdict
from onyxq.core.replica import Replica

VERSION = 1


@frozen
class Args:
    """Which partition, and the epoch that was taken over."""

    partition: int
    epoch: int


def apply(replica: Replica, args: Args, stamp: Stamp) -> tuple[Replica, Verdict]:
    """Mark the partition ready."""
    found = replica.partitions.get(args.partition)
    if found is None:
        return replica, "no such partition"
    if found.epoch != args.epoch:
        return replica, "stale epoch"
    if found.leader != stamp.peer:
        return replica, "not the leader"
    if found.ready:
        return replica, "already ready"
    ready = evolve(found, ready=True, yields=0)
    return evolve(replica, partitions=replica.partitions.set(args.partition, ready)), APPLIED
