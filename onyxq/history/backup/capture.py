"""Taking a backup of a running cluster, through any peer.

Only transactions span partitions. So they are held first (``hold_transactions``), and the backup waits for
those under way. Then it reads the replica, then every partition's rows from its leader. Meanwhile and after
that it reads the log, so the replica at the end of the records is newer than any row. At the end the hold
must still be the same one; then the file has no incomplete transaction.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Any, TypeAlias, TypeVar

import anyio

from onyxq.core import snapshot
from onyxq.core.errors import Conflict, OnyxqError, Unavailable
from onyxq.core.log.interface import Record
from onyxq.core.replica import Replica
from onyxq.core.step import step
from onyxq.core.transactions import on_hold
from onyxq.history.backup.file import KIND
from onyxq.history.file_format import HistoryFileWriter
from onyxq.history.following import PASSING, Trimmed, ask_async, replica
from onyxq.system.extensions import installed

HOLD_MS = 60_000
"""Longest hold of transactions after the last renewal, in ms."""
RENEWALS = 4
"""Renewals of the hold within `HOLD_MS`."""
LET_GO_S = 10.0
"""Time limit for ending the hold, in seconds."""
FOLLOW_S = 0.5
"""Longest pause between reads of the log while rows are read, in seconds."""
LOG_PAGE_RECORDS = 1_000
WAIT_MS = 1_000
PATIENCE_S = 60.0
"""Time limit for a call, and for the transactions under way, in seconds."""
RETRY_PAUSE_S = 0.2
READ_TRIES = 5
"""Attempts to read one partition while its leaders change."""
WHY = "a backup of the cluster"

TRIES = 3
"""Attempts at a backup.

If a collection of the log trims records that it needs, the backup starts again.
"""

Call: TypeAlias = Callable[[str, dict[str, Any]], Awaitable[Any]]
Progress: TypeAlias = Callable[[str], None]
T = TypeVar("T")


async def take(
    call: Call, path: str, *, progress: Progress = lambda _: None, hold_ms: int = HOLD_MS, name: str = ""
) -> dict[str, Any]:
    """Write a backup to a file, and return a summary of it.

    Raises `OnyxqError`. No file gets the name if it raises anything, or if the process dies before its end.

    ``call`` calls a method on any peer. ``progress`` receives the numbers of rows and partitions done.
    ``hold_ms``: longest hold of transactions without a renewal. ``name``: of the hold, by default a random one.
    """
    name = name or f"backup-{secrets.token_hex(8)}"
    for left in reversed(range(TRIES)):
        try:
            return await _Taking(call, progress, hold_ms, name).run(path)
        except Trimmed:
            if not left:
                raise
    raise AssertionError("the last try returns or raises")


class _Taking:
    """One attempt at a backup."""

    def __init__(self, call: Call, progress: Progress, hold_ms: int, name: str) -> None:
        self._ask = call
        self._progress = progress
        self._hold_ms = hold_ms
        self._name = name
        self._held_at = 0.0
        self._followed_at = 0.0
        self._now: Replica

    async def run(self, path: str) -> dict[str, Any]:
        """Write the backup; see `take`."""
        began = anyio.current_time()
        with ExitStack() as file:  # Its end gives the file its name: a failure before that leaves no backup.
            try:
                position = await self._hold()
                self._now = await self._replica(position)
                since = self._held_since()
                cluster = self._now.cluster
                assert cluster is not None, "the log has a position, so the cluster was created"
                origin = snapshot.pack(self._now)
                made = HistoryFileWriter(path, KIND, cluster=cluster.name, cluster_id=cluster.id, origin=origin)
                writer = file.enter_context(made)
                await self._settle(writer)
                position = self._now.position
                for partition in sorted(self._now.partitions):
                    position = max(position, await self._partition(writer, partition, position))
                    self._progress(f"partition {partition + 1} of {len(self._now.partitions)}, {writer.rows} rows")
                await self._read_log(writer, position)
                if self._held_since() != since or self._now.transactions:
                    raise Unavailable(
                        "transactions changed data before all of it was read", hint="Take the backup again."
                    )
            finally:
                await self._let_go()  # Before the file is made durable: transactions need not wait for the disk.
        return {
            "file": path,
            "cluster": cluster.name,
            "cluster_id": cluster.id,
            "rows": writer.rows,
            "records": writer.records,
            "position": writer.last,
            "seconds": round(anyio.current_time() - began, 3),
        }

    # --- the hold

    async def _hold(self) -> int:
        asked_at = anyio.current_time()
        answer = await self._call("backup.hold", {"name": self._name, "why": WHY, "for_ms": self._hold_ms})
        self._held_at = asked_at
        return int(answer["position"])

    def _held_since(self) -> int:
        """Return the position at which this backup's hold began; raises `Unavailable` if the hold is over."""
        found = on_hold(self._now)
        if found is None or found.name != self._name:
            raise Unavailable("the backup could not have transactions wait for long enough", hint="Take it again.")
        return found.since

    async def _let_go(self) -> None:
        with anyio.move_on_after(LET_GO_S, shield=True):
            try:
                await self._ask("backup.hold", {"name": self._name, "why": WHY, "for_ms": 0})
            except OnyxqError:
                pass  # It was not begun, or it ends on its own.

    async def _settle(self, writer: HistoryFileWriter) -> None:
        """Follow the log until every transaction that was committed before the hold is visible."""
        until = anyio.current_time() + PATIENCE_S
        while self._now.transactions:
            if anyio.current_time() > until:
                raise Unavailable(f"{len(self._now.transactions)} transactions do not become visible")
            await self._follow(writer, wait_ms=WAIT_MS)

    # --- the log

    async def _replica(self, position: int) -> Replica:
        """Return a peer's replica at a position or after it."""

        async def read() -> Replica:
            found = await ask_async(replica(), self._ask)
            if found.position < position:
                raise Unavailable("the peer that answers is behind with the log")
            return found

        return await self._insist(read)

    async def _read_log(self, writer: HistoryFileWriter, position: int) -> None:
        while self._now.position < position:
            await self._follow(writer, wait_ms=WAIT_MS)

    async def _follow(self, writer: HistoryFileWriter, *, wait_ms: int = 0) -> None:
        """Read more of the log, and renew the hold in time."""
        if anyio.current_time() - self._held_at > self._hold_ms / 1000 / RENEWALS:
            await self._hold()
        start = self._now.position + 1
        answer = await self._call("log.raw", {"from": start, "limit": LOG_PAGE_RECORDS, "wait_ms": wait_ms})
        if "trimmed" in answer:
            raise Trimmed(start, answer["trimmed"])
        for one in answer["records"]:
            record = Record(*one)
            self._now = step(self._now, record, installed()).replica
            writer.add(record)
        self._followed_at = anyio.current_time()

    # --- rows

    async def _partition(self, writer: HistoryFileWriter, partition: int, position: int) -> int:
        """Write all rows of a partition as of one moment, and return the position of the log at that moment.

        If the leader changes, the partition is read again. Repeated rows in the file are harmless.
        """
        for left in reversed(range(READ_TRIES)):
            try:
                return await self._pages(writer, partition, position)
            except Conflict:
                if not left:
                    raise
        raise AssertionError("the last try returns or raises")

    async def _pages(self, writer: HistoryFileWriter, partition: int, position: int) -> int:
        after: bytes | None = b""
        while after is not None:
            page = await self._call("backup.rows", {"partition": partition, "position": position, "after": after})
            writer.add_rows(partition, page["rows"])
            position, after = max(position, page["position"]), page["after"]
            if anyio.current_time() - self._followed_at > FOLLOW_S:
                await self._follow(writer)
        return position

    # --- asking

    async def _call(self, method: str, args: dict[str, Any]) -> Any:
        return await self._insist(lambda: self._ask(method, args))

    async def _insist(self, body: Callable[[], Awaitable[T]]) -> T:
        """Repeat a call while its error may pass, for `PATIENCE_S`."""
        until = anyio.current_time() + PATIENCE_S
        while True:
            try:
                return await body()
            except PASSING:
                if anyio.current_time() > until:
                    raise
            await anyio.sleep(RETRY_PAUSE_S)
