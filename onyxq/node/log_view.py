"""The log as tools and subscribers read it through a peer: records as stored, the origin, the replica.

Answers are bounded in size: records come in pages, the origin and the packed replica in parts. The newest
records are kept in memory, so followers at the end cause no reads of the log. For older ones the node opens
its own session with the log, and closes it when it is idle. A node shows only records that it has applied.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio
from attrs import frozen

from onyxq.core import snapshot
from onyxq.core.errors import Conflict, LogUnavailable
from onyxq.core.log.interface import START, LogBackend, LogSession, Record, SessionLost, Trimmed
from onyxq.core.replica import Replica
from onyxq.node.collector import packed
from onyxq.node.node import Node
from onyxq.operations.table.log import (
    LOG_PAGE_MAX,
    GetOrigin,
    GetRawLog,
    GetReplica,
    GetReplicaPart,
    OriginPart,
    RawLog,
    RawRecord,
    ReplicaDigest,
    ReplicaPart,
)

PAGE_BYTES_MAX = 4 << 20
"""Maximum bytes of records in one answer; a single record may be larger."""
PART_BYTES = 4 << 20
"""Maximum bytes of the origin, or of the packed replica, in one answer."""
READ_TIMEOUT_S = 8.0
"""Time limit for reading one page, in seconds.

The answer has what was read by then.
"""
IDLE_S = 15.0


@frozen
class _Packed:
    """A packed replica whose parts are being fetched."""

    position: int
    data: bytes
    digest: str = ""


class LogView:
    """Reads of the log through a node.

    Without ``backend`` only what is in memory is shown.
    """

    def __init__(self, node: Node, backend: LogBackend | None) -> None:
        self._node = node
        self._backend = backend
        self._session: LogSession | None = None
        self._lock = trio.Lock()
        self._asked = 0.0
        self._origin: _Packed | None = None
        self._replica: _Packed | None = None
        self._packing = trio.Lock()
        self._digest: tuple[Replica, str] | None = None

    # --- methods of the node

    async def raw(self, args: GetRawLog) -> RawLog:
        """Return records as stored, from a position; with ``wait_ms``, wait until there is one.

        The answer has the origin's position if the records at the position are trimmed.
        Raises `LogUnavailable`.
        """
        node, start, limit = self._node, args.from_, args.limit
        with trio.move_on_after(args.wait_ms / 1000):
            while node.replica.position < start:
                await node.moved()
        trimmed = None
        records: list[Record] = []
        if node.records.reaches(start):
            records = node.records.page(start, limit, PAGE_BYTES_MAX)
        elif start <= node.replica.position:
            records, trimmed = await self._read(start, limit)
        if trimmed is not None:
            return RawLog(position=node.replica.position, trimmed=trimmed)
        return RawLog(
            position=node.replica.position,
            records=[RawRecord(one.position, one.ctime_ms, one.data) for one in records],
            next=records[-1].position + 1 if records else start,
        )

    async def origin(self, args: GetOrigin) -> OriginPart:
        """Return a part of the log's origin; position -1 and no parts before the first collection.

        ``position``: the origin of the earlier parts. Raises `Conflict` if there is a newer one, and
        `LogUnavailable`.
        """
        wanted = args.position
        if wanted is None or self._origin is None or self._origin.position != wanted:
            async with self.session() as session:
                found = await session.origin()
            self._origin = _Packed(START, b"") if found is None else _Packed(found.position, found.data)
        self._forget_later()
        return OriginPart(**_part(self._origin, args.part, wanted, "origin"))

    async def replica(self, args: GetReplica) -> ReplicaDigest:
        """Return the position, the digest and the log time of this node's replica."""
        replica = self._node.replica
        digest = await self._digest_of(replica)
        return ReplicaDigest(position=replica.position, digest=digest, log_time_ms=replica.log_time_ms)

    async def replica_part(self, args: GetReplicaPart) -> ReplicaPart:
        """Return a part of this node's packed replica; raises `Conflict` if that of the earlier parts is gone."""
        wanted = args.position
        if wanted is None or self._replica is None or self._replica.position != wanted:
            replica = self._node.replica
            digest = await self._digest_of(replica)
            self._replica = _Packed(replica.position, await packed(replica), digest)
        self._forget_later()
        return ReplicaPart(**_part(self._replica, args.part, wanted, "replica"), digest=self._replica.digest)

    async def _digest_of(self, replica: Replica) -> str:
        async with self._packing:
            if self._digest is None or self._digest[0] is not replica:
                self._digest = replica, await _digest(replica)
                self._forget_later()
            return self._digest[1]

    # --- reading the log beside the peer

    async def pages(self, start: int, last: int) -> AsyncGenerator[list[Record], None]:
        """Yield every record from ``start`` to ``last``, which must be written; raises `Gone`, `LogUnavailable`."""
        while start <= last:
            if self._node.records.reaches(start):
                page, trimmed = self._node.records.page(start, LOG_PAGE_MAX, PAGE_BYTES_MAX), None
            else:
                async with self.session() as session:
                    page, trimmed = await self._page(session, start, LOG_PAGE_MAX, last)
            if trimmed is not None:
                raise Gone(trimmed)
            if not page:
                raise LogUnavailable("the log cannot be read now")
            start = page[-1].position + 1
            yield [record for record in page if record.position <= last]

    async def _read(self, start: int, limit: int) -> tuple[list[Record], int | None]:
        async with self.session() as session:
            return await self._page(session, start, limit, self._node.replica.position)

    async def _page(self, session: LogSession, start: int, limit: int, last: int) -> tuple[list[Record], int | None]:
        """Return records from ``start``, or the position of the origin if they are trimmed."""
        out: list[Record] = []
        size = 0
        with trio.move_on_after(READ_TIMEOUT_S) as scope:
            while start <= last and len(out) < limit and size < PAGE_BYTES_MAX:
                found = await session.read(start)
                if isinstance(found, Trimmed):
                    return out, None if out else found.origin
                if found.position > last:
                    break
                out.append(found)
                size += len(found.data)
                start = found.position + 1
        if scope.cancelled_caught and not out:
            raise LogUnavailable("the log could not be read in time")
        return out, None

    @asynccontextmanager
    async def session(self) -> AsyncIterator[LogSession]:
        """Yield the node's second session with the log, one user at a time; raises `LogUnavailable`."""
        async with self._lock:
            if self._backend is None:
                raise LogUnavailable("this node was started without access to the log")
            if self._session is None:
                self._session = await self._backend.session()
            session = self._session
            self._forget_later()
            try:
                yield session
            except SessionLost:
                if self._session is session:  # Otherwise it is being closed.
                    self._session = None
                    await session.aclose()
                raise LogUnavailable("the session with the log was lost") from None

    def _forget_later(self) -> None:
        self._asked = trio.current_time()
        if not self._closing:
            self._closing = True
            self._node.start_soon(self._close_idle)

    def _serves(self) -> bool:
        return self._lock.locked() and self._session is not None and self._session.connected

    _closing = False

    async def _close_idle(self) -> None:
        """Close the session and drop packed data after `IDLE_S` without a request, and not while one is served.

        A request that waits for a log out of reach is not served: it ends with the session.
        """
        try:
            while (left_s := self._asked + IDLE_S - trio.current_time()) > 0 or self._serves():
                await trio.sleep(left_s if left_s > 0 else IDLE_S)
        finally:
            self._closing = False
            self._origin = self._replica = self._digest = None
            session, self._session = self._session, None
            if session is not None:
                with trio.move_on_after(2.0, shield=True):
                    await session.aclose()


class Gone(LogUnavailable):
    """Records were trimmed before they could be read; ``origin`` is the position after which the log begins."""

    def __init__(self, origin: int) -> None:
        super().__init__(f"the log begins after {origin} now")
        self.origin = origin


async def _digest(replica: Replica) -> str:
    """Return the same as `snapshot.digest`, computed in slices of the event loop."""
    found = hashlib.blake2b(digest_size=snapshot.DIGEST_BYTES)
    for part in snapshot.canonical(replica):
        found.update(part)
        await trio.lowlevel.checkpoint()
    return found.hexdigest()


def _part(packed: _Packed, part: int, wanted: int | None, what: str) -> dict[str, Any]:
    if wanted is not None and wanted != packed.position:
        raise Conflict(f"the {what} is that of position {packed.position} now", field="position", hint="Start over.")
    return {
        "position": packed.position,
        "part": part,
        "parts": -(-len(packed.data) // PART_BYTES),
        "bytes": len(packed.data),
        "data": packed.data[part * PART_BYTES : (part + 1) * PART_BYTES],
    }
