"""Mark a partition as served by the leader of its epoch.

Submitted by the leader once a majority of members has reached the epoch and the leader has merged
their facts into its own. From here on it grants claims. Sets ``ready``, and resets the count of
given-up leaderships.
"""

from __future__ import annotations

from attrs import evolve, frozen

from onyxq.core.entry import APPLIED, Stamp, Verdict
from onyxq.core.replica import Replica

VERSION = 1


@frozen
class Args:
    """The partition, and the epoch of the takeover."""

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
