"""History rows: what the log decided about claims, written to the store.

Every node that holds a partition derives the same rows from the same records. The rows of many records
become durable together with the position that they cover, so a restart leaves no gap.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgpack
import trio
from attrs import frozen

from log_entries import (
    expire_claims,
    grant_claims,
    grant_limited_claims,
    release_claims,
    renew_claims,
    reopen_tasks,
)
from log_entries.commit_batch import committed_by
from onyxq.core import facts
from onyxq.core.claims import lapsed
from onyxq.core.entry import APPLIED
from onyxq.core.errors import OnyxqError, StoreFailed
from onyxq.core.facts import History
from onyxq.core.ids import Run, TaskId, mask_of, runs_of, stretch_of
from onyxq.core.log.digest import Milestones
from onyxq.core.log.interface import Record
from onyxq.core.replica import Replica, claimed_bits, held_bits, pieces_of
from onyxq.core.step import Outcome
from onyxq.store.interface import MILESTONES_META, Batch, SnapshotPart, Written
from onyxq.store.row_checks import Prepared, prepared_history
from onyxq.store.store import Store
from onyxq.system.signal import Signal

LAZY_FLUSH_S = 0.05
"""Longest wait before claims are written to disk if no caller waits for that, in seconds.

Most join a transaction that is made for something else meanwhile.
"""
IDLE_FLUSH_S = 5.0
"""Longest wait before records that change no claim are written to disk, in seconds."""
RETRY_PAUSE_S = 0.5
SNAPSHOT_PART_BYTES = 1 << 20
"""Bytes of a snapshot per transaction.

Limits how long a write blocks the event loop.
"""
_WITH_ROWS = (grant_claims.Args, grant_limited_claims.Args, reopen_tasks.Args)
"""Arguments of entries that add a history row for every run that they name."""


class _Held:
    """The claims that are left from before a record, while its entries are applied one by one."""

    def __init__(self, before: Replica, after: Replica) -> None:
        self._before = before
        self._log_time_ms = after.log_time_ms
        self._gone: dict[tuple[TaskId, int], int] = {}
        self._renewed: dict[tuple[TaskId, int], int] = {}

    def renew(self, run: Run, token: int) -> None:
        """Note that the claims of a run have a later deadline."""
        key = stretch_of(run.first), token
        self._renewed[key] = self._renewed.get(key, 0) | mask_of(*run)

    def end(self, run: Run, token: int, *, lapsed_only: bool = False) -> int:
        """End claims, and return the mask of the tasks in the run that were still held under the token.

        ``lapsed_only``: end only claims whose lease has run out and was not renewed.
        """
        key = stretch_of(run.first), token
        bits = held_bits(self._before, run, token) & ~self._gone.get(key, 0)
        if lapsed_only:
            bits &= self._lapsed_bits(run, token) & ~self._renewed.get(key, 0)
        self._gone[key] = self._gone.get(key, 0) | bits
        return bits

    def _lapsed_bits(self, run: Run, token: int) -> int:
        pieces = pieces_of(self._before, run.first)
        return claimed_bits(tuple(piece for piece in pieces if lapsed(piece[4], self._log_time_ms)), token)


Returned = tuple[int, Run, History]


def returned_runs(before: Replica, after: Replica, outcomes: Sequence[Outcome]) -> list[Returned]:
    """Return ``(partition, run, event)`` for tasks that applied entries took from a worker unfinished.

    `History.position` and ``at_ms`` are left 0. An entry may name claims that it does not end: those that were
    renewed, or that an earlier entry ended.
    """
    if not any(_may_return(outcome.args) for outcome in outcomes):
        return []
    held = _Held(before, after)
    found: list[tuple[int, Run, History]] = []
    for outcome in outcomes:
        args: Any = outcome.args
        if outcome.verdict != APPLIED:
            continue
        if isinstance(args, renew_claims.Args):
            for renewal in args.renewals:
                for run in renewal.runs:
                    held.renew(run, renewal.token)
        elif isinstance(args, release_claims.Args):
            for one in args.releases:
                ended = [(run, held.end(run, one.token)) for run in one.runs]
                if one.event != release_claims.COMPLETED_EVENT:
                    said = History(
                        0, outcome.index, 0, one.event, one.token, 0, "", one.retry_ms, one.attempts, one.note
                    )
                    found += _parts(args.partition, ended, said)
        elif isinstance(args, expire_claims.Args):
            for expiry in args.expirations:
                ended = [(run, held.end(run, expiry.token, lapsed_only=True)) for run in expiry.runs]
                said = History(0, outcome.index, 0, facts.EXPIRED, expiry.token, 0, "", 0, expiry.attempts, "")
                found += _parts(args.partition, ended, said)
        for committed in committed_by(args):
            for claim in committed.claims:
                for run in claim.runs:
                    held.end(run, claim.token)  # The transaction holds the claim now, and the task is finished.
    return found


def reopened_runs(outcomes: Sequence[Outcome]) -> list[tuple[int, Run]]:
    """Return ``(partition, run)`` for the tasks that applied entries requeued."""
    return [
        (outcome.args.partition, one.run)
        for outcome in outcomes
        if outcome.verdict == APPLIED and isinstance(outcome.args, reopen_tasks.Args)
        for one in outcome.args.runs
    ]


def _may_return(args: Any) -> bool:
    """Return whether an entry with these arguments may end claims on unfinished tasks."""
    if isinstance(args, release_claims.Args):
        return any(one.event != release_claims.COMPLETED_EVENT for one in args.releases)
    return isinstance(args, expire_claims.Args)


def _parts(partition: int, ended: list[tuple[Run, int]], said: History) -> list[tuple[int, Run, History]]:
    return [
        (partition, part, said._replace(count=part.count))
        for run, bits in ended
        for part in runs_of(stretch_of(run.first), bits)
    ]


def history_rows(
    after: Replica, outcomes: Sequence[Outcome], returned: Sequence[Returned], holds: Callable[[int], bool]
) -> list[Prepared]:
    """Return the rows that a record adds to the partitions for which ``holds`` is true.

    ``returned``: the result of `returned_runs` for the record.
    """
    rows: list[Prepared] = []
    position, at_ms = after.position, after.ctime_ms
    for outcome in outcomes:
        args: Any = outcome.args
        if outcome.verdict != APPLIED or not isinstance(args, _WITH_ROWS) or not holds(args.partition):
            continue
        if isinstance(args, reopen_tasks.Args):
            for run, attempts in args.runs:
                said = History(
                    position, outcome.index, run.count, facts.REOPENED, position, at_ms, "", args.due_ms, attempts, ""
                )
                rows.append(prepared_history(run.first, said))
            continue
        for grant in args.grants:
            for run in grant.runs:
                said = History(
                    position, outcome.index, run.count, facts.GRANTED, position, at_ms, grant.worker, 0, 0, ""
                )
                rows.append(prepared_history(run.first, said))
    for partition, run, said in returned:
        if holds(partition):
            rows.append(prepared_history(run.first, said._replace(position=position, at_ms=at_ms)))
    return rows


class HistoryWriter:
    """Stores history rows and the node's copy of the log in the background, many records at a time.

    Everything that is known joins each of the store's transactions, whatever the transaction is for. So nothing
    is on a node's disk without the log records that led to it.
    """

    def __init__(self, store: Store, on_written: Callable[[Written], None]) -> None:
        self._store = store
        self._on_written = on_written
        self._rows: list[Prepared] = []
        self._after: list[Callable[[], None]] = []
        self._records: list[Record] = []
        self._parts: deque[SnapshotPart] = deque()
        """Parts of a snapshot for the copy of the log that are not stored yet."""
        self._gap = False
        """Whether records are missing before the snapshot in ``_parts``; then the snapshot is stored first."""
        self._position = store.log_position()
        self._digest = store.log_digest()
        self._milestones: Milestones = ()
        self._milestones_stored: Milestones = ()
        self._stored = self._position
        self._noted = self._position
        """Position of the last record that has rows or a callback."""
        self._kept_snapshot, self._kept = store.kept_ends()
        """Positions at which the copy of the log begins and ends once everything is stored."""
        self._riding: _Riding | None = None
        self._failed = False
        self._wake = trio.Event()
        """Set once there are claims to write."""
        self._hurry = trio.Event()
        """Set once something waits for what is not stored yet."""
        self._ended = Signal()
        """Wakes what waits for the end of a transaction."""
        store.accompany(self)

    @property
    def stored(self) -> int:
        """The position up to which history is durable."""
        return self._stored

    def add(
        self,
        replica: Replica,
        rows: Sequence[Prepared],
        after: Callable[[], None] | None = None,
        *,
        record: Record | None = None,
        claims: bool = False,
    ) -> None:
        """Take the rows of the record that led to ``replica``.

        ``after`` is called once the rows are stored, which then happens at once. Otherwise it happens within
        `LAZY_FLUSH_S` if the record is about claims, else within `IDLE_FLUSH_S`.
        """
        position = replica.position
        if position > self._position:
            self._position, self._digest, self._milestones = position, replica.digest, replica.milestones
            self._rows += rows
        if record is not None and position > self._kept:
            self._records.append(record)
            self._kept = position
        if after is not None:
            self._after.append(after)
        if rows or after is not None:
            self._noted = max(self._noted, position)
        if claims or rows or after is not None:
            self._wake.set()
        if after is not None:
            self._hurry.set()

    def keep(self, position: int, snapshot: bytes) -> None:
        """Begin the copy of the log with a snapshot, unless it begins with the same or a newer one."""
        if position <= self._kept_snapshot:
            return
        self._gap = self._gap or position > self._kept
        self._kept_snapshot, self._kept = position, max(position, self._kept)
        starts = range(0, max(1, len(snapshot)), SNAPSHOT_PART_BYTES)
        self._parts = deque(
            SnapshotPart(position, number, start == starts[-1], snapshot[start : start + SNAPSHOT_PART_BYTES])
            for number, start in enumerate(starts)
        )
        self._write_now()

    def _write_now(self) -> None:
        self._wake.set()
        self._hurry.set()

    async def reached(self, position: int, timeout_s: float = math.inf) -> bool:
        """Wait until history is durable up to ``position``, for up to ``timeout_s``; return whether it is."""
        until = trio.current_time() + timeout_s
        while self._stored < position:
            self._write_now()
            if not await self._ended.wait(max(0.0, until - trio.current_time())):
                return self._stored >= position
        return True

    async def settled(self, timeout_s: float = math.inf) -> bool:
        """Wait like `reached` until all rows added so far can be read from the store."""
        return await self.reached(self._noted, timeout_s)

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            with trio.move_on_after(IDLE_FLUSH_S):
                await self._wake.wait()
            with trio.move_on_after(LAZY_FLUSH_S):
                await self._hurry.wait()
            self._wake, self._hurry = trio.Event(), trio.Event()
            while self._has_news() or self._riding is not None:
                await self._write()

    async def _write(self) -> None:
        """Start a transaction, or wait for the one under way."""
        if self._failed:
            self._failed = False
            await trio.sleep(RETRY_PAUSE_S)
        elif self._riding is not None:
            await self._ended.wait()
        else:
            try:
                await self._store.write(Batch())
            except StoreFailed:
                self._failed = True

    # --- what goes into the store's transactions

    def _has_news(self) -> bool:
        return bool(self._position > self._stored or self._records or self._parts or self._after)

    def take(self) -> Batch | None:
        """Return everything that is known and not stored yet; see `onyxq.store.interface.Rider`."""
        if self._riding is not None or not self._has_news():
            return None
        part = self._parts.popleft() if self._parts else None
        if self._gap and part is not None and not part.last:
            self._riding = _Riding(self._stored, part, [], [], [], self._milestones_stored)
            return Batch(snapshot=part)
        self._gap = False
        rows, self._rows = self._rows, []
        records, self._records = self._records, []
        after, self._after = self._after, []
        self._riding = _Riding(self._position, part, rows, records, after, self._milestones)
        return Batch(
            rows=rows,
            log_position=self._position,
            log_digest=self._digest,
            meta=self._milestones_news(),
            records=records,
            snapshot=part,
        )

    def _milestones_news(self) -> tuple[tuple[str, bytes], ...]:
        """Return the milestones as metadata if they changed since they were stored."""
        if self._milestones is self._milestones_stored:
            return ()
        return ((MILESTONES_META, msgpack.packb(self._milestones)),)

    def heard(self, outcome: Written | OnyxqError) -> None:
        """Note the result of a transaction; see `onyxq.store.interface.Rider`.

        A failed batch joins the next one.
        """
        riding, self._riding = self._riding, None
        assert riding is not None
        if isinstance(outcome, OnyxqError):
            self._failed = True
            self._take_back(riding)
        else:
            self._stored = max(self._stored, riding.position)
            self._milestones_stored = riding.milestones
        self._ended.fire()
        if not isinstance(outcome, OnyxqError):
            self._on_written(outcome)
            for call in riding.after:
                call()

    def _take_back(self, riding: _Riding) -> None:
        self._rows[:0] = riding.rows
        self._after[:0] = riding.after
        part = riding.part
        if part is not None and part.position == self._kept_snapshot:
            self._parts.appendleft(part)
        self._records[:0] = riding.records


@frozen
class _Riding:
    """A batch that is being written to disk."""

    position: int
    part: SnapshotPart | None
    rows: list[Prepared]
    records: list[Record]
    after: list[Callable[[], None]]
    milestones: Milestones
