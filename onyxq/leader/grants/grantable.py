"""Whether a task may be granted now: the one place that asks the log, the store and the leader's state.

The task is unclaimed and unfinished, nothing happens to it that keeps it from being granted (see
`onyxq.leader.state.states`), and no other task of its ordering key comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

from onyxq.core.errors import Corrupt
from onyxq.core.facts import task_header
from onyxq.core.ids import Run, TaskId, id_at, mask_of, partition_of, stretch_of
from onyxq.core.queues import settings_of
from onyxq.core.replica import Replica, claimed_bits, pieces_of
from onyxq.leader.completion_rows import overtaken_bits
from onyxq.leader.leader import PartitionLeader
from onyxq.leader.state.leader_state import LeaderState
from onyxq.store.interface import Piece
from onyxq.store.store import Store


class GrantableHost(Protocol):
    """What this needs of its node."""

    store: Store
    replica: Replica
    leader_state: LeaderState

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
        self._state = host.leader_state
        self._seen: dict[bytes, tuple[int, list[Piece]]] | None = None
        """While one round picks tasks: unavailable tasks and moved pieces, per stretch."""

    def lead(self, partition: int) -> None:
        """Start with a partition that serves from here: find the ordering keys of its claimed tasks."""
        self._state.begin_leadership(partition, self._host.wall_ms())
        self._hold_keys(partition)

    def _hold_keys(self, partition: int) -> None:
        """Hold the ordering keys of the tasks that workers hold."""
        store = self._host.store
        for stretch, pieces in (self._host.replica.claims.get(partition) or {}).items():
            finished, bits = store.finished_bits(stretch), claimed_bits(pieces)
            for offset, count, token, *_ in pieces:
                run = Run(id_at(stretch, offset), count)
                done = finished & mask_of(*run)
                with suppress(Corrupt):  # until the repair, a task that may be unfinished holds its key
                    bits &= ~done | overtaken_bits(store, run, token, done)
            while bits:
                try:
                    row = store.task_row(id_at(stretch, (bits & -bits).bit_length() - 1))
                except Corrupt:
                    row = None
                if row is None:
                    bits &= bits - 1
                    continue
                self._state.keys.note(*row)
                bits &= ~mask_of(row[0], task_header(row[1])[1])

    @contextmanager
    def lookups_cached(self) -> Iterator[None]:
        """Look each stretch up only once inside the context, in which only `LeaderState` may change."""
        self._seen = {}
        try:
            yield
        finally:
            self._seen = None

    def free(self, piece: Piece) -> int:
        """Return the mask of the piece's tasks that may be granted now."""
        stretch = stretch_of(piece.first)
        bits = piece.bits & ~self._state.ungrantable(stretch)
        if not bits:
            return 0
        taken, moved_pieces = self._taken_and_moved(stretch)
        bits &= ~taken
        for moved in moved_pieces:
            if (moved.due_ms, moved.attempts) != (piece.due_ms, piece.attempts):
                bits &= ~moved.bits
        return bits if not (piece.key and bits) or self._key_free(piece) else 0

    def waits_for_key(self, piece: Piece) -> bool:
        """Return whether another task of the piece's ordering key is busy."""
        return bool(piece.key) and self._state.keys.is_held(piece.key, piece.row_first, self._host.replica)

    def _key_free(self, piece: Piece) -> bool:
        """Return whether a task with an ordering key may be granted now; if only its rate delays it, offer it later."""
        task_id, partition = piece.row_first, partition_of(piece.row_first)
        host, keys = self._host, self._state.keys
        if not self._is_backed(partition) or host.store.key_head(partition, piece.key) != task_id:
            return False
        if keys.is_held(piece.key, task_id, host.replica):
            return False
        key_rate = settings_of(host.replica, piece.queue).key_rate
        wait_ms = 0
        if key_rate:
            wait_ms = keys.next_ms(piece.key, task_id, key_rate=key_rate) - host.wall_ms()
        if wait_ms > 0:
            self._offer_later(wait_ms / 1000, Run(task_id, 1))
        return wait_ms <= 0

    def _is_backed(self, partition: int) -> bool:
        """Return whether a next leader would also know the finished tasks of the partition's keys."""
        leader = self._leaders.get(partition)
        return leader is not None and leader.backed

    def _taken_and_moved(self, stretch: TaskId) -> tuple[int, list[Piece]]:
        """Return the tasks of a stretch that are claimed or finished, and its moved pieces."""
        if self._seen is not None and stretch in self._seen:
            return self._seen[stretch]
        finished, moved = self._host.store.finished_and_moved(stretch)
        found = (claimed_bits(pieces_of(self._host.replica, stretch)) | finished, moved)
        if self._seen is not None:
            self._seen[stretch] = found
        return found

    def granting(self, piece: Piece) -> None:
        """Take note that a task with an ordering key is being granted."""
        keys = self._state.keys
        keys.hold(piece.key, piece.row_first)
        key_rate = settings_of(self._host.replica, piece.queue).key_rate
        if key_rate:
            keys.granted(piece.key, piece.row_first, key_rate=key_rate, now_ms=self._host.wall_ms())
