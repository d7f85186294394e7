"""Taking a backup of a cluster that is in use, through any peer.

First the transactions are held (``hold_transactions``), as they alone span partitions, and those under
way are waited for.  The replica is read, then every partition's rows from its leader, and meanwhile,
and behind them, the log: so the replica that its records lead to is newer than any row.  At the end
the hold must still be the one that was begun; then no transaction is in the file by halves.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, TypeVar

import anyio

from onyxq.core.errors import Conflict, OnyxqError, Unavailable
from onyxq.core.log.interface import Record
from onyxq.core.replica import Replica
from onyxq.core.step import step
from onyxq.core.transactions import on_hold
from onyxq.history.backup.file import BackupWriter
from onyxq.history.following import PASSING, Trimmed, ask_async, replica
from onyxq.system.extensions import installed

HOLD_MS = 60_000
"""How long transactions wait for a backup that is heard of no more."""
RENEWALS = 4
"""How often the end of the hold is put off before it would come."""
LET_GO_S = 10.0
"""How long ending the hold is tried."""
FOLLOW_S = 0.5
"""The log is read at least so often while rows are."""
LOG_PAGE_RECORDS = 1_000
WAIT_MS = 1_000
PATIENCE_S = 60.0
"""How long something that should pass is waited for: a call, or the transactions under way."""
RETRY_PAUSE_S = 0.2
READ_TRIES = 5
"""Of one partition, whose leaders change."""
WHY = "a backup of the cluster"

TRIES = 3
"""A collection of the log that overtakes a backup makes it begin anew."""

Call: TypeAlias = Callable[[str, dict[str, Any]], Awaitable[Any]]
Progress: TypeAlias = Callable[[str], None]
T = TypeVar("T")


async def take(
    call: Call, path: str, *, progress: Progress = lambda _: None, hold_ms: int = HOLD_MS, name: str = ""
) -> dict[str, Any]:
    """Write a backup to a file; what is in it. Raises `OnyxqError`, and then there is none.

    ``call`` asks a method of any peer, ``progress`` hears of rows and partitions done; ``hold_ms``: how long
    transactions wait for a backup that is heard of no more; ``name``: of the hold, by default one of its own.
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
    """One try."""

    def __init__(self, call: Call, progress: Progress, hold_ms: int, name: str) -> None:
        self._ask = call
        self._progress = progress
        self._hold_ms = hold_ms
        self._name = name
        self._held_at = 0.0
        self._followed_at = 0.0
        self._now: Replica

    async def run(self, path: str) -> dict[str, Any]:
        """See `take`."""
        began = anyio.current_time()
        try:
            position = await self._hold()
            self._now = await self._replica(position)
            since = self._held_since()
            cluster = self._now.cluster
            assert cluster is not None, "there is a log position behind its creation"
            with BackupWriter(path, cluster=cluster.name, cluster_id=cluster.id, origin=self._now) as writer:
                await self._settle(writer)
                position = self._now.position
                for partition in sorted(self._now.partitions):
                    position = max(position, await self._partition(writer, partition, position))
                    self._progress(f"partition {partition + 1} of {len(self._now.partitions)}, {writer.rows} rows")
                await self._read_log(writer, position)
                if self._held_since() != since or self._now.transactions:
                    raise Unavailable("transactions went on before all was read", hint="Take the backup again.")
        finally:
            await self._let_go()
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
        """Position at which our hold began; raises `Unavailable` if it is over."""
        found = on_hold(self._now)
        if found is None or found.name != self._name:
            raise Unavailable("the backup could not have transactions wait for long enough", hint="Take it again.")
        return found.since

    async def _let_go(self) -> None:
        with anyio.move_on_after(LET_GO_S, shield=True):
            try:
                await self._ask("backup.hold", {"name": self._name, "why": WHY, "for_ms": 0})
            except OnyxqError:
                pass  # it was not begun, or it ends by itself

    async def _settle(self, writer: BackupWriter) -> None:
        """Follow the log until nothing that was committed before is still to be made visible."""
        until = anyio.current_time() + PATIENCE_S
        while self._now.transactions:
            if anyio.current_time() > until:
                raise Unavailable(f"{len(self._now.transactions)} transactions do not become visible")
            await self._follow(writer, wait_ms=WAIT_MS)

    # --- the log

    async def _replica(self, position: int) -> Replica:
        """A peer's replica at a position or behind it."""

        async def read() -> Replica:
            found = await ask_async(replica(), self._ask)
            if found.position < position:
                raise Unavailable("the peer that answers is behind with the log")
            return found

        return await self._insist(read)

    async def _read_log(self, writer: BackupWriter, position: int) -> None:
        while self._now.position < position:
            await self._follow(writer, wait_ms=WAIT_MS)

    async def _follow(self, writer: BackupWriter, *, wait_ms: int = 0) -> None:
        """Take some more of the log, and see to the hold."""
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

    async def _partition(self, writer: BackupWriter, partition: int, position: int) -> int:
        """Read all rows of a partition, as they were at one moment; the position that the log had reached then.

        Where its leader changes it is read again: rows that come twice do no harm.
        """
        for left in reversed(range(READ_TRIES)):
            try:
                return await self._pages(writer, partition, position)
            except Conflict:
                if not left:
                    raise
        raise AssertionError("the last try returns or raises")

    async def _pages(self, writer: BackupWriter, partition: int, position: int) -> int:
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
        """Repeat while errors pass, for a while."""
        until = anyio.current_time() + PATIENCE_S
        while True:
            try:
                return await body()
            except PASSING:
                if anyio.current_time() > until:
                    raise
            await anyio.sleep(RETRY_PAUSE_S)
