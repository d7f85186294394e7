"""Archive of the log's records, written before the log is trimmed (design: log collection).

A collector archives all records up to its new snapshot before it replaces the old one, which is the origin. The log
is trimmed after that. So if a collector dies, the next one still finds the missing records in the log.

A node archives its own copy of the log before a snapshot that does not continue it replaces the copy. After a lost
log, the newest records may exist in this copy only.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence

import trio
from attrs import frozen

from onyxq.core.errors import Corrupt, LogUnavailable, OnyxqError
from onyxq.core.log.interface import Origin, Record
from onyxq.core.replica import Cluster, Replica
from onyxq.history.archive import Archive
from onyxq.history.file_format import HistoryFileWriter
from onyxq.history.parquet.records import RecordTable, RecordWriter
from onyxq.node.log_view import Gone, LogView
from onyxq.node.node import Node
from onyxq.store.interface import KeptLog

RETRY_PAUSE_S = 5.0
COPY_TRIES = 3
"""Attempts to archive a node's own copy of the log: the node cannot join before that."""

log = logging.getLogger(__name__)


@frozen
class _Source:
    """Records to archive: those after the origin ``old``, up to ``upto``."""

    old: Origin | None
    upto: int
    cluster: Cluster | None
    pages: Callable[[int, int], AsyncIterator[Sequence[Record]]]
    """Yields the records from one position to another."""


class Archiver:
    """Writes one of a node's archives; see `onyxq.node.world.RecordKeeper`."""

    def __init__(self, archive: Archive | RecordTable, node: Node, view: LogView) -> None:
        self._archive = archive
        self._node = node
        self._view = view

    async def keep(self, old: Origin | None, upto: int) -> None:
        """Wait until every record up to ``upto`` that is still in the log is archived.

        ``old``: the origin before this collection. While the directory cannot be written it retries for ever: the
        log is not trimmed meanwhile.
        """
        while not await self._tried(_Source(old, upto, self._node.replica.cluster, self._view.pages)):
            await trio.sleep(RETRY_PAUSE_S)

    async def keep_copy(self, copy: KeptLog, cluster: Cluster | None) -> None:
        """Archive the records of the node's own copy of the log, or log that this has failed."""

        async def pages(first: int, last: int) -> AsyncIterator[Sequence[Record]]:
            yield [record for record in copy.records if first <= record.position <= last]

        old = Origin(copy.position, copy.snapshot, copy.position, 0) if copy.snapshot else None
        for _ in range(COPY_TRIES):
            if await self._tried(_Source(old, copy.end, cluster, pages)):
                return
            await trio.sleep(RETRY_PAUSE_S)
        log.error("%s may lack records up to %d, which were in this node's copy alone", self._where, copy.end)

    @property
    def _where(self) -> str:
        return str(self._archive.directory)

    async def _tried(self, source: _Source) -> bool:
        try:
            while await self._node.offload(self._archive.reached, source.old, source.cluster) < source.upto:
                await self._write(source)
        except Gone:
            log.info("archive in %s: another collector trimmed first", self._where)
        except (OnyxqError, OSError) as error:
            said = f"{error.message}. {error.advice}" if isinstance(error, OnyxqError) else str(error)
            log.warning("records cannot be written to %s, so nothing is trimmed: %s", self._where, said.strip())
            return False
        return True

    async def _write(self, source: _Source) -> None:
        offload = self._node.offload
        if source.cluster is None:
            raise LogUnavailable("the cluster is not known here yet")
        writer: HistoryFileWriter | RecordWriter = await offload(
            self._archive.writer, source.cluster, source.old, source.upto
        )
        first = writer.last + 1
        try:
            async for page in source.pages(first, source.upto):
                await offload(writer.add_all, page)
            await offload(writer.finish)
        except BaseException:
            writer.abort()
            raise
        log.info("archived records %s to %s in %s", first, source.upto, self._where)


async def archive_copy(node: Node, replica: Replica) -> None:
    """Archive a node's copy of the log before ``replica``, a snapshot that does not continue it, replaces the copy."""
    if not node.archivers or replica.position <= node.store.kept_ends()[1]:
        return
    try:
        copy = node.store.kept_log()
    except Corrupt as error:
        log.error("the copy of the log cannot be archived: %s", error.message)
        return
    for archiver in node.archivers:
        await archiver.keep_copy(copy, replica.cluster)
