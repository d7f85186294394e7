"""Move work away from a node that will stop.

Submitted by a peer that is about to stop, or by an operator. Marks the node as draining: it leads
no partition any more. Partitions that would lose their majority without it settle elsewhere first.
Its jobs go to other drivers. With ``permanent`` all its copies move: placement gives it no new
copies, and it stays a member of each partition until that has settled elsewhere. Both end when a
new peer of the node joins.
"""

from __future__ import annotations

from attrs import evolve, frozen

from onyxq.core import placement
from onyxq.core.entry import APPLIED, Stamp, Verdict
from onyxq.core.jobs.allocation import allocated
from onyxq.core.replica import Replica

VERSION = 1


@frozen
class Args:
    """``permanent``: the node is not expected back."""

    node: str
    permanent: bool


def apply(replica: Replica, args: Args, stamp: Stamp) -> tuple[Replica, Verdict]:
    """Mark the node and place partitions again."""
    node = replica.nodes.get(args.node)
    if node is None:
        return replica, "unknown node"
    drained = evolve(node, draining=True, replaced=node.replaced or args.permanent)
    if drained == node:
        return replica, "already draining"
    placed = placement.reconcile(evolve(replica, nodes=replica.nodes.set(node.id, drained)))
    return allocated(placed, stamp.position), APPLIED
