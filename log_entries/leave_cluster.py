"""Remove a peer from the ring, whatever it was doing.

Submitted by a watcher of the peer that sees its pulse absent, or by the peer itself when it stops.
The ring is closed around it. A joiner that it was taking in goes to the head of the queue and is
prepared again in the same entry. Its node becomes absent at the present log time. Partitions are
placed again. When the last member leaves, the first queued joiner becomes the ring. A peer that was
only joining is removed. Several watchers may report the same peer: repeats change nothing.
"""

from __future__ import annotations

from attrs import frozen

from onyxq.core import ring
from onyxq.core.entry import APPLIED, Stamp, Verdict
from onyxq.core.replica import Replica

VERSION = 1


@frozen
class Args:
    """``reason``: in words, for readers of the log."""

    peer: str
    reason: str


def apply(replica: Replica, args: Args, stamp: Stamp) -> tuple[Replica, Verdict]:
    """Close the ring around the peer."""
    if not ring.contains(replica.ring, args.peer):
        return replica, "not in the ring"
    return ring.move(replica, ring.remove(replica.ring, args.peer, stamp.position), stamp), APPLIED
