"""An operator accepts that a partition's majority is lost, with what only it had.

Submitted by any peer for an operator.  Its members, and its target, become the live nodes of
both; what the lost ones alone had is gone.  A leader among them takes the partition over under
a new epoch, and copies are made elsewhere as usual.  It changes nothing while a majority of
the members lives, which is all that a takeover needs, or while nobody does.
"""

from __future__ import annotations

from attrs import evolve, frozen

from onyxq.core.entry import APPLIED, Stamp, Verdict
from onyxq.core.placement import holders, reconcile
from onyxq.core.replica import Replica, majority

VERSION = 1


@frozen
class Args:
    """``by``: who asked for it."""

    partition: int
    by: str


def apply(replica: Replica, args: Args, stamp: Stamp) -> tuple[Replica, Verdict]:
    """Go on with the live nodes alone."""
    found = replica.partitions.get(args.partition)
    if found is None:
        return replica, "no such partition"
    live = tuple(node for node in holders(found) if node in replica.nodes and replica.nodes[node].peer)
    if not live:
        return replica, "no node of it lives"
    if majority(found.members, live):
        return replica, "a majority lives"
    forced = evolve(found, members=live, target=live, epoch=found.epoch + 1, ready=False)
    return reconcile(evolve(replica, partitions=replica.partitions.set(args.partition, forced))), APPLIED
