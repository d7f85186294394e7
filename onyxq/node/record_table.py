"""Writing records to the table of records before they are trimmed (design: log collection).

A collector does so before it replaces the origin. So the present origin always leads to records that are
still in the log. If a collector dies, the next one writes the missing records with the same verdicts.
See `onyxq.history.parquet.records`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import trio

from onyxq.core import snapshot
from onyxq.core.errors import OnyxqError
from onyxq.core.log.interface import Origin, Record
from onyxq.core.replica import EMPTY, START_POSITION
from onyxq.history.parquet.records import RecordWriter, covered, reached
from onyxq.history.replay import steps
from onyxq.node.log_view import Gone, LogView
from onyxq.node.node import Node
from onyxq.node.record_archive import RETRY_PAUSE_S

log = logging.getLogger(__name__)


class RecordKeeper:
    """Writes the table in a node's directory; a collector waits for it before it trims records."""

    def __init__(self, directory: Path, node: Node, view: LogView) -> None:
        self._directory = directory
        self._node = node
        self._view = view

    async def keep(self, old: Origin | None, upto: int) -> None:
        """Wait until every record after the origin ``old`` up to ``upto`` is in the table.

        While the directory cannot be written it retries for ever: the log is not trimmed meanwhile.
        """
        while True:
            try:
                if await self._keep(old, upto):
                    return
                log.info("somebody else wrote some of the records to %s meanwhile", self._directory)
            except Gone:
                log.info("table of records: another collector trimmed first")
                return
            except (OnyxqError, OSError) as error:
                log.warning("records cannot be written to %s, so nothing is trimmed: %s", self._directory, error)
            await trio.sleep(RETRY_PAUSE_S)

    async def _keep(self, old: Origin | None, upto: int) -> bool:
        """Write the missing records, and return whether the table is complete."""
        offload, start = self._node.offload, START_POSITION if old is None else old.position
        if await offload(self._reached, start) >= upto:
            return True
        stepper = await offload(_Stepper, self._directory, b"" if old is None else old.data, self._node.node_id)
        try:
            async for page in self._view.pages(start + 1, upto):
                await offload(stepper.take, page)
            await offload(stepper.writer.finish)
        finally:
            stepper.writer.abort()
        written = stepper.writer.written
        log.info("wrote %d records up to %d to %s", written.records, upto, self._directory)
        return bool(await offload(self._reached, start) >= upto)

    def _reached(self, start: int) -> int:
        return reached(covered(self._directory), start)


class _Stepper:
    """Applies pages of the log from an origin and passes them to a writer; blocks."""

    def __init__(self, directory: Path, origin: bytes, owner: str) -> None:
        self._replica = snapshot.unpack(origin) if origin else EMPTY
        self.writer = RecordWriter(directory, self._replica.position, owner=owner)

    def take(self, page: Sequence[Record]) -> None:
        """Write a page's records; raises `BadRequest`, `OlderThanCluster`."""
        for done in steps(self._replica, page):
            self._replica = done.replica
            self.writer.add(done)
