"""Which tasks may be granted now: unclaimed, unfinished, and not waiting for another task of their key.

Tasks are *blocked* from the moment when an entry about them is in the outbox. The block ends when
the replica has the effect (grants) or the store has it (retries, expiries). Blocked tasks are not
granted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

from onyxq.core.errors import Corrupt
from onyxq.core.facts import task_header
from onyxq.core.ids import Run, TaskId, id_at, mask_of, stretch_of
from onyxq.core.queues import settings_of
from onyxq.core.replica import Replica, claimed_bits, pieces_of
from onyxq.leader.completion_rows import overtaken_bits
from onyxq.leader.grants.ordering_keys import OrderingKeys
from onyxq.leader.leader import PartitionLeader
from onyxq.store.interface import Piece
from onyxq.store.store import Store


class GrantableHost(Protocol):
    """What this needs of its node."""

    store: Store
    replica: Replica

    def wall_ms(self) -> int:
        """Return the node's wall clock."""
        ...


class Grantable:
    """Decides which tasks of the partitions that a node leads may be granted."""

    def __init__(
        self,
        host: GrantableHost,
        *,
        leaders: dict[int, PartitionLeader],
        offer_later: Callable[[float, Run], None],
    ) -> None:
        self._host = host
        self._leaders = leaders
        self._offer_later = offer_later
        """Offers a task again after a number of seconds."""
        self._blocked: dict[bytes, int] = {}
        self.finishing: dict[bytes, int] = {}
        """Tasks whose completion is being written, per stretch.

        They are not granted meanwhile, even if they are unclaimed: the token of an expired claim may complete
        an unclaimed task.
        """
        self.unsettled: dict[bytes, int] = {}
        """Tasks whose completion may or may not be stored on a majority, per stretch."""
        self.keys = OrderingKeys(host.store, self._busy)
        self._since_ms: dict[int, int] = {}
        """Partition -> wall-clock time since which it is led."""
        self._seen: dict[bytes, tuple[int, list[Piece]]] | None = None
        """While one round picks tasks: unavailable tasks and moved pieces, per stretch."""

    def lead(self, partition: int) -> None:
        """Start with a partition that serves from here: find the ordering keys of its claimed tasks."""
        self._since_ms.setdefault(partition, self._host.wall_ms())
        self._hold_keys(partition)

    def drop(self, partition: int) -> None:
        """Stop with a partition that is no longer led from here."""
        self._since_ms.pop(partition, None)
        self.keys.drop(partition)

    def _hold_keys(self, partition: int) -> None:
        """Hold the ordering keys of the tasks that workers hold."""
        store = self._host.store
        for stretch, pieces in (self._host.replica.claims.get(partition) or {}).items():
            finished, bits = store.finished_bits(stretch), claimed_bits(pieces)
            for offset, count, token, *_ in pieces:
                run = Run(id_at(stretch, offset), count)
                done = finished & mask_of(*run)
                bits &= ~done | overtaken_bits(store, run, token, done)
            while bits:
                try:
                    row = store.task_row(id_at(stretch, (bits & -bits).bit_length() - 1))
                except Corrupt:
                    row = None
                if row is None:
                    bits &= bits - 1
                    continue
                self.keys.note(*row)
                bits &= ~mask_of(row[0], task_header(row[1])[1])

    # --- blocking

    def block(self, runs: Iterable[Run]) -> None:
        """Keep these tasks from being granted until `unblock`."""
        for run in runs:
            stretch = stretch_of(run.first)
            self._blocked[stretch] = self._blocked.get(stretch, 0) | mask_of(*run)

    def unblock(self, runs: Iterable[Run]) -> None:
        """Undo `block`."""
        for run in runs:
            stretch = stretch_of(run.first)
            bits = self._blocked.get(stretch, 0) & ~mask_of(*run)
            if bits:
                self._blocked[stretch] = bits
            else:
                self._blocked.pop(stretch, None)

    def _busy(self, task_id: TaskId) -> bool:
        """Return whether a task is claimed, being granted, being finished, or perhaps finished."""
        stretch = stretch_of(task_id)
        taken = self._blocked.get(stretch, 0) | self.finishing.get(stretch, 0) | self.unsettled.get(stretch, 0)
        return bool((taken | claimed_bits(pieces_of(self._host.replica, stretch))) & mask_of(task_id, 1))

    def is_blocked(self, run: Run) -> int:
        """Return the mask of the run's blocked tasks."""
        return self._blocked.get(stretch_of(run.first), 0) & mask_of(*run)

    @contextmanager
    def lookups_cached(self) -> Iterator[None]:
        """Look each stretch up only once inside the context, in which only blocks may change."""
        self._seen = {}
        try:
            yield
        finally:
            self._seen = None

    def free(self, piece: Piece) -> int:
        stretch = stretch_of(piece.first)
        bits = piece.bits & ~self._blocked.get(stretch, 0)
        if not bits:
            return 0
        taken, moved_pieces = self._state(stretch)
        bits &= ~taken
        for moved in moved_pieces:
            if (moved.due_ms, moved.attempts) != (piece.due_ms, piece.attempts):
                bits &= ~moved.bits
        return bits if not (piece.key and bits) or self._key_free(piece) else 0

    def _key_free(self, piece: Piece) -> bool:
        """Return whether a task with an ordering key may be granted now; if only its rate delays it, offer it later."""
        partition = int.from_bytes(piece.row_first[6:8], "big")
        if not self._is_backed(partition) or not self.keys.free(piece):
            return False
        key_rate = settings_of(self._host.replica, piece.queue).key_rate
        wait_ms = 0
        if key_rate:
            since_ms = self._since_ms[partition]
            wait_ms = self.keys.next_ms(piece, since_ms, key_rate) - self._host.wall_ms()
        if wait_ms > 0:
            self._offer_later(wait_ms / 1000, Run(piece.row_first, 1))
        return wait_ms <= 0

    def _is_backed(self, partition: int) -> bool:
        """Return whether a next leader would also know the finished tasks of the partition's keys."""
        leader = self._leaders.get(partition)
        return leader is not None and leader.backed

    def _state(self, stretch: TaskId) -> tuple[int, list[Piece]]:
        """Return the tasks of a stretch that are claimed, finished or being finished, and its moved pieces."""
        if self._seen is not None and stretch in self._seen:
            return self._seen[stretch]
        taken = claimed_bits(pieces_of(self._host.replica, stretch)) | self.finishing.get(stretch, 0)
        finished, moved = self._host.store.finished_and_moved(stretch)
        state = (taken | finished, moved)
        if self._seen is not None:
            self._seen[stretch] = state
        return state

    def granting(self, piece: Piece) -> None:
        """Take note that a task with an ordering key is being granted."""
        self.keys.hold(piece.key, piece.row_first)
        key_rate = settings_of(self._host.replica, piece.queue).key_rate
        if key_rate:
            self.keys.granted(piece, key_rate, self._host.wall_ms())
