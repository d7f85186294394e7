"""The relay: reads rows of the outbox and enqueues their tasks, each exactly once (design: interfaces).

A round marks new rows as sent, enqueues them under their ids, and deletes those that the cluster has stored. If the
relay dies in between, the next round repeats the enqueues. The cluster knows the ids and makes no second task.

The cluster forgets an id only together with the time in it, when finished tasks of that time are purged. It refuses
such an id. If the row was never marked, the cluster never had the task: the row gets a new id, and the rows that depend
on it name that id from then on. Otherwise the task may have run, so the row is refused and waits for a decision.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import anyio
import anyio.to_thread

from onyxq.client import AsyncClient
from onyxq.core.errors import BadRequest, Conflict, NotFound, OnyxqError, Purged
from onyxq.outbox.database import OutboxDatabase
from onyxq.outbox.rows import TABLE, PendingRow, fresh_id
from onyxq.system.tracing import within

BATCH = 500
"""Rows of a round. Their tasks fit in one group of the client's, so they reach each leader in order."""
PAUSE_S = 0.1
"""Pause after a round that found no rows, in seconds."""
RETRY_FIRST_S, RETRY_MAX_S = 0.2, 5.0
"""Shortest and longest pause after a round that failed, in seconds."""
LOCK_PAUSE_S = 1.0
"""Pause between two attempts to replace the present relay, in seconds."""
ENQUEUE_TIMEOUT_MS = 10_000

FINAL = (BadRequest, Conflict, NotFound, Purged)
"""Errors that a repeat of the same enqueue would meet again."""

T = TypeVar("T")
log = logging.getLogger(__name__)


class Relay:
    """The relay of one table; call `run`.

    ``conninfo``: the database, as for `OutboxDatabase`. ``create``: create the table unless it exists. Run two relays
    to have a spare one: the second waits until the connection of the first is gone.
    """

    def __init__(self, conninfo: str = "", *, table: str = TABLE, create: bool = False) -> None:
        self._conninfo = conninfo
        self._table = table
        self._create = create
        self._stopped = anyio.Event()
        self.relayed = 0
        """Number of tasks that this relay enqueued."""
        self.refused = 0
        """Number of rows that the cluster refused for good."""

    def stop(self) -> None:
        """Return from `run` after the present round."""
        self._stopped.set()

    async def run(self, client: AsyncClient) -> None:
        """Relay until `stop`; after an error of the database or the cluster, try again.

        Run it on asyncio: trio starts tasks in random order, which would not keep the order of ordering keys.
        Raises `NotFound` if the database has no such table.
        """
        import psycopg

        failures = 0
        while not self._stopped.is_set():
            before = self.relayed
            try:
                await self._connected(client)
                return
            except psycopg.errors.UndefinedTable:
                hint = "Create it: `onyxq outbox create`, or `onyxq outbox relay --create`."
                raise NotFound(f"the database has no table {self._table}", hint=hint) from None
            except (psycopg.Error, OnyxqError) as error:
                failures = 1 if self.relayed > before else failures + 1
                log.warning("the relay of %s tries again: %s: %s", self._table, type(error).__name__, error)
            await self._pause(min(RETRY_FIRST_S * 2 ** (failures - 1), RETRY_MAX_S))

    async def _connected(self, client: AsyncClient) -> None:
        database = await _in_thread(partial(OutboxDatabase, self._conninfo, table=self._table))
        try:
            if self._create:
                await _in_thread(database.create)
            if not await _in_thread(database.lock):
                log.info("another relay of %s is running; waiting for its end", self._table)
                while not await _in_thread(database.lock):
                    await self._pause(LOCK_PAUSE_S)
                    if self._stopped.is_set():
                        return
            log.info("relaying %s", self._table)
            while not self._stopped.is_set():
                if not await self.relay_once(database, client):
                    await self._pause(PAUSE_S)
        finally:
            with anyio.CancelScope(shield=True):
                await _in_thread(database.close)

    async def relay_once(self, database: OutboxDatabase, client: AsyncClient) -> int:
        """Make one round; return the number of rows that it found. Raise the first error that a repeat may mend."""
        rows = await _in_thread(partial(database.pending, BATCH))
        for part in parts(rows):
            if new := [row.seq for row in part if not row.sent]:
                await _in_thread(partial(database.mark_sent, new))
            outcomes = await self._send(client, part)
            stored = [row.seq for row, outcome in zip(part, outcomes, strict=True) if outcome is None]
            await _in_thread(partial(database.delete, stored))
            self.relayed += len(stored)
            transient: OnyxqError | None = None
            purged: list[PendingRow] = []
            for row, outcome in zip(part, outcomes, strict=True):
                if isinstance(outcome, Purged) and not row.sent:
                    purged.append(row)
                elif isinstance(outcome, FINAL):
                    await self._refused(database, row, outcome)
                elif outcome is not None:
                    transient = transient or outcome
            if purged:
                await self._renumber(database, client, purged)
            if transient is not None:
                raise transient
            if purged:
                break  # later rows may depend on these, and must be read again
        return len(rows)

    async def _send(self, client: AsyncClient, rows: Sequence[PendingRow]) -> list[OnyxqError | None]:
        """Enqueue rows together; return the error of each, or None."""
        now_ms = await client.now_ms()
        outcomes: list[OnyxqError | None] = [None] * len(rows)

        async def send(place: int, row: PendingRow) -> None:
            try:
                arguments = row.arguments(now_ms)
                with within(row.options.get("trace")):
                    await client.enqueue(row.queue, row.data, timeout_ms=ENQUEUE_TIMEOUT_MS, **arguments)
            except OnyxqError as error:
                outcomes[place] = error
            except (TypeError, ValueError) as error:
                # A program in another language may have written the row; it must not stop the others.
                outcomes[place] = BadRequest(
                    f"the options of the row are not those of a task: {error}", field="options"
                )

        async with anyio.create_task_group() as group:
            for place, row in enumerate(rows):
                group.start_soon(send, place, row)
        return outcomes

    async def _renumber(self, database: OutboxDatabase, client: AsyncClient, rows: Sequence[PendingRow]) -> None:
        """Give new ids to rows that were never sent, and whose time is purged."""
        now_ms = await client.now_ms()
        fresh = {row.seq: fresh_id(row.task_id, now_ms) for row in rows}
        for row in rows:
            old, new = row.task_id.hex(), fresh[row.seq].hex()
            log.warning("the time of task %s is purged, and it was never sent: its id is now %s", old, new)
        await _in_thread(partial(database.renumber, fresh))

    async def _refused(self, database: OutboxDatabase, row: PendingRow, error: OnyxqError) -> None:
        self.refused += 1
        log.error("row %d, task %s for queue %r, is refused: %s", row.seq, row.task_id.hex(), row.queue, error.named())
        await _in_thread(partial(database.refuse, row.seq, f"{error.code}: {error.named()}"))

    async def _pause(self, seconds: float) -> None:
        with anyio.move_on_after(seconds):
            await self._stopped.wait()


def parts(rows: Sequence[PendingRow]) -> Iterator[list[PendingRow]]:
    """Yield rows that may be sent together. A row that depends on an earlier one starts a new part."""
    part: list[PendingRow] = []
    ids: set[str] = set()
    for row in rows:
        if not ids.isdisjoint(row.depends):
            yield part
            part, ids = [], set()
        part.append(row)
        ids.add(row.task_id.hex())
    if part:
        yield part


async def _in_thread(call: Callable[[], T]) -> T:
    """Call the database in a thread."""
    return await anyio.to_thread.run_sync(call)
