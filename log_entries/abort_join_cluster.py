"""Undoes a join that is not complete.

Submitted by a joiner that gives up, for instance because it must stop while it waits.
Another peer cannot abort its join: the watcher of a joiner whose pulse is gone
submits ``leave_cluster``.  The joiner is forgotten as if it had never asked, and its place is filled
from the queue.  A peer that has become a member stays one: it has to leave.
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
    """Forget the joiner."""
    if args.joiner != stamp.peer:
        return replica, "not its own join"
    if args.joiner in replica.ring.members:
        return replica, "already joined"
    if not ring.is_joining(replica.ring, args.joiner):
        return replica, "not joining"
    return ring.move(replica, ring.remove(replica.ring, args.joiner, stamp.position), stamp), APPLIED
