"""Grants: a node picks the best ready tasks of the partitions that it leads, and claims them for workers.

Requests that wait together are answered in one round, and all grants of a round go to the log in
one record. A task may be granted if the replica has no claim on it, no grant or release of it is on
its way, and the store has it as unfinished. All three are checked when the task is picked, so the
windows need not be exact.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from attrs import define, field

from log_entries import grant_claims, grant_limited_claims
from onyxq.core.entry import APPLIED
from onyxq.core.errors import Corrupt, LogUnavailable, OnyxqError, Unavailable
from onyxq.core.facts import task_header, task_row
from onyxq.core.ids import Run, TaskId, id_at, ids_of, mask_of, ms_of, runs_of, stretch_of
from onyxq.core.limits import LEASE_MS_MAX
from onyxq.core.queues import settings_of
from onyxq.core.replica import Replica
from onyxq.core.task_headers import due_of
from onyxq.leader.completion_rows import attempts_of, overtaken_bits
from onyxq.leader.entry_chunks import fitting, size_of
from onyxq.leader.grants.bodies import Bodies, marked
from onyxq.leader.grants.claim_metrics import ClaimMetrics
from onyxq.leader.grants.early_rows import EarlyRows
from onyxq.leader.grants.grantable import Grantable
from onyxq.leader.grants.limits import Limits, WakeTimers
from onyxq.leader.grants.ready_heads import Heads
from onyxq.leader.grants.window import Window
from onyxq.leader.leader import PartitionLeader
from onyxq.leader.state.leader_state import LeaderState
from onyxq.leader.state.states import State
from onyxq.log.outbox import Outbox
from onyxq.store.interface import Piece
from onyxq.store.store import Store
from onyxq.system import tracing
from onyxq.system.metrics import Metrics
from onyxq.system.procedures import Wait, beside, pause

REQUESTS_MAX = 10_000
ROOM_BYTES = 3 * 1024 * 1024
"""Bytes of task rows in one answer. The last row may exceed it."""
WRITE_AGAIN_S = 0.5
log = logging.getLogger(__name__)


class Granted(NamedTuple):
    """A granted run; ``body`` is the task row's body cut to the run."""

    token: int
    expires_ms: int
    attempts: int
    first: bytes
    body: bytes
    lease_ms: int = 0
    due_in_ms: int = 0
    """Time until the worker may start it; above 0 if it was claimed ahead."""


@define(eq=False)
class Room:
    """Bytes of tasks that still fit in one answer."""

    left: int = ROOM_BYTES


Reply = Callable[[list[Granted], OnyxqError | None], bool]
"""Called with the granted runs, or with the error; returns False if the client no longer waits."""


@define(eq=False)
class ClaimRequest:
    """One claimer's request, at the node of the leaders."""

    queues: Sequence[str]
    maximum: int
    lease_ms: int
    """0: the lease of the queue."""
    worker: str
    reply: Reply
    ahead_ms: int = 0
    """How long before their due time tasks may be claimed if nothing is ready."""
    room: Room = field(factory=Room)
    """Shared by requests that are answered together."""
    granted: list[Granted] = field(factory=list)
    entries: int = 0
    """Number of entries whose verdict is awaited, and of rows that are being written."""
    refused: set[bytes] = field(factory=set)
    """First ids of granted runs whose rows could not be stored."""
    lost: bool = False
    """Whether the log was lost while one of the entries was on its way."""


class _Pick(NamedTuple):
    request: ClaimRequest
    run: Run
    piece: Piece
    body: bytes
    lease_ms: int
    ahead_ms: int = 0
    """Time by which its lease is longer, because the task is not due yet."""

    @property
    def granted_ms(self) -> int:
        """The lease to request from the log. The worker's own lease begins when the task is due."""
        return min(self.lease_ms + self.ahead_ms, LEASE_MS_MAX)

    def due_in_ms(self, now_ms: int) -> int:
        """Return how long the worker must wait, at most the extra lease in case the clock goes back."""
        return min(max(0, self.piece.due_ms - now_ms), self.ahead_ms)


class GranterHost(Protocol):
    """What grants need of their node."""

    store: Store
    replica: Replica
    leader_state: LeaderState
    metrics: Metrics

    def count_event(self, queue: str, event: str, count: int) -> None:
        """Count an event of a queue in the metrics."""
        ...

    def outbox_now(self) -> Outbox:
        """Return the outbox of the member peer; raises `LogUnavailable`."""
        ...

    def wall_ms(self) -> int:
        """Return the node's wall clock."""
        ...

    def pieces_added(self, pieces: Sequence[Piece]) -> None:
        """Take pieces that are ready, or will be once they are due."""
        ...

    def give_back(self, partition: int, token: int, runs: Sequence[Run]) -> None:
        """Release claims for which no client waits any more."""
        ...

    def corrupt(self, partition: int, error: Corrupt) -> None:
        """Report a damaged row, and have it repaired from the cohort."""
        ...

    def start_soon(self, function: Callable[..., Any], *args: Any) -> None:
        """Run something in the node's nursery."""
        ...


class Granter:
    """Grants tasks of the partitions that a node leads; one per node."""

    def __init__(self, host: GranterHost) -> None:
        self._host = host
        self._state = host.leader_state
        self._leaders: dict[int, PartitionLeader] = {}
        self.limits = Limits(host)
        self._wakes = WakeTimers(self._woken)
        self._grantable = Grantable(host, leaders=self._leaders, offer_later=self._wakes.after)
        self.heads = Heads(
            host.store,
            leaders=self._leaders,
            free=self._grantable.free,
            limits=self.limits,
            wake_later=self._wakes.after,
            wall_ms=host.wall_ms,
        )
        self._early = EarlyRows()
        self._bodies = Bodies(host.store, self._early, self._is_row_final, wall_ms=host.wall_ms)
        self._requests: deque[ClaimRequest] = deque()
        self._wake = Wait()
        self.metrics = ClaimMetrics(host)

    # --- leadership

    def lead(self, leader: PartitionLeader) -> None:
        """Start, or start again, to grant the tasks of a partition that this node leads."""
        self.heads.drop(leader.partition)
        self._leaders[leader.partition] = leader
        self._grantable.lead(leader.partition)
        self.heads.lead(leader.partition)

    def drop(self, partition: int) -> None:
        """Grant no more tasks of a partition that this node no longer leads."""
        self._leaders.pop(partition, None)
        self._state.end_leadership(partition)
        self.heads.drop(partition)

    def led(self) -> list[int]:
        """Return the partitions whose tasks this node grants, sorted."""
        return sorted(self._leaders)

    def backed(self, leader: PartitionLeader) -> None:
        """Offer tasks that wait for others of their key: any next leader will know the finished ones."""
        if self._leaders.get(leader.partition) is leader:
            self.restart_windows(leader.partition)

    def moved(self, before: Replica, after: Replica) -> None:
        """Wake queues that a step of the log changed: paused, resumed, limited or below their limit again."""
        for queue in self.limits.moved(before, after):
            if settings_of(before, queue).key_rate != settings_of(after, queue).key_rate:
                self.heads.restart(queue)  # keys that wait for the earlier rate may be free
            self._woken(queue)

    def _woken(self, name: str | Run) -> None:
        if isinstance(name, Run):
            self.offer([name])
        else:
            self.heads.wake(name)

    def add(self, pieces: Iterable[Piece]) -> None:
        """Add pieces that became ready in the store, except tasks of busy keys: they are offered once that ends."""
        self.heads.add(piece for piece in pieces if not self._grantable.waits_for_key(piece))

    def add_ahead(self, pieces: Iterable[Piece]) -> None:
        """Add pieces that will be due in a moment; they are added again then."""
        self.heads.add_ahead(pieces)

    def add_due(self, pieces: Iterable[Piece]) -> None:
        """Add pieces that are due now; some may have been claimed ahead."""
        self.heads.add(piece for piece in pieces if piece.key or self._grantable.free(piece))

    def offer_early(
        self, leader: PartitionLeader, run: Run, header: dict[str, Any], body: bytes
    ) -> Callable[[OnyxqError | None], None] | None:
        """Offer a new run whose row is about to be written, if a claimer waits for a task of its queue.

        Return the function that takes the answer of this node's store. It is called once.
        """
        queue, due_ms = header["queue"], ms_of(run.first)
        if self._leaders.get(leader.partition) is not leader or due_ms > self._host.wall_ms():
            return None
        if not self._may_be_early(queue) or self._early.body(run.first) is not None:
            return None  # the latter: an earlier request with the same task has not been decided yet
        heard = self._early.add(run.first, body)
        self.heads.add([Piece(queue, header.get("priority", 0), due_ms, run.first, mask_of(*run), 0, run.first)])
        return heard

    def _may_be_early(self, queue: str) -> bool:
        """Return whether a claimer waits for a queue, and no claim of a task that is not stored can use up a limit."""
        return self.heads.awaited(queue) and not self.limits.limited(queue)

    def restart_windows(self, partition: int) -> None:
        """Check all tasks of a partition in the store again."""
        if leader := self._leaders.get(partition):
            self.lead(leader)

    def offer(self, runs: Iterable[Run]) -> None:
        """Offer the ready tasks of these runs again, those that are due later, and the first tasks of their keys."""
        store, found = self._host.store, list[Piece]()
        for run in runs:
            found += store.pieces(stretch_of(run.first), mask_of(*run))
            for task_id, digest in self._state.keys.held(run):
                head = store.key_head(int.from_bytes(task_id[6:8], "big"), digest)
                if head is not None and head != task_id:
                    found += store.pieces(stretch_of(head), mask_of(head, 1))
        self._host.pieces_added(found)

    def finished(self, runs: Iterable[Run]) -> list[TaskId]:
        """Offer the next tasks of the keys of finished tasks; return these next tasks."""
        heads, keys = [], self._state.keys
        for run in runs:
            held = keys.held(run)
            for task_id, _ in held:
                keys.release(task_id)
            for _, digest in held:
                head = self._host.store.key_head(int.from_bytes(run.first[6:8], "big"), digest)
                if head is not None:
                    heads.append(head)
        self.offer(Run(head, 1) for head in heads)
        return heads

    def pieces(self, run: Run, token: int) -> list[Piece]:
        """Return the pieces of a run's tasks that are unfinished since they were granted under ``token``.

        The run may span several task rows. Some tasks may not be due, or may wait for others. Tasks that cannot be
        read are left out; the store notes the damage.
        """
        store = self._host.store
        stretch = stretch_of(run.first)
        finished = store.finished_bits(stretch) & mask_of(*run)
        bits = mask_of(*run) & ~finished
        overtaken = runs_of(stretch, overtaken_bits(store, run, token, finished))
        found = [piece for part in overtaken for one in ids_of(*part) for piece in self._overtaken(one)]
        for piece in store.moved(stretch):
            if piece.bits & bits:
                found.append(piece._replace(bits=piece.bits & bits))
            bits &= ~piece.bits
        known = store.known_bits(stretch)
        never_stored = (one for part in runs_of(stretch, bits & ~known) for one in ids_of(*part))
        found += [piece for one in never_stored for piece in self._never_stored(one)]
        bits &= known
        while bits:
            try:
                row = store.task_row(id_at(stretch, (bits & -bits).bit_length() - 1))
            except Corrupt:
                row = None  # its tasks are checked again once it is repaired
            if row is None:
                bits &= bits - 1
                continue
            header, count = task_header(row[1])
            covered = bits & mask_of(row[0], count)
            found.append(
                Piece(header["queue"], header.get("priority", 0), due_of(header, row[0]), row[0], covered, 0, row[0])
            )
            bits &= ~covered
        return found

    def _never_stored(self, task_id: TaskId) -> list[Piece]:
        """Return the piece of a task whose leader died while it granted the task and stored its row."""
        try:
            attempts, base = attempts_of(self._host.store, task_id)
        except Corrupt:
            return []
        return [Piece("", 0, ms_of(task_id), task_id, mask_of(task_id, 1), attempts, task_id, base)]

    def _overtaken(self, task_id: TaskId) -> list[Piece]:
        """Return the piece of a task whose completion is older than its claim, which is in no index."""
        try:
            row = self._host.store.task_row(task_id)
            attempts, base = attempts_of(self._host.store, task_id)
        except Corrupt:
            row = None
        if row is None:
            return []
        header, _ = task_header(row[1])
        bit = mask_of(task_id, 1)
        due_ms = due_of(header, row[0])
        return [Piece(header["queue"], header.get("priority", 0), due_ms, task_id, bit, attempts, row[0], base)]

    # --- requests

    def submit(self, request: ClaimRequest) -> None:
        """Queue a request; its ``reply`` is called once."""
        if len(self._requests) >= REQUESTS_MAX:
            request.reply([], Unavailable(f"more than {REQUESTS_MAX} claims wait at this node"))
            return
        self._requests.append(request)
        self._wake.end()

    async def run(self) -> None:
        """Answer requests, and wake queues and tasks in time, until cancelled."""
        async with beside() as start:
            start(self._wakes.run())
            await self._rounds()

    async def _rounds(self) -> None:
        while True:
            while not self._requests:
                self._wake = Wait()
                await self._wake.wait()
            try:
                outbox = self._host.outbox_now()
            except LogUnavailable as error:
                self._refuse(error)
                continue
            self._round(outbox)
            # While the record is on its way, requests for the next one arrive.
            await outbox.flushed()
            await pause(0.0)

    def _refuse(self, error: OnyxqError) -> None:
        requests, self._requests = list(self._requests), deque()
        for request in requests:
            request.reply([], error)

    def _round(self, outbox: Outbox) -> None:
        requests, self._requests = list(self._requests), deque()
        picks: dict[int, list[_Pick]] = {}
        with self._grantable.lookups_cached(), self.heads.lookups_cached():
            for request in requests:
                found = self._pick(request)
                for pick in found:
                    picks.setdefault(int.from_bytes(pick.run.first[6:8], "big"), []).append(pick)
                if not found:
                    request.reply([], self.heads.why_nothing(request.queues))
        groups = [
            (partition, queue, group)
            for partition, chosen in sorted(picks.items())
            for queue, alike in self._by_limits(chosen)
            for group in fitting(alike, lambda pick: size_of((pick.run,), pick.request.worker))
        ]
        for _, _, group in groups:
            for request in {pick.request for pick in group}:
                request.entries += 1
        for partition, queue, group in groups:
            self._grant(outbox, partition, queue, group)

    def _by_limits(self, picks: list[_Pick]) -> list[tuple[str, list[_Pick]]]:
        """Group picks by limited queue, and those of all other queues under an empty name."""
        if not self._host.replica.queues:
            return [("", picks)]
        groups: dict[str, list[_Pick]] = {}
        for pick in picks:
            queue = pick.piece.queue
            groups.setdefault(queue if self.limits.limited(queue) else "", []).append(pick)
        return sorted(groups.items())

    def _grant(self, outbox: Outbox, partition: int, queue: str, picks: list[_Pick]) -> None:
        """Submit the claims to the log; ``queue`` is the queue of all of them if it has limits."""
        by_request: dict[tuple[ClaimRequest, int], list[Run]] = {}
        for pick in picks:
            by_request.setdefault((pick.request, pick.granted_ms), []).append(pick.run)
        grants = tuple(
            grant_claims.Grant(request.worker, lease_ms, tuple(runs))
            for (request, lease_ms), runs in by_request.items()
        )
        epoch, began_ns = self._leaders[partition].epoch, tracing.clock()
        entry: grant_claims.Args | grant_limited_claims.Args = grant_claims.Args(partition, epoch, grants)
        if queue:
            entry = grant_limited_claims.Args(partition, epoch, queue, grants)

        def decided(token: int, verdicts: Sequence[str] | None) -> None:
            if verdicts is None and outbox.closed:
                self._keep_undecided(partition, [pick.run for pick in picks])
            if began_ns and verdicts is not None and verdicts[0] == APPLIED:
                tracing.granted(began_ns, token, ((pick.run.first, task_header(pick.body)[0]) for pick in picks))
            self._granted(queue, picks, token, verdicts)

        try:
            outbox.submit([entry], decided)
        except OnyxqError as error:
            log.warning("a grant could not be sent: %s", error.message)
            self._granted(queue, picks, -1, None)

    def _granted(self, queue: str, picks: list[_Pick], token: int, verdicts: Sequence[str] | None) -> None:
        won = verdicts is not None and verdicts[0] == APPLIED
        if queue:
            self.limits.ask(queue, -sum(pick.run.count for pick in picks))
        known = [pick.run for pick in picks if not self._state.any_in(State.UNDECIDED, [pick.run])]
        ended = self._state.end(State.GRANTING, known)
        if not won:
            self.offer(ended)
        now_ms = self._host.wall_ms()
        for pick in picks:
            if won:
                expires_ms = now_ms + pick.lease_ms + pick.ahead_ms
                due_in_ms = pick.due_in_ms(now_ms)
                self.metrics.claimed(pick.run, token, pick.piece.queue, due_ms=pick.piece.due_ms, due_in_ms=due_in_ms)
                pick.request.granted.append(
                    Granted(token, expires_ms, pick.piece.attempts, pick.run.first, pick.body, pick.lease_ms, due_in_ms)
                )
        for request in {pick.request: None for pick in picks}:
            request.lost = request.lost or verdicts is None
            self._one_decided(request)

    def _keep_undecided(self, partition: int, runs: Sequence[Run]) -> None:
        """Keep these tasks from all claimers, old ones included, until it is known whether they were granted."""
        if partition in self._leaders:
            self._state.replace(State.GRANTING, State.UNDECIDED, runs)

    def _one_decided(self, request: ClaimRequest) -> None:
        request.entries -= 1
        if request.entries == 0:
            self._answer(request)

    def _row_decided(self, request: ClaimRequest, first: TaskId, stored: bool) -> None:
        if not stored:
            request.refused.add(first)
        self._one_decided(request)

    def _answer(self, request: ClaimRequest) -> None:
        real = [granted for granted in request.granted if granted.first not in request.refused]
        error = LogUnavailable("the log was lost while the claim was made") if request.lost and not real else None
        wanted = request.reply(real, error)
        for granted in request.granted:
            if not wanted or granted.first in request.refused:
                self._give_back(granted)

    def _give_back(self, granted: Granted) -> None:
        partition = int.from_bytes(granted.first[6:8], "big")
        count = int.from_bytes(granted.body[4:8], "little")
        self._host.give_back(partition, granted.token, [Run(TaskId(granted.first), count)])

    # --- picking

    def _pick(self, request: ClaimRequest) -> list[_Pick]:
        found: list[_Pick] = []
        left = request.maximum
        while left > 0 and request.room.left > 0:
            best = self.heads.best_of(request.queues)
            if best is None:
                break
            window, piece, bits = best
            taken = self._take(request, window, piece, bits, left)
            left -= sum(pick.run.count for pick in taken)
            found += taken
        return found or self._pick_ahead(request)

    def _pick_ahead(self, request: ClaimRequest) -> list[_Pick]:
        """Pick tasks that are due in a moment, if the request may claim ahead.

        They are at most half of the tasks that it asks for, so it has room for tasks that become ready
        meanwhile.
        """
        if not request.ahead_ms:
            return []
        found: list[_Pick] = []
        now_ms, left = self._host.wall_ms(), max(1, request.maximum // 2)
        while left > 0 and request.room.left > 0 and (best := self.heads.best_ahead(request.queues)) is not None:
            if best[0].due_ms > now_ms + request.ahead_ms:
                break
            taken = self._take(request, None, *best, left)
            left -= sum(pick.run.count for pick in taken)
            found += taken
        longest_ms = max((pick.piece.due_ms - now_ms for pick in found), default=0)
        return [pick._replace(ahead_ms=max(1, longest_ms)) for pick in found]

    def _take(self, request: ClaimRequest, window: Window | None, piece: Piece, bits: int, left: int) -> list[_Pick]:
        """Pick tasks of a piece, which is the head of ``window``; None: a piece that is due later."""
        room = self.limits.room(piece.queue)
        try:
            most = left if room is None else min(left, room)
            found = self._bodies.of(piece, bits, most=most)
        except Corrupt as error:
            self._drop(window, piece)
            self._host.corrupt(int.from_bytes(piece.first[6:8], "big"), error)
            return []
        if not found:
            self._drop(window, piece)
        lease_ms = request.lease_ms or settings_of(self._host.replica, piece.queue).lease_ms
        picks = [_Pick(request, run, piece, body, lease_ms) for run, body in found]
        request.room.left -= sum(len(body) for _, body in found)
        self._state.begin(State.GRANTING, (pick.run for pick in picks))
        self._await_row(request, picks)
        if self.limits.limited(piece.queue):
            self.limits.ask(piece.queue, sum(pick.run.count for pick in picks))
        if piece.key and picks:
            self._grantable.granting(piece)
        return picks

    def _await_row(self, request: ClaimRequest, picks: Sequence[_Pick]) -> None:
        """Have the request wait for the rows of its tasks that are being written."""
        for pick in picks:
            if self._early.body(pick.piece.row_first) is not None:
                request.entries += 1
                self._early.when_decided(pick.piece.row_first, partial(self._row_decided, request, pick.run.first))

    def _drop(self, window: Window | None, piece: Piece) -> None:
        """Drop a piece, or drop it until it is due."""
        if window is not None:
            window.pop()
        else:
            self.heads.drop_ahead(piece)

    # --- rows of unique tasks

    def _is_row_final(self, task_id: TaskId, epoch: int) -> bool:
        """Return whether no earlier leader's change can win over a unique task's row; else write the row again."""
        leader = self._leaders.get(int.from_bytes(task_id[6:8], "big"))
        if leader is None or epoch >= leader.epoch:
            return leader is not None
        self._state.begin(State.CHANGING, [Run(task_id, 1)])
        self._host.start_soon(self._write_again, leader, task_id)
        return False

    async def _write_again(self, leader: PartitionLeader, task_id: TaskId) -> None:
        """Write the row of a unique task again with a mark of this leader, until a majority has it."""
        try:
            while self._leaders.get(leader.partition) is leader:
                try:
                    first, body = self._host.store.task_row(task_id) or (task_id, b"")
                    await leader.write([task_row(first, marked(body, leader.mark()))] if body else [])
                    return
                except OnyxqError as error:
                    log.info("task %s will be granted later: %s", task_id.hex(), error.message)
                    await pause(WRITE_AGAIN_S)
        finally:
            self.offer(self._state.end(State.CHANGING, [Run(task_id, 1)]))
