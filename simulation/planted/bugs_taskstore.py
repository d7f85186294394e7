"""Planted bugs of the task store: what it answers, and how its ids are made."""

from __future__ import annotations

from simulation.planted.planted import Planted

TASKSTORE_BUGS: tuple[Planted, ...] = (
    Planted(
        "ids of one record begin anew with each entry",
        "onyxq/core/taskstore/state.py",
        "return max(store.last + 1, stamp.position << ID_SHIFT)",
        "return stamp.position << ID_SHIFT",
        "a new task overwrites another of the same record",
        "stored_tasks",
    ),
    Planted(
        "what an update rests on need not be there",
        "onyxq/core/taskstore/update.py",
        "depends=tuple(number for number in args.depends if store.get(number) is None),",
        "depends=(),",
        "work goes on that rests on what somebody else has taken away",
        "stored_tasks",
        quick=2,
    ),
    Planted(
        "others' tasks can be changed",
        "onyxq/core/taskstore/update.py",
        "owned=tuple(others),",
        "owned=(),",
        "a lease keeps nobody away",
        "stored_tasks",
    ),
    Planted(
        "a claim takes what is not available",
        "onyxq/core/taskstore/claim.py",
        "count = store.available(args.group, now_ms)",
        "count = store.available(args.group, now_ms + 60_000)",
        "two have one task",
        "stored_tasks",
    ),
    Planted(
        "answers are told from the request before",
        "onyxq/core/taskstore/state.py",
        "return _with(replica, store, (stamp.position, answers.set(request, answer)))",
        "return _with(replica, store, (stamp.position, answers.set(request, min(answers.values(), default=answer))))",
        "a client works on what another one has claimed",
        "stored_tasks",
    ),
)
