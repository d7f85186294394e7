"""Keys, dependencies, expiry, dead letters and pending rows: the contract of every store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onyxq.core.facts import (
    CANCELLED,
    EXPIRED,
    FAILED,
    GRANTED,
    RELEASED,
    RETRIED,
    STOPPED,
    TASK,
    Mark,
    Row,
    first_of,
    key_digest,
    key_of,
    partition_of_keys,
    rank,
    task_header,
    unique_digest,
    unpack_task,
)
from onyxq.core.ids import TaskId, id_at, make_id, mask_of, stretch_of
from onyxq.errors import BadRequest, StoreFailed
from onyxq.store.index.applier import Applier, prepare_batch
from onyxq.store.interface import Batch, PendingRow, Piece
from onyxq.store.memory import MemoryTable, MemoryTables
from onyxq.store.tables import PARTITION_TABLES
from tests.conformance.store_world import (
    NOW_MS,
    AnyStore,
    World,
    counts,
    done,
    event,
    first_id,
    in_trio,
    key_tasks,
    put,
    rebuild,
    reopening,
    resolved,
    tasks,
)

KEY = key_digest("mail", "k")


def keyed(number: int, *, due_ms: int = NOW_MS, count: int = 1, **header: Any) -> Row:
    """Return the ``number``-th row of the ordering key "k", with an id that does not show the order."""
    first = first_id(0, maker=100_000 - number)
    return tasks(first, count, ordering_key="k", order=[due_ms, 1, number], **header)


def ready(store: AnyStore) -> list[tuple[TaskId, int]]:
    """Return first id and mask of the ready pieces."""
    return [(piece.first, piece.bits) for piece in store.ready(3, "mail")]


# --- ordering keys ----------------------------------------------------------------------


@in_trio
async def test_only_the_first_of_a_key_is_ready(store: AnyStore) -> None:
    """There is one ready task at a time, in the order of the key, whatever order rows came in."""
    rows = [keyed(1, count=3), keyed(2), keyed(3, due_ms=NOW_MS - 1)]
    a, b, early = (first_of(row.key) for row in rows)
    for row in rows:
        await put(store, row)
    order = [early, a, id_at(a, 1), id_at(a, 2), b]
    assert key_tasks(store, 3, KEY) == order
    for number, task in enumerate(order):
        assert store.key_head(3, KEY) == task
        assert [piece.first for piece in store.ready(3, "mail")] == [task]
        assert store.counts(3)["mail"].waiting == 4 - number
        written = await put(store, done(task, 1))
        assert [piece.first for piece in written.pieces] == order[number + 1 : number + 2]
    assert store.key_head(3, KEY) is None
    assert store.counts(3) == {"mail": counts(total=5, completed=5)}


@in_trio
async def test_a_head_that_waits_for_its_retry_holds_its_key_up(store: AnyStore) -> None:
    """The other tasks of the key wait; the piece shows its key."""
    first, second = keyed(1), keyed(2)
    head = first_of(first.key)
    await put(store, first, second)
    await put(store, event(head, 1, RETRIED, position=5, retry_ms=NOW_MS + 50, attempts=1))
    assert ready(store) == []
    assert store.next_due_ms(3) == NOW_MS + 50
    written = await store.write(Batch(promote=((3, NOW_MS + 50),)))
    assert written.pieces == (Piece("mail", 0, NOW_MS + 50, head, 1, 1, head, 0, KEY),)
    assert store.moved(head) == list(written.pieces)


@in_trio
async def test_a_head_that_another_overtakes_keeps_its_attempts(store: AnyStore) -> None:
    """It may be claimed, so the end of its claim must add to its attempts."""
    later = keyed(1)
    head = first_of(later.key)
    await put(store, later)
    await put(store, event(head, 1, EXPIRED, position=5, attempts=2))
    moved = store.moved(head)
    assert [(piece.attempts, piece.first, piece.key) for piece in moved] == [(2, head, KEY)]
    await put(store, keyed(2, due_ms=NOW_MS - 1))
    assert store.key_head(3, KEY) != head and head not in [piece.first for piece in store.ready(3, "mail")]
    assert store.moved(head) == moved
    await put(store, done(head, 1))
    assert store.moved(head) == []


@in_trio
async def test_a_stopped_task_stops_its_key_until_it_is_reopened_or_given_up(store: AnyStore) -> None:
    """A stopped task is neither ready nor due; it counts as failed."""
    rows = [keyed(number) for number in range(3)]
    first, second, third = (first_of(row.key) for row in rows)
    await put(store, *rows, done(first, 1, token=7, outcome=STOPPED))
    assert ready(store) == []
    assert store.key_head(3, KEY) == first
    assert store.counts(3) == {"mail": counts(total=3, failed=1, waiting=2)}
    await put(store, reopening(first, 1, position=9, attempts=4))
    assert store.counts_from(first) == 9
    assert [(piece.first, piece.attempts, piece.base) for piece in store.ready(3, "mail")] == [(first, 4, 4)]
    await put(store, done(first, 1, token=12, outcome=STOPPED, mark=Mark(1, 1)))
    assert ready(store) == []
    await put(store, done(first, 1, token=13, outcome=CANCELLED, mark=Mark(1, 2)))
    assert ready(store) == [(second, 1)]
    assert store.counts(3) == {"mail": counts(total=3, cancelled=1, waiting=1)}
    await put(store, done(second, 1, token=7, outcome=FAILED))
    assert ready(store) == [(third, 1)]


@in_trio
async def test_scheduled_tasks_do_not_move_the_end_of_a_key(store: AnyStore) -> None:
    """Tasks that are enqueued later are due before them."""
    assert store.last_immediate_ms(3, KEY) == 0
    await put(store, keyed(1, due_ms=NOW_MS - 3), keyed(2, due_ms=NOW_MS + 500, scheduled=True))
    assert store.last_immediate_ms(3, KEY) == NOW_MS - 3
    await put(store, done(first_of(keyed(1).key), 1))
    assert store.last_immediate_ms(3, KEY) == 0
    assert store.key_head(3, KEY) == first_of(keyed(2).key)


@in_trio
async def test_the_head_of_a_key_is_right_after_its_partition_was_dropped_or_rebuilt(store: AnyStore) -> None:
    """A head that was read before does not count any more."""
    first, second = keyed(1), keyed(2)
    await put(store, first, second)
    assert store.key_head(3, KEY) == first_of(first.key)
    await store.write(Batch(mark=(3,)))
    await rebuild(store)
    assert store.key_head(3, KEY) == first_of(first.key)
    await store.write(Batch(drop=(3,)))
    assert store.key_head(3, KEY) is None
    await put(store, second)
    assert ready(store) == [(first_of(second.key), mask_of(first_of(second.key), 1))]
    assert store.key_head(3, KEY) == first_of(second.key)


@in_trio
async def test_a_write_that_failed_moves_no_head_unless_it_is_stored(tmp_path: Path) -> None:
    """A disk may take a write that it refuses. The head is that of the stored rows, and the next write builds on it."""
    first, second, third = (first_of(keyed(number).key) for number in (1, 2, 3))
    world = World("memory", tmp_path)
    async with world.store() as store:
        await put(store, keyed(1), keyed(2), keyed(3))
        for lands, refused, head in ((False, first, first), (True, first, second)):
            assert store.key_head(3, KEY) == first
            world.disk.refuse(times=1, lands=lands)
            with pytest.raises(StoreFailed):
                await put(store, done(refused, 1))
            assert store.key_head(3, KEY) == head
        written = await put(store, done(second, 1))
        assert [piece.first for piece in written.pieces] == [third]
        assert ready(store) == [(third, mask_of(third, 1))]


class CountingTable(MemoryTable):
    """A table that counts its accesses."""

    asked = 0

    def ascend(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Count each entry."""
        for entry in super().ascend(start):
            CountingTable.asked += 1
            yield entry

    def descend(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Each entry counts."""
        for entry in super().descend(start):
            CountingTable.asked += 1
            yield entry


def test_what_waits_behind_a_key_costs_nothing() -> None:
    """Enqueueing and finishing read as many entries with 2,000 waiting tasks of a key as with ten."""
    tables = MemoryTables()
    for name in vars(tables):
        setattr(tables, name, CountingTable())

    def apply(*rows: Row) -> int:
        CountingTable.asked = 0
        applier = Applier(tables, NOW_MS, {})
        applier.apply(prepare_batch(Batch(rows=rows)))
        applier.flush()
        return CountingTable.asked

    asked = [(apply(keyed(number)), apply(done(first_of(keyed(number).key), 1))) for number in range(10)]
    for number in range(10, 2000):
        apply(keyed(number))
    long = [(apply(keyed(number + 2000)), apply(done(first_of(keyed(number).key), 1))) for number in range(10, 20)]
    assert max(sum(pair) for pair in long) <= max(sum(pair) for pair in asked) + 6


# --- unique keys ------------------------------------------------------------------------


def unique(number: int, *, mark: Mark, **header: Any) -> Row:
    """Return a row with the unique key "u"."""
    order = [header.pop("due_ms", NOW_MS), *mark]
    if changed_ms := header.pop("changed_ms", None):
        header |= {"due_ms": changed_ms, "mark": [mark.epoch, mark.number + 1]}
    return tasks(first_id(number), 1, unique_key="u", order=order, **header)


@in_trio
async def test_of_two_rows_with_a_unique_key_that_of_the_later_leader_stands(store: AnyStore) -> None:
    """The other is reported, and is in no index and no count, also if it comes first or is due later."""
    old, new = unique(1, mark=Mark(4, 9), due_ms=NOW_MS + 99), unique(2, mark=Mark(5, 1))
    written = await put(store, old)
    assert (written.superseded, store.unique(3, key_digest("mail", "u"))) == ((), first_id(1))
    written = await put(store, new)
    assert written.superseded == (first_id(1),)
    assert store.unique(3, key_digest("mail", "u")) == first_id(2)
    assert ready(store) == [(first_id(2), 2 << 1)]
    assert store.counts(3) == {"mail": counts(total=1)}
    assert store.next_due_ms(3) is None
    assert (await put(store, unique(3, mark=Mark(1, 1)))).superseded == (first_id(3),)
    await put(store, done(first_id(2), 1))
    assert store.unique(3, key_digest("mail", "u")) is None
    assert store.latest(3, key_digest("mail", "u")) == (first_id(2), True)
    assert store.counts(3) == {"mail": counts(total=1, completed=1)}


@in_trio
async def test_a_task_that_gave_way_does_not_come_back_once_the_key_is_free(store: AnyStore) -> None:
    """Its producer got the id of the other task. A newer task gets the key."""
    await put(store, unique(1, mark=Mark(4, 9)), unique(2, mark=Mark(5, 1)), done(first_id(2), 1))
    assert (ready(store), store.superseded_by(first_id(1))) == ([], first_id(2))
    await put(store, unique(3, mark=Mark(5, 2)))
    assert store.unique(3, key_digest("mail", "u")) == first_id(3)


@in_trio
async def test_a_changed_row_takes_the_place_of_the_first_one(world: World) -> None:
    """In any order of arrival: its data, priority and due time count, and no entry of the other one is left."""
    old = unique(1, mark=Mark(4, 9))
    new = unique(1, mark=Mark(4, 9), priority=7, changed_ms=NOW_MS + 500)
    for rows in ((old, new), (new, old)):
        async with world.store() as store:
            for row in rows:
                await put(store, row)
            (piece,) = store.pieces(stretch_of(first_id(1)), mask_of(first_id(1), 1))
            assert (piece.priority, piece.due_ms) == (7, NOW_MS + 500)
            assert ready(store) == []
            assert store.next_due_ms(3) == NOW_MS + 500


@in_trio
@pytest.mark.parametrize(
    ("until", "free_after"), [("started", "a grant"), ("finished", "the end"), ("purged", "nothing")]
)
async def test_a_unique_key_is_free_from_the_moment_that_its_row_names(
    world: World, until: str, free_after: str
) -> None:
    """A grant frees a key until ``started``, an end also one until ``finished``; a requeue takes none back."""
    digest, held = key_digest("mail", "u"), {"a grant": [True, False, False], "the end": [True, True, False]}
    steps = [
        unique(1, mark=Mark(4, 1), unique_until=until),
        event(first_id(1), 1, GRANTED, position=7),
        done(first_id(1), 1, token=7, outcome=FAILED),
        reopening(first_id(1), 1, position=9, retry_ms=NOW_MS, attempts=1),
    ]
    async with world.store() as store:
        for row, holds in zip(steps, [*held.get(free_after, [True] * 3), free_after == "nothing"], strict=True):
            await put(store, row)
            assert (store.unique(3, digest) == first_id(1)) is holds
        assert store.superseded_by(first_id(1)) is None
        assert [piece.first for piece in store.pieces(stretch_of(first_id(1)), mask_of(first_id(1), 1))]


@in_trio
async def test_a_unique_key_with_a_period_has_one_task_in_each(store: AnyStore) -> None:
    """Tasks of one period compete by the due time in their ids; one of the next period has a key of its own."""
    period_ms = 1000
    ids = [make_id(NOW_MS // 1000 * 1000 + ms, 3, 7, 0) for ms in (0, 999, 1000)]
    for number, first in enumerate(ids):
        header = {"unique_key": "u", "unique_period_ms": period_ms, "order": [NOW_MS, 1, number]}
        await put(store, tasks(first, 1, **header))
    assert [store.superseded_by(first) for first in ids] == [ids[1], None, None]
    header = {"queue": "mail", "unique_key": "u", "unique_period_ms": period_ms}
    await put(store, done(ids[1], 1))
    assert store.unique(3, unique_digest(header, ids[0])) == ids[1]  # until it is purged
    assert store.unique(3, unique_digest(header, ids[2])) == ids[2]


# --- dependencies, expiry, dead letters -------------------------------------------------


@in_trio
async def test_tasks_with_dependencies_wait_for_their_resolution(store: AnyStore) -> None:
    """A resolution may be about a part, and may come before its tasks."""
    first = first_id(8)
    row = tasks(first, 6, depends=[first_id(0)])
    await put(store, row, resolved(first_id(10), 2), done(first_id(13), 1))
    assert ready(store) == [(first, 0b1100 << 8)]
    assert store.counts(3)["mail"] == counts(total=6, completed=1, waiting=3)
    assert [(run, unpack_task(body).all_payloads()) for run, body in store.waiting(3)] == [
        (first, [b"payload 0", b"payload 1"]),
        (first_id(12), [b"payload 4"]),
    ]
    assert [run for run, _ in store.waiting(3, after=first)] == [first_id(12)]
    assert [run for run, _ in store.waiting(3, limit=1)] == [first]
    written = await put(store, resolved(first, 6))
    assert [piece.bits for piece in written.pieces] == [0b11111 << 8]
    assert store.waiting(3) == []


@in_trio
async def test_a_resolution_of_a_higher_mark_takes_the_place_of_the_lower(store: AnyStore) -> None:
    """No trace of the other resolution is left."""
    await put(store, tasks(first_id(0), 4, depends=[first_id(9)]), resolved(first_id(0), 4, mark=Mark(1, 1)))
    assert ready(store) == [(first_id(0), 0b1111)]
    await put(store, resolved(first_id(0), 2, mark=Mark(2, 1)))
    assert ready(store) == [(first_id(0), 0b11)]
    assert store.counts(3)["mail"] == counts(total=4, waiting=2)


@in_trio
async def test_tasks_that_nobody_was_given_expire(store: AnyStore) -> None:
    """A task that was granted or is finished does not expire; history may come first."""
    late, soon = tasks(first_id(0), 3, expires_ms=NOW_MS + 9), tasks(first_id(8), 3, expires_ms=NOW_MS - 9)
    await put(store, event(first_id(9), 1, GRANTED, position=3), late, soon, done(first_id(10), 1))
    assert store.next_expiry_ms(3) == NOW_MS - 9
    assert store.expiring(3, NOW_MS) == [first_id(8)]
    assert store.expiring(3, NOW_MS + 9) == [first_id(8), first_id(0), first_id(1), first_id(2)]
    await put(store, event(first_id(8), 1, GRANTED, position=4))
    assert store.next_expiry_ms(3) == NOW_MS + 9
    assert store.expiring(3, NOW_MS) == []


@in_trio
async def test_failed_tasks_are_listed_until_they_are_reopened(store: AnyStore) -> None:
    """The list is by queue or for all queues, in pages, in id order."""
    rows = [tasks(first_id(0), 8), tasks(first_id(8), 2, queue="other"), tasks(first_id(16), 2, ordering_key="k")]
    await put(store, *rows, done(first_id(1), 3, outcome=FAILED), done(first_id(9), 1, outcome=FAILED))
    await put(store, done(first_id(5), 1), done(first_id(16), 1, outcome=STOPPED))
    mine = [first_id(number) for number in (1, 2, 3, 16)]
    assert store.failed(3, "mail") == mine
    assert store.failed(3) == sorted([*mine, first_id(9)])
    assert store.failed(3, "mail", after=first_id(2), limit=1) == [first_id(3)]
    await put(store, reopening(first_id(2), 1, position=10))
    assert store.failed(3, "mail") == mine  # a completion of token 10 is from after the requeue
    await put(store, reopening(first_id(2), 1, position=11))
    assert store.failed(3, "mail") == [mine[0], *mine[2:]]


@in_trio
async def test_a_reopened_task_forgets_the_completions_of_its_earlier_life(store: AnyStore) -> None:
    """This includes later ones; a completion from after the requeue counts, also one without a claim."""
    first = first_id(0)
    await put(store, tasks(first, 2), done(first, 2, token=7, outcome=FAILED))
    await put(store, reopening(first, 1, position=11, attempts=3, retry_ms=NOW_MS - 5))
    assert store.counts(3)["mail"] == counts(total=2, failed=1)
    assert [(piece.bits, piece.due_ms, piece.attempts, piece.base) for piece in store.ready(3, "mail")] == [
        (1, NOW_MS - 5, 3, 3)
    ]
    await put(store, done(first, 1, token=9, outcome=FAILED, mark=Mark(9, 9)))
    assert ready(store) == [(first, 1)]
    await put(store, done(first, 1, token=11, outcome=CANCELLED))
    assert store.counts(3)["mail"] == counts(total=2, failed=1, cancelled=1)


# --- what is refused --------------------------------------------------------------------


WRONG = {
    "ordering_key": {"ordering_key": "k" * 201},
    "unique_key": {"unique_key": ""},
    "order": {"ordering_key": "k", "order": [1, 2]},
    "depends": {"depends": []},
    "expires_ms": {"expires_ms": -1},
    "scheduled": {"ordering_key": "k", "scheduled": 1},
}


@pytest.mark.parametrize("field", WRONG)
@in_trio
async def test_a_header_that_means_nothing_is_refused(store: AnyStore, field: str) -> None:
    """The error names the field."""
    with pytest.raises(BadRequest) as caught:
        await put(store, tasks(first_id(), 1, **WRONG[field]))
    assert caught.value.field == field
    with pytest.raises(BadRequest):
        await put(store, tasks(first_id(), 2, unique_key="u"))


def test_keys_say_which_partition() -> None:
    """The partition is the same everywhere; of two rows under one id, that of the later leader wins."""
    assert {partition_of_keys("mail", f"k{number}", 64) for number in range(1000)} == set(range(64))
    assert [partition_of_keys("mail", f"k{number}", 64) for number in range(6)] == [55, 20, 21, 23, 45, 60]
    assert partition_of_keys("mai", "lk0", 64) != 55
    old, new = (
        tasks(first_id(), count, ordering_key="k", order=[NOW_MS, epoch, 1]) for count, epoch in ((3, 4), (2, 5))
    )
    assert rank(*new) > rank(*old)
    assert task_header(new.value)[0]["order"] == [NOW_MS, 5, 1]


# --- pending rows -----------------------------------------------------------------------


@in_trio
async def test_pending_rows_are_kept_apart_until_they_are_dropped(world: World) -> None:
    """By number, with their deadline; no digest and no count knows of them."""

    def row(name: str, number: int, body: bytes = b"x", partition: int = 3) -> PendingRow:
        return PendingRow(name, 9000, partition, number, body)

    async with world.store() as store:
        rows = [row("a", 300), row("a", 2, b"y"), row("b", 0), row("a", 0, partition=4)]
        await store.write(Batch(pending=rows))
        assert store.pending(3, "a") == [rows[1], rows[0]]
        assert store.pending_transactions(3) == {"a": 9000, "b": 9000}
        assert (store.counts(3), store.hours(3), store.partitions()) == ({}, {}, [])
        await store.write(Batch(drop_pending=((3, "a"),), pending=[row("a", 7)]))
        assert store.pending(3, "a") == [row("a", 7)]
        assert store.pending(4, "a") == [rows[3]]
    async with world.store() as store:
        await store.write(Batch(drop_pending=((3, "a"), (3, "none"))))
        assert store.pending_transactions(3) == {"b": 9000}
        with pytest.raises(BadRequest):
            await store.write(Batch(pending=[row("", 1)]))
        await store.write(Batch(drop=(3,)))
        assert store.pending_transactions(3) == {}
        assert store.pending_transactions(4) == {"a": 9000}


@in_trio
async def test_a_drop_empties_every_table_of_a_partition(store: AnyStore) -> None:
    """Rows with keys and dependencies leave no entries."""
    rows = [
        keyed(1),
        keyed(2, depends=[first_id(9)]),
        unique(50, mark=Mark(1, 1), expires_ms=NOW_MS),
        tasks(first_id(60), 2, depends=[first_id(9)]),
        done(first_id(60), 1, outcome=FAILED),
        tasks(first_id(70, ms=NOW_MS + 9), 1),
    ]
    await store.write(Batch(rows=rows, pending=[PendingRow("t", 1, 3, 1, b"")]))
    filled = [name for name in PARTITION_TABLES if next(getattr(store._tables, name).ascend(b""), None)]
    assert filled == list(PARTITION_TABLES)
    await store.write(Batch(drop=(3,)))
    for name in PARTITION_TABLES:
        assert next(getattr(store._tables, name).ascend(b""), None) is None, name
    await put(store, *rows)
    assert store.key_head(3, KEY) == first_of(rows[0].key)


@in_trio
async def test_a_key_holds_no_other_up(store: AnyStore) -> None:
    """However many tasks of a key wait, `ready` has one of each key."""
    await put(store, *(keyed(number) for number in range(500)))
    other = [tasks(first_id(0, maker=maker), 1, ordering_key=f"o{maker}") for maker in range(10)]
    await put(store, *other)
    assert len(store.ready(3, "mail", limit=100)) == 11
    assert store.get(key_of(TASK, first_id(0, maker=1))) is not None


@pytest.mark.parametrize("end", [RELEASED, RETRIED, EXPIRED])
@pytest.mark.parametrize("late", [False, True])
@in_trio
async def test_a_completion_older_than_a_claim_that_ended_without_one_does_not_count(
    world: World, end: int, late: bool
) -> None:
    """This holds in any order; the claim's own completion counts even after its lease."""
    first = first_id(0)
    ended, overtaken = event(first, 1, end, position=9, retry_ms=NOW_MS - 1, attempts=1), done(first, 2, token=4)
    async with world.store() as store:
        await put(store, tasks(first, 2))
        await put(store, ended if late else overtaken)
        await put(store, overtaken if late else ended)
        assert store.finished_bits(first) == 0b10
        assert store.counts_from(first) == 5
        assert store.counts(3) == {"mail": counts(total=2, completed=1)}
        assert [piece.bits for piece in store.ready(3, "mail")] == [1]
        await put(store, done(first, 1, token=5, mark=Mark(1, 1)))
        assert store.finished_bits(first) == 0b11
        assert store.ready(3, "mail") == []
