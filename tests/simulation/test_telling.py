"""Which coordinators are notified of a ready task: those that can take it, the local one first."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import cast

import trio
import trio.lowlevel
from trio.testing import MockClock, wait_all_tasks_blocked

from onyxq.core.ids import make_id
from onyxq.core.replica import EMPTY, Replica
from onyxq.leader.grants.limits import Limits
from onyxq.leader.grants.ready_heads import NOTIFY_PAUSE_S, Head, Heads, is_ahead
from onyxq.leader.leader import PartitionLeader
from onyxq.store.interface import Batch, Piece
from onyxq.store.memory import MemoryStore
from tests.conformance.store_world import tasks

NOW_MS = 1_700_000_000_000
PARTITION = 3
QUEUE = "mail"
WAIT_S = 30.0


class Leader:
    """All that notifying needs of a partition's leader."""

    def __init__(self, partition: int = PARTITION) -> None:
        self.partition = partition

    def has_majority(self) -> bool:
        """Return True, because its nodes answer."""
        return True


class Host:
    """A host without limited queues."""

    replica: Replica = EMPTY


class Node:
    """One node's heads over a store, and a record of each notification: coordinator, head and time."""

    def __init__(self) -> None:
        self.store = MemoryStore(now_ms=lambda: NOW_MS)
        self.taken: set[bytes] = set()
        self.heads = Heads(
            self.store,
            leaders={PARTITION: cast(PartitionLeader, Leader())},
            free=self.free,
            limits=Limits(Host()),
            wake_later=lambda seconds, queue: None,
            wall_ms=self.wall_ms,
        )
        self.told: dict[str, tuple[float, Head | None]] = {}
        self._made = 0
        self._begun_s = trio.current_time()

    def wall_ms(self) -> int:
        """The simulated wall clock."""
        return NOW_MS + int((trio.current_time() - self._begun_s) * 1000)

    def free(self, piece: Piece) -> int:
        """Return the unclaimed tasks."""
        return 0 if piece.first in self.taken else piece.bits

    async def add(self, count: int) -> list[bytes]:
        """Add a number of single tasks that become ready at once."""
        ids: list[bytes] = [
            make_id(NOW_MS - 1_000 + number, PARTITION, self._made + number, 0) for number in range(count)
        ]
        self._made += count
        written = await self.store.write(Batch(rows=tuple(tasks(one, 1) for one in ids)))
        self.heads.add(written.pieces)
        return ids

    def add_ahead(self, *due_in_ms: int, priority: int = 0, key: bytes = b"") -> list[Piece]:
        """Add tasks that are due in a number of milliseconds."""
        pieces = []
        for in_ms in due_in_ms:
            self._made += 1
            first = make_id(self.wall_ms() + in_ms, PARTITION, self._made, 0)
            pieces.append(Piece(QUEUE, priority, self.wall_ms() + in_ms, first, 1, 0, first, 0, key))
        self.heads.add_ahead(pieces)
        return pieces

    async def warm(self) -> None:
        """Read all of the store once: the number of tasks is known exactly from then on."""
        self.taken.update(await self.add(1))
        assert self.heads.head(QUEUE) is None

    async def wait(self, name: str, wanted: int | Callable[[], int]) -> None:
        """Wait for a head as a coordinator does."""
        head = await self.heads.wait_head(QUEUE, None, WAIT_S, wanted=wanted)
        self.told[name] = (trio.current_time(), head)


def on_simulated_time(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    """Run an async test where waiting takes no time."""

    def run() -> None:
        trio.run(test, clock=MockClock(autojump_threshold=0.01))

    run.__doc__ = test.__doc__
    return run


@on_simulated_time
async def test_no_more_are_told_than_can_take_the_tasks() -> None:
    """One coordinator wants all of them; the next is notified of the rest a moment later."""
    node = Node()
    await node.warm()
    async with trio.open_nursery() as nursery:
        for name in "abc":
            nursery.start_soon(node.wait, name, 64)
        await wait_all_tasks_blocked()
        begun_s = trio.current_time()
        await node.add(3)
        while len(node.told) < 3:
            await trio.sleep(NOTIFY_PAUSE_S / 4)
    at_s = sorted(at - begun_s for at, _ in node.told.values())
    assert at_s[0] < NOTIFY_PAUSE_S / 2
    assert at_s[1] >= NOTIFY_PAUSE_S


@on_simulated_time
async def test_as_many_are_told_as_it_takes() -> None:
    """Each coordinator wants one task, and there are three."""
    node = Node()
    await node.warm()
    async with trio.open_nursery() as nursery:
        for name in "abcd":
            nursery.start_soon(node.wait, name, 1)
        await wait_all_tasks_blocked()
        begun_s = trio.current_time()
        await node.add(3)
        while len(node.told) < 4:
            await trio.sleep(NOTIFY_PAUSE_S / 4)
    at_s = sorted(at - begun_s for at, _ in node.told.values())
    assert at_s[2] < NOTIFY_PAUSE_S / 2
    assert at_s[3] >= NOTIFY_PAUSE_S


@on_simulated_time
async def test_the_nodes_own_workers_come_first() -> None:
    """No other coordinator is notified of their tasks, and no message is sent for them."""
    node = Node()
    await node.warm()
    async with trio.open_nursery() as nursery:
        for name in "ab":
            nursery.start_soon(node.wait, name, 64)
        nursery.start_soon(node.wait, "near", lambda: 64)
        await wait_all_tasks_blocked()
        ids = await node.add(3)
        while "near" not in node.told:
            await trio.lowlevel.checkpoint()
        node.taken.update(ids)
        await trio.sleep(10 * NOTIFY_PAUSE_S)
        assert node.told.keys() == {"near"}
        nursery.cancel_scope.cancel()


@on_simulated_time
async def test_others_are_told_at_once_where_no_worker_of_the_node_waits() -> None:
    """The node's own coordinator asks, but no worker waits with it now."""
    node = Node()
    await node.warm()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.wait, "a", 64)
        nursery.start_soon(node.wait, "near", lambda: 0)
        await wait_all_tasks_blocked()
        begun_s = trio.current_time()
        await node.add(1)
        while "a" not in node.told:
            await trio.sleep(NOTIFY_PAUSE_S / 4)
        assert node.told["a"][0] - begun_s < NOTIFY_PAUSE_S / 2
        nursery.cancel_scope.cancel()


# --- what is not due yet


@on_simulated_time
async def test_what_falls_due_in_a_moment_is_a_head_for_those_who_claim_ahead() -> None:
    """This holds if nothing is ready, for any priority, until it is claimed or due."""
    node = Node()
    await node.warm()
    later, sooner = node.add_ahead(200, 100, priority=9)
    assert node.heads.head(QUEUE) is None
    head = node.heads.head(QUEUE, ahead=True)
    assert head is not None and is_ahead(head) and head[1:3] == (sooner.due_ms, 2)
    (ready,) = await node.add(1)
    head = node.heads.head(QUEUE, ahead=True)
    assert head is not None and not is_ahead(head)
    node.taken.update([ready, sooner.first])
    assert node.heads.best_ahead([QUEUE, "other"]) == (later, 1)
    await trio.sleep(0.2)
    assert node.heads.best_ahead([QUEUE]) is None
    assert node.heads.head(QUEUE, ahead=True) is None


@on_simulated_time
async def test_it_stays_a_head_of_a_queue_that_had_no_tasks_before() -> None:
    """It stays one when the notified coordinator claims it."""
    node = Node()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: node.heads.wait_head(QUEUE, None, WAIT_S, ahead=True))
        await wait_all_tasks_blocked()
        (piece,) = node.add_ahead(100)
    assert node.heads.best_ahead([QUEUE]) == (piece, 1)


@on_simulated_time
async def test_what_another_task_may_overtake_is_not_had_ahead() -> None:
    """Another task of its key may be enqueued that is due earlier."""
    node = Node()
    await node.warm()
    node.add_ahead(100, key=b"k" * 16)
    assert node.heads.head(QUEUE, ahead=True) is None


@on_simulated_time
async def test_only_those_who_claim_ahead_are_told_of_it() -> None:
    """The others are notified of it when it is ready, or of tasks that are ready earlier."""
    node = Node()
    await node.warm()
    told: dict[str, Head | None] = {}

    async def wait(name: str, known: tuple[int, int] | None, *, ahead: bool) -> None:
        told[name] = await node.heads.wait_head(QUEUE, known, WAIT_S, wanted=1, ahead=ahead)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: wait("ahead", None, ahead=True))
        nursery.start_soon(lambda: wait("plain", None, ahead=False))
        await wait_all_tasks_blocked()
        (piece,) = node.add_ahead(100)
        await trio.sleep(10 * NOTIFY_PAUSE_S)
        head = told.get("ahead")
        assert told.keys() == {"ahead"} and head is not None and is_ahead(head)
        nursery.start_soon(lambda: wait("knows", head[:2], ahead=True))
        await trio.sleep(10 * NOTIFY_PAUSE_S)
        assert told.keys() == {"ahead"}
        node.taken.add(piece.first)
        await node.add(2)
        await trio.sleep(10 * NOTIFY_PAUSE_S)
        assert told.keys() == {"ahead", "plain", "knows"}


@on_simulated_time
async def test_nobody_misses_a_change_that_comes_while_others_look() -> None:
    """The woken coordinators run in any order, here each time another one first."""
    for _ in range(60):
        node = Node()
        await node.warm()
        told: list[Head | None] = []

        async def wait(node: Node, told: list[Head | None]) -> None:
            told.append(await node.heads.wait_head(QUEUE, (-1, 0), 1.0, wanted=9))

        async def add_better(node: Node) -> None:
            await node.heads.wait_head(QUEUE, None, 1.0, wanted=9)
            first = make_id(NOW_MS - 2, PARTITION, 77, 0)
            node.heads.add([Piece(QUEUE, 5, NOW_MS - 2, first, 1, 0, first, 0, b"")])

        begun_s = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait, node, told)
            nursery.start_soon(wait, node, told)
            nursery.start_soon(add_better, node)
            await wait_all_tasks_blocked()
            await node.add(1)
        assert len(told) == 2 and all(head is not None and head[0] == -5 for head in told)
        assert trio.current_time() - begun_s < 0.5
