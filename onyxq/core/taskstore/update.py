"""Add, change and delete tasks of the task store in one atomic step.

Submitted by peers for clients. Times are of the cluster's clock. Applies only if nothing is wrong.
Otherwise nothing changes and the answer lists every problem: ids that do not exist, ids that
another client owns now, and faults of the request itself.
"""

from __future__ import annotations

from collections import Counter

from attrs import frozen

from onyxq.core.entry import APPLIED, Stamp, Verdict
from onyxq.core.replica import Replica
from onyxq.core.taskstore import state
from onyxq.core.taskstore.state import Numbered, Refusal, Row, Store

VERSION = 1


@frozen
class Args:
    """``request``: the key of the answer; times of 0 or below count from now.

    ``adds``: (group, data, time); ``changes``: (id, data, time).
    """

    request: int
    client: int
    adds: tuple[tuple[str, str, int], ...] = ()
    changes: tuple[tuple[int, str, int], ...] = ()
    deletes: tuple[int, ...] = ()
    depends: tuple[int, ...] = ()


def apply(replica: Replica, args: Args, stamp: Stamp) -> tuple[Replica, Verdict]:
    """Apply the whole update, or nothing."""
    before = state.read(replica)
    tasks, refusal = _judged(before, args, replica.clock_ms, stamp)
    after: Store = before
    made: tuple[Numbered, ...] = ()
    if refusal is None:
        for number in (*args.deletes, *(number for number, _, _ in args.changes)):
            after = state.without(after, number)
        after, made = state.with_tasks(after, tasks, stamp)
        full = state.too_full(before, after)
        refusal = Refusal(bugs=(full,)) if full else None
    if refusal is not None:
        return state.written(replica, before, stamp, args.request, ((), tuple(refusal))), refusal.words
    return state.written(replica, after, stamp, args.request, (made, ())), APPLIED


def _judged(store: Store, args: Args, now_ms: int, stamp: Stamp) -> tuple[list[Row], Refusal | None]:
    """Return the new tasks, adds first, and the refusal if there is one."""
    changed = [number for number, _, _ in args.changes]
    found = {number: store.get(number) for number in (*changed, *args.deletes)}
    tasks: list[Row] = [(group, state.time_of(at_ms, now_ms), args.client, data) for group, data, at_ms in args.adds]
    for number, data, at_ms in args.changes:
        old = found[number]
        if old is not None:
            tasks.append((old[0], state.time_of(at_ms, now_ms), args.client, data))
    others = (number for number, task in found.items() if task and task[1] > now_ms and task[2] != args.client)
    refusal = Refusal(
        changes=tuple(number for number in changed if found[number] is None),
        deletes=tuple(number for number in args.deletes if found[number] is None),
        depends=tuple(number for number in args.depends if store.get(number) is None),
        owned=tuple(others),
        bugs=tuple(_bugs(store, args, tasks, stamp)),
    )
    return tasks, refusal if any(refusal) else None


def _bugs(store: Store, args: Args, tasks: list[Row], stamp: Stamp) -> list[str]:
    if not (args.adds or args.changes or args.deletes):
        return ["nothing is to be added, changed or deleted"]
    named = Counter((*(number for number, _, _ in args.changes), *args.deletes))
    found = [f"task {number} is named {times} times" for number, times in named.items() if times > 1]
    for place, task in enumerate(tasks):
        wrong = state.wrong_task(task, store.limits)
        if wrong:
            found.append(f"new task {place}: {wrong}")
    if not state.ids_left(store, stamp, len(tasks)):
        found.append("no ids are left")
    return found
