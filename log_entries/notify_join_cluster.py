"""Second phase of a join: give the joiner the peer that it must watch.

Owed by the member that takes the joiner in, which watches the joiner by then. From now on the
joiner watches that member's successor instead of the member.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve, frozen

from onyxq.core import ring
from onyxq.core.entry import APPLIED, Stamp, Verdict
from onyxq.core.replica import Replica

VERSION = 1


@frozen
class Args:
    """``joiner``: a peer that is prepared."""

    joiner: str


def apply(replica: Replica, args: Args, stamp: Stamp) -> tuple[Replica, Verdict]:
    """Move the join from phase 1 to phase 2."""
    after = ring.notify(replica.ring, args.joiner)
    if after is None:
        return replica, "not prepared"
    return evolve(replica, ring=after), APPLIED


def owed(replica: Replica, me: str) -> Sequence[Args]:
    """Return the entry owed by the member that takes the joiner in."""
    joiner = replica.ring.prepared.get(me)
    return (Args(joiner),) if joiner else ()
