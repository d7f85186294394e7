"""Report that a log collection is over: its snapshot is stored and the log before it is trimmed.

Submitted by the collector: the peer that the ``gc`` names or, if that peer has left the ring, the
ring's first peer. Applies only to the latest collection, if it is not finished. Stores its figures
in ``snapshot``. Then no peer owes it any more, and the request for it can be answered, whichever
peer finished it.
"""

from __future__ import annotations

from attrs import evolve, frozen

from onyxq.core.entry import APPLIED, Stamp, Verdict
from onyxq.core.replica import Replica

VERSION = 1


@frozen
class Args:
    """``position``: of the ``gc``; ``trimmed``: number of deleted records; ``origin_bytes``: size of the snapshot."""

    position: int
    trimmed: int
    origin_bytes: int


def apply(replica: Replica, args: Args, stamp: Stamp) -> tuple[Replica, Verdict]:
    """Store the end of the collection under way."""
    taken = replica.snapshot
    if args.position != taken.position:
        return replica, "another collection"
    if taken.finished:
        return replica, "already finished"
    taken = evolve(taken, finished=True, trimmed=args.trimmed, origin_bytes=args.origin_bytes)
    return evolve(replica, snapshot=taken), APPLIED
