"""Change the number of job slots that a peer offers.

Submitted by the peer, or through it by an operator. Sets ``slots`` of the peer. Jobs are allocated
again.
"""

from __future__ import annotations

from attrs import evolve, frozen

from onyxq.core.entry import APPLIED, Stamp, Verdict
from onyxq.core.jobs.allocation import allocated
from onyxq.core.jobs.slots import SLOTS_MAX
from onyxq.core.replica import Replica

VERSION = 1


@frozen
class Args:
    """``slots``: 0 to 65,536."""

    peer: str
    slots: int


def apply(replica: Replica, args: Args, stamp: Stamp) -> tuple[Replica, Verdict]:
    """Set the peer's slots."""
    peer = replica.peers.get(args.peer)
    if peer is None:
        return replica, "not in the ring"
    if not 0 <= args.slots <= SLOTS_MAX:
        return replica, "bad slots"
    if peer.slots == args.slots:
        return replica, "unchanged"
    after = evolve(replica, peers=replica.peers.set(peer.id, evolve(peer, slots=args.slots)))
    return allocated(after, stamp.position), APPLIED
