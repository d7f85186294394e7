"""The backup of a whole cluster in one file: a replica, all rows, and the log records since that replica.

The records end after the last row was read, so they cover every change during the backup. The format is that of
`onyxq.history.file_format`. Blocks of rows ``[partition, [[key, value], ...]]`` and blocks of records alternate, in the
order in which they were read. The file may contain a row several times.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from attrs import frozen

from onyxq.core.errors import BadRequest, OlderThanCluster
from onyxq.core.facts import Row, partition_of_key
from onyxq.core.placement import holders
from onyxq.core.replica import Replica
from onyxq.core.step import step
from onyxq.history.file_format import END, ROWS, Block, HistoryFile, Kind, damaged, open_file
from onyxq.store.row_checks import prepare
from onyxq.system.extensions import installed

KIND = Kind(
    "backup",
    (ROWS,),
    what="backup of a cluster",
    make="onyxq cluster backup",
    damaged="Nothing was restored. Use another backup.",
)


@frozen
class Backup:
    """A backup that was read once to its end without an error."""

    file: HistoryFile
    """Iterating yields the records after ``origin``, any number of times."""
    origin: Replica
    """The replica before the first record."""
    last: Replica
    """The replica after the last record."""
    records: int
    rows: int

    @property
    def nodes(self) -> list[str]:
        """The nodes that hold copies of its partitions; raises `BadRequest` if there are none."""
        found = {node for placed in self.last.partitions.values() for node in holders(placed)}
        if not found:
            raise BadRequest("the backup is of a cluster that no node ever joined", field="file")
        return sorted(found)

    def pages(self) -> Iterator[tuple[int, list[Row]]]:
        """Yield pages of rows, each with its partition."""
        for found in self.file.contents():
            if isinstance(found, Block) and found.kind == ROWS:
                yield _page(found, self.origin)


def read(path: str | os.PathLike[str]) -> Backup:
    """Read a backup to its end, and check it.

    Raises `NotFound`, `BadRequest` for another kind of file, `Corrupt` that names the block, and `OlderThanCluster` if
    it needs entries that are not installed.
    """
    file = open_file(path, KIND)
    origin, entries = file.origin, installed()
    if origin is None or origin.cluster is None:
        raise damaged(file.path, KIND, 1, "the replica is missing, or of no cluster")
    if unknown := entries.unknown(origin.enabled):
        raise OlderThanCluster(f"older than the backup: its cluster has enabled {unknown}")
    last, records, rows = origin, 0, 0
    for found in file.contents():
        if isinstance(found, list):
            for record in found:
                last = step(last, record, entries).replica
            records += len(found)
        elif found.kind == ROWS:
            rows += len(_page(found, origin)[1])
        elif found.kind == END and found.map().get("rows") != rows:
            raise found.error(f"it has {rows} rows and should have others")
    return Backup(file, origin, last, records, rows)


def _page(block: Block, origin: Replica) -> tuple[int, list[Row]]:
    """Return a partition and some of its rows, each checked as by a store; raises `Corrupt`."""
    match block.value():
        case (int(partition), tuple(found)) if partition in origin.partitions:
            pass
        case _:
            raise block.error("rows of a partition are expected there")
    rows = []
    for one in found:
        match one:
            case (bytes(key), bytes(value)):
                rows.append(Row(key, value))
            case _:
                raise block.error("a row is malformed")
        try:
            prepare(rows[-1])
        except BadRequest as error:
            raise block.error(error.message) from None
        if partition_of_key(key) != partition:
            raise block.error("a row is of another partition")
    return partition, rows
