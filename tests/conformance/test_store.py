"""One suite for every store: what `onyxq.store.interface` promises, on LMDB and in memory."""

from __future__ import annotations

import functools
import resource
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import lmdb
import pytest
import trio
import trio.testing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onyxq.errors import BadRequest, Conflict, Corrupt, StoreFailed
from onyxq.facts import (
    CANCELLED,
    COMPLETED,
    COMPLETION,
    EXPIRED,
    FAILED,
    GRANTED,
    HISTORY,
    RELEASED,
    RETRIED,
    TASK,
    UPDATE,
    Completion,
    History,
    Row,
    Update,
    completion_row,
    first_of,
    history_row,
    key_of,
    pack_task,
    seal,
    task_row,
    unpack_completion,
    unpack_history,
    unpack_task,
    unpack_update,
    update_row,
)
from onyxq.ids import TaskId, counter_of, id_at, ids_of, make_id, mask_of, ms_of, runs_of, stretch_of, with_counter
from onyxq.store.indexing import PROMOTE_PIECES_MAX
from onyxq.store.interface import Batch, Digest, Piece, QueueCounts, Written
from onyxq.store.lmdb_store import LmdbStore
from onyxq.store.memory import MemoryStore
from simulation.disk import SimulatedDisk

NOW_MS = 1_700_000_000_000
AnyStore = LmdbStore | MemoryStore


class World:
    """Opens stores of one kind whose clock the test sets."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.kind = kind
        self.directory = directory
        self.disk = SimulatedDisk()
        self.now_ms = NOW_MS

    def open(self, **options: Any) -> AnyStore:
        """The store, with what it held before."""
        if self.kind == "memory":
            return MemoryStore(self.disk, now_ms=lambda: self.now_ms)
        return LmdbStore.open(self.directory, now_ms=lambda: self.now_ms, **options)

    @asynccontextmanager
    async def store(self, **options: Any) -> Any:
        """The store for one block."""
        store = self.open(**options)
        try:
            yield store
        finally:
            await store.aclose()


@pytest.fixture(params=["memory", "lmdb"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    """Each kind of store in turn."""
    return World(request.param, tmp_path)


@pytest.fixture
def lmdb_world(tmp_path: Path) -> World:
    """For what only a store on disk can do."""
    return World("lmdb", tmp_path)


def in_trio(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run an async test."""

    @functools.wraps(test)
    def wrapper(**arguments: Any) -> None:
        trio.run(functools.partial(test, **arguments))

    return wrapper


def first_id(counter: int = 0, *, partition: int = 3, ms: int = NOW_MS - 1000, maker: int = 7) -> TaskId:
    """An id whose tasks are due a second ago."""
    return make_id(ms, partition, maker, counter)


def tasks(first: bytes, count: int, **header: Any) -> Row:
    """A task row of the queue "mail"."""
    payloads = [b"payload %d" % i for i in range(count)]
    return task_row(first, pack_task({"queue": "mail", **header}, payloads))


def done(first: bytes, count: int, *, token: int = 10, outcome: int = COMPLETED) -> Row:
    """A completion row."""
    return completion_row(first, Completion(token, count, outcome, NOW_MS, []))


def completion_of(row: Row, maker: int) -> Row:
    """The same completion about the tasks of another maker."""
    first = first_of(row.key)
    return completion_row(first_id(counter_of(first), maker=maker), unpack_completion(row.value[:-4]))


def event(first: bytes, count: int, kind: int, *, position: int, retry_ms: int = 0, attempts: int = 0) -> Row:
    """A history row."""
    return history_row(first, History(position, 0, count, kind, 5, NOW_MS, "w", retry_ms, attempts, ""))


async def put(store: AnyStore, *rows: Row) -> Written:
    """Write rows in one batch."""
    return await store.write(Batch(rows=rows))


def counts(**numbers: int) -> QueueCounts:
    """Counts, zero where not given."""
    return QueueCounts(**{name: numbers.get(name, 0) for name in QueueCounts._fields})


# --- rows -----------------------------------------------------------------------


@in_trio
async def test_a_row_is_read_back_as_written(world: World) -> None:
    """`get` gives the sealed value, and nothing for another key."""
    row = tasks(first_id(), 3)
    async with world.store() as store:
        assert (await put(store, row)).new_rows == 1
        assert store.get(row.key) == row.value
        assert store.get(key_of(TASK, first_id(100))) is None


@in_trio
async def test_putting_a_row_again_changes_nothing(world: World) -> None:
    """A repeat is no new row, adds no piece and moves no count or digest."""
    row = tasks(first_id(), 3)
    async with world.store() as store:
        await put(store, row)
        before = (store.counts(3), store.hours(3), store.ready(3, "mail"))
        assert await put(store, row, row) == Written()
        assert (store.counts(3), store.hours(3), store.ready(3, "mail")) == before


@in_trio
async def test_the_first_row_of_a_key_stays(world: World) -> None:
    """Another sound value under the same key is ignored."""
    row, other = tasks(first_id(), 3), tasks(first_id(), 2)
    async with world.store() as store:
        await put(store, row)
        assert (await put(store, other)).new_rows == 0
        assert store.get(row.key) == row.value


@in_trio
async def test_task_row_finds_the_row_that_covers_an_id(world: World) -> None:
    """Ids in the middle and at both ends of runs are found, others are not."""
    async with world.store() as store:
        await put(store, tasks(first_id(10), 5), tasks(first_id(15), 1), tasks(first_id(1023), 1))
        for counter, expected in ((10, 10), (14, 10), (15, 15), (1023, 1023)):
            first, body = store.task_row(first_id(counter))
            assert first == first_id(expected)
            assert unpack_task(body).payload(counter - expected) == b"payload %d" % (counter - expected)
        for counter in (0, 9, 16, 1022, 1024):
            assert store.task_row(first_id(counter)) is None


@in_trio
async def test_covering_gives_the_rows_about_a_task_oldest_first(world: World) -> None:
    """Completions by token, history by position, updates by token and sequence."""
    task = first_id(4)
    rows = [
        done(first_id(0), 5, token=9),
        done(task, 1, token=3),
        done(first_id(0), 4, token=1),
        event(first_id(2), 3, GRANTED, position=8),
        event(task, 1, RELEASED, position=12),
        event(task, 2, GRANTED, position=3),
        event(first_id(0), 3, GRANTED, position=1),
        update_row(task, Update(8, 1, NOW_MS, b"b")),
        update_row(task, Update(8, 0, NOW_MS, b"a")),
        update_row(first_id(5), Update(8, 0, NOW_MS, b"c")),
    ]
    async with world.store() as store:
        await put(store, tasks(first_id(0), 8), *rows)
        completions = [(first, unpack_completion(body).token) for first, body in store.covering(COMPLETION, task)]
        assert completions == [(task, 3), (first_id(0), 9)]
        assert [unpack_history(body).position for _, body in store.covering(HISTORY, task)] == [3, 8, 12]
        assert [unpack_update(body).data for _, body in store.covering(UPDATE, task)] == [b"a", b"b"]
        assert [first for first, _ in store.covering(TASK, task)] == [first_id(0)]


@in_trio
async def test_task_rows_come_in_pages_in_id_order(world: World) -> None:
    """Every row of the partition exactly once, none of another."""
    firsts = [first_id(2 * i) for i in range(25)]
    async with world.store() as store:
        await put(store, *(tasks(first, 2) for first in reversed(firsts)), tasks(first_id(partition=4), 1))
        seen: list[bytes] = []
        while page := store.task_rows(3, after=seen[-1] if seen else b"", limit=10):
            seen += [first for first, _ in page]
        assert seen == firsts


@in_trio
async def test_masks_say_what_is_known_and_finished(world: World) -> None:
    """Per stretch, from task rows and completions."""
    first = first_id(1024 + 7)
    async with world.store() as store:
        await put(store, tasks(first, 5), done(with_counter(first, 1024 + 8), 2))
        assert store.known_bits(stretch_of(first)) == mask_of(first, 5)
        assert store.finished_bits(stretch_of(first)) == 0b11 << 8
        assert store.known_bits(first_id(0)) == 0


def damaged(row: Row) -> Row:
    """The row with one bit of its body flipped."""
    value = bytearray(row.value)
    value[-8] ^= 1
    return Row(row.key, bytes(value))


MALFORMED = {
    "a short key": Row(b"\0\3T", b"12345678"),
    "an unknown kind": Row(key_of(b"X", first_id()), seal(key_of(b"X", first_id()), b"abc")),
    "a partition that is not the id's": Row(b"\0\4" + tasks(first_id(), 1).key[2:], tasks(first_id(), 1).value),
    "a flipped bit": damaged(tasks(first_id(), 4)),
    "no queue": task_row(first_id(), pack_task({"priority": 1}, [b"x"])),
    "a queue that is no text": task_row(first_id(), pack_task({"queue": 7}, [b"x"])),
    "a long queue": tasks(first_id(), 1, queue="q" * 201),
    "a priority out of range": tasks(first_id(), 1, priority=1 << 31),
    "a run across stretches": tasks(first_id(1020), 5),
    "no tasks": task_row(first_id(), pack_task({"queue": "mail"}, [])),
    "a torn table": task_row(first_id(), pack_task({"queue": "mail"}, [b"abc"])[:-1]),
    "a body that is no task": task_row(first_id(), b"\xff" * 9),
    "an unknown outcome": done(first_id(), 1, outcome=3),
    "a completion of nothing": done(first_id(), 0),
    "an unknown event": event(first_id(), 1, 9, position=1),
}


@pytest.mark.parametrize("name", MALFORMED)
@in_trio
async def test_a_malformed_row_is_refused_whole(world: World, name: str) -> None:
    """Nothing of its batch is stored; batches beside it are."""
    good, beside = tasks(first_id(100), 1), tasks(first_id(200), 1)
    async with world.store() as store:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(put, store, beside)
            with pytest.raises(BadRequest):
                await put(store, good, MALFORMED[name])
        assert store.get(good.key) is None
        assert store.get(beside.key) == beside.value


# --- indexes ----------------------------------------------------------------------


@in_trio
async def test_new_tasks_are_ready_or_due_by_the_clock(world: World) -> None:
    """Due now: in `ready` and reported; later: counted as scheduled only."""
    now, later = first_id(0), first_id(0, ms=NOW_MS + 5)
    async with world.store() as store:
        written = await put(store, tasks(now, 3), tasks(later, 2))
        piece = Piece("mail", 0, NOW_MS - 1000, now, 0b111, 0, now)
        assert written == Written(new_rows=2, pieces=(piece,))
        assert store.ready(3, "mail") == [piece]
        assert store.next_due_ms(3) == NOW_MS + 5
        assert store.counts(3) == {"mail": counts(total=5, scheduled=2)}


@in_trio
async def test_promote_moves_what_became_due(world: World) -> None:
    """Only up to the given time; the batch reports the pieces."""
    soon, late = first_id(0, ms=NOW_MS + 5), first_id(0, ms=NOW_MS + 6)
    async with world.store() as store:
        await put(store, tasks(soon, 2, priority=4), tasks(late, 1))
        written = await store.write(Batch(promote=((3, NOW_MS + 5),)))
        assert written.pieces == (Piece("mail", 4, NOW_MS + 5, soon, 0b11, 0, soon),)
        assert store.ready(3, "mail") == list(written.pieces)
        assert store.counts(3)["mail"].scheduled == 1
        assert store.next_due_ms(3) == NOW_MS + 6
        assert (await store.write(Batch(promote=((3, NOW_MS + 5),)))).pieces == ()


@in_trio
async def test_a_promotion_is_bounded_and_the_next_goes_on(world: World) -> None:
    """A flood that is due at once never blocks the node for long."""
    rows = [tasks(first_id(0, ms=NOW_MS + 1, maker=i), 1) for i in range(PROMOTE_PIECES_MAX + 3)]
    async with world.store() as store:
        await put(store, *rows)
        assert len((await store.write(Batch(promote=((3, NOW_MS + 1),)))).pieces) == PROMOTE_PIECES_MAX
        assert len((await store.write(Batch(promote=((3, NOW_MS + 1),)))).pieces) == 3
        assert store.next_due_ms(3) is None


@in_trio
async def test_ready_is_ordered_by_priority_then_due_time_then_id(world: World) -> None:
    """Across the whole range of signed 32-bit priorities; pages meet without gap."""
    priorities = (-(1 << 31), -1, 0, 1, (1 << 31) - 1)
    rows = [
        tasks(first_id(10 * age, ms=NOW_MS - age, maker=maker), 2, priority=priority)
        for priority in priorities
        for age in (3, 1, 2)
        for maker in (priorities.index(priority), 9 + priorities.index(priority))
    ]
    async with world.store() as store:
        await put(store, *rows)
        whole = store.ready(3, "mail", limit=100)
        assert len(whole) == 30
        assert whole == sorted(whole, key=lambda piece: piece.sort_key)
        assert whole[0].priority == (1 << 31) - 1
        paged: list[Piece] = []
        while page := store.ready(3, "mail", after=paged[-1] if paged else None, limit=7):
            paged += page
        assert paged == whole


@in_trio
async def test_a_page_goes_on_behind_a_piece_that_is_gone(world: World) -> None:
    """`after` need not be there any more."""
    async with world.store() as store:
        await put(store, *(tasks(first_id(2 * i), 2) for i in range(4)))
        pieces = store.ready(3, "mail")
        await put(store, done(pieces[1].first, 2))
        assert store.ready(3, "mail", after=pieces[1]) == pieces[2:]


@in_trio
async def test_queues_are_kept_apart(world: World) -> None:
    """Names that start alike, long ones and any script."""
    names = ["a", "aa", "q" * 200, "очередь" * 20, "ü"]
    async with world.store() as store:
        await put(store, *(tasks(first_id(i), 1, queue=name) for i, name in enumerate(names)))
        assert store.queues(3) == sorted(names)
        for i, name in enumerate(names):
            assert [(piece.queue, piece.first) for piece in store.ready(3, name)] == [(name, first_id(i))]
        assert store.ready(3, "b") == []


@in_trio
async def test_completions_take_tasks_out_of_ready_and_due(world: World) -> None:
    """In part and whole, with counts per outcome."""
    now, later = first_id(0), first_id(0, ms=NOW_MS + 5)
    async with world.store() as store:
        await put(store, tasks(now, 10), tasks(later, 4))
        await put(store, done(first_id(2), 3), done(later, 1, outcome=CANCELLED))
        assert [piece.bits for piece in store.ready(3, "mail")] == [0b1111100011]
        assert store.counts(3) == {"mail": counts(total=14, completed=3, cancelled=1, scheduled=3)}
        await put(store, done(now, 10, token=11, outcome=FAILED), done(later, 4, token=11))
        assert store.ready(3, "mail") == []
        assert store.next_due_ms(3) is None
        assert store.counts(3) == {"mail": counts(total=14, completed=6, failed=7, cancelled=1)}


@in_trio
async def test_a_completion_may_come_before_its_task(world: World) -> None:
    """As anti-entropy brings rows: the task is then finished from the start."""
    async with world.store() as store:
        await put(store, done(first_id(0), 2))
        written = await put(store, tasks(first_id(0), 3))
        assert [piece.bits for piece in written.pieces] == [0b100]
        assert store.counts(3) == {"mail": counts(total=3, completed=2)}


@in_trio
async def test_the_lowest_token_decides_the_outcome(world: World) -> None:
    """Whichever completion arrives first."""
    low, high = done(first_id(2), 4, token=5), done(first_id(0), 4, token=7, outcome=FAILED)
    async with world.store() as store:
        for maker, order in ((7, (low, high)), (8, (high, low))):
            rows = [completion_of(row, maker) for row in order]
            await put(store, tasks(first_id(0, maker=maker), 6, queue=str(maker)), *rows)
        expected = counts(total=6, completed=4, failed=2)
        assert store.counts(3) == {"7": expected, "8": expected}


@in_trio
async def test_a_retry_moves_tasks_to_their_new_due_time(world: World) -> None:
    """The rest of the row keeps its place; the moved piece counts its attempts."""
    first = first_id(0)
    async with world.store() as store:
        await put(store, tasks(first, 4))
        await put(store, event(first, 2, RETRIED, position=20, retry_ms=NOW_MS + 50, attempts=1))
        assert [(piece.first, piece.bits) for piece in store.ready(3, "mail")] == [(first_id(2), 0b1100)]
        assert store.next_due_ms(3) == NOW_MS + 50
        moved = Piece("mail", 0, NOW_MS + 50, first, 0b11, 1, first)
        assert store.moved(first) == [moved]
        written = await store.write(Batch(promote=((3, NOW_MS + 50),)))
        assert written.pieces == (moved,)


@in_trio
async def test_an_expired_claim_keeps_the_due_time_and_counts(world: World) -> None:
    """The tasks are ready at once, as another piece."""
    first = first_id(0)
    async with world.store() as store:
        await put(store, tasks(first, 4))
        written = await put(store, event(first_id(1), 2, EXPIRED, position=20, attempts=1))
        assert Piece("mail", 0, NOW_MS - 1000, first_id(1), 0b110, 1, first) in written.pieces
        assert {(piece.bits, piece.attempts) for piece in store.ready(3, "mail")} == {(0b1001, 0), (0b110, 1)}


@in_trio
async def test_the_latest_retry_holds_whatever_order_they_come_in(world: World) -> None:
    """Position decides the due time, the highest count the attempts."""
    first = first_id(0)
    older = event(first, 1, RETRIED, position=20, retry_ms=NOW_MS - 5, attempts=1)
    newer = event(first, 1, RETRIED, position=30, retry_ms=NOW_MS - 7, attempts=2)
    async with world.store() as store:
        await put(store, newer)
        await put(store, tasks(first, 1))
        await put(store, older)
        assert store.ready(3, "mail") == [Piece("mail", 0, NOW_MS - 7, first, 1, 2, first)]


@in_trio
async def test_grants_and_releases_move_nothing(world: World) -> None:
    """A claim in flight is the replica's business."""
    async with world.store() as store:
        await put(store, tasks(first_id(0), 4))
        before = store.ready(3, "mail")
        written = await put(
            store, event(first_id(0), 4, GRANTED, position=5), event(first_id(0), 4, RELEASED, position=6)
        )
        assert written == Written(new_rows=2)
        assert store.ready(3, "mail") == before
        assert store.moved(first_id(0)) == []


@in_trio
async def test_a_piece_that_vanishes_in_its_own_batch_is_not_reported(world: World) -> None:
    """`Written.pieces` is what is left to claim."""
    async with world.store() as store:
        written = await put(
            store, tasks(first_id(0), 4), done(first_id(1), 1), tasks(first_id(8), 1), done(first_id(8), 1)
        )
        assert [piece.bits for piece in written.pieces] == [0b1101]


@in_trio
async def test_overlapping_task_rows_index_each_task_once(world: World) -> None:
    """Honest leaders never write them; they must not count or run a task twice."""
    async with world.store() as store:
        await put(store, tasks(first_id(2), 4))
        await put(store, tasks(first_id(0), 5, queue="other"), tasks(first_id(4), 4))
        assert store.known_bits(first_id(0)) == 0xFF
        held = [piece.bits for name in ("mail", "other") for piece in store.ready(3, name)]
        assert sum(held) == 0xFF
        assert sum(bits.bit_count() for bits in held) == 8
        await put(store, event(first_id(0), 8, EXPIRED, position=4, attempts=1), done(first_id(0), 8))
        assert store.ready(3, "mail") == store.ready(3, "other") == []
        assert store.counts(3) == {"mail": counts(total=6, completed=6), "other": counts(total=2, completed=2)}


# --- promises, positions, drop -------------------------------------------------------


@in_trio
async def test_epochs_and_log_position_never_go_back(world: World) -> None:
    """A lower promise is ignored; each partition has its own."""
    async with world.store() as store:
        assert store.log_position() == -1
        await store.write(Batch(epochs=((3, 5), (4, 1)), log_position=70))
        await store.write(Batch(epochs=((3, 4), (4, 2)), log_position=60))
        assert store.epochs() == {3: 5, 4: 2}
        assert store.log_position() == 70


@in_trio
async def test_named_values_are_replaced(world: World) -> None:
    """The last one written holds."""
    async with world.store() as store:
        assert store.meta("cluster") is None
        await store.write(Batch(meta=(("cluster", b"one"), ("node", b"n"))))
        await store.write(Batch(meta=(("cluster", b"two"),)))
        assert (store.meta("cluster"), store.meta("node")) == (b"two", b"n")


@in_trio
async def test_drop_forgets_a_partition_but_its_epoch(world: World) -> None:
    """Other partitions are untouched; the same rows may come again."""
    rows = [tasks(first_id(0), 4), done(first_id(0), 1), event(first_id(1), 1, EXPIRED, position=3, attempts=1)]
    later = tasks(first_id(0, ms=NOW_MS + 9), 1)
    async with world.store() as store:
        await store.write(Batch(rows=(*rows, later, tasks(first_id(partition=4), 2)), epochs=((3, 8),)))
        others = (store.counts(4), store.hours(4), store.ready(4, "mail"))
        state = (store.counts(3), store.hours(3), store.ready(3, "mail"))
        assert store.partitions() == [3, 4]
        await store.write(Batch(drop=(3,)))
        assert store.partitions() == [4]
        assert (store.counts(3), store.hours(3), store.ready(3, "mail")) == ({}, {}, [])
        assert (store.next_due_ms(3), store.known_bits(first_id(0)), store.task_rows(3)) == (None, 0, [])
        assert (store.counts(4), store.hours(4), store.ready(4, "mail")) == others
        assert store.epochs() == {3: 8}
        await put(store, *rows, later)
        assert (store.counts(3), store.hours(3), store.ready(3, "mail")) == state


# --- anti-entropy ---------------------------------------------------------------------


@in_trio
async def test_leaves_add_up_to_hours_and_keys_to_leaves(world: World) -> None:
    """Every row key is in exactly the leaf that counts it, in order."""
    rows = [tasks(first_id(0, ms=NOW_MS - i * 700_000, maker=i), 2) for i in range(20)]
    rows += [done(first_of(row.key), 1) for row in rows] + [update_row(first_id(), Update(1, 0, NOW_MS, b"u"))]
    async with world.store() as store:
        await put(store, *rows)
        seen: list[bytes] = []
        for hour, digest in store.hours(3).items():
            leaves = store.leaves(3, hour)
            assert digest == Digest(
                sum(leaf.rows for leaf in leaves.values()), sum(leaf.total for leaf in leaves.values()) % 2**64
            )
            for leaf, found in leaves.items():
                keys = list(store.keys(3, hour, leaf))
                assert keys == sorted(keys)
                assert len(keys) == found.rows
                assert all(ms_of(first_of(key)) // 3_600_000 == hour for key in keys)
                seen += keys
        assert sorted(seen) == sorted(row.key for row in rows)


@in_trio
async def test_keys_may_be_iterated_while_rows_are_written(world: World) -> None:
    """The iterator holds no snapshot open."""
    async with world.store() as store:
        await put(store, *(tasks(first_id(i), 1) for i in range(5)), done(first_id(0), 1))
        ((hour, _),) = store.hours(3).items()
        ((leaf, _),) = store.leaves(3, hour).items()
        keys: Iterator[bytes] = store.keys(3, hour, leaf)
        seen = [next(keys)]
        await put(store, tasks(first_id(9), 1))
        seen += keys
        assert {key[2:3] for key in seen} == {TASK, COMPLETION}
        assert set(seen) >= {key_of(TASK, first_id(i)) for i in range(5)}


# --- the model -------------------------------------------------------------------------


def stretches() -> st.SearchStrategy[TaskId]:
    """A few stretches of two partitions and hours, ready and due."""
    return st.builds(
        lambda partition, ms, counter: make_id(ms, partition, 7, counter),
        st.sampled_from([3, 4]),
        st.sampled_from([NOW_MS - 4_000_000, NOW_MS + 1000]),
        st.sampled_from([0, 1024]),
    )


@st.composite
def runs(draw: st.DrawFn) -> tuple[TaskId, int]:
    """A short run in one of the stretches."""
    offset = draw(st.integers(0, 20))
    return id_at(draw(stretches()), offset), draw(st.integers(1, 24 - offset))


@st.composite
def task_sets(draw: st.DrawFn) -> list[Row]:
    """Task rows that do not overlap."""
    known: dict[bytes, int] = {}
    rows = []
    for first, count in draw(st.lists(runs(), max_size=8)):
        stretch = stretch_of(first)
        for run in runs_of(stretch, mask_of(first, count) & ~known.get(stretch, 0)):
            queue, priority = draw(st.sampled_from([("mail", 0), ("mail", 5), ("other", -1)]))
            rows.append(tasks(run.first, run.count, queue=queue, priority=priority))
        known[stretch] = known.get(stretch, 0) | mask_of(first, count)
    return rows


def later_facts() -> st.SearchStrategy[Row]:
    """Completions and history, about any tasks there may be."""
    completions = st.builds(
        lambda run, token, outcome: done(*run, token=token, outcome=outcome),
        runs(),
        st.integers(0, 4),
        st.sampled_from([COMPLETED, FAILED, CANCELLED]),
    )
    events = st.builds(
        lambda run, kind, position, retry_ms, attempts: event(
            *run, kind, position=position, retry_ms=retry_ms, attempts=attempts
        ),
        runs(),
        st.sampled_from([GRANTED, RELEASED, RETRIED, EXPIRED]),
        st.integers(0, 5),
        st.sampled_from([NOW_MS - 9, NOW_MS - 3, NOW_MS + 7]),
        st.integers(0, 3),
    )
    return st.one_of(completions, events)


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Row], list[list[Row]]]:
    """A set of facts, and the same in batches in any order, some repeated."""
    rows = draw(task_sets()) + draw(st.lists(later_facts(), max_size=12))
    # A row is immutable: one key never has two values.
    rows = list({row.key: row for row in rows}.values())
    shuffled = draw(st.permutations(rows + draw(st.lists(st.sampled_from(rows), max_size=4) if rows else st.just([]))))
    batches: list[list[Row]] = [[]]
    for row in shuffled:
        if draw(st.booleans()):
            batches.append([])
        batches[-1].append(row)
    return rows, batches


class Expected:
    """What must come of a set of facts, worked out task by task."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.tasks: dict[bytes, tuple[str, int]] = {}
        self.outcomes: dict[bytes, tuple[int, bytes, int]] = {}
        self.retries: dict[bytes, tuple[int, int, int]] = {}
        self.attempts: dict[bytes, int] = {}
        for key, value in rows:
            first, body, kind = first_of(key), value[:-4], key[2:3]
            if kind == TASK:
                run = unpack_task(body)
                entry = (run.header["queue"], run.header.get("priority", 0))
                self.tasks.update(dict.fromkeys(ids_of(first, run.count), entry))
            elif kind == COMPLETION:
                completion = unpack_completion(body)
                for task in ids_of(first, completion.count):
                    candidate = (completion.token, key, completion.outcome)
                    self.outcomes[task] = min(candidate, self.outcomes.get(task, candidate))
            elif kind == HISTORY:
                self._history(first, unpack_history(body))

    def _history(self, first: bytes, happened: History) -> None:
        for task in ids_of(first, happened.count):
            if happened.event in (RETRIED, EXPIRED):
                self.attempts[task] = max(self.attempts.get(task, 0), happened.attempts)
            if happened.event == RETRIED:
                stamp = (happened.position, happened.index, happened.retry_ms)
                self.retries[task] = max(stamp, self.retries.get(task, stamp))

    def unfinished(self) -> dict[bytes, tuple[str, int, int, int]]:
        """Task -> (queue, priority, due, attempts)."""
        return {
            task: (queue, priority, self.due_ms(task), self.attempts.get(task, 0))
            for task, (queue, priority) in self.tasks.items()
            if task not in self.outcomes
        }

    def due_ms(self, task: bytes) -> int:
        """When a task is due."""
        return self.retries[task][2] if task in self.retries else ms_of(task)

    def counts(self, partition: int) -> dict[str, QueueCounts]:
        """Counts per queue of a partition, all due."""
        out: dict[str, list[int]] = {}
        for task, (queue, _) in self.tasks.items():
            if task[6:8] == partition.to_bytes(2, "big"):
                numbers = out.setdefault(queue, [0, 0, 0, 0, 0])
                numbers[0] += 1
                if task in self.outcomes:
                    numbers[1 + self.outcomes[task][2]] += 1
        return {queue: QueueCounts(*numbers) for queue, numbers in sorted(out.items())}


def claimable(store: AnyStore) -> dict[bytes, tuple[str, int, int, int]]:
    """Task -> (queue, priority, due, attempts) of everything in `ready`."""
    out: dict[bytes, tuple[str, int, int, int]] = {}
    for partition in store.partitions():
        for queue in store.queues(partition):
            for piece in store.ready(partition, queue, limit=10_000):
                for run in runs_of(stretch_of(piece.first), piece.bits):
                    for task in ids_of(*run):
                        assert task not in out
                        out[task] = (queue, piece.priority, piece.due_ms, piece.attempts)
                        found = store.task_row(task)
                        assert found is not None
                        assert found[0] == piece.row_first
    return out


def digests(store: AnyStore) -> dict[tuple[int, int], tuple[Digest, dict[int, Digest]]]:
    """Every digest of a store."""
    return {
        (partition, hour): (digest, store.leaves(partition, hour))
        for partition in store.partitions()
        for hour, digest in store.hours(partition).items()
    }


async def check_against_model(world: World, rows: list[Row], batches: list[list[Row]]) -> None:
    """Write the batches, then compare with the model and with a store written in order."""
    expected = Expected(rows)
    async with world.store(map_bytes=1 << 24) as store:
        for batch in batches:
            await put(store, *batch)
        for partition in (3, 4):
            scheduled = sum(numbers.scheduled for numbers in store.counts(partition).values())
            assert scheduled == sum(
                due_ms > NOW_MS
                for task, (_, _, due_ms, _) in expected.unfinished().items()
                if task[6:8] == partition.to_bytes(2, "big")
            )
        await store.write(Batch(promote=((3, NOW_MS + 10_000), (4, NOW_MS + 10_000))))
        assert claimable(store) == expected.unfinished()
        for partition in (3, 4):
            assert store.counts(partition) == expected.counts(partition)
            assert store.next_due_ms(partition) is None
        async with World("memory", world.directory).store() as ordered:
            await put(ordered, *rows)
            assert digests(store) == digests(ordered)


@settings(max_examples=150, deadline=None)
@given(history=histories())
def test_memory_is_a_function_of_the_set_of_facts(history: tuple[list[Row], list[list[Row]]]) -> None:
    """Any order, grouping and repetition gives the model's ready tasks, counts and digests."""
    trio.run(check_against_model, World("memory", Path()), *history)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(history=histories())
def test_lmdb_is_a_function_of_the_set_of_facts(history: tuple[list[Row], list[list[Row]]]) -> None:
    """Any order, grouping and repetition gives the model's ready tasks, counts and digests."""
    with tempfile.TemporaryDirectory() as directory:
        trio.run(check_against_model, World("lmdb", Path(directory)), *history)


# --- damage, crashes, full disks --------------------------------------------------------


def rot(world: World, key: bytes) -> None:
    """Flip a bit in a stored row while no store is open."""
    if world.kind == "memory":
        assert world.disk.rot(key, bit=333)
        return
    with lmdb.open(str(world.directory), max_dbs=16, lock=False) as env, env.begin(write=True) as txn:
        rows = env.open_db(b"rows", txn)
        value = bytearray(txn.get(key, db=rows))
        value[41] ^= 1
        txn.put(key, bytes(value), db=rows)


@in_trio
async def test_a_flipped_bit_is_told_and_repaired_by_the_sound_row(world: World) -> None:
    """Never a wrong payload; writing the row as it was heals it, digests unchanged."""
    row = tasks(first_id(0), 4)
    async with world.store() as store:
        await put(store, row)
        sound = digests(store)
    rot(world, row.key)
    async with world.store() as store:
        with pytest.raises(Corrupt):
            store.task_row(first_id(1))
        with pytest.raises(Corrupt):
            store.covering(TASK, first_id(1))
        with pytest.raises(Corrupt):
            store.task_rows(3)
        await put(store, row)
        assert store.task_row(first_id(1)) == (first_id(0), row.value[:-4])
        assert digests(store) == sound


@in_trio
async def test_reopening_keeps_everything(world: World) -> None:
    """Rows, indexes, counts, digests, promises and positions."""

    def state(store: AnyStore) -> list[Any]:
        return [
            store.counts(3),
            digests(store),
            store.ready(3, "mail"),
            store.moved(first_id(0)),
            store.next_due_ms(3),
            store.epochs(),
            store.log_position(),
            store.meta("node"),
            store.task_rows(3),
        ]

    async with world.store() as store:
        rows = (tasks(first_id(0), 9), tasks(first_id(0, ms=NOW_MS + 4), 1), done(first_id(2), 2))
        await store.write(Batch(rows=rows, epochs=((3, 2),), log_position=9, meta=(("node", b"n1"),)))
        await put(store, event(first_id(4), 2, EXPIRED, position=4, attempts=2))
        before = state(store)
    async with world.store() as store:
        assert state(store) == before


@in_trio
async def test_batches_that_wait_together_each_get_their_own_answer(world: World) -> None:
    """Also when they are about the same tasks."""
    answers: dict[int, Written] = {}
    async with world.store() as store:

        async def write(number: int) -> None:
            answers[number] = await put(store, tasks(first_id(number // 2 * 4), 4))

        async with trio.open_nursery() as nursery:
            for number in range(100):
                nursery.start_soon(write, number)
        assert sum(answer.new_rows for answer in answers.values()) == 50
        assert all(answers[n].new_rows + answers[n + 1].new_rows == 1 for n in range(0, 100, 2))
        assert store.counts(3)["mail"].total == 200


@in_trio
async def test_a_cancelled_write_disturbs_nobody(world: World) -> None:
    """Its batch may be stored; those beside it are, and the store goes on."""
    async with world.store() as store:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(put, store, tasks(first_id(0), 1))
            with trio.CancelScope() as scope:
                scope.cancel()
                await put(store, tasks(first_id(1), 1))
        await put(store, tasks(first_id(2), 1))
        assert store.known_bits(first_id(0)) & 0b101 == 0b101


@in_trio
async def test_a_closed_store_refuses_writes(world: World) -> None:
    """And what waited when it was closed is stored."""
    store = world.open()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(put, store, tasks(first_id(0), 1))
        await trio.testing.wait_all_tasks_blocked()
        await store.aclose()
    await store.aclose()
    with pytest.raises(StoreFailed):
        await put(store, tasks(first_id(1), 1))
    async with world.store() as store:
        assert store.known_bits(first_id(0)) == 1


@in_trio
async def test_the_map_grows_by_itself(lmdb_world: World) -> None:
    """A small map is no limit."""
    body = pack_task({"queue": "mail"}, [bytes(100_000)])
    async with lmdb_world.store(map_bytes=1 << 20) as store:
        for counter in range(40):
            await put(store, task_row(first_id(counter), body))
        assert store.size_bytes() > 4_000_000
        assert store.known_bits(first_id(0)) == (1 << 40) - 1


async def fill(store: AnyStore) -> int:
    """Write until the store is full; how many rows of 30 kB it took."""
    body = pack_task({"queue": "mail"}, [bytes(30_000)])
    for counter in range(1000):
        try:
            await put(store, task_row(first_id(counter), body))
        except StoreFailed:
            assert store.get(key_of(TASK, first_id(counter))) is None
            return counter
    raise AssertionError("it was never full")


@in_trio
async def test_a_full_map_fails_the_batch_and_a_drop_makes_room(lmdb_world: World) -> None:
    """What was stored is still read; after the drop as much fits as before."""
    async with lmdb_world.store(map_bytes=1 << 18, map_bytes_max=1 << 22) as store:
        stored = await fill(store)
        assert stored > 20
        assert store.known_bits(first_id(0)) == (1 << stored) - 1
        await store.write(Batch(drop=(3,)))
        assert store.known_bits(first_id(0)) == 0
        await store.write(Batch())
        assert await fill(store) >= stored - 5


@in_trio
async def test_a_batch_too_large_for_the_map_does_not_spoil_its_group(lmdb_world: World) -> None:
    """The others of the group are stored."""
    large = task_row(first_id(0), pack_task({"queue": "mail"}, [bytes(6_000_000)]))
    failed = []
    async with lmdb_world.store(map_bytes=1 << 18, map_bytes_max=1 << 22) as store:

        async def write(row: Row) -> None:
            try:
                await put(store, row)
            except StoreFailed:
                failed.append(row)

        async with trio.open_nursery() as nursery:
            for row in (tasks(first_id(1), 1), large, tasks(first_id(2), 1)):
                nursery.start_soon(write, row)
        assert failed == [large]
        assert store.known_bits(first_id(0)) == 0b110


@in_trio
async def test_a_raised_limit_lets_a_full_store_go_on(lmdb_world: World) -> None:
    """Reopened with more room, nothing is missing."""
    async with lmdb_world.store(map_bytes=1 << 18, map_bytes_max=1 << 21) as store:
        stored = await fill(store)
    async with lmdb_world.store(map_bytes_max=1 << 23) as store:
        assert store.known_bits(first_id(0)) == (1 << stored) - 1
        assert await fill(store) > stored


@in_trio
async def test_a_disk_that_refuses_bytes_fails_the_write_only(lmdb_world: World) -> None:
    """Nothing of the batch is stored; once there is room again writes succeed."""
    body = pack_task({"queue": "mail"}, [bytes(200_000)])
    async with lmdb_world.store() as store:
        await put(store, tasks(first_id(0), 1))
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (store.size_bytes() + 8192, limits[1]))
        try:
            with pytest.raises(StoreFailed):
                await put(store, task_row(first_id(1), body))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert store.known_bits(first_id(0)) == 0b1
        await put(store, task_row(first_id(1), body))
        assert store.known_bits(first_id(0)) == 0b11


@in_trio
async def test_a_data_directory_admits_one_store(lmdb_world: World) -> None:
    """The second is told who has it; once closed it may be opened."""
    async with lmdb_world.store():
        with pytest.raises(Conflict, match="in use by process"):
            lmdb_world.open()
    async with lmdb_world.store():
        pass


@in_trio
async def test_a_killed_process_leaves_what_it_acknowledged(lmdb_world: World) -> None:
    """The lock goes with the process and every acknowledged batch is there."""
    program = (
        "import os, sys, trio\n"
        "from tests.conformance import test_store as t\n"
        "from onyxq.store.lmdb_store import LmdbStore\n"
        "async def main():\n"
        "    store = LmdbStore.open(sys.argv[1])\n"
        "    for counter in range(20):\n"
        "        await t.put(store, t.tasks(t.first_id(counter), 1))\n"
        "    os.kill(os.getpid(), 9)\n"
        "trio.run(main)\n"
    )
    root = Path(__file__).parents[2]
    arguments = [sys.executable, "-c", program, str(lmdb_world.directory)]
    finished = await trio.run_process(arguments, check=False, cwd=root, capture_stderr=True)
    assert finished.returncode == -9, finished.stderr.decode()
    async with lmdb_world.store() as store:
        assert store.known_bits(first_id(0)) == (1 << 20) - 1


# --- the simulated disk -----------------------------------------------------------------


@in_trio
async def test_a_failing_disk_fails_writes_until_it_is_well(tmp_path: Path) -> None:
    """Nothing of a failed batch is there."""
    world = World("memory", tmp_path)
    async with world.store() as store:
        world.disk.failing = True
        with pytest.raises(StoreFailed):
            await put(store, tasks(first_id(0), 1))
        assert store.known_bits(first_id(0)) == 0
        world.disk.failing = False
        await put(store, tasks(first_id(0), 1))
        assert store.known_bits(first_id(0)) == 1


@pytest.mark.parametrize("keep", [False, True])
def test_a_crash_decides_what_was_not_yet_synced(tmp_path: Path, *, keep: bool) -> None:
    """The acknowledged stays, the write in flight is lost or kept whole."""

    async def main() -> None:
        world = World("memory", tmp_path)
        world.disk = SimulatedDisk(delay_ms=lambda: 50)
        store = world.open()
        await put(store, tasks(first_id(0), 1))
        async with trio.open_nursery() as nursery:

            async def doomed() -> None:
                with pytest.raises(StoreFailed):
                    await put(store, tasks(first_id(1), 1), done(first_id(0), 1))

            nursery.start_soon(doomed)
            await trio.testing.wait_all_tasks_blocked()
            world.disk.crash(keep_unsynced=keep)
        async with world.store() as reopened:
            assert reopened.known_bits(first_id(0)) == (0b11 if keep else 0b1)
            assert reopened.finished_bits(first_id(0)) == (0b1 if keep else 0)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
