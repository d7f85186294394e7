"""The source of lists: stretches with tasks that may be in a state."""

from __future__ import annotations

import pytest

from onyxq.core.facts import CANCELLED, FAILED, RETRIED
from onyxq.core.ids import TaskId, ids_of, mask_of, runs_of
from onyxq.errors import Corrupt
from onyxq.store.state_lookup import last_of
from tests.conformance.store_world import NOW_MS, AnyStore, World, done, event, first_id, in_trio, put, tasks

PLAIN, LATER, KEYED, WAITS = (first_id(maker=maker) for maker in (1, 2, 3, 4))
SCHEDULED = first_id(ms=NOW_MS + 50)
STATES = ("scheduled", "waiting", "ready", "claimed", "completed", "failed", "cancelled")


async def filled(store: AnyStore) -> None:
    """A store with tasks in every state."""
    keyed = [tasks(TaskId(one), 1, ordering_key="k", order=[NOW_MS, 1, number])
             for number, one in enumerate(ids_of(KEYED, 3))]  # fmt: skip
    await put(
        store,
        tasks(PLAIN, 10),
        *(done(ids_of(PLAIN, 10)[place], 1, outcome=outcome) for place, outcome in enumerate((0, FAILED, CANCELLED))),
        tasks(LATER, 2, queue="other"),
        event(LATER, 1, RETRIED, position=5, retry_ms=NOW_MS + 5_000, attempts=1),
        *keyed,
        tasks(WAITS, 1, depends=[PLAIN]),
        tasks(SCHEDULED, 2),
    )


def looked(store: AnyStore, state: str | None, *, queue: str | None = None, limit: int = 100) -> list[TaskId]:
    """Return the ids of all tasks that may be in a state, page by page."""
    out: list[TaskId] = []
    after = b""
    while found := store.look(3, queue=queue, state=state, now_ms=NOW_MS, after=after, limit=limit):
        for stretch, bits in found:
            out += [one for run in runs_of(stretch, bits) for one in ids_of(*run)]
        after = last_of(found[-1][0])
    return out


@pytest.mark.parametrize("limit", [1, 2, 100])
@in_trio
async def test_a_look_finds_what_is_in_a_state(store: AnyStore, limit: int) -> None:
    """Ids are in order, for any page size; only the replica knows which tasks are claimed."""
    plain, later, keyed, scheduled = (ids_of(PLAIN, 10), ids_of(LATER, 2), ids_of(KEYED, 3), ids_of(SCHEDULED, 2))
    expected = {
        "completed": plain[:1],
        "failed": plain[1:2],
        "cancelled": plain[2:3],
        "scheduled": [later[0], *scheduled],
        "waiting": [*keyed[1:], WAITS],
        "ready": [*plain[3:], later[1], keyed[0]],
        "claimed": [*plain[3:], *later, *keyed, WAITS, *scheduled],
        None: [*plain, *later, *keyed, WAITS, *scheduled],
    }
    await filled(store)
    assert {state: looked(store, state, limit=limit) for state in expected} == expected
    assert looked(store, "ready", queue="other", limit=limit) == [later[1]]
    assert looked(store, None, queue="nobody's", limit=limit) == []


@in_trio
async def test_a_look_goes_on_in_the_middle_of_a_run(store: AnyStore) -> None:
    """A page starts after the given task."""
    await filled(store)
    (found,) = store.look(3, queue=None, state="ready", now_ms=NOW_MS, after=ids_of(PLAIN, 10)[4], limit=1)
    assert found == (PLAIN, mask_of(ids_of(PLAIN, 10)[5], 5))
    assert store.look(4, queue=None, state=None, now_ms=NOW_MS) == []


@in_trio
async def test_a_row_whose_head_cannot_be_read_is_noted(world: World, store: AnyStore) -> None:
    """A list reports it instead of skipping its tasks."""
    await filled(store)
    key = b"\0\3T" + PLAIN
    if world.kind == "memory":
        world.disk.tables.rows.put(key, b"\xff" * 40)
    else:
        with store._env.begin(write=True) as txn:
            txn.put(key, b"\xff" * 40, db=store._dbs["rows"])
        store._renew()
    with pytest.raises(Corrupt):
        store.look(3, queue=None, state="ready", now_ms=NOW_MS)
    assert store.damaged == {key}


def looked_back(store: AnyStore, state: str | None, *, limit: int) -> list[TaskId]:
    """Return the ids of all tasks that may be in a state, page by page, the newest first."""
    out: list[TaskId] = []
    after = b""
    while found := store.look(3, queue=None, state=state, now_ms=NOW_MS, after=after, limit=limit, newest_first=True):
        for stretch, bits in found:
            out += reversed([one for run in runs_of(stretch, bits) for one in ids_of(*run)])
        after = found[-1][0]
    return out


@pytest.mark.parametrize("limit", [1, 2, 100])
@pytest.mark.parametrize("state", [None, *STATES])
@in_trio
async def test_a_look_can_begin_with_the_newest(store: AnyStore, state: str | None, limit: int) -> None:
    """The same tasks are found in the reverse order, for any page size."""
    await filled(store)
    assert looked_back(store, state, limit=limit) == looked(store, state, limit=limit)[::-1]


@in_trio
async def test_a_look_back_goes_on_in_the_middle_of_a_run(store: AnyStore) -> None:
    """A page of the newest first ends before the given task."""
    await filled(store)
    ids = ids_of(PLAIN, 10)
    (found,) = store.look(3, queue=None, state="ready", now_ms=NOW_MS, after=ids[5], limit=1, newest_first=True)
    assert found == (PLAIN, mask_of(ids[3], 2))


@in_trio
async def test_failed_tasks_can_begin_with_the_newest(store: AnyStore) -> None:
    """Pages of one task list the failed tasks of all queues in reverse, and continue before the given one."""
    ids, others = ids_of(PLAIN, 10), ids_of(LATER, 2)
    await put(store, tasks(PLAIN, 10), tasks(LATER, 2, queue="other"))
    await put(store, *(done(one, 1, outcome=FAILED) for one in (ids[1], ids[2], ids[7], others[1])))
    expected = sorted((ids[1], ids[2], ids[7], others[1]), reverse=True)
    assert store.failed(3, newest_first=True) == expected
    found: list[TaskId] = []
    while page := store.failed(3, after=found[-1] if found else b"", limit=1, newest_first=True):
        found += page
    assert found == expected
