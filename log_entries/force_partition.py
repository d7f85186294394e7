"""Accept that the majority of a partition's members is lost, with all data that no live member has.

Submitted by any peer for an operator. The live members stay members, and until the partition
settles, a majority needs every one of them. So if one of them leaves too, the partition waits for
it, or for the next decision. If no member is live, the live nodes of the target become the members.
The live nodes become the target, members first, up to the number of copies that the cluster keeps.
A leader among them takes over under a new epoch, and copies are made elsewhere as usual. Changes
nothing while a majority of the members is up, because that is enough for a takeover. Changes
nothing either while no node of the partition is up.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from attrs import evolve, frozen

from onyxq.core.entry import APPLIED, Stamp, Verdict
from onyxq.core.placement import holders, reconcile, unanimous
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
    live = [node for node in holders(found) if node in replica.nodes and replica.nodes[node].peer]
    if not live:
        return replica, "no node of it lives"
    if _majority_lives(found, live):
        return replica, "a majority lives"
    copies = sorted(live, key=lambda node: node not in found.members)[: replica.settings.replicas]
    forced = evolve(
        found,
        members=_members(found, live),
        target=tuple(sorted(copies)),
        epoch=found.epoch + 1,
        ready=False,
        yields=0,  # the leaders gave up because of the lost members; a live member leads first
    )
    return reconcile(evolve(replica, partitions=replica.partitions.set(args.partition, forced))), APPLIED


def _majority_lives(found: Partition, live: Container[str]) -> bool:
    """Return whether a takeover is possible: targets that are not members yet may lack data, so they do not count."""
    return majority(found.members, live)


def _members(found: Partition, live: Sequence[str]) -> tuple[str, ...]:
    """Return the new members: nodes that were only targets may lack data, so they count only if no member lives."""
    kept = [node for node in live if node in found.members] or live
    return unanimous(kept, lost=[node for node in found.members if node not in live])
