"""Heads: the best ready tasks per queue, over all partitions that a node leads.

Windows are hints about the order (`onyxq.leader.grants.window`); whether a task may be had is
asked of `onyxq.leader.grants.grantable` when it is looked at.  Coordinators of claims wait here
for a better head than they know of.

What falls due in a moment stands beside the windows: it is a head only for those who claim
ahead, and only where nothing is ready.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import trio

from onyxq.core.errors import OnyxqError, Unavailable
from onyxq.leader.grants.limits import Limits
from onyxq.leader.grants.window import Held, SortKey, Window
from onyxq.leader.leader import PartitionLeader
from onyxq.store.interface import Piece, Store

ESTIMATE_MAX = 1_000
"""Ready tasks are counted no further than this for coordinators."""

TOLD_S = 0.005
"""How long those who were told of a task may take to claim it before others are told."""

RANKED_LEAST = 32
"""Tasks that a head lists, if coordinators want fewer."""
RANKS_MAX = 256
"""Most ranks of a head."""

Rank = tuple[int, int, int]
"""(-priority, due time, number of tasks) of ready tasks that follow each other in the order."""


class Head(NamedTuple):
    """The best ready task of a queue at a node, and what follows it; see also `is_ahead`."""

    priority: int
    """-priority, so that less is better."""
    due_ms: int
    about: int
    """About how many tasks are ready."""
    ranks: tuple[Rank, ...] = ()
    """The best tasks in their order, this one included."""
    whole: bool = True
    """Whether ``ranks`` has all ready tasks."""

    @property
    def key(self) -> tuple[int, int]:
        """Sort key of heads: the least is the best."""
        return self.priority, self.due_ms


AHEAD = 1 << 32
"""Is added to the first part of a head that is not due yet: it comes behind all that is ready."""
Wanted = Callable[[], int]
"""How many tasks the claimers of a coordinator could take now."""
Best = tuple[Window, Piece, int]
"""The best ready task's window and piece, and the mask of the tasks that may be had."""


def is_ahead(head: Head) -> bool:
    """Whether the head is not due yet."""
    return head.priority > AHEAD >> 1


def unpack_head(packed: Sequence[Any] | None) -> Head | None:
    """A head as it came over the wire."""
    if packed is None:
        return None
    priority, due_ms, about, ranks, whole = packed
    return Head(priority, due_ms, about, tuple((rank[0], rank[1], rank[2]) for rank in ranks), whole)


class _QueueHeads:
    """Partitions with ready tasks of one queue and a lower bound of their best key."""

    def __init__(self) -> None:
        self.windows: dict[int, Window] = {}
        self.keys: dict[int, SortKey] = {}
        self.ahead: list[tuple[int, int, Piece]] = []
        """Pieces that fall due in a moment, as a heap by that time."""
        self.changed = trio.Event()
        self.waiting = 0
        """Coordinators that wait for a better head."""
        self.wants: list[int] = []
        """Number of tasks that waiting claimers of other nodes want."""
        self.near: list[Wanted] = []
        """What the one of this very node wants while it waits: no message brings a task closer to a worker."""
        self.looked: tuple[trio.Event, Head | None] | None = None
        """The head as it was found after a change, for all who were woken by it."""
        self.told = 0
        """How many of its tasks those want who were told of it."""

    @property
    def wanted(self) -> int:
        """The most tasks that one coordinator could take."""
        return max(max(self.wants, default=1), sum(near() for near in self.near))

    def note(self, key: SortKey, partition: int) -> None:
        known = self.keys.get(partition)
        if known is None or key < known:
            self.keys[partition] = key
        self.wake()

    def wake(self) -> None:
        """More may be had: whoever waits, or was woken already and has not looked yet, is to look now."""
        self.looked = None
        self.changed.set()


class Heads:
    """See the module's first paragraph."""

    def __init__(
        self,
        store: Store,
        *,
        leaders: dict[int, PartitionLeader],
        free: Callable[[Piece], int],
        limits: Limits,
        wake_later: Callable[[float, str], None],
        wall_ms: Callable[[], int] = lambda: 0,
    ) -> None:
        self._wall_ms = wall_ms
        self._ahead_count = 0
        self._store = store
        self._leaders = leaders
        self._free = free
        self._limits = limits
        self._wake_later = wake_later
        """Has `wake` called for a queue in so many seconds."""
        self._queues: dict[str, _QueueHeads] = {}
        self._held = Held()
        self._serving: dict[int, bool] | None = None
        """While one round picks: whether a majority of each partition's nodes answers."""

    def lead(self, partition: int) -> None:
        """A partition serves: look at everything it has."""
        for queue in self._store.queues(partition):
            self._window(queue, partition)
            self._refresh(queue, partition)

    def drop(self, partition: int) -> None:
        """The partition is no longer led from here."""
        for heads in self._queues.values():
            if (window := heads.windows.pop(partition, None)) is not None:
                window.restart()  # what it held counts no more
            heads.keys.pop(partition, None)

    def add(self, pieces: Iterable[Piece]) -> None:
        """Pieces became ready in the store."""
        for piece in pieces:
            partition = int.from_bytes(piece.first[6:8], "big")
            if partition in self._leaders:
                self._window(piece.queue, partition).add(piece)
                self._queues[piece.queue].note(piece.sort_key, partition)

    def add_ahead(self, pieces: Iterable[Piece]) -> None:
        """Pieces fall due in a moment; they are added once more then."""
        now_ms = self._wall_ms()
        for piece in pieces:
            partition = int.from_bytes(piece.first[6:8], "big")
            if not self._may_go_ahead(piece, partition):
                continue
            heads = self._queues.setdefault(piece.queue, _QueueHeads())
            while heads.ahead and heads.ahead[0][0] <= now_ms:
                heapq.heappop(heads.ahead)
            self._ahead_count += 1
            heapq.heappush(heads.ahead, (piece.due_ms, self._ahead_count, piece))
            heads.wake()

    def wake(self, queue: str) -> None:
        """More of a queue may be had than before: who waits for it looks again."""
        if queue in self._queues:
            self._queues[queue].wake()

    # --- as coordinators ask for them

    def head(self, queue: str, *, ahead: bool = False, wanted: int = 1) -> Head | None:
        """The best ready task of a queue here; if there is none, ``ahead``: the first that falls due in a moment.

        ``wanted``: how many tasks the coordinator could take, so how many the head should list.
        """
        best = self.best(queue)
        if best is None:
            found = self.best_ahead([queue]) if ahead else None
            if found is None:
                return None
            return Head(
                AHEAD - found[0].priority, found[0].due_ms, min(len(self._queues[queue].ahead), ESTIMATE_MAX), (), False
            )
        room = self._limits.room(queue)
        heads, piece, about = self._queues[queue], best[1], 0
        for partition in heads.keys:
            about += heads.windows[partition].estimate()
            if about >= ESTIMATE_MAX:
                break
        about = max(1, about if room is None else min(about, room))
        return Head(-piece.priority, piece.due_ms, about, *self._ranks(heads, best, max(wanted, RANKED_LEAST)))

    def _ranks(self, heads: _QueueHeads, best: Best, wanted: int) -> tuple[tuple[Rank, ...], bool]:
        """Return the best ``wanted`` ready tasks in their order, and whether these are all."""
        found: list[tuple[SortKey, int, int, Iterator[tuple[SortKey, int]] | None]] = []
        for partition in heads.keys:
            leader, window = self._leaders.get(partition), heads.windows[partition]
            if leader is None or not self._serves(leader):
                continue
            head = best[1:] if window is best[0] else window.head(self._free)
            if head is not None:
                found.append((head[0].sort_key, partition, head[1].bit_count(), None))
        heapq.heapify(found)
        ranks: list[Rank] = []
        listed = 0
        while found:
            (priority, due_ms, _), partition, tasks, following = found[0]
            if not tasks or listed >= wanted or len(ranks) >= RANKS_MAX:
                return tuple(ranks), False
            ranks.append((priority, due_ms, tasks))
            listed += tasks
            if following is None:
                following = heads.windows[partition].ranked(self._free)
                next(following)
            if (after := next(following, None)) is not None:
                heapq.heapreplace(found, (after[0], partition, after[1], following))
            else:
                heapq.heappop(found)
        return tuple(ranks), True

    def oldest_due_ms(self, queue: str) -> int | None:
        """Since when the first ready task of a queue is due, whether or not pauses, limits or a lost majority
        keep it from being granted; None if none is ready."""
        found = []
        for partition, window in self._queues[queue].windows.items() if queue in self._queues else ():
            head = window.head(self._free) if partition in self._leaders else None
            if head is not None:
                found.append(head[0].due_ms)
        return min(found, default=None)

    async def wait_head(
        self,
        queue: str,
        known: tuple[int, int] | None,
        timeout_s: float,
        *,
        wanted: int | Wanted = 1,
        ahead: bool = False,
    ) -> Head | None:
        """The head once there is one better than ``known`` (any, if None), or at the time's end.

        Of those who wait no more are told of a head than can take its tasks, for a moment: the others would
        claim in vain. ``wanted``: how many tasks that is; a function is this node's own coordinator, told first.
        ``ahead``: as of `head`.
        """
        heads = self._queues.setdefault(queue, _QueueHeads())
        heads.waiting += 1
        near = [wanted] if callable(wanted) else []
        wants = [] if callable(wanted) else [wanted]
        heads.near += near
        heads.wants += wants
        try:
            head = self.head(queue, ahead=ahead, wanted=heads.wanted)
            with trio.move_on_after(timeout_s):
                while not _better(head, known):
                    head = await self._head_after_change(heads, queue, known, wanted)
                    if head is not None and is_ahead(head) and not ahead:
                        head = None
                return head
            return self.head(queue, ahead=ahead, wanted=heads.wanted)
        finally:
            heads.waiting -= 1
            for one in near:
                heads.near.remove(one)
            for tasks in wants:
                heads.wants.remove(tasks)
            if not heads.waiting and not heads.windows and self._best_ahead(queue) is None:
                self._queues.pop(queue, None)  # a name that has no tasks here

    async def _head_after_change(
        self, heads: _QueueHeads, queue: str, known: tuple[int, int] | None, wanted: int | Wanted
    ) -> Head | None:
        if heads.changed.is_set():  # else somebody else waits for it already
            heads.changed = trio.Event()
        changed = heads.changed
        await changed.wait()
        # All who waited are woken together: one looks, and as many as can take its tasks are told at once.
        if heads.looked is None or heads.looked[0] is not changed:
            head = self.head(queue, ahead=True, wanted=heads.wanted)
            heads.looked, heads.told = (changed, head), sum(near() for near in heads.near)
        head = heads.looked[1]
        if head is None or callable(wanted) or not _better(head, known):
            return head
        if heads.told < head.about:
            heads.told += max(1, wanted)
            return head
        await trio.sleep(TOLD_S)
        return self.head(queue, ahead=True, wanted=heads.wanted)

    @property
    def known_queues(self) -> int:
        """How many queues have tasks here, or somebody who waits for some."""
        return len(self._queues)

    # --- as granting picks them

    @contextmanager
    def looking(self) -> Iterator[None]:
        """No node comes or goes meanwhile: of each partition it is asked once whether its majority answers."""
        self._serving = {}
        try:
            yield
        finally:
            self._serving = None

    def _serves(self, leader: PartitionLeader) -> bool:
        known = self._serving
        if known is None:
            return leader.has_majority()
        if leader.partition not in known:
            known[leader.partition] = leader.has_majority()
        return known[leader.partition]

    def best_of(self, queues: Sequence[str]) -> Best | None:
        if len(queues) == 1:
            return self.best(queues[0])
        found = [best for best in map(self.best, queues) if best is not None]
        return min(found, key=lambda best: best[1].sort_key, default=None)

    def _may_go_ahead(self, piece: Piece, partition: int) -> bool:
        """Return whether tasks may be claimed before they are due: those of a key may have to wait for others."""
        return not piece.key and partition in self._leaders

    def best(self, queue: str) -> Best | None:
        heads = self._queues.get(queue)
        if heads is None:
            return None
        if self._limits.room(queue) == 0:
            if heads.keys and (wait_s := self._limits.wait_s(queue)) is not None:
                self._wake_later(wait_s, queue)
            return None
        keys = heads.keys
        while keys:
            partition = min(keys, key=keys.__getitem__)
            window = heads.windows.get(partition)
            leader = self._leaders.get(partition)
            head = window.head(self._free) if window and leader else None
            if window is None or leader is None or head is None:
                heads.keys.pop(partition)
                keys.pop(partition, None)
            elif not self._serves(leader):
                keys = {other: key for other, key in keys.items() if other != partition}
            elif _is_outdated(keys[partition], head[0]):
                keys[partition] = heads.keys[partition] = head[0].sort_key
            else:
                return (window, *head)
        return None

    def best_ahead(self, queues: Sequence[str]) -> tuple[Piece, int] | None:
        """The first piece that falls due in a moment, and its free tasks; none of queues with limits, or paused."""
        found = [one for one in map(self._best_ahead, queues) if one is not None]
        return min(found, key=lambda one: one[0].due_ms, default=None)

    def drop_ahead(self, piece: Piece) -> None:
        """Look at a piece no more before it is due; it is the first of its queue."""
        heapq.heappop(self._queues[piece.queue].ahead)

    def _is_counted(self, queue: str) -> bool:
        """Return whether a claim of a queue's task takes the place of another one."""
        return self._limits.room(queue) is not None

    def _best_ahead(self, queue: str) -> tuple[Piece, int] | None:
        heads = self._queues.get(queue)
        if heads is None or not heads.ahead or self._is_counted(queue):
            return None
        now_ms = self._wall_ms()
        while heads.ahead:
            due_ms, _, piece = heads.ahead[0]
            leader = self._leaders.get(int.from_bytes(piece.first[6:8], "big"))
            bits = self._free(piece) if due_ms > now_ms and leader is not None and self._serves(leader) else 0
            if bits:
                return piece, bits
            heapq.heappop(heads.ahead)
        return None

    def why_nothing(self, queues: Sequence[str]) -> OnyxqError | None:
        """Why there may be tasks although none can be had, or None."""
        for queue in queues:
            heads = self._queues.get(queue)
            for partition, window in sorted(heads.windows.items()) if heads else ():
                leader = self._leaders.get(partition)
                if leader is not None and not self._serves(leader) and window.head(self._free):
                    return Unavailable(f"partition {partition} has no majority of its nodes: no claims there")
        return None

    # --- windows

    def _window(self, queue: str, partition: int) -> Window:
        heads = self._queues.setdefault(queue, _QueueHeads())
        window = heads.windows.get(partition)
        if window is None:
            window = heads.windows[partition] = Window(self._store, partition=partition, queue=queue, held=self._held)
        return window

    def _refresh(self, queue: str, partition: int) -> None:
        heads = self._queues[queue]
        head = heads.windows[partition].head(self._free)
        if head is not None:
            heads.note(head[0].sort_key, partition)


def _better(head: Head | None, known: tuple[int, int] | None) -> bool:
    return head is not None and (known is None or head.key < known)


def _is_outdated(key: SortKey, head: Piece) -> bool:
    """Return whether the first task of a partition comes later than its ``key`` says."""
    return head.sort_key > key
