"""The relay's side of the outbox in PostgreSQL: one connection, and the statements that the relay needs.

A session lock lets only one relay work on a table at a time, so that rows keep their order. Nothing is lost or made
twice without it. The lock ends with the connection. So all that the relay learns in a round must be written on the
connection with which the round began.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from onyxq.core.errors import Incomplete, NotFound
from onyxq.core.ids import TaskId
from onyxq.outbox.rows import TABLE, PendingRow, RowMaker, create_table, fresh_id

if TYPE_CHECKING:
    from psycopg import Connection

CONNECT_TIMEOUT_S = 10
_SESSION = """
    SET synchronous_commit = on;
    SET tcp_keepalives_idle = 10;
    SET tcp_keepalives_interval = 5;
    SET tcp_keepalives_count = 3;
"""
"""A mark that is lost could make a second task. Keepalives end the lock of a machine that vanished."""
_PENDING = """
    SELECT seq, task_id, queue, data, options, sent_at IS NOT NULL AS sent
    FROM {table} WHERE error IS NULL ORDER BY seq LIMIT %s
"""
_RENAME = """
    UPDATE {table} SET options = jsonb_set(options, ARRAY['depends'], (
        SELECT jsonb_agg(coalesce(%(ids)s::jsonb -> (one #>> '{{}}'), one) ORDER BY place)
        FROM jsonb_array_elements(options->'depends') WITH ORDINALITY AS found(one, place)
    ))
    WHERE jsonb_typeof(options->'depends') = 'array' AND options->'depends' ?| %(old)s::text[]
"""
"""Gives rows the new ids of tasks on which they depend: the cluster would take the old ones for done and purged."""
_REFUSED = "SELECT seq, task_id, queue, created_at, error FROM {table} WHERE error IS NOT NULL ORDER BY seq LIMIT %s"


class Refused(NamedTuple):
    """A row that the cluster refuses for good. It stays in the table until it is sent again or discarded."""

    seq: int
    task_id: TaskId
    queue: str
    created_at: datetime
    error: str


class OutboxDatabase:
    """A connection with the database of an outbox; use it with ``with``.

    ``conninfo``: a URL or a connection string of libpq; parts that it does not name come from ``PGHOST``,
    ``PGPASSWORD`` and so on. Raises `psycopg.Error`, and `Incomplete` without psycopg.
    """

    def __init__(self, conninfo: str = "", *, table: str = TABLE) -> None:
        try:
            import psycopg
        except ImportError as error:
            raise Incomplete(f"the outbox needs psycopg: {error}", hint="pip install 'onyxq[outbox]'") from None
        self._table = RowMaker(table=table).table
        driver, scheme, rest = conninfo.partition("://")
        # A URL of SQLAlchemy also names the driver.
        url = f"{driver.partition('+')[0]}{scheme}{rest}" if scheme else conninfo
        self._connection: Connection[Any] = psycopg.connect(url, autocommit=True, connect_timeout=CONNECT_TIMEOUT_S)

    def __enter__(self) -> OutboxDatabase:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection, which ends the lock."""
        self._connection.close()

    def create(self) -> None:
        """Create the table unless it exists."""
        self._connection.execute(create_table(self._table).encode())

    def lock(self) -> bool:
        """Become the one relay of the table; return False if there is another."""
        self._connection.execute(_SESSION)
        question = "SELECT pg_try_advisory_lock(hashtextextended(%s, 0))"
        found = self._connection.execute(question, [f"onyxq outbox {self._table}"]).fetchone()
        return found is not None and bool(found[0])

    def pending(self, limit: int) -> list[PendingRow]:
        """Return the first rows that are not refused, in order."""
        return [
            PendingRow(
                seq=seq, task_id=TaskId(bytes(task_id)), queue=queue, data=bytes(data), options=options, sent=sent
            )
            for seq, task_id, queue, data, options, sent in self._run(_PENDING, [limit])
        ]

    def mark_sent(self, seqs: Sequence[int]) -> None:
        """Note that the rows may be enqueued from now on."""
        self._run("UPDATE {table} SET sent_at = now() WHERE seq = ANY(%s)", [list(seqs)])

    def delete(self, seqs: Sequence[int]) -> None:
        """Delete rows whose tasks are stored."""
        self._run("DELETE FROM {table} WHERE seq = ANY(%s)", [list(seqs)])

    def refuse(self, seq: int, error: str) -> None:
        """Set a row aside, with the reason."""
        self._run("UPDATE {table} SET error = %s WHERE seq = %s", [error.replace("\0", ""), seq])

    def renumber(self, fresh: Mapping[int, TaskId]) -> None:
        """Give rows new ids, by row number, and send them as new ones. Rows that depend on them name the new ids."""
        with self._connection.transaction():
            found = self._run("SELECT seq, task_id FROM {table} WHERE seq = ANY(%s)", [list(fresh)])
            ids = {bytes(task_id).hex(): fresh[seq].hex() for seq, task_id in found}
            self._run(_RENAME, {"ids": json.dumps(ids), "old": list(ids)})
            for seq, task_id in fresh.items():
                update = "UPDATE {table} SET task_id = %s, sent_at = NULL, error = NULL WHERE seq = %s"
                self._run(update, [task_id, seq])

    # --- for operators

    def refused(self, limit: int) -> list[Refused]:
        """Return the first rows that were refused."""
        return [Refused(seq, TaskId(bytes(task_id)), *rest) for seq, task_id, *rest in self._run(_REFUSED, [limit])]

    def retry(self, seq: int, *, fresh_ms: int | None = None) -> TaskId:
        """Let the relay send a refused row again; return the task's id. Raise `NotFound` if there is no such row.

        ``fresh_ms``: give the row a new id of this time. If its task was stored under the old id, it runs twice.
        """
        if fresh_ms is None:
            return self._one(
                "UPDATE {table} SET error = NULL WHERE seq = %s AND error IS NOT NULL RETURNING task_id", seq
            )
        fresh = fresh_id(self._one("SELECT task_id FROM {table} WHERE seq = %s AND error IS NOT NULL", seq), fresh_ms)
        self.renumber({seq: fresh})
        return fresh

    def discard(self, seq: int) -> TaskId:
        """Delete a refused row and return its task's id; raise `NotFound` if there is no such row."""
        return self._one("DELETE FROM {table} WHERE seq = %s AND error IS NOT NULL RETURNING task_id", seq)

    def _one(self, statement: str, seq: int) -> TaskId:
        found = self._run(statement, [seq])
        if not found:
            raise NotFound(f"the outbox has no refused row {seq}", hint="`onyxq outbox list` shows them.")
        return TaskId(bytes(found[0][0]))

    def _run(self, statement: str, values: Sequence[Any] | Mapping[str, Any]) -> list[tuple[Any, ...]]:
        cursor = self._connection.execute(statement.format(table=self._table).encode(), values)
        return cast(list[tuple[Any, ...]], cursor.fetchall()) if cursor.description else []
