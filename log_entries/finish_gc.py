"""Says that a collection is over: its origin is stored, and the log trimmed behind it.

Submitted by the collector: the peer that the ``gc`` names or, once that left the ring, the
ring's first.  Sets what the collection came to in ``snapshot``, so that nobody owes it any
more and whoever asked for it can be answered, by whichever peer it was finished.
"""

from __future__ import annotations

from attrs import evolve, frozen

from onyxq.core.entry import APPLIED, Stamp, Verdict
from onyxq.core.replica import Replica

VERSION = 1


@frozen
class Args:
    """``position``: of the ``gc``. ``trimmed``: how many records were deleted. ``origin_bytes``: size of the origin."""

    position: int
    trimmed: int
    origin_bytes: int


def apply(replica: Replica, args: Args, stamp: Stamp) -> tuple[Replica, Verdict]:
    """Note the end of the collection under way."""
    taken = replica.snapshot
    if args.position != taken.position:
        return replica, "another collection"
    if taken.finished:
        return replica, "already finished"
    taken = evolve(taken, finished=True, trimmed=args.trimmed, origin_bytes=args.origin_bytes)
    return evolve(replica, snapshot=taken), APPLIED
