"""Settle a partition: its copies have arrived, and its target becomes its members.

Submitted by the ready leader of the epoch once a majority of the target has everything. A node that
is no longer a member may drop its copy from here on. The leader stays, unless it is not in the new
cohort or another member leads fewer partitions. When the last partition settles, leaders are
balanced over all partitions.
"""

from __future__ import annotations

from attrs import frozen

from onyxq.core.entry import APPLIED, Stamp, Verdict
from onyxq.core.placement import settled
from onyxq.core.replica import Replica

VERSION = 1


@frozen
class Args:
    """The partition, and the epoch whose target is up to date."""

    partition: int
    epoch: int


def apply(replica: Replica, args: Args, stamp: Stamp) -> tuple[Replica, Verdict]:
    """Make the target the members."""
    found = replica.partitions.get(args.partition)
    if found is None:
        return replica, "no such partition"
    if found.epoch != args.epoch:
        return replica, "stale epoch"
    if found.leader != stamp.peer:
        return replica, "not the leader"
    if not found.ready:
        return replica, "not ready"
    if found.members == found.target:
        return replica, "already settled"
    return settled(replica, args.partition), APPLIED
