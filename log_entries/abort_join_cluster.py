"""Undo a join that is not complete.

Submitted by a joiner that gives up, for instance because it must stop while it waits. Applies only
to the submitter's own join: if a joiner's pulse is gone, its watcher submits ``leave_cluster``
instead. The joiner is removed as if it had never asked, and the next queued peer takes its place. A
peer that is already a member must leave instead.
"""

from __future__ import annotations

from attrs import frozen

from onyxq.core import ring
from onyxq.core.entry import APPLIED, Stamp, Verdict
from onyxq.core.replica import Replica

VERSION = 1


@frozen
class Args:
    """``joiner``: a peer that is prepared, accepted or queued."""

    joiner: str


def apply(replica: Replica, args: Args, stamp: Stamp) -> tuple[Replica, Verdict]:
    """Remove the joiner."""
    if args.joiner != stamp.peer:
        return replica, "not its own join"
    if args.joiner in replica.ring.members:
        return replica, "already joined"
    if not ring.is_joining(replica.ring, args.joiner):
        return replica, "not joining"
    return ring.move(replica, ring.remove(replica.ring, args.joiner, stamp.position), stamp), APPLIED
