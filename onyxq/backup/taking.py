"""Taking a backup of a cluster that is in use, through any peer.

First the transactions are held (``hold_transactions``), as they alone span partitions, and those under
way are waited for.  The replica is read, then every partition's rows from its leader, and meanwhile,
and behind them, the log: so the replica that its records lead to is newer than any row.  At the end
the hold must still be the one that was begun; then no transaction is in the file by halves.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

from onyxq.backup.file import BackupWriter
from onyxq.errors import Conflict, OnyxqError, Unavailable
from onyxq.extensions import installed
from onyxq.following import PASSING, Trimmed, ask, replica
from onyxq.log.interface import Record
from onyxq.replica import Replica
from onyxq.step import step
from onyxq.transactions import on_hold

HOLD_MS = 60_000
"""How long transactions wait for a backup that is heard of no more."""
RENEW_S = 15.0
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

Call: TypeAlias = Callable[[str, dict[str, Any]], Any]
T = TypeVar("T")


class Taking:
    """One backup; ``call`` asks a method of any peer, ``progress`` hears of rows and partitions done."""

    def __init__(self, call: Call, *, progress: Callable[[str], None] = lambda _: None) -> None:
        self._ask = call
        self._progress = progress
        self._name = f"backup-{secrets.token_hex(8)}"
        self._held_at = 0.0
        self._followed_at = 0.0
        self._now: Replica

    def run(self, path: str) -> dict[str, Any]:
        """Write the file; what is in it. Raises `OnyxqError`, and then there is none."""
        began = time.monotonic()
        try:
            position = self._hold()
            self._now = self._replica(position)
            since = self._held_since()
            cluster = self._now.cluster
            assert cluster is not None, "there is a log position behind its creation"
            with BackupWriter(path, cluster=cluster.name, cluster_id=cluster.id, origin=self._now) as writer:
                self._settle(writer)
                position = self._now.position
                for partition in sorted(self._now.partitions):
                    position = max(position, self._partition(writer, partition, position))
                    self._progress(f"partition {partition + 1} of {len(self._now.partitions)}, {writer.rows} rows")
                self._read_log(writer, position)
                if self._held_since() != since or self._now.transactions:
                    raise Unavailable("transactions went on before all was read", hint="Take the backup again.")
        finally:
            self._let_go()
        return {
            "file": path,
            "cluster": cluster.name,
            "cluster_id": cluster.id,
            "rows": writer.rows,
            "records": writer.records,
            "position": writer.last,
            "seconds": round(time.monotonic() - began, 3),
        }

    # --- the hold

    def _hold(self) -> int:
        asked_at = time.monotonic()
        answer = self._call("backup.hold", {"name": self._name, "why": WHY, "for_ms": HOLD_MS})
        self._held_at = asked_at
        return int(answer["position"])

    def _held_since(self) -> int:
        """Position at which our hold began; raises `Unavailable` if it is over."""
        found = on_hold(self._now)
        if found is None or found.name != self._name:
            raise Unavailable("the backup could not have transactions wait for long enough", hint="Take it again.")
        return found.since

    def _let_go(self) -> None:
        try:
            self._ask("backup.hold", {"name": self._name, "why": WHY, "for_ms": 0})
        except OnyxqError:
            pass  # it was not begun, or it ends by itself

    def _settle(self, writer: BackupWriter) -> None:
        """Follow the log until nothing that was committed before is still to be made visible."""
        until = time.monotonic() + PATIENCE_S
        while self._now.transactions:
            if time.monotonic() > until:
                raise Unavailable(f"{len(self._now.transactions)} transactions do not become visible")
            self._follow(writer, wait_ms=WAIT_MS)

    # --- the log

    def _replica(self, position: int) -> Replica:
        """A peer's replica at a position or behind it."""

        def read() -> Replica:
            found = ask(replica(), self._ask)
            if found.position < position:
                raise Unavailable("the peer that answers is behind with the log")
            return found

        return self._insist(read)

    def _read_log(self, writer: BackupWriter, position: int) -> None:
        while self._now.position < position:
            self._follow(writer, wait_ms=WAIT_MS)

    def _follow(self, writer: BackupWriter, *, wait_ms: int = 0) -> None:
        """Take some more of the log, and see to the hold."""
        if time.monotonic() - self._held_at > RENEW_S:
            self._hold()
        start = self._now.position + 1
        answer = self._call("log.raw", {"from": start, "limit": LOG_PAGE_RECORDS, "wait_ms": wait_ms})
        if "trimmed" in answer:
            raise Trimmed(start, answer["trimmed"])
        for one in answer["records"]:
            record = Record(*one)
            self._now = step(self._now, record, installed()).replica
            writer.add_record(record)
        self._followed_at = time.monotonic()

    # --- rows

    def _partition(self, writer: BackupWriter, partition: int, position: int) -> int:
        """Read all rows of a partition, as they were at one moment; the position that the log had reached then.

        Where its leader changes it is read again: rows that come twice do no harm.
        """
        for left in reversed(range(READ_TRIES)):
            try:
                return self._pages(writer, partition, position)
            except Conflict:
                if not left:
                    raise
        raise AssertionError("the last try returns or raises")

    def _pages(self, writer: BackupWriter, partition: int, position: int) -> int:
        after: bytes | None = b""
        while after is not None:
            page = self._call("backup.rows", {"partition": partition, "position": position, "after": after})
            writer.add_rows(partition, page["rows"])
            position, after = max(position, page["position"]), page["after"]
            if time.monotonic() - self._followed_at > FOLLOW_S:
                self._follow(writer)
        return position

    # --- asking

    def _call(self, method: str, args: dict[str, Any]) -> Any:
        return self._insist(lambda: self._ask(method, args))

    def _insist(self, body: Callable[[], T]) -> T:
        """Repeat while errors pass, for a while."""
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                return body()
            except PASSING:
                if time.monotonic() > until:
                    raise
            time.sleep(RETRY_PAUSE_S)
