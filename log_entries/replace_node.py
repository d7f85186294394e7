"""Replace an absent node: its copies are made elsewhere.

Owed by the ring's first peer if another node can take over, and the node has been absent for
longer than the setting ``absent_after_ms``, in log time. An operator may ask for it sooner.
The node leaves all targets, but stays a member of its partitions until they settle. It gets no
copies until a peer of it joins again.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve, frozen

from onyxq.core.entry import APPLIED, Stamp, Verdict
from onyxq.core.placement import eligible_nodes, reconcile
from onyxq.core.replica import Node, Replica, first_peer

VERSION = 1


@frozen
class Args:
    """The node."""

    node: str


def apply(replica: Replica, args: Args, stamp: Stamp) -> tuple[Replica, Verdict]:
    """Mark the node replaced and place its copies again."""
    node = replica.nodes.get(args.node)
    if node is None:
        return replica, "no such node"
    if node.peer:
        return replica, "the node is present"
    if node.replaced:
        return replica, "already replaced"
    nodes = replica.nodes.set(node.id, evolve(node, replaced=True))
    return reconcile(evolve(replica, nodes=nodes)), APPLIED


def owed(replica: Replica, me: str) -> Sequence[Args]:
    """Return the absent nodes whose time is over, for the ring's first peer."""
    late = sorted(node.id for node in replica.nodes.values() if _is_late(replica, node))
    if not late or first_peer(replica) != me:
        return ()
    takers = eligible_nodes(replica)
    return [Args(node) for node in late if _can_be_taken_over(replica, node, takers)]


def _is_late(replica: Replica, node: Node) -> bool:
    absent = not node.peer and not node.replaced and node.absent_since_ms >= 0
    return absent and replica.log_time_ms - node.absent_since_ms > replica.settings.absent_after_ms


def _can_be_taken_over(replica: Replica, node: str, takers: Sequence[str]) -> bool:
    cohorts = (found.target for found in replica.partitions.values() if node in found.target)
    return any(taker not in cohort for cohort in cohorts for taker in takers)
