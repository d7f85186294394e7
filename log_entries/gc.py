"""Compresses the replica and names the peer that snapshots it and trims the log.

Submitted by a member when the log has grown, or on request.  Sets ``snapshot`` to the
position of this record and its writer, and forgets the outbox numbers of peers that are
not in the ring any more.
"""

from __future__ import annotations

from attrs import evolve, frozen

from onyxq.entry import APPLIED, Stamp, Verdict
from onyxq.replica import Replica, Snapshot

VERSION = 1


@frozen
class Args:
    """None."""


def apply(replica: Replica, args: Args, stamp: Stamp) -> tuple[Replica, Verdict]:
    """Forget what nobody can need again."""
    outbox = replica.outbox.evolver()
    for peer in sorted(replica.outbox):
        if peer not in replica.peers:
            del outbox[peer]
    snapshot = Snapshot(position=stamp.position, peer=stamp.peer)
    return evolve(replica, outbox=outbox.persistent(), snapshot=snapshot), APPLIED
