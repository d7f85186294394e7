"""Make transactions wait for a while, or end the wait.

Submitted by any peer for a backup. A backup reads one partition after the other. During that time,
no transaction may become visible in some of them only. Sets ``hold``: until its end by the log's
clock, commits are refused (``held``) and must be repeated. The same name again moves the end, if it
has not been reached. ``for_ms`` 0 ends the hold at once. A hold ends when its time is over, even if
its backup has died. While a hold of another name exists, the entry changes nothing.
"""

from __future__ import annotations

from attrs import evolve, frozen

from onyxq.core.entry import APPLIED, Stamp, Verdict
from onyxq.core.limits import HOLD_MS_MAX, NAME_CHARACTERS_MAX
from onyxq.core.replica import Hold, Replica
from onyxq.core.transactions import on_hold

VERSION = 1
OTHER = "held already"
"""Start of the verdict while a hold of another name exists."""


@frozen
class Args:
    """``name``: of the hold; ``why``: for people; ``for_ms``: length from now, by the log's clock."""

    name: str
    why: str
    for_ms: int


def apply(replica: Replica, args: Args, stamp: Stamp) -> tuple[Replica, Verdict]:
    """Start the hold, move its end, or end it."""
    if not 1 <= len(args.name) <= NAME_CHARACTERS_MAX:
        return replica, "bad name"
    if len(args.why) > NAME_CHARACTERS_MAX:
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
