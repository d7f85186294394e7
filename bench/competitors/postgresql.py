"""A table in PostgreSQL as a queue: INSERT, UPDATE of rows found with SKIP LOCKED, DELETE.

The server refuses to run as root. Under root it runs as the user ``postgres`` of the Debian
package. Waiting claims (latency) are woken by NOTIFY.
"""

from __future__ import annotations

import os
import pwd
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.competitors.base import AsyncLane, AsyncSystem, Batch, Skip
from bench.competitors.servers import START_SECONDS_MAX, Servers, find_program, free_port, version_of

USER = "postgres"

CREATE = """
CREATE TABLE {queue} (id bigserial PRIMARY KEY, payload bytea NOT NULL, claimed_until timestamptz, worker int);
CREATE INDEX {queue}_ready ON {queue} (id) WHERE claimed_until IS NULL;
"""
INSERT = "INSERT INTO {queue} (payload) SELECT unnest(%b::bytea[])"
INSERT_ONE = "INSERT INTO {queue} (payload) VALUES (%b)"
CLAIM = """
UPDATE {queue} SET claimed_until = now() + interval '60 seconds', worker = %b
WHERE id IN (SELECT id FROM {queue} WHERE claimed_until IS NULL ORDER BY id LIMIT %b FOR UPDATE SKIP LOCKED)
RETURNING id, payload
"""
DELETE = "DELETE FROM {queue} WHERE id = ANY(%b::bigint[])"


class PostgresLane:
    """One connection in autocommit mode: each call is one transaction."""

    def __init__(self, connection: Any, queue: str, *, worker: int, waiting: bool) -> None:
        self._connection = connection
        self._queue = queue
        self._worker = worker
        self._waiting = waiting
        self._listens = False
        self._insert, self._insert_one = INSERT.format(queue=queue), INSERT_ONE.format(queue=queue)
        self._claim, self._delete = CLAIM.format(queue=queue), DELETE.format(queue=queue)

    async def enqueue(self, payloads: Sequence[bytes]) -> None:
        """Send one INSERT, and one NOTIFY after it if workers wait."""
        if len(payloads) == 1:
            await self._connection.execute(self._insert_one, (payloads[0],))
        else:
            await self._connection.execute(self._insert, (list(payloads),))
        if self._waiting:
            await self._connection.execute(f"NOTIFY {self._queue}")

    async def claim(self, count: int, wait_s: float) -> Batch:
        """Send one UPDATE; if it finds no task and workers wait, repeat it after the next NOTIFY."""
        if self._waiting and not self._listens:
            await self._connection.execute(f"LISTEN {self._queue}")
            self._listens = True
        rows = await self._take(count)
        if not rows and self._waiting:
            async for _ in self._connection.notifies(timeout=wait_s, stop_after=1):
                pass
            rows = await self._take(count)
        return Batch([row[1] for row in rows], [row[0] for row in rows])

    async def complete(self, receipt: Any) -> None:
        """Send one DELETE."""
        await self._connection.execute(self._delete, (receipt,))

    async def _take(self, count: int) -> list[Any]:
        cursor = await self._connection.execute(self._claim, (self._worker, count), binary=True)
        rows: list[Any] = await cursor.fetchall()
        return rows


class PostgreSql(AsyncSystem):
    """One PostgreSQL server as installed: fsync and synchronous_commit on."""

    name = "postgresql"

    def __init__(self) -> None:
        self._servers = Servers()
        self._port = 0
        self._connections: list[Any] = []
        self._version = "unknown"

    def start(self, directory: Path) -> None:
        """Make a database cluster in ``directory`` and start its server."""
        try:
            import psycopg  # noqa: F401
        except ImportError:
            raise Skip("the Python package psycopg is not installed") from None
        also = [str(path) for path in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)]
        initdb = find_program("initdb", package="postgresql", also=also)
        postgres = find_program("postgres", package="postgresql", also=also)
        self._version = version_of([postgres, "--version"])
        user = USER if os.geteuid() == 0 else None
        if user is not None:
            account = _account(user)
            os.chown(directory, account.pw_uid, account.pw_gid)
        data = directory / "data"
        argv = [initdb, "-D", str(data), "-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C"]
        subprocess.run(argv, check=True, capture_output=True, cwd=directory, user=user, group=user, timeout=120)
        self._port = free_port()
        self._servers.run(
            [postgres, "-D", str(data), "-p", str(self._port), "-c", "listen_addresses=127.0.0.1",
             "-c", f"unix_socket_directories={directory}", "-c", "max_connections=120"],
            directory=directory,
            name="postgres",
            user=user,
        )  # fmt: skip
        self._servers.wait_port(self._port)
        self._wait_serving()

    def stop(self) -> None:
        """Stop the server; open connections have been closed before."""
        self._servers.stop()

    def settings(self) -> dict[str, Any]:
        """Return version and durability."""
        return {
            "server": self._version,
            "servers": 1,
            "durability": "fsync on, synchronous_commit on; other settings as installed, max_connections=120",
            "calls": "INSERT, UPDATE ... FOR UPDATE SKIP LOCKED ... RETURNING, DELETE; NOTIFY in the latency program",
            "client": "psycopg 3 asyncio, prepared statements, one connection per lane",
        }

    async def open(self, queue: str, *, lanes: int, waiting: bool) -> list[AsyncLane]:
        """Make a table, and open one connection per lane."""
        from psycopg import AsyncConnection

        table = queue.replace("-", "_")
        self._connections = []
        for _ in range(lanes):
            self._connections.append(
                await AsyncConnection.connect(self._conninfo(), autocommit=True, prepare_threshold=1)
            )
        await self._connections[0].execute(CREATE.format(queue=table), prepare=False)
        return [
            PostgresLane(each, table, worker=number, waiting=waiting) for number, each in enumerate(self._connections)
        ]

    def _conninfo(self) -> str:
        return f"host=127.0.0.1 port={self._port} user={USER} dbname=postgres"

    def _wait_serving(self) -> None:
        """Wait until the server accepts connections, which is after its port is open."""
        import psycopg

        until = time.monotonic() + START_SECONDS_MAX
        while True:
            try:
                psycopg.connect(self._conninfo()).close()
                return
            except psycopg.OperationalError:
                self._servers.check()
                if time.monotonic() > until:
                    raise
                time.sleep(0.05)

    async def close(self) -> None:
        """Close every connection."""
        for connection in self._connections:
            await connection.close()


def _account(user: str) -> pwd.struct_passwd:
    try:
        return pwd.getpwnam(user)
    except KeyError:
        raise Skip(f"PostgreSQL does not run as root and there is no user {user}") from None
