"""The record of a stretch: what is known of 1,024 consecutive ids, as masks.

The record is a function of the stretch's rows, in whatever order they arrived.  It may include
tasks whose row has not arrived yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgpack

from onyxq.core.errors import BadRequest, Corrupt
from onyxq.core.facts import EXPIRED, RELEASED, REOPENED, RETRIED, STOPPED, TASK, History, completion_head, unseal
from onyxq.core.ids import id_at, mask_of, ms_of, offset_of
from onyxq.store.index.heads import DUE_MS_MAX, QueueKey, task_head
from onyxq.store.index.records import ATTEMPTS_MAX, Alike, pack_mask, unpack_mask
from onyxq.store.tables import CheckedTable, Tables

RECORDS_MAX = 4_096
"""Records of stretches that are kept in memory."""
MOVING = (RELEASED, RETRIED, EXPIRED, REOPENED)
"""Events that change due time or attempts, or which completions count."""


class State(NamedTuple):
    """A task's state according to history. Joining events in any order gives the same state."""

    position: int
    index: int  # type: ignore[assignment]  # shadows the tuple's method
    due_ms: int
    """Due time that the last RETRIED or REOPENED set; ``position`` and ``index`` are that event's."""
    attempts: int
    reopened: int
    """Position of the last REOPENED, 0 if none."""
    base: int
    """Attempts counted at that position."""
    ended: int = 0
    """Fencing token of the newest claim that ended without a completion, 0 if none did."""

    @property
    def counts_from(self) -> int:
        """Lowest fencing token of completions that count.

        A lower one belongs to the time before a reopening, or to a claim with a newer one after it.
        """
        return max(self.reopened, self.ended)


UNMOVED = State(-1, -1, -1, 0, 0, 0)


class Stretch:
    """Knowledge about one stretch; masks are ints."""

    __slots__ = ("dirty", "done", "granted", "key", "known", "moved", "owned", "resolved", "ruled", "unwatched")

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.known = 0
        self.done = [0, 0, 0, 0]
        """Finished tasks per outcome, disjoint."""
        self.moved: dict[State, int] = {}
        self.owned: dict[int, int] = {}
        """Row offset -> the tasks that count as the row's, where rows overlap."""
        self.ruled = 0
        """Tasks of rows with rules."""
        self.resolved = 0
        """Tasks whose dependencies are resolved."""
        self.granted = 0
        """Tasks of rows whose rules watch grants, and that were granted at least once."""
        self.unwatched = 0
        """Tasks of rows with rules that do not watch grants. It is not stored, so it may lack some of them."""
        self.dirty = False

    def copy(self) -> Stretch:
        """Return a copy that may be changed."""
        out = Stretch(self.key)
        out.known, out.done = self.known, self.done.copy()
        if self.moved:
            out.moved = self.moved.copy()
        if self.owned:
            out.owned = self.owned.copy()
        out.ruled, out.resolved, out.granted = self.ruled, self.resolved, self.granted
        out.unwatched = self.unwatched
        return out

    @property
    def finished(self) -> int:
        """Mask of the finished tasks."""
        done = self.done
        return done[0] | done[1] | done[2] | done[3]

    @property
    def failed(self) -> int:
        """Mask of the failed tasks, including those that stop their key."""
        return self.done[1] | self.done[STOPPED]

    @property
    def returned(self) -> int:
        """Mask of the tasks that history says were granted before, or reopened."""
        out = 0
        for bits in self.moved.values():
            out |= bits
        return out

    @property
    def reopened(self) -> int:
        """Mask of the tasks that were reopened."""
        out = 0
        for state, bits in self.moved.items():
            out |= bits if state.reopened else 0
        return out

    def counts_from(self, offset: int) -> int:
        """Return the lowest fencing token of completions of a task that count."""
        return next((state.counts_from for state, bits in self.moved.items() if bits >> offset & 1), 0)

    def pack(self) -> bytes:
        """Return the record's bytes; equal facts give equal bytes."""
        first, second, third, stopped = self.done
        masks = (pack_mask(self.known), pack_mask(first), pack_mask(second), pack_mask(third))
        moved = [(*state, pack_mask(bits)) for state, bits in sorted(self.moved.items())] if self.moved else ()
        owned = [(offset, pack_mask(bits)) for offset, bits in sorted(self.owned.items())] if self.owned else ()
        more: tuple[bytes, ...] = ()
        if stopped or self.ruled or self.resolved or self.granted:
            more = (pack_mask(stopped), pack_mask(self.ruled), pack_mask(self.resolved), pack_mask(self.granted))
        packed: bytes = msgpack.packb((*masks, moved, owned, *more))
        return packed

    @classmethod
    def unpack(cls, key: bytes, value: bytes) -> Stretch:
        """Return the record that `pack` wrote."""
        out = cls(key)
        known, first, second, third, moved, owned, *more = msgpack.unpackb(bytes(value))
        out.known = unpack_mask(known)
        out.done = [unpack_mask(first), unpack_mask(second), unpack_mask(third), 0]
        if moved:
            out.moved = {State(*state): unpack_mask(bits) for *state, bits in moved}
        if owned:
            out.owned = {offset: unpack_mask(bits) for offset, bits in owned}
        if more:
            out.done[STOPPED], out.ruled, out.resolved, out.granted = map(unpack_mask, more)
        return out


class Remembered:
    """A cache of stretch records, which are read and written several times per task.

    A record is used only while its bytes are the stored ones, and is never changed.
    """

    def __init__(self) -> None:
        self._records: dict[bytes, tuple[bytes, Stretch]] = {}

    def find(self, table: CheckedTable, stretch_id: bytes) -> Stretch | None:
        """Return the record of a stretch, if it is cached and equals the stored one."""
        known = self._records.get(stretch_id)
        return known[1] if known is not None and table.holds(known[1].key, known[0]) else None

    def put(self, stretch_id: bytes, stored: bytes, record: Stretch) -> None:
        """Keep a record, which must not change any more, and its stored bytes."""
        if len(self._records) >= RECORDS_MAX:
            self._records.clear()
        self._records[stretch_id] = (stored, record)


def join(state: State, event: History) -> State:
    """Return a task's state after an event: the latest retry, the most attempts."""
    if event.event == RELEASED:
        return state._replace(ended=max(state.ended, event.token))
    position, index, due_ms, attempts, reopened, base, ended = state
    counted = min(max(event.attempts, 0), ATTEMPTS_MAX)
    attempts = max(attempts, counted)
    if event.event != EXPIRED:
        stamp = (event.position, event.index, min(max(event.retry_ms, 0), DUE_MS_MAX))
        position, index, due_ms = max(stamp, (position, index, due_ms))
    if event.event == REOPENED:
        reopened, base = max((event.position, counted), (reopened, base))
    else:
        ended = max(ended, event.token)
    return State(position, index, due_ms, attempts, reopened, base, ended)


def moved_by(moved: dict[State, int], mask: int, event: History) -> dict[State, int]:
    """Return ``moved`` after one of the `MOVING` events on the tasks of ``mask``."""
    out: dict[State, int] = {}
    rest = mask
    for state, bits in moved.items():
        hit = bits & mask
        if bits != hit:
            out[state] = out.get(state, 0) | (bits ^ hit)
        if hit:
            joined = join(state, event)
            out[joined] = out.get(joined, 0) | hit
            rest &= ~hit
    if rest:
        joined = join(UNMOVED, event)
        out[joined] = out.get(joined, 0) | rest
    out.pop(UNMOVED, None)
    return out


class Owner(NamedTuple):
    """A task row and the tasks that count as its own."""

    offset: int
    tasks: int
    queue: QueueKey

    @property
    def key(self) -> bytes:
        """Digest of its ordering key; empty without one."""
        return self.queue.rules.key if self.queue.rules is not None else b""

    def due_ms(self, stretch: Stretch) -> int:
        """Return when its tasks are due, retries aside."""
        rules = self.queue.rules
        return ms_of(stretch.key[7:]) if rules is None or rules.due_ms is None else rules.due_ms


def owners(tables: Tables, stretch: Stretch, wanted: int) -> Iterator[Owner]:
    """Yield the task rows that hold the known tasks among ``wanted``, last first."""
    wanted &= stretch.known
    if not wanted:
        return
    first_key = stretch.key[:2] + TASK + stretch.key[7:]
    start = stretch.key[:2] + TASK + id_at(stretch.key[7:], wanted.bit_length() - 1)
    if not wanted & (wanted - 1) and (alone := tables.rows.get(start)) is not None:
        # Most calls are about a row of one task, which needs no cursor.
        owner = _owner(stretch, start, alone)
        if owner is not None and owner.tasks & wanted:
            yield owner
            return
    for key, value in tables.rows.descend(start):
        if key < first_key:
            return
        owner = _owner(stretch, key, value)
        if owner is not None and owner.tasks & wanted:
            yield owner
            wanted &= ~owner.tasks
            if not wanted:
                return


def _owner(stretch: Stretch, key: bytes, value: bytes) -> Owner | None:
    """Return what a task row holds; None if it is damaged (its tasks wait for the repair)."""
    try:
        count, queue = task_head(value)
    except BadRequest:
        return None
    offset = offset_of(key[3:])
    tasks = stretch.owned.get(offset) if stretch.owned else None
    return Owner(offset, ((1 << count) - 1) << offset if tasks is None else tasks, queue)


def groups(stretch: Stretch, owner: Owner, tasks: int | None = None) -> dict[Alike, int]:
    """Return tasks of a row, by default all, grouped by what they have in common, finished ones included.

    The lowest task of a group names its piece, so completions never rename a piece.
    """
    origin_ms, tasks = owner.due_ms(stretch), owner.tasks if tasks is None else tasks
    if not stretch.moved:
        return {Alike(origin_ms, 0, 0): tasks}
    out: dict[Alike, int] = {}
    for state, bits in stretch.moved.items():
        if bits & tasks:
            alike = Alike(state.due_ms if state.position >= 0 else origin_ms, state.attempts, state.base)
            out[alike] = out.get(alike, 0) | (bits & tasks)
            tasks &= ~bits
    if tasks:
        alike = Alike(origin_ms, 0, 0)
        out[alike] = out.get(alike, 0) | tasks
    return out


def alike_at(stretch: Stretch, owner: Owner, offset: int) -> Alike:
    """Return what the piece of one task of a row has in common."""
    (alike,) = groups(stretch, owner, 1 << offset)
    return alike


def void_bits(stretch: Stretch, token: int) -> int:
    """Return the tasks whose completion with this fencing token does not count.

    They were reopened after that claim, or a newer claim on them was granted and ended without a
    completion. A newer claim shows that the older completion was never acknowledged.
    """
    out = 0
    for state, bits in stretch.moved.items():
        if state.counts_from > token:
            out |= bits
    return out


def winners(stretch: Stretch, completions: Iterable[tuple[bytes, bytes]]) -> list[int]:
    """Return the finished tasks per outcome, from a stretch's completion rows.

    Of several completions that are not void, the highest mark counts, then the highest token.
    """
    found, damaged = [], 0
    for key, value in completions:
        token, count = int.from_bytes(key[23:31], "big"), int.from_bytes(key[31:35], "big")
        mask = mask_of(key[3:23], count) & ~void_bits(stretch, token)
        try:
            _, _, outcome, mark = completion_head(unseal(key, bytes(value)))
        except Corrupt:
            damaged |= mask
            continue
        found.append((mark, token, key, mask, outcome))
    out = [0, 0, 0, 0]
    taken = 0
    for *_, mask, outcome in sorted(found, reverse=True):
        out[outcome] |= mask & ~taken
        taken |= mask
    # Tasks that a damaged row finished stay finished.
    return [bits | (was & damaged & ~taken) for bits, was in zip(out, stretch.done, strict=True)]
