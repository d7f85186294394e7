"""Heads: the best ready tasks of each queue, over all partitions that a node leads.

Windows are hints about the order (`onyxq.leader.grants.window`). Whether a task may be granted is
decided by `onyxq.leader.grants.grantable` when the task is considered. Coordinators of claims wait
here for a head that is better than the one that they know.

Tasks that are due in a moment are kept beside the windows. Such a task is a head only for claimers
that claim ahead, and only if nothing is ready.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from onyxq.core.errors import OnyxqError, Unavailable
from onyxq.leader.grants.limits import Limits
from onyxq.leader.grants.window import PieceCounter, SortKey, Window
from onyxq.leader.leader import PartitionLeader
from onyxq.store.interface import Piece
from onyxq.store.store import Store
from onyxq.system.procedures import now, pause
from onyxq.system.signal import Signal

ESTIMATE_MAX = 1_000
"""Ready tasks are counted up to this number for coordinators."""

NOTIFY_PAUSE_S = 0.005
"""Time in which notified coordinators may claim a task before others are notified."""

RANKED_LEAST = 32
"""Tasks that a head lists at least, if there are that many."""
RANKS_MAX = 256
"""Most ranks in a head."""

Rank = tuple[int, int, int]
"""(-priority, due time, number of tasks) of ready tasks that are adjacent in the order."""


class Head(NamedTuple):
    """The best ready task of a queue at a node, and the tasks after it; see also `is_ahead`."""

    priority: int
    """-priority, so the lowest is the best."""
    due_ms: int
    about: int
    """About how many tasks are ready."""
    ranks: tuple[Rank, ...] = ()
    """The best tasks in order, this one included."""
    whole: bool = True
    """Whether ``ranks`` includes all ready tasks."""

    @property
    def key(self) -> tuple[int, int]:
        """Sort key of heads; the lowest is the best."""
        return self.priority, self.due_ms


AHEAD = 1 << 32
"""Added to the priority of a head that is not due yet, which sorts it after all ready ones."""
Wanted = Callable[[], int]
"""Returns how many tasks the claimers of a coordinator could take now."""
Best = tuple[Window, Piece, int]
"""The window and the piece of the best ready task, and the mask of the piece's grantable tasks."""


def is_ahead(head: Head) -> bool:
    """Return whether the head is not due yet."""
    return head.priority > AHEAD >> 1


def unpack_head(packed: Sequence[Any] | None) -> Head | None:
    """Return a head from its form on the wire."""
    if packed is None:
        return None
    priority, due_ms, about, ranks, whole = packed
    return Head(priority, due_ms, about, tuple((rank[0], rank[1], rank[2]) for rank in ranks), whole)


class _QueueHeads:
    """Partitions with ready tasks of one queue, each with a lower bound of its best sort key."""

    def __init__(self) -> None:
        self.windows: dict[int, Window] = {}
        self.keys: dict[int, SortKey] = {}
        self.ahead: list[tuple[int, int, Piece]] = []
        """Pieces that are due in a moment, as a heap ordered by due time."""
        self.changed = Signal()
        self.changes = 0
        self.waiting = 0
        """Number of coordinators that wait for a better head."""
        self.remote_wanted: list[int] = []
        """Number of tasks that each waiting coordinator of another node wants."""
        self.local_wanted: list[Wanted] = []
        """Demand of this node's own coordinator while it waits. It comes first, because it needs no message."""
        self.looked: tuple[int, Head | None] | None = None
        """The head that was found after a change, for all coordinators that the change woke."""
        self.notified = 0
        """Number of tasks that are wanted by the coordinators that were notified of this head."""

    @property
    def wanted(self) -> int:
        """The most tasks that one coordinator could take."""
        return max(max(self.remote_wanted, default=1), sum(wanted() for wanted in self.local_wanted))

    def note(self, key: SortKey, partition: int) -> None:
        """Note a ready task, before the coordinators are woken."""
        known = self.keys.get(partition)
        if known is None or key < known:
            self.keys[partition] = key

    def wake(self) -> None:
        """Wake the waiting coordinators; those that were woken before and have not looked yet look again."""
        self.looked = None
        self.changes += 1
        self.changed.fire()


class Heads:
    """Heads of all queues at one node."""

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
        """Calls `wake` for a queue after a number of seconds."""
        self._queues: dict[str, _QueueHeads] = {}
        self._counter = PieceCounter()
        self._serving: dict[int, bool] | None = None
        """While one round picks tasks: whether a majority of each partition's nodes answers."""

    def lead(self, partition: int) -> None:
        """Start, or start again, to offer the tasks of a partition that this node leads."""
        for queue in self._store.queues(partition):
            self._window(queue, partition)
            self._refresh(queue, partition)

    def drop(self, partition: int) -> None:
        """Offer no more tasks of a partition that this node no longer leads."""
        for heads in self._queues.values():
            if (window := heads.windows.pop(partition, None)) is not None:
                window.restart()  # its pieces are no longer counted
            heads.keys.pop(partition, None)

    def add(self, pieces: Iterable[Piece]) -> None:
        """Add pieces that became ready in the store."""
        queues: dict[str, _QueueHeads] = {}
        for piece in pieces:
            partition = int.from_bytes(piece.first[6:8], "big")
            if partition in self._leaders:
                self._window(piece.queue, partition).add(piece)
                heads = queues[piece.queue] = self._queues[piece.queue]
                heads.note(piece.sort_key, partition)
        for heads in queues.values():
            heads.wake()

    def add_ahead(self, pieces: Iterable[Piece]) -> None:
        """Add pieces that will be due in a moment; they are added again then."""
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
        """Wake the coordinators that wait for a queue, because more of its tasks may be granted than before."""
        if queue in self._queues:
            self._queues[queue].wake()

    def restart(self, queue: str) -> None:
        """Check all ready tasks of a queue again."""
        heads = self._queues.get(queue)
        for partition, window in sorted(heads.windows.items()) if heads else ():
            window.restart()
            self._refresh(queue, partition)

    # --- as coordinators ask for them

    def head(self, queue: str, *, ahead: bool = False, wanted: int = 1) -> Head | None:
        """Return the best grantable task of a queue in the partitions that this node leads, or None.

        ``ahead``: if no task is ready, return the first that is due in a moment. ``wanted``: how many tasks the
        coordinator could take. If that number of tasks is ready, the head lists them, within `RANKS_MAX` ranks.
        """
        with self.lookups_cached():
            return self._head(queue, ahead=ahead, wanted=wanted)

    def _head(self, queue: str, *, ahead: bool, wanted: int) -> Head | None:
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
        """Return the best ``wanted`` ready tasks in order, and whether these are all."""
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
                following = heads.windows[partition].after_head(self._free)
            if (after := next(following, None)) is not None:
                heapq.heapreplace(found, (after[0], partition, after[1], following))
            else:
                heapq.heappop(found)
        return tuple(ranks), True

    def oldest_due_ms(self, queue: str) -> int | None:
        """Return since when the oldest ready task of a queue is due; None if no task is ready.

        Tasks count even if a pause, a limit or a missing majority keeps them from being granted. Of each partition only
        the first task in the order of grants is looked at, so a task of a lower priority may be older.
        """
        found = []
        for partition, window in self._queues[queue].windows.items() if queue in self._queues else ():
            head = window.head(self._free) if partition in self._leaders else None
            if head is not None:
                found.append(head[0].due_ms)
        return min(found, default=None)

    def awaited(self, queue: str) -> bool:
        """Return whether a coordinator waits for a better head of a queue."""
        found = self._queues.get(queue)
        return found is not None and found.waiting > 0

    async def wait_head(
        self,
        queue: str,
        known: tuple[int, int] | None,
        timeout_s: float,
        *,
        wanted: int | Wanted = 1,
        ahead: bool = False,
    ) -> Head | None:
        """Wait for a head better than ``known`` (any, if None); return the head, or the present one after the timeout.

        Only as many waiting coordinators are notified of a head as can take its tasks. The others are notified
        a moment later, because their claims would get nothing. ``wanted`` is the number of tasks that the
        coordinator could take. If it is a function, it is this node's own coordinator, which is notified first.
        ``ahead``: as in `head`.
        """
        heads = self._queues.setdefault(queue, _QueueHeads())
        heads.waiting += 1
        local_wanted = [wanted] if callable(wanted) else []
        remote_wanted = [] if callable(wanted) else [wanted]
        heads.local_wanted += local_wanted
        heads.remote_wanted += remote_wanted
        try:
            until = now() + timeout_s
            head = self.head(queue, ahead=ahead, wanted=heads.wanted)
            while not _better(head, known):
                if not await heads.changed.wait(until - now()):
                    return self.head(queue, ahead=ahead, wanted=heads.wanted)
                head = await self._head_after_change(heads, queue, known, wanted)
                if head is not None and is_ahead(head) and not ahead:
                    head = None
            return head
        finally:
            heads.waiting -= 1
            for one in local_wanted:
                heads.local_wanted.remove(one)
            for tasks in remote_wanted:
                heads.remote_wanted.remove(tasks)
            if not heads.waiting and not heads.windows and self._best_ahead(queue) is None:
                self._queues.pop(queue, None)  # the queue has no tasks here

    async def _head_after_change(
        self, heads: _QueueHeads, queue: str, known: tuple[int, int] | None, wanted: int | Wanted
    ) -> Head | None:
        # All waiting coordinators wake together. The first one finds the head for all. As many are notified at
        # once as can take its tasks.
        if heads.looked is None or heads.looked[0] != heads.changes:
            head = self.head(queue, ahead=True, wanted=heads.wanted)
            heads.looked, heads.notified = (heads.changes, head), sum(tasks() for tasks in heads.local_wanted)
        head = heads.looked[1]
        if head is None or callable(wanted) or not _better(head, known):
            return head
        if heads.notified < head.about:
            heads.notified += max(1, wanted)
            return head
        await pause(NOTIFY_PAUSE_S)
        return self.head(queue, ahead=True, wanted=heads.wanted)

    @property
    def known_queues(self) -> int:
        """Number of queues that have tasks here or waiting coordinators."""
        return len(self._queues)

    # --- as granting picks them

    @contextmanager
    def lookups_cached(self) -> Iterator[None]:
        """Check the majority of each partition only once inside the context, in which no node comes or goes."""
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
        """Return whether a task may be claimed ahead; a task with an ordering key may have to wait for others."""
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
        """Return the first piece that is due in a moment, and its grantable tasks.

        Queues that are paused or have limits have none.
        """
        found = [one for one in map(self._best_ahead, queues) if one is not None]
        return min(found, key=lambda one: one[0].due_ms, default=None)

    def drop_ahead(self, piece: Piece) -> None:
        """Drop a piece until it is due; it must be the first of its queue."""
        heapq.heappop(self._queues[piece.queue].ahead)

    def _is_counted(self, queue: str) -> bool:
        """Return whether claims of a queue's tasks are limited, so that one takes the place of another."""
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
        """Return why no task can be granted although there may be some, or None."""
        for queue in queues:
            heads = self._queues.get(queue)
            for partition, window in sorted(heads.windows.items()) if heads else ():
                leader = self._leaders.get(partition)
                if leader is not None and not self._serves(leader) and window.head(self._free):
                    return Unavailable(
                        f"partition {partition} has no majority of its nodes: its tasks cannot be claimed"
                    )
        return None

    # --- windows

    def _window(self, queue: str, partition: int) -> Window:
        heads = self._queues.setdefault(queue, _QueueHeads())
        window = heads.windows.get(partition)
        if window is None:
            window = heads.windows[partition] = Window(
                self._store, partition=partition, queue=queue, counter=self._counter
            )
        return window

    def _refresh(self, queue: str, partition: int) -> None:
        heads = self._queues[queue]
        head = heads.windows[partition].head(self._free)
        if head is not None:
            heads.note(head[0].sort_key, partition)
            heads.wake()


def _better(head: Head | None, known: tuple[int, int] | None) -> bool:
    return head is not None and (known is None or head.key < known)


def _is_outdated(key: SortKey, head: Piece) -> bool:
    """Return whether the first task of a partition comes later than its ``key``, which is a lower bound."""
    return head.sort_key > key
