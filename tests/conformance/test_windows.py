"""Windows over the ready index: they hold a bounded part of it in memory, in order and without gaps."""

from __future__ import annotations

import pytest

from onyxq.core.ids import TaskId
from onyxq.leader.grants import window as windows
from onyxq.leader.grants.window import PieceCounter, Window
from onyxq.store.interface import Piece
from tests.conformance.store_world import NOW_MS, AnyStore, World, done, first_id, in_trio, put, tasks

QUEUES = ("a", "b", "c")
PIECES = 300


def drained(window: Window, store: AnyStore) -> list[TaskId]:
    """Return all pieces of a window in order."""
    out = []
    while (head := window.head(lambda piece: piece.bits & ~store.finished_bits(piece.first))) is not None:
        out.append(head[0].first)
        window.pop()
    return out


@pytest.mark.long
@in_trio
async def test_crowded_windows_hold_little_and_give_all(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """With any number of queues the memory is about the same; the other pieces are read in turn."""
    monkeypatch.setattr(windows, "CROWDED_PIECES", 50)
    monkeypatch.setattr(windows, "WINDOW_PIECES_LEAST", 8)
    counter = PieceCounter()
    async with world.store() as store:
        all_windows = {queue: Window(store, partition=3, queue=queue, counter=counter) for queue in QUEUES}
        for window in all_windows.values():
            assert window.head(lambda piece: piece.bits) is None
        given: dict[str, list[TaskId]] = {queue: [] for queue in QUEUES}
        for number in range(PIECES):
            for place, queue in enumerate(QUEUES):
                first = first_id(ms=NOW_MS - PIECES + number, maker=place)
                given[queue].append(first)
                written = await put(store, tasks(first, 1, queue=queue))
                for piece in written.pieces:
                    all_windows[queue].add(piece)
                assert counter.pieces <= 50 + 8 * len(QUEUES)
        await put(store, done(given["a"][7], 1))
        assert drained(all_windows["a"], store) == [*given["a"][:7], *given["a"][8:]]
        assert drained(all_windows["b"], store) == given["b"]
        all_windows["c"].restart()
        assert counter.pieces == 0


@in_trio
async def test_a_window_that_was_cut_takes_an_earlier_piece_at_once(store: AnyStore) -> None:
    """A later piece stays in the store."""
    window = Window(store, partition=3, queue="mail")
    written = await put(store, *(tasks(first_id(ms=NOW_MS - number, maker=number), 1) for number in range(1, 9)))
    for piece in sorted(written.pieces, key=lambda one: one.sort_key):
        window.add(piece)
    urgent = await put(store, tasks(first_id(maker=99), 1, priority=5))
    window.add(Piece(*urgent.pieces[0]))
    assert window.head(lambda piece: piece.bits) == (urgent.pieces[0], urgent.pieces[0].bits)
