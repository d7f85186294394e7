"""History: what the log said about claims, written to the store as facts.

Every node that holds a partition derives the same rows from the same records.  The rows
of many records become durable together with the position up to which they reach, so a
restart goes on without holes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import trio

from log_entries import expire_claims, grant_claims, release_claims
from onyxq import facts
from onyxq.entry import APPLIED
from onyxq.errors import StoreFailed
from onyxq.facts import History, Row
from onyxq.ids import Run, runs_of, stretch_of
from onyxq.replica import Replica, held_bits
from onyxq.step import Outcome
from onyxq.store.interface import Batch, Store, Written

IDLE_FLUSH_S = 5.0
"""How often the position alone is stored while nothing happens to claims."""
RETRY_PAUSE_S = 0.5


def returned_runs(before: Replica, outcome: Outcome) -> list[tuple[int, Run, History]]:
    """``(partition, run, event)`` for the tasks that an applied entry took from a worker
    without finishing them; `History.position` and ``at_ms`` are left 0."""
    args = outcome.args
    if isinstance(args, release_claims.Args):
        parts = [
            (one.token, one.runs, one.event, one.retry_ms, one.attempts, one.note)
            for one in args.releases
            if one.event != release_claims.COMPLETED_EVENT
        ]
    elif isinstance(args, expire_claims.Args):
        parts = [(one.token, one.runs, facts.EXPIRED, 0, one.attempts, "") for one in args.expirations]
    else:
        return []
    found = []
    for token, runs, event, retry_ms, attempts, note in parts:
        for run in runs:
            for part in runs_of(stretch_of(run.first), held_bits(before, run, token)):
                said = History(0, outcome.index, part.count, event, token, 0, "", retry_ms, attempts, note)
                found.append((args.partition, part, said))
    return found


def history_rows(
    before: Replica, after: Replica, outcomes: Sequence[Outcome], holds: Callable[[int], bool]
) -> list[Row]:
    """The rows that a record adds to the partitions for which ``holds`` is true."""
    rows: list[Row] = []
    position, at_ms = after.position, after.ctime_ms
    for outcome in outcomes:
        args: Any = outcome.args
        if outcome.verdict != APPLIED:
            continue
        if isinstance(args, grant_claims.Args) and holds(args.partition):
            for grant in args.grants:
                for run in grant.runs:
                    said = History(
                        position, outcome.index, run.count, facts.GRANTED, position, at_ms, grant.worker, 0, 0, ""
                    )
                    rows.append(facts.history_row(run.first, said))
        elif isinstance(args, (release_claims.Args, expire_claims.Args)) and holds(args.partition):
            for _, run, said in returned_runs(before, outcome):
                rows.append(facts.history_row(run.first, said._replace(position=position, at_ms=at_ms)))
    return rows


class HistoryWriter:
    """Stores history in the background, many records at a time."""

    def __init__(self, store: Store, on_written: Callable[[Written], None]) -> None:
        self._store = store
        self._on_written = on_written
        self._rows: list[Row] = []
        self._after: list[Callable[[], None]] = []
        self._position = store.log_position()
        self._stored = self._position
        self._noted = self._position
        """Position of the last record that had rows, or somebody who waits for them."""
        self._wake = trio.Event()
        self._stored_event = trio.Event()

    @property
    def stored(self) -> int:
        """Position up to which history is durable."""
        return self._stored

    def add(self, position: int, rows: Sequence[Row], after: Callable[[], None] | None = None) -> None:
        """Take the rows of the record at ``position``; ``after`` runs once they are stored."""
        if position > self._position:
            self._position = position
            self._rows += rows
        if after is not None:
            self._after.append(after)
        if rows or after is not None:
            self._noted = max(self._noted, position)
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
            if self._position == self._stored and not self._after:
                continue
            rows, self._rows = self._rows, []
            after, self._after = self._after, []
            await self._write(self._position, rows)
            for call in after:
                call()

    async def _write(self, position: int, rows: list[Row]) -> None:
        while True:
            try:
                written = await self._store.write(Batch(rows=rows, log_position=position))
            except StoreFailed:
                await trio.sleep(RETRY_PAUSE_S)
                continue
            self._stored = position
            self._stored_event.set()
            self._stored_event = trio.Event()
            self._on_written(written)
            return
