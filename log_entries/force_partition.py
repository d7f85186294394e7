"""Accept that the majority of a partition is lost, with all data that only it had.

Submitted by any peer for an operator. The live nodes among the partition's members and target
become its members. They become its target too, former members first, up to the number of copies
that the cluster keeps. Data that only the lost nodes had is gone. A leader among the live nodes
takes over under a new epoch, and copies are made elsewhere as usual. Changes nothing while a
majority of the members is up, because that is enough for a takeover. Changes nothing either while
no node of the partition is up.
"""

from __future__ import annotations

from collections.abc import Container

from attrs import evolve, frozen

from onyxq.core.entry import APPLIED, Stamp, Verdict
from onyxq.core.placement import holders, reconcile
from onyxq.core.replica import Partition, Replica, majority

VERSION = 1


@frozen
class Args:
    """``by``: the operator that asked for it."""

    partition: int
    by: str


def apply(replica: Replica, args: Args, stamp: Stamp) -> tuple[Replica, Verdict]:
    """Continue with the live nodes alone."""
    found = replica.partitions.get(args.partition)
    if found is None:
        return replica, "no such partition"
    live = tuple(node for node in holders(found) if node in replica.nodes and replica.nodes[node].peer)
    if not live:
        return replica, "no node of it lives"
    if _majority_lives(found, live):
        return replica, "a majority lives"
    copies = sorted(live, key=lambda node: node not in found.members)[: replica.settings.replicas]
    forced = evolve(found, members=live, target=tuple(sorted(copies)), epoch=found.epoch + 1, ready=False)
    return reconcile(evolve(replica, partitions=replica.partitions.set(args.partition, forced))), APPLIED


def _majority_lives(found: Partition, live: Container[str]) -> bool:
    """Return whether a takeover is possible: targets that are not members yet may lack data, so they do not count."""
    return majority(found.members, live)
