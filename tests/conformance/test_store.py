"""The contract of every store in `onyxq.store.interface`, on LMDB and in memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import trio
import trio.testing

from onyxq.core.facts import (
    CANCELLED,
    COMPLETION,
    EXPIRED,
    FAILED,
    GRANTED,
    HISTORY,
    RELEASED,
    RETRIED,
    TASK,
    UPDATE,
    Mark,
    Row,
    Update,
    first_of,
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
from onyxq.core.ids import mask_of, ms_of, stretch_of, with_counter
from onyxq.errors import BadRequest
from onyxq.store.index.applier import PROMOTE_PIECES_MAX
from onyxq.store.interface import Batch, Digest, Piece, Written
from tests.conformance.store_world import (
    NOW_MS,
    AnyStore,
    World,
    completion_of,
    counts,
    digests,
    done,
    event,
    first_id,
    in_trio,
    put,
    tasks,
)

# --- rows -----------------------------------------------------------------------


@in_trio
async def test_a_row_is_read_back_as_written(store: AnyStore) -> None:
    """`get` gives the sealed value, and nothing for another key."""
    row = tasks(first_id(), 3)
    assert (await put(store, row)).new_rows == 1
    assert store.get(row.key) == row.value
    assert store.get(key_of(TASK, first_id(100))) is None


@in_trio
async def test_putting_a_row_again_changes_nothing(store: AnyStore) -> None:
    """A repeated row adds no piece and changes no count or digest."""
    row = tasks(first_id(), 3)
    await put(store, row)
    before = (store.counts(3), store.hours(3), store.ready(3, "mail"))
    assert await put(store, row, row) == Written()
    assert (store.counts(3), store.hours(3), store.ready(3, "mail")) == before


def two_values() -> dict[str, tuple[Row, Row]]:
    """Return rows under one key by name: the one that stays, and the other."""
    first, late = first_id(), Mark(3, 1)
    return {
        "a longer task run": (tasks(first, 3), tasks(first, 2)),
        "a longer task run of another queue": (tasks(first, 3, queue="a", priority=4), tasks(first, 1, queue="b")),
        "a completion by a later leader": (
            done(first, 2, outcome=FAILED, mark=late),
            done(first, 2, mark=Mark(2, 90)),
        ),
        "a later completion by the same leader": (done(first, 2, outcome=FAILED, mark=late), done(first, 2)),
        "an update by a later leader": (
            update_row(first, Update(1, 0, NOW_MS - 5, b"a", late)),
            update_row(first, Update(1, 0, NOW_MS, b"zz", Mark(2, 7))),
        ),
    }


@pytest.mark.parametrize("name", two_values())
@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("together", [True, False])
@in_trio
async def test_of_two_values_under_a_key_one_stays(
    world: World, store: AnyStore, *, name: str, order: int, together: bool
) -> None:
    """In any order, in one batch or two, no trace of the other value is left."""
    kept, other = two_values()[name]
    rows = [tasks(first_id(), 4, queue="q")] * (kept.key[2:3] != TASK)
    await put(store, *rows)
    if together:
        await put(store, *(kept, other)[::order])
    else:
        for row in (kept, other)[::order]:
            await put(store, row)
    assert store.get(kept.key) == kept.value
    async with World("memory", world.directory).store() as alone:
        await put(alone, *rows, kept)
        assert digests(store) == digests(alone)
        assert {queue: n for queue, n in store.counts(3).items() if any(n)} == alone.counts(3)
        for queue in ("q", "mail", "a", "b"):
            assert store.ready(3, queue) == alone.ready(3, queue)


@in_trio
async def test_a_task_has_one_outcome_when_marks_disagree_with_tokens(store: AnyStore) -> None:
    """The completion with the highest mark counts, whatever the tokens and their cut."""
    await put(store, tasks(first_id(0), 6))
    await put(store, done(first_id(0), 4, token=9, mark=Mark(1, 5)))
    await put(store, done(first_id(2), 4, token=5, outcome=FAILED, mark=Mark(2, 1)))
    assert store.counts(3) == {"mail": counts(total=6, completed=2, failed=4)}
    assert store.counts(3, "mail") == store.counts(3) and store.counts(3, "mai") == {} == store.counts(2, "mail")


@in_trio
async def test_task_row_finds_the_row_that_covers_an_id(store: AnyStore) -> None:
    """Ids in the middle and at both ends of runs are found, others are not."""
    await put(store, tasks(first_id(10), 5), tasks(first_id(15), 1), tasks(first_id(1023), 1))
    for counter, expected in ((10, 10), (14, 10), (15, 15), (1023, 1023)):
        first, body = store.task_row(first_id(counter))
        assert first == first_id(expected)
        assert unpack_task(body).payload(counter - expected) == b"payload %d" % (counter - expected)
    for counter in (0, 9, 16, 1022, 1024):
        assert store.task_row(first_id(counter)) is None


@in_trio
async def test_covering_gives_the_rows_about_a_task_oldest_first(store: AnyStore) -> None:
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
    await put(store, tasks(first_id(0), 8), *rows)
    completions = [(first, unpack_completion(body).token) for first, body in store.covering(COMPLETION, task)]
    assert completions == [(task, 3), (first_id(0), 9)]
    assert [unpack_history(body).position for _, body in store.covering(HISTORY, task)] == [3, 8, 12]
    assert [unpack_update(body).data for _, body in store.covering(UPDATE, task)] == [b"a", b"b"]
    assert [first for first, _ in store.covering(TASK, task)] == [first_id(0)]


@in_trio
async def test_masks_say_what_is_known_and_finished(store: AnyStore) -> None:
    """Per stretch, from task rows and completions."""
    first = first_id(1024 + 7)
    await put(store, tasks(first, 5), done(with_counter(first, 1024 + 8), 2))
    assert store.known_bits(stretch_of(first)) == mask_of(first, 5)
    assert store.finished_bits(stretch_of(first)) == 0b11 << 8
    assert store.known_bits(first_id(0)) == 0


def damaged(row: Row) -> Row:
    """Return the row with one bit of its body flipped."""
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
    "an unknown outcome": done(first_id(), 1, outcome=4),
    "a completion of nothing": done(first_id(), 0),
    "an unknown event": event(first_id(), 1, 9, position=1),
}


@pytest.mark.parametrize("name", MALFORMED)
@in_trio
async def test_a_malformed_row_is_refused_whole(store: AnyStore, name: str) -> None:
    """No row of its batch is stored; other batches are."""
    good, beside = tasks(first_id(100), 1), tasks(first_id(200), 1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(put, store, beside)
        with pytest.raises(BadRequest):
            await put(store, good, MALFORMED[name])
    assert store.get(good.key) is None
    assert store.get(beside.key) == beside.value


# --- indexes ----------------------------------------------------------------------


@in_trio
async def test_new_tasks_are_ready_or_due_by_the_clock(store: AnyStore) -> None:
    """Tasks due now are in `ready`, later ones in `due` and counted as scheduled; both are reported."""
    now, later = first_id(0), first_id(0, ms=NOW_MS + 5)
    written = await put(store, tasks(now, 3), tasks(later, 2))
    piece = Piece("mail", 0, NOW_MS - 1000, now, 0b111, 0, now)
    scheduled = Piece("mail", 0, NOW_MS + 5, later, 0b11, 0, later)
    assert written == Written(new_rows=2, pieces=(piece, scheduled))
    assert store.ready(3, "mail") == [piece]
    assert store.due(3, 0, NOW_MS + 6) == [scheduled]
    assert store.next_due_ms(3) == NOW_MS + 5
    assert store.counts(3) == {"mail": counts(total=5, scheduled=2)}


@in_trio
async def test_what_is_due_in_a_stretch_of_time_is_found_in_order(store: AnyStore) -> None:
    """Those of one partition between two times are returned, earliest first and not more than requested."""
    ids = [first_id(0, ms=NOW_MS + 10 * place) for place in range(1, 6)]
    await put(store, *(tasks(one, 2, priority=place) for place, one in enumerate(reversed(ids))))
    found = store.due(3, NOW_MS + 20, NOW_MS + 50)
    assert found == [Piece("mail", 4 - place, NOW_MS + 10 * place + 10, ids[place], 0b11, 0, ids[place])
                     for place in (1, 2, 3)]  # fmt: skip
    assert store.due(3, NOW_MS + 20, NOW_MS + 50, limit=2) == found[:2]
    assert store.due(2, 0, NOW_MS + 100) == []
    assert [store.next_due_ms(3, NOW_MS + ms) for ms in (20, 21, 51)] == [NOW_MS + 20, NOW_MS + 30, None]
    await store.write(Batch(promote=((3, NOW_MS + 30),)))
    assert store.due(3, 0, NOW_MS + 50) == found[2:]


@in_trio
async def test_promote_moves_what_became_due(store: AnyStore) -> None:
    """Only up to the given time; the batch reports the pieces."""
    soon, late = first_id(0, ms=NOW_MS + 5), first_id(0, ms=NOW_MS + 6)
    await put(store, tasks(soon, 2, priority=4), tasks(late, 1))
    written = await store.write(Batch(promote=((3, NOW_MS + 5),)))
    assert written.pieces == (Piece("mail", 4, NOW_MS + 5, soon, 0b11, 0, soon),)
    assert store.ready(3, "mail") == list(written.pieces)
    assert store.counts(3)["mail"].scheduled == 1
    assert store.next_due_ms(3) == NOW_MS + 6
    assert (await store.write(Batch(promote=((3, NOW_MS + 5),)))).pieces == ()


@in_trio
async def test_a_promotion_is_bounded_and_the_next_goes_on(store: AnyStore) -> None:
    """Many tasks that are due at once never block the node for long."""
    rows = [tasks(first_id(0, ms=NOW_MS + 1, maker=i), 1) for i in range(PROMOTE_PIECES_MAX + 3)]
    await put(store, *rows)
    assert len((await store.write(Batch(promote=((3, NOW_MS + 1),)))).pieces) == PROMOTE_PIECES_MAX
    assert len((await store.write(Batch(promote=((3, NOW_MS + 1),)))).pieces) == 3
    assert store.next_due_ms(3) is None


@in_trio
async def test_ready_is_ordered_by_priority_then_due_time_then_id(store: AnyStore) -> None:
    """This holds for all signed 32-bit priorities; pages have no gaps."""
    priorities = (-(1 << 31), -1, 0, 1, (1 << 31) - 1)
    rows = [
        tasks(first_id(10 * age, ms=NOW_MS - age, maker=maker), 2, priority=priority)
        for priority in priorities
        for age in (3, 1, 2)
        for maker in (priorities.index(priority), 9 + priorities.index(priority))
    ]
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
async def test_a_page_goes_on_behind_a_piece_that_is_gone(store: AnyStore) -> None:
    """The piece of `after` need not exist any more."""
    await put(store, *(tasks(first_id(2 * i), 2) for i in range(4)))
    pieces = store.ready(3, "mail")
    await put(store, done(pieces[1].first, 2))
    assert store.ready(3, "mail", after=pieces[1]) == pieces[2:]


@in_trio
async def test_queues_are_kept_apart(store: AnyStore) -> None:
    """Names that start alike, long ones and any script."""
    names = ["a", "aa", "q" * 200, "очередь" * 20, "ü"]
    await put(store, *(tasks(first_id(i), 1, queue=name) for i, name in enumerate(names)))
    assert store.queues(3) == sorted(names)
    for i, name in enumerate(names):
        assert [(piece.queue, piece.first) for piece in store.ready(3, name)] == [(name, first_id(i))]
    assert store.ready(3, "b") == []


@in_trio
async def test_completions_take_tasks_out_of_ready_and_due(store: AnyStore) -> None:
    """This holds for parts of runs and whole runs, with counts per outcome."""
    now, later = first_id(0), first_id(0, ms=NOW_MS + 5)
    await put(store, tasks(now, 10), tasks(later, 4))
    await put(store, done(first_id(2), 3), done(later, 1, outcome=CANCELLED))
    assert [piece.bits for piece in store.ready(3, "mail")] == [0b1111100011]
    assert store.counts(3) == {"mail": counts(total=14, completed=3, cancelled=1, scheduled=3)}
    await put(store, done(now, 10, token=11, outcome=FAILED), done(later, 4, token=11))
    assert store.ready(3, "mail") == []
    assert store.next_due_ms(3) is None
    assert store.counts(3) == {"mail": counts(total=14, completed=4, failed=10)}


@in_trio
async def test_a_completion_may_come_before_its_task(store: AnyStore) -> None:
    """Anti-entropy may bring it first: the task is then finished from the start."""
    await put(store, done(first_id(0), 2))
    written = await put(store, tasks(first_id(0), 3))
    assert [piece.bits for piece in written.pieces] == [0b100]
    assert store.counts(3) == {"mail": counts(total=3, completed=2)}


@in_trio
async def test_the_highest_token_decides_the_outcome_under_equal_marks(store: AnyStore) -> None:
    """Whichever completion arrives first."""
    low, high = done(first_id(2), 4, token=5), done(first_id(0), 4, token=7, outcome=FAILED)
    for maker, order in ((7, (low, high)), (8, (high, low))):
        rows = [completion_of(row, maker) for row in order]
        await put(store, tasks(first_id(0, maker=maker), 6, queue=str(maker)), *rows)
    expected = counts(total=6, completed=2, failed=4)
    assert store.counts(3) == {"7": expected, "8": expected}


@in_trio
async def test_a_retry_moves_tasks_to_their_new_due_time(store: AnyStore) -> None:
    """The rest of the row keeps its place; the moved piece has its attempts."""
    first = first_id(0)
    await put(store, tasks(first, 4))
    await put(store, event(first, 2, RETRIED, position=20, retry_ms=NOW_MS + 50, attempts=1))
    assert [(piece.first, piece.bits) for piece in store.ready(3, "mail")] == [(first_id(2), 0b1100)]
    assert store.next_due_ms(3) == NOW_MS + 50
    moved = Piece("mail", 0, NOW_MS + 50, first, 0b11, 1, first)
    assert store.moved(first) == [moved]
    written = await store.write(Batch(promote=((3, NOW_MS + 50),)))
    assert written.pieces == (moved,)


@in_trio
async def test_an_expired_claim_keeps_the_due_time_and_counts(store: AnyStore) -> None:
    """The tasks are ready at once, as another piece."""
    first = first_id(0)
    await put(store, tasks(first, 4))
    written = await put(store, event(first_id(1), 2, EXPIRED, position=20, attempts=1))
    assert Piece("mail", 0, NOW_MS - 1000, first_id(1), 0b110, 1, first) in written.pieces
    assert {(piece.bits, piece.attempts) for piece in store.ready(3, "mail")} == {(0b1001, 0), (0b110, 1)}


@in_trio
async def test_the_latest_retry_holds_whatever_order_they_come_in(store: AnyStore) -> None:
    """Position decides the due time, the highest count the attempts."""
    first = first_id(0)
    older = event(first, 1, RETRIED, position=20, retry_ms=NOW_MS - 5, attempts=1)
    newer = event(first, 1, RETRIED, position=30, retry_ms=NOW_MS - 7, attempts=2)
    await put(store, newer)
    await put(store, tasks(first, 1))
    await put(store, older)
    assert store.ready(3, "mail") == [Piece("mail", 0, NOW_MS - 7, first, 1, 2, first)]


@in_trio
async def test_grants_and_releases_move_nothing(store: AnyStore) -> None:
    """Claims are part of the replica, not of the store."""
    await put(store, tasks(first_id(0), 4))
    before = store.ready(3, "mail")
    written = await put(store, event(first_id(0), 4, GRANTED, position=5), event(first_id(0), 4, RELEASED, position=6))
    assert written == Written(new_rows=2)
    assert store.ready(3, "mail") == before
    assert store.moved(first_id(0)) == []


@in_trio
async def test_a_piece_that_vanishes_in_its_own_batch_is_not_reported(store: AnyStore) -> None:
    """`Written.pieces` has only pieces that can still be claimed."""
    written = await put(store, tasks(first_id(0), 4), done(first_id(1), 1), tasks(first_id(8), 1), done(first_id(8), 1))
    assert [piece.bits for piece in written.pieces] == [0b1101]


@in_trio
async def test_overlapping_task_rows_index_each_task_once(store: AnyStore) -> None:
    """Correct leaders never write them; they must not count or run a task twice."""
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
async def test_epochs_and_log_position_never_go_back(store: AnyStore) -> None:
    """A lower promise is ignored; each partition has its own."""
    assert store.log_position() == -1
    assert store.log_digest() == b""
    await store.write(Batch(epochs=((3, 5), (4, 1)), log_position=70, log_digest=b"at 70"))
    await store.write(Batch(epochs=((3, 4), (4, 2)), log_position=60, log_digest=b"at 60"))
    assert store.epochs() == {3: 5, 4: 2}
    assert (store.log_position(), store.log_digest()) == (70, b"at 70")


@in_trio
async def test_named_values_are_replaced(store: AnyStore) -> None:
    """The last value is returned."""
    assert store.meta("cluster") is None
    await store.write(Batch(meta=(("cluster", b"one"), ("node", b"n"))))
    await store.write(Batch(meta=(("cluster", b"two"),)))
    assert (store.meta("cluster"), store.meta("node")) == (b"two", b"n")


@in_trio
async def test_drop_forgets_a_partition_but_its_epoch(store: AnyStore) -> None:
    """Other partitions are untouched; the same rows may come again."""
    rows = [tasks(first_id(0), 4), done(first_id(0), 1), event(first_id(1), 1, EXPIRED, position=3, attempts=1)]
    later = tasks(first_id(0, ms=NOW_MS + 9), 1)
    await store.write(Batch(rows=(*rows, later, tasks(first_id(partition=4), 2)), epochs=((3, 8),)))
    others = (store.counts(4), store.hours(4), store.ready(4, "mail"))
    state = (store.counts(3), store.hours(3), store.ready(3, "mail"))
    assert store.partitions() == [3, 4]
    await store.write(Batch(drop=(3,)))
    assert store.partitions() == [4]
    assert (store.counts(3), store.hours(3), store.ready(3, "mail")) == ({}, {}, [])
    assert (store.next_due_ms(3), store.known_bits(first_id(0)), store.task_row(first_id(0))) == (None, 0, None)
    assert (store.counts(4), store.hours(4), store.ready(4, "mail")) == others
    assert store.epochs() == {3: 8}
    await put(store, *rows, later)
    assert (store.counts(3), store.hours(3), store.ready(3, "mail")) == state


# --- anti-entropy ---------------------------------------------------------------------


@in_trio
async def test_leaves_add_up_to_hours_and_keys_to_leaves(store: AnyStore) -> None:
    """Every row key is in exactly the leaf that counts it, in order."""
    rows = [tasks(first_id(0, ms=NOW_MS - i * 700_000, maker=i), 2) for i in range(20)]
    rows += [done(first_of(row.key), 1) for row in rows] + [update_row(first_id(), Update(1, 0, NOW_MS, b"u"))]
    await put(store, *rows)
    seen: list[bytes] = []
    for hour, digest in store.hours(3).items():
        leaves = store.leaves(3, hour)
        assert digest == Digest(
            sum(leaf.rows for leaf in leaves.values()), sum(leaf.total for leaf in leaves.values()) % 2**64
        )
        for leaf, found in leaves.items():
            listed = list(store.keys(3, hour, leaf))
            assert all(store.get(key)[-4:] == checksum for key, checksum in listed)
            keys = [key for key, _ in listed]
            assert keys == sorted(keys)
            assert len(keys) == found.rows
            assert all(ms_of(first_of(key)) // 3_600_000 == hour for key in keys)
            seen += keys
    assert sorted(seen) == sorted(row.key for row in rows)


@in_trio
async def test_keys_may_be_iterated_while_rows_are_written(store: AnyStore) -> None:
    """The iterator holds no snapshot open."""
    await put(store, *(tasks(first_id(i), 1) for i in range(5)), done(first_id(0), 1))
    ((hour, _),) = store.hours(3).items()
    ((leaf, _),) = store.leaves(3, hour).items()
    keys: Iterator[tuple[bytes, bytes]] = store.keys(3, hour, leaf)
    seen = [next(keys)]
    await put(store, tasks(first_id(9), 1))
    seen += keys
    assert {key[2:3] for key, _ in seen} == {TASK, COMPLETION}
    assert {key for key, _ in seen} >= {key_of(TASK, first_id(i)) for i in range(5)}
