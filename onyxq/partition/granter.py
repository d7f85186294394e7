"""Granting: a node picks the best ready tasks of the partitions it leads for claimers.

Requests that wait together are answered by one round: every grant they get goes to the
log in the same record.  A task is free when the replica holds no claim on it, no grant
or return of it is on its way, and the store has it unfinished; all three are asked at
the moment it is picked, so windows may be approximate without harm.

Blocked tasks: from the moment an entry about them is in the outbox until its effect is
in the replica (grants) or in the store (retries, expiries), nobody else can get them.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

import trio
from attrs import define, field

from log_entries import grant_claims
from onyxq.entry import APPLIED
from onyxq.errors import Corrupt, LogUnavailable, OnyxqError, Unavailable
from onyxq.facts import slice_task, task_header
from onyxq.ids import Run, TaskId, id_at, mask_of, ms_of, offset_of, runs_of, stretch_of
from onyxq.metrics import Metrics
from onyxq.partition.cutting import fitting, size_of
from onyxq.partition.leader import PartitionLeader
from onyxq.partition.window import SortKey, Window
from onyxq.peer.outbox import Outbox
from onyxq.replica import Replica, claimed_bits, pieces_of
from onyxq.store.interface import Piece, Store

REQUESTS_MAX = 10_000
ROW_CACHE_ROWS = 256
QUEUES_KNOWN_MAX = 100_000
ESTIMATE_MAX = 1_000
"""Ready tasks are counted no further than this for coordinators."""

log = logging.getLogger(__name__)

Head = tuple[int, int, int]
"""(-priority, due time, about how many ready tasks) of the best ready task."""


class Granted(NamedTuple):
    """One granted run; ``body`` is the task row's body cut to the run."""

    token: int
    expires_ms: int
    attempts: int
    first: bytes
    body: bytes


Reply = Callable[[list[Granted], OnyxqError | None], bool]
"""Takes what was granted, or the error; False if nobody waits for it any more."""


@define(eq=False)
class ClaimRequest:
    """One claimer's request, as the leaders' node sees it."""

    queues: Sequence[str]
    maximum: int
    lease_ms: int
    worker: str
    reply: Reply
    granted: list[Granted] = field(factory=list)
    entries: int = 0
    """Entries whose verdict is awaited."""


class _Pick(NamedTuple):
    request: ClaimRequest
    run: Run
    piece: Piece
    body: bytes


class GranterHost(Protocol):
    """What granting needs of its node."""

    store: Store
    replica: Replica
    metrics: Metrics

    def count_event(self, queue: str, event: str, count: int) -> None:
        """Metrics."""
        ...

    def outbox_now(self) -> Outbox:
        """The outbox of the member peer; raises `LogUnavailable`."""
        ...

    def wall_ms(self) -> int:
        """The node's wall clock."""
        ...

    def give_back(self, partition: int, token: int, runs: Sequence[Run]) -> None:
        """Release claims that nobody waits for any more."""
        ...

    def corrupt(self, partition: int, error: Corrupt) -> None:
        """A row is damaged: alarm, and repair from the cohort."""
        ...


class _QueueHeads:
    """Partitions with ready tasks of one queue and a lower bound of their best key."""

    def __init__(self) -> None:
        self.windows: dict[int, Window] = {}
        self.keys: dict[int, SortKey] = {}
        self.changed = trio.Event()
        self.waiting = 0
        """Coordinators that wait for a better head."""

    def note(self, key: SortKey, partition: int) -> None:
        known = self.keys.get(partition)
        if known is None or key < known:
            self.keys[partition] = key
        self.changed.set()


class Granter:
    """See the module's first paragraph."""

    def __init__(self, host: GranterHost) -> None:
        self._host = host
        self._leaders: dict[int, PartitionLeader] = {}
        self._queues: dict[str, _QueueHeads] = {}
        self._blocked: dict[bytes, int] = {}
        self.finishing: dict[bytes, int] = {}
        """Tasks whose completion is being written, per stretch: not to be had meanwhile, whoever
        holds them. A lapsed token may complete a task that nobody holds."""
        self._requests: deque[ClaimRequest] = deque()
        self._wake = trio.Event()
        self._rows: dict[bytes, bytes] = {}
        self._queue_of: dict[bytes, str] = {}
        self._seen: dict[bytes, tuple[int, list[Piece]]] | None = None
        """While one round picks: unavailable tasks and moved pieces per stretch."""

    # --- leadership

    def lead(self, leader: PartitionLeader) -> None:
        """The partition serves: look at everything it has."""
        self.drop(leader.partition)
        self._leaders[leader.partition] = leader
        for queue in self._host.store.queues(leader.partition):
            self._window(queue, leader.partition)
            self._refresh(queue, leader.partition)

    def drop(self, partition: int) -> None:
        """The partition is no longer led from here."""
        self._leaders.pop(partition, None)
        for heads in self._queues.values():
            heads.windows.pop(partition, None)
            heads.keys.pop(partition, None)

    def led(self) -> list[int]:
        """Partitions that serve from here, sorted."""
        return sorted(self._leaders)

    def add(self, pieces: Iterable[Piece]) -> None:
        """Pieces became ready in the store."""
        for piece in pieces:
            partition = int.from_bytes(piece.first[6:8], "big")
            if partition in self._leaders:
                self._window(piece.queue, partition).add(piece)
                self._queues[piece.queue].note(piece.sort_key, partition)

    def restart_windows(self, partition: int) -> None:
        """Look at everything that the store holds of a partition again."""
        if leader := self._leaders.get(partition):
            self.lead(leader)

    # --- blocking

    def block(self, runs: Iterable[Run]) -> None:
        """Nobody gets these tasks until `unblock`."""
        for run in runs:
            stretch = stretch_of(run.first)
            self._blocked[stretch] = self._blocked.get(stretch, 0) | mask_of(*run)

    def unblock(self, runs: Iterable[Run], *, readd: bool) -> None:
        """Undo `block`; with ``readd`` they are offered again if they are ready."""
        runs = list(runs)
        for run in runs:
            stretch = stretch_of(run.first)
            bits = self._blocked.get(stretch, 0) & ~mask_of(*run)
            if bits:
                self._blocked[stretch] = bits
            else:
                self._blocked.pop(stretch, None)
        if readd:
            self.offer(runs)

    def offer(self, runs: Iterable[Run]) -> None:
        """Offer again what is ready of these runs."""
        now_ms = self._host.wall_ms()
        self.add(piece for run in runs for piece in self.pieces(run) if piece.due_ms <= now_ms)

    def is_blocked(self, run: Run) -> int:
        """Mask of the run's tasks that are blocked."""
        return self._blocked.get(stretch_of(run.first), 0) & mask_of(*run)

    def pieces(self, run: Run) -> list[Piece]:
        """The unfinished pieces of a run, which may be of several task rows; some may not be due."""
        store = self._host.store
        stretch = stretch_of(run.first)
        bits = mask_of(*run) & ~store.finished_bits(stretch)
        found = []
        for piece in store.moved(stretch):
            if piece.bits & bits:
                found.append(piece._replace(bits=piece.bits & bits))
            bits &= ~piece.bits
        while bits:
            try:
                row = store.task_row(id_at(stretch, (bits & -bits).bit_length() - 1))
            except Corrupt:
                row = None  # its tasks are looked at again once it is repaired
            if row is None:
                bits &= bits - 1
                continue
            header, count = task_header(row[1])
            covered = bits & mask_of(row[0], count)
            found.append(Piece(header["queue"], header.get("priority", 0), ms_of(row[0]), row[0], covered, 0, row[0]))
            bits &= ~covered
        return found

    # --- heads, as coordinators ask for them

    def head(self, queue: str) -> Head | None:
        """The best ready task of a queue here."""
        best = self._best(queue)
        if best is None:
            return None
        heads, piece, about = self._queues[queue], best[1], 0
        for partition in heads.keys:
            about += heads.windows[partition].estimate()
            if about >= ESTIMATE_MAX:
                break
        return (-piece.priority, piece.due_ms, max(1, about))

    async def wait_head(self, queue: str, known: tuple[int, int] | None, timeout_s: float) -> Head | None:
        """The head once there is one better than ``known`` (any, if None), or at the time's end."""
        heads = self._queues.setdefault(queue, _QueueHeads())
        heads.waiting += 1
        try:
            with trio.move_on_after(timeout_s):
                while True:
                    head = self.head(queue)
                    if head is not None and (known is None or head[:2] < known):
                        return head
                    if heads.changed.is_set():  # else somebody else waits for it already
                        heads.changed = trio.Event()
                    await heads.changed.wait()
            return self.head(queue)
        finally:
            heads.waiting -= 1
            if not heads.waiting and not heads.windows:
                self._queues.pop(queue, None)  # a name that has no tasks here

    @property
    def known_queues(self) -> int:
        """How many queues have tasks here, or somebody who waits for some."""
        return len(self._queues)

    # --- requests

    def submit(self, request: ClaimRequest) -> None:
        """Take a request; its ``reply`` is called once."""
        if len(self._requests) >= REQUESTS_MAX:
            request.reply([], Unavailable("too many claims wait here"))
            return
        self._requests.append(request)
        self._wake.set()

    async def run(self) -> None:
        """Answer requests in rounds until cancelled."""
        while True:
            while not self._requests:
                self._wake = trio.Event()
                await self._wake.wait()
            try:
                outbox = self._host.outbox_now()
            except LogUnavailable as error:
                self._refuse(error)
                continue
            self._round(outbox)
            # While its record is on the way, further requests gather for the next one.
            await outbox.flushed()
            await trio.lowlevel.checkpoint()

    def _refuse(self, error: OnyxqError) -> None:
        requests, self._requests = list(self._requests), deque()
        for request in requests:
            request.reply([], error)

    def _round(self, outbox: Outbox) -> None:
        requests, self._requests = list(self._requests), deque()
        picks: dict[int, list[_Pick]] = {}
        # Nothing but this round's own blocks changes before it ends: look each stretch up once.
        self._seen = {}
        for request in requests:
            found = self._pick(request)
            for pick in found:
                picks.setdefault(int.from_bytes(pick.run.first[6:8], "big"), []).append(pick)
            if not found:
                request.reply([], self._why_nothing(request))
        self._seen = None
        groups = [
            (partition, group)
            for partition, chosen in sorted(picks.items())
            for group in fitting(chosen, lambda pick: size_of((pick.run,), pick.request.worker))
        ]
        for _, group in groups:
            for request in {pick.request for pick in group}:
                request.entries += 1
        for partition, group in groups:
            self._grant(outbox, partition, group)

    def _grant(self, outbox: Outbox, partition: int, picks: list[_Pick]) -> None:
        by_request: dict[ClaimRequest, list[Run]] = {}
        for pick in picks:
            by_request.setdefault(pick.request, []).append(pick.run)
        grants = tuple(
            grant_claims.Grant(request.worker, request.lease_ms, tuple(runs)) for request, runs in by_request.items()
        )
        entry = grant_claims.Args(partition, self._leaders[partition].epoch, grants)
        try:
            outbox.submit([entry], lambda position, verdicts: self._granted(partition, picks, position, verdicts))
        except OnyxqError as error:
            log.warning("a grant could not be sent: %s", error.message)
            self._granted(partition, picks, -1, None)

    def _granted(self, partition: int, picks: list[_Pick], token: int, verdicts: Sequence[str] | None) -> None:
        won = verdicts is not None and verdicts[0] == APPLIED
        self.unblock([pick.run for pick in picks], readd=not won)
        now_ms = self._host.wall_ms()
        for pick in picks:
            if won:
                self._note_claimed(pick, now_ms)
                expires_ms = now_ms + pick.request.lease_ms
                pick.request.granted.append(Granted(token, expires_ms, pick.piece.attempts, pick.run.first, pick.body))
        for request in {pick.request: None for pick in picks}:
            request.entries -= 1
            if request.entries == 0:
                self._answer(request, lost=verdicts is None)

    def _note_claimed(self, pick: _Pick, now_ms: int) -> None:
        if len(self._queue_of) >= QUEUES_KNOWN_MAX:
            self._queue_of.clear()
        self._queue_of[stretch_of(pick.run.first)] = pick.piece.queue
        self._host.count_event(pick.piece.queue, "claimed", pick.run.count)
        self._host.metrics.task_wait_seconds.observe(max(0, now_ms - pick.piece.due_ms) / 1000, pick.run.count)

    def queue_of(self, task_id: bytes) -> str:
        """Queue of a task granted here lately, for metrics; empty if that is not known."""
        return self._queue_of.get(stretch_of(task_id), "")

    def _answer(self, request: ClaimRequest, *, lost: bool) -> None:
        error = LogUnavailable("the log was lost while the claim was made") if lost and not request.granted else None
        if request.reply(request.granted, error):
            return
        for granted in request.granted:
            partition = int.from_bytes(granted.first[6:8], "big")
            count = int.from_bytes(granted.body[4:8], "little")
            self._host.give_back(partition, granted.token, [Run(TaskId(granted.first), count)])

    # --- picking

    def _pick(self, request: ClaimRequest) -> list[_Pick]:
        found: list[_Pick] = []
        left = request.maximum
        while left > 0:
            best = self._best_of(request.queues)
            if best is None:
                break
            window, piece, bits = best
            taken = self._take(request, window, piece, bits, left)
            left -= sum(pick.run.count for pick in taken)
            found += taken
        return found

    def _take(self, request: ClaimRequest, window: Window, piece: Piece, bits: int, left: int) -> list[_Pick]:
        try:
            body = self._row_body(piece.row_first)
        except Corrupt as error:
            window.pop()
            self._host.corrupt(window.partition, error)
            return []
        picks = []
        base = offset_of(piece.row_first)
        for run in runs_of(stretch_of(piece.first), bits):
            part = Run(run.first, min(run.count, left))
            picks.append(_Pick(request, part, piece, slice_task(body, offset_of(part.first) - base, part.count)))
            left -= part.count
            if left == 0:
                break
        self.block(pick.run for pick in picks)
        return picks

    def _row_body(self, first: bytes) -> bytes:
        body = self._rows.get(first)
        if body is None:
            row = self._host.store.task_row(first)
            if row is None or row[0] != first:
                raise Corrupt(f"the task row at {first.hex()} is missing")
            body = row[1]
            if len(self._rows) >= ROW_CACHE_ROWS:
                self._rows.clear()
            self._rows[first] = body
        return body

    def _best_of(self, queues: Sequence[str]) -> tuple[Window, Piece, int] | None:
        if len(queues) == 1:
            return self._best(queues[0])
        found = [best for best in map(self._best, queues) if best is not None]
        return min(found, key=lambda best: best[1].sort_key, default=None)

    def _best(self, queue: str) -> tuple[Window, Piece, int] | None:
        heads = self._queues.get(queue)
        if heads is None:
            return None
        keys = dict(heads.keys)
        while keys:
            partition = min(keys, key=keys.__getitem__)
            window = heads.windows.get(partition)
            leader = self._leaders.get(partition)
            head = window.head(self._free) if window and leader else None
            if window is None or leader is None or head is None:
                del keys[partition], heads.keys[partition]
            elif not leader.has_majority():
                del keys[partition]
            elif head[0].sort_key > keys[partition]:
                keys[partition] = heads.keys[partition] = head[0].sort_key
            else:
                return (window, *head)
        return None

    def _free(self, piece: Piece) -> int:
        stretch = stretch_of(piece.first)
        bits = piece.bits & ~self._blocked.get(stretch, 0)
        if not bits:
            return 0
        taken, moved_pieces = self._state(stretch)
        bits &= ~taken
        for moved in moved_pieces:
            if (moved.due_ms, moved.attempts) != (piece.due_ms, piece.attempts):
                bits &= ~moved.bits
        return bits

    def _state(self, stretch: TaskId) -> tuple[int, list[Piece]]:
        """Tasks of a stretch that are claimed, finished or being finished; its moved pieces."""
        if self._seen is not None and stretch in self._seen:
            return self._seen[stretch]
        taken = claimed_bits(pieces_of(self._host.replica, stretch)) | self.finishing.get(stretch, 0)
        state = (taken | self._host.store.finished_bits(stretch), self._host.store.moved(stretch))
        if self._seen is not None:
            self._seen[stretch] = state
        return state

    def _why_nothing(self, request: ClaimRequest) -> OnyxqError | None:
        for queue in request.queues:
            heads = self._queues.get(queue)
            for partition, window in sorted(heads.windows.items()) if heads else ():
                leader = self._leaders.get(partition)
                if leader is not None and not leader.has_majority() and window.head(self._free):
                    return Unavailable(f"partition {partition} has no majority of its nodes: no claims there")
        return None

    # --- windows

    def _window(self, queue: str, partition: int) -> Window:
        heads = self._queues.setdefault(queue, _QueueHeads())
        window = heads.windows.get(partition)
        if window is None:
            window = heads.windows[partition] = Window(self._host.store, partition=partition, queue=queue)
        return window

    def _refresh(self, queue: str, partition: int) -> None:
        heads = self._queues[queue]
        head = heads.windows[partition].head(self._free)
        if head is not None:
            heads.note(head[0].sort_key, partition)
