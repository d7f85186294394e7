"""Archiving records before they are trimmed (design: log collection); see `onyxq.history.archive`."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import trio

from onyxq.core.errors import LogUnavailable, OnyxqError
from onyxq.core.log.interface import START, Origin, Record
from onyxq.history.archive import Archive
from onyxq.history.dump import DumpWriter
from onyxq.node.log_view import Gone, LogView
from onyxq.node.node import Node

RETRY_PAUSE_S = 5.0

log = logging.getLogger(__name__)


class Archiver:
    """Writes a node's archive; a collector waits for it before it trims records."""

    def __init__(self, archive: Archive, node: Node, view: LogView) -> None:
        self._archive = archive
        self._node = node
        self._view = view

    async def keep(self, old: Origin | None, upto: int) -> None:
        """Wait until every record up to ``upto`` that is still in the log is archived.

        ``old``: the origin before this collection. While the directory cannot be written it retries for ever: the
        log is not trimmed meanwhile.
        """
        while True:
            try:
                await self._keep(old, upto)
                return
            except Gone:
                log.info("archive: another collector trimmed first")
                return
            except (OnyxqError, OSError) as error:
                log.warning("the archive in %s cannot be written, so nothing is trimmed: %s", self._where, error)
            await trio.sleep(RETRY_PAUSE_S)

    @property
    def _where(self) -> str:
        return str(self._archive.directory)

    async def _keep(self, old: Origin | None, upto: int) -> None:
        offload = self._node.offload
        covered: int = await offload(self._archive.covered)
        after = max(covered, old.trimmed if old is not None else START)
        if after >= upto:
            return
        cluster = self._node.replica.cluster
        if cluster is None:
            raise LogUnavailable("the cluster is not known here yet")
        # An origin before the file's first record would claim that the records between them are in the file.
        packed = old.data if old is not None and old.position >= after else b""
        writer = self._archive.writer(
            after=after, last=upto, cluster=cluster.name, cluster_id=cluster.id, origin=packed
        )
        await offload(writer.__enter__)
        try:
            async for page in self._view.pages(after + 1, upto):
                await offload(_add, writer, page)
        except BaseException as error:
            writer.__exit__(type(error), error, error.__traceback__)
            raise
        await offload(writer.__exit__, None, None, None)
        log.info("archived records %s to %s in %s", after + 1, upto, self._where)


def _add(writer: DumpWriter, page: Sequence[Record]) -> None:
    for record in page:
        writer.add(record)
