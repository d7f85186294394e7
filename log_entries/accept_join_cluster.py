"""Third phase of a join: make the joiner a member.

Owed by the joiner, which watches its successor by then. The joiner enters the ring after the member
that took it in, and its node is present. Partitions are placed again. Both peers may now take in
others, so queued joiners may be prepared. ``joined_position`` of the peer becomes the position of
this entry's record.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from onyxq.core import ring
from onyxq.core.entry import APPLIED, Stamp, Verdict
from onyxq.core.replica import Replica

VERSION = 1


@frozen
class Args:
    """``joiner``: a peer that was notified."""

    joiner: str


def apply(replica: Replica, args: Args, stamp: Stamp) -> tuple[Replica, Verdict]:
    """Make the joiner a member."""
    after = ring.accept(replica.ring, args.joiner, stamp.position)
    if after is None:
        return replica, "not accepted"
    return ring.move(replica, after, stamp), APPLIED


def owed(replica: Replica, me: str) -> Sequence[Args]:
    """Return the entry owed by the joiner once it was notified."""
    return (Args(me),) if me in replica.ring.accepted.values() else ()
