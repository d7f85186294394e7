"""Start a log collection: shrink the replica and name the peer that takes the snapshot and trims the log.

Owed by the ring's first peer once the log has grown enough since the last collection, unless that
is still under way. Enough is ``gc_records`` records, or ``gc_bytes`` bytes and at least the size of
the last snapshot. A member may also submit it on request. Sets ``snapshot`` to the position of this
record and its writer. Removes what is not needed any more: names and outcomes after their time, the
outbox numbers of peers that left, and ended jobs except their outcomes.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve, frozen

from onyxq.core.entry import APPLIED, Stamp, Verdict
from onyxq.core.jobs.lifetime import forget_ended
from onyxq.core.remembered import forget_departed, forget_old
from onyxq.core.replica import Replica, Snapshot, first_peer

VERSION = 1


@frozen
class Args:
    """None."""


def apply(replica: Replica, args: Args, stamp: Stamp) -> tuple[Replica, Verdict]:
    """Remove what is not needed any more; this collection replaces the one before."""
    snapshot = Snapshot(position=stamp.position, peer=stamp.peer, finished=False)
    replica = forget_old(forget_ended(forget_departed(replica)))
    return evolve(replica, snapshot=snapshot, grown_records=0, grown_bytes=0), APPLIED


def owed(replica: Replica, me: str) -> Sequence[Args]:
    """Return a collection if the log has grown enough."""
    settings = replica.settings
    enough = max(settings.gc_bytes, replica.snapshot.origin_bytes)  # a large origin is not written for a little log
    if replica.grown_records < settings.gc_records and replica.grown_bytes < enough:
        return ()
    if not replica.snapshot.finished or first_peer(replica) != me:
        return ()
    return (Args(),)
