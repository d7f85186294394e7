"""Claim one random task of a group of the task store.

Submitted by peers for clients. Applies only if all tasks in ``depends`` exist and a task of the
group is available. Removes the task and adds an equal one under a new id, owned by the client until
the lease is over. The entry's place in the log determines which of the available tasks it is.
"""

from __future__ import annotations

from attrs import frozen

from onyxq.core.entry import APPLIED, Stamp, Verdict
from onyxq.core.limits import OWNER_MAX, OWNER_MIN, TIME_MS_MAX
from onyxq.core.replica import Replica
from onyxq.core.taskstore import order, state
from onyxq.core.taskstore.state import Refusal

VERSION = 1

NOTHING = "nothing is available"


@frozen
class Args:
    """``request``: the key of the answer."""

    request: int
    client: int
    group: str
    duration_ms: int
    depends: tuple[int, ...] = ()


def apply(replica: Replica, args: Args, stamp: Stamp) -> tuple[Replica, Verdict]:
    """Claim a task if all dependencies exist and a task is available."""
    store, now_ms = state.read(replica), replica.clock_ms
    until_ms = now_ms + max(0, args.duration_ms)
    missing = tuple(number for number in args.depends if store.get(number) is None)
    bugs = _bugs(args, until_ms) or ("" if state.ids_left(store, stamp, 1) else "no ids are left")
    if missing or bugs:
        refusal = Refusal(depends=missing, bugs=(bugs,) if bugs else ())
        return state.written(replica, store, stamp, args.request, ((), tuple(refusal))), refusal.words
    count = store.available(args.group, now_ms)
    if not count:
        return state.written(replica, store, stamp, args.request, ((), ())), NOTHING
    place = state.chosen(state.next_id(store, stamp), count)
    _, number = order.nth(store.groups[args.group], place)
    old = store.get(number)
    assert old is not None, "what a group lists is there"
    mine = (old[0], until_ms, args.client, old[3])
    store, made = state.with_tasks(state.without(store, number), [mine], stamp)
    return state.written(replica, store, stamp, args.request, (made, ())), APPLIED


def _bugs(args: Args, until_ms: int) -> str:
    if not OWNER_MIN <= args.client <= OWNER_MAX:
        return f"the client must be {OWNER_MIN} to {OWNER_MAX}"
    if until_ms > TIME_MS_MAX:
        return f"the lease must end at {TIME_MS_MAX} ms since the epoch at the latest"
    return ""
