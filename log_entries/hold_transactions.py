"""Has transactions wait for a while, or ends that.

Submitted by any peer for a backup: while it reads partition after partition no transaction may
become visible in some and not in others.  Sets ``hold``: until then by the log's clock nothing
is committed, and whoever tries is told to try again (``held``).  The same name again puts the end
off, as long as it has not come; ``for_ms`` 0 ends it at once.  A hold that nobody ends is over
when its time is, so one whose backup died is forgotten.
"""

from __future__ import annotations

from attrs import evolve, frozen

from onyxq.core.entry import APPLIED, Stamp, Verdict
from onyxq.core.replica import Hold, Replica
from onyxq.core.transactions import on_hold

VERSION = 1
HOLD_MS_MAX = 600_000
"""How far ahead the end may lie."""
TEXT_CHARACTERS_MAX = 200
OTHER = "held already"
"""How the verdict begins while there is a hold of another name."""


@frozen
class Args:
    """``name``: of the hold; ``why``: for people; ``for_ms``: from now on, by the log's clock."""

    name: str
    why: str
    for_ms: int


def apply(replica: Replica, args: Args, stamp: Stamp) -> tuple[Replica, Verdict]:
    """Begin the hold, put its end off, or end it."""
    if not 1 <= len(args.name) <= TEXT_CHARACTERS_MAX:
        return replica, "bad name"
    if len(args.why) > TEXT_CHARACTERS_MAX:
        return replica, "bad why"
    if not 0 <= args.for_ms <= HOLD_MS_MAX:
        return replica, "bad time"
    found = on_hold(replica)
    if found is not None and found.name != args.name:
        return replica, f"{OTHER}: {found.why}"
    if args.for_ms == 0:
        return (replica, "no such hold") if found is None else (evolve(replica, hold=None), APPLIED)
    since = stamp.position if found is None else found.since
    hold = Hold(name=args.name, why=args.why, since=since, until_ms=replica.clock_ms + args.for_ms)
    return evolve(replica, hold=hold), APPLIED
