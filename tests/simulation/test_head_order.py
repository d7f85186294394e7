"""Heads: over the partitions that a node leads, the best task by priority and age comes first."""

from __future__ import annotations

import random
from typing import cast

import pytest
import trio

from onyxq.core.ids import make_id
from onyxq.leader.grants.limits import Limits
from onyxq.leader.grants.ready_heads import Heads
from onyxq.leader.leader import PartitionLeader
from onyxq.store.interface import Batch, Piece
from onyxq.store.memory import MemoryStore
from tests.simulation.test_telling import NOW_MS, QUEUE, Host, Leader, tasks

PARTITIONS = range(4)


class Node:
    """Heads over some partitions."""

    def __init__(self) -> None:
        self.store = MemoryStore(now_ms=lambda: NOW_MS)
        self.taken: set[bytes] = set()
        leaders = {number: cast(PartitionLeader, Leader(number)) for number in PARTITIONS}
        self.heads = Heads(
            self.store,
            leaders=leaders,
            free=lambda piece: 0 if piece.first in self.taken else piece.bits,
            limits=Limits(Host()),
            wake_later=lambda seconds, queue: None,
        )

    def offer(self, piece: Piece) -> None:
        """Add a piece that is ready (again)."""
        self.taken.discard(piece.first)
        self.heads.add([piece])

    def take(self) -> Piece:
        """Claim the best task."""
        best = self.heads.best(QUEUE)
        assert best is not None
        self.taken.add(best[1].first)
        return best[1]


@pytest.mark.parametrize("seed", range(40))
def test_the_best_task_of_all_partitions_comes_first(seed: int) -> None:
    """This holds for any tasks that come, go and return meanwhile."""
    draw = random.Random(seed)

    async def main() -> None:
        node, ready = Node(), dict[bytes, Piece]()
        claimed: list[Piece] = []
        for number in range(200):
            word = draw.choice(("new", "new", "take", "take", "back"))
            if word == "new" or not ready:
                partition, due_ms = draw.choice(PARTITIONS), NOW_MS - draw.randint(1, 50_000)
                first = make_id(due_ms, partition, number, 0)
                await node.store.write(Batch(rows=(tasks(first, 1, priority=draw.randint(-2, 2)),)))
                (piece,) = [
                    piece for piece in node.store.ready(partition, QUEUE, after=None, limit=999) if piece.first == first
                ]
                ready[first] = piece
                node.offer(piece)
            elif word == "back" and claimed:
                piece = claimed.pop(draw.randrange(len(claimed)))
                ready[piece.first] = piece
                node.offer(piece)
            else:
                piece = node.take()
                assert piece.sort_key == min(one.sort_key for one in ready.values())
                del ready[piece.first]
                claimed.append(piece)
            head = node.heads.head(QUEUE, wanted=999)
            if ready:
                assert head is not None and head.whole
                order = sorted(one.sort_key for one in ready.values())
                assert [rank[:2] for rank in head.ranks] == [key[:2] for key in order]

    trio.run(main)


def test_a_head_lists_no_more_than_is_in_memory() -> None:
    """Later tasks may be better than those of other nodes: the head says that there are more."""

    async def main() -> None:
        node = Node()
        rows = tuple(tasks(make_id(NOW_MS - 9_000 + number, 0, number, 0), 1) for number in range(700))
        written = await node.store.write(Batch(rows=rows))
        node.heads.add(written.pieces)
        head = node.heads.head(QUEUE, wanted=100)
        assert head is not None and not head.whole
        assert [rank[1] for rank in head.ranks] == [NOW_MS - 9_000 + number for number in range(100)]

    trio.run(main)
