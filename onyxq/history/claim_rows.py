"""History: what the log said about claims, written to the store as facts.

Every node that holds a partition derives the same rows from the same records.  The rows
of many records become durable together with the position up to which they reach, so a
restart goes on without holes.
"""

from __future__ import annotations

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
from onyxq.core.facts import History, Row
from onyxq.core.ids import Run, TaskId, mask_of, runs_of, stretch_of
from onyxq.core.log.digest import Milestones
from onyxq.core.log.interface import Record
from onyxq.core.replica import Replica, claimed_bits, held_bits, pieces_of
from onyxq.core.step import Outcome
from onyxq.store.interface import MILESTONES_META, Batch, LogRecord, SnapshotPart, Store, Written

IDLE_FLUSH_S = 5.0
"""Pause between writes of the log to disk while it has only signs of life, in seconds."""
RETRY_PAUSE_S = 0.5
SNAPSHOT_PART_BYTES = 1 << 20
"""Bytes of a snapshot in one transaction: the event loop is busy for so long."""
_WITH_ROWS = (grant_claims.Args, grant_limited_claims.Args, reopen_tasks.Args)
"""Arguments of entries that say something of every run that they name."""


class _Held:
    """Which claims of before a record are still as they were, while its entries are gone through."""

    def __init__(self, before: Replica, after: Replica) -> None:
        self._before = before
        self._log_time_ms = after.log_time_ms
        self._gone: dict[tuple[TaskId, int], int] = {}
        self._renewed: dict[tuple[TaskId, int], int] = {}

    def renew(self, run: Run, token: int) -> None:
        """A run's claims have a later deadline now."""
        key = stretch_of(run.first), token
        self._renewed[key] = self._renewed.get(key, 0) | mask_of(*run)

    def end(self, run: Run, token: int, *, lapsed_only: bool = False) -> int:
        """Mask of what of a run was held under the token until now, and no longer is."""
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
    """``(partition, run, event)`` for the tasks that a record's applied entries took from a worker
    without finishing them; `History.position` and ``at_ms`` are left 0.

    An entry may name more than it ends: claims that were renewed, or ended by an entry before it.
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
                    held.end(run, claim.token)  # it is the transaction's now, and finished
    return found


def _may_return(args: Any) -> bool:
    """Whether an entry with these arguments may take tasks from workers that did not finish them."""
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
) -> list[Row]:
    """The rows that a record adds to the partitions for which ``holds`` is true; ``returned``: its `returned_runs`."""
    rows: list[Row] = []
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
                rows.append(facts.history_row(run.first, said))
            continue
        for grant in args.grants:
            for run in grant.runs:
                said = History(
                    position, outcome.index, run.count, facts.GRANTED, position, at_ms, grant.worker, 0, 0, ""
                )
                rows.append(facts.history_row(run.first, said))
    for partition, run, said in returned:
        if holds(partition):
            rows.append(facts.history_row(run.first, said._replace(position=position, at_ms=at_ms)))
    return rows


class HistoryWriter:
    """Stores history, and the node's copy of the log, in the background, many records at a time.

    All that is known so far goes into every transaction of the store, whatever its purpose.  So a
    node has nothing on its disk without the records of the log that led to it.
    """

    def __init__(self, store: Store, on_written: Callable[[Written], None]) -> None:
        self._store = store
        self._on_written = on_written
        self._rows: list[Row] = []
        self._after: list[Callable[[], None]] = []
        self._records: list[LogRecord] = []
        self._parts: deque[SnapshotPart] = deque()
        """Pieces of a snapshot for the copy of the log that are not stored yet."""
        self._gap = False
        """Whether records are missing before the snapshot in ``_parts``: nothing is stored before it."""
        self._position = store.log_position()
        self._digest = store.log_digest()
        self._milestones: Milestones = ()
        self._milestones_stored: Milestones = ()
        self._stored = self._position
        self._noted = self._position
        """Position of the last record that had rows, or somebody who waits for them."""
        self._kept_snapshot, self._kept = store.kept_ends()
        """Where the copy of the log begins and ends once all is stored."""
        self._riding: _Riding | None = None
        self._failed = False
        self._wake = trio.Event()
        self._stored_event = trio.Event()
        store.accompany(self)

    @property
    def stored(self) -> int:
        """Position up to which history is durable."""
        return self._stored

    def add(
        self,
        replica: Replica,
        rows: Sequence[Row],
        after: Callable[[], None] | None = None,
        *,
        record: Record | None = None,
        eager: bool = False,
    ) -> None:
        """Take the rows of the record that led to ``replica``; ``after`` runs once they are stored.

        ``eager``: store them at once; otherwise within `IDLE_FLUSH_S`.
        """
        position = replica.position
        if position > self._position:
            self._position, self._digest, self._milestones = position, replica.digest, replica.milestones
            self._rows += rows
        if record is not None and position > self._kept:
            self._records.append(LogRecord(position, record.ctime_ms, record.data))
            self._kept = position
        if after is not None:
            self._after.append(after)
        if rows or after is not None:
            self._noted = max(self._noted, position)
        if rows or after is not None or eager:
            self._wake.set()

    def keep(self, position: int, snapshot: bytes) -> None:
        """Have the copy of the log begin with a snapshot, unless it begins with that one or a newer one."""
        if position <= self._kept_snapshot:
            return
        self._gap = self._gap or position > self._kept
        self._kept_snapshot, self._kept = position, max(position, self._kept)
        starts = range(0, max(1, len(snapshot)), SNAPSHOT_PART_BYTES)
        self._parts = deque(
            SnapshotPart(position, number, start == starts[-1], snapshot[start : start + SNAPSHOT_PART_BYTES])
            for number, start in enumerate(starts)
        )
        self._wake.set()

    async def reached(self, position: int) -> None:
        """Return once history is durable up to ``position``."""
        while self._stored < position:
            self._wake.set()
            await self._stored_event.wait()

    async def settled(self) -> None:
        """Return once what was said of claims so far can be read from the store."""
        position = self._noted
        while self._stored < position:
            await self._stored_event.wait()

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            with trio.move_on_after(IDLE_FLUSH_S):
                await self._wake.wait()
            self._wake = trio.Event()
            while self._has_news() or self._riding is not None:
                await self._write()

    async def _write(self) -> None:
        """Have a transaction made, unless one with the news is on its way."""
        if self._failed:
            self._failed = False
            await trio.sleep(RETRY_PAUSE_S)
        elif self._riding is not None:
            await self._stored_event.wait()
        else:
            try:
                await self._store.write(Batch())
            except StoreFailed:
                self._failed = True

    # --- what goes into the store's transactions

    def _has_news(self) -> bool:
        return bool(self._position > self._stored or self._records or self._parts or self._after)

    def take(self) -> Batch | None:
        """See `onyxq.store.interface.Rider`: all that is known and not stored yet."""
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
        """The milestones, if they changed since they were stored."""
        if self._milestones is self._milestones_stored:
            return ()
        return ((MILESTONES_META, msgpack.packb(self._milestones)),)

    def heard(self, outcome: Written | OnyxqError) -> None:
        """See `onyxq.store.interface.Rider`: what failed is taken again with the next transaction."""
        riding, self._riding = self._riding, None
        assert riding is not None
        if isinstance(outcome, OnyxqError):
            self._failed = True
            self._take_back(riding)
        else:
            self._stored = max(self._stored, riding.position)
            self._milestones_stored = riding.milestones
        self._stored_event.set()
        self._stored_event = trio.Event()
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
    """What is on its way to the disk."""

    position: int
    part: SnapshotPart | None
    rows: list[Row]
    records: list[LogRecord]
    after: list[Callable[[], None]]
    milestones: Milestones
