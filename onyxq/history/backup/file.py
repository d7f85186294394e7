"""A whole cluster in one file: a replica, every row, and the log up to after the last row was read.

The format is that of `onyxq.history.log_file`, with these additions:

* ``P``, mixed with the records as they were read: packed pages ``[partition, [[key, value], ...]]`` of rows,
* ``E`` also has ``rows``, their number.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from attrs import frozen

from onyxq.core import snapshot
from onyxq.core.errors import BadRequest
from onyxq.core.facts import Row, partition_of_key
from onyxq.core.log.interface import Record
from onyxq.core.replica import Replica
from onyxq.history.blocks import Kind, damaged, packed, read_blocks, unpacked, unpacked_map
from onyxq.history.log_file import LogFileWriter, read_beginning, read_records
from onyxq.store.row_checks import prepare

KIND = Kind(
    b"ONYXQBAK",
    (b"H", b"O", b"R", b"P", b"E"),
    what="backup of a cluster",
    make="onyxq cluster backup",
    damaged="Nothing was restored. Use another backup.",
)


class BackupWriter(LogFileWriter):
    """Writes a backup; see `LogFileWriter`."""

    def __init__(self, path: str | os.PathLike[str], *, cluster: str, cluster_id: str, origin: Replica) -> None:
        super().__init__(path, KIND, cluster=cluster, cluster_id=cluster_id, origin=snapshot.pack(origin))
        self.rows = 0

    def add_rows(self, partition: int, rows: Sequence[Sequence[bytes]]) -> None:
        """Append a page of a partition's rows."""
        if rows:
            self._blocks.add(b"P", packed([partition, rows]))
            self.rows += len(rows)

    def _end(self) -> dict[str, int]:
        return {**super()._end(), "rows": self.rows}


@frozen
class Backup:
    """A backup whose header and replica were checked.

    ``records`` and ``pages`` can be iterated repeatedly.
    """

    path: Path
    cluster: str
    cluster_id: str
    origin: Replica

    def records(self) -> Iterator[Record]:
        """Yield the records after the replica, in the order of the log; raises `Corrupt`."""
        return read_records(self.path, KIND, after=self.origin.position)

    def pages(self) -> Iterator[tuple[int, list[Row]]]:
        """Yield pages of rows, each with its partition; raises `Corrupt`."""
        for number, (kind, body) in enumerate(read_blocks(self.path, KIND)):
            if kind != b"P":
                continue
            yield self._page(number, body)

    def _page(self, number: int, body: bytes) -> tuple[int, list[Row]]:
        """Return a partition and some of its rows, each checked as by a store; raises `Corrupt`."""
        match unpacked(self.path, KIND, number, body):
            case (int(partition), tuple(found)) if partition in self.origin.partitions:
                pass
            case _:
                raise damaged(self.path, KIND, number, "rows of a partition are expected there")
        rows = []
        for one in found:
            match one:
                case (bytes(key), bytes(value)):
                    rows.append(Row(key, value))
                case _:
                    raise damaged(self.path, KIND, number, "a row is malformed")
            try:
                prepare(rows[-1])
            except BadRequest as error:
                raise damaged(self.path, KIND, number, error.message) from None
            if partition_of_key(key) != partition:
                raise damaged(self.path, KIND, number, "a row is of another partition")
        return partition, rows

    def check(self) -> dict[str, int]:
        """Check every block, compare the numbers with those in the last block, and return those; raises `Corrupt`."""
        records = sum(1 for _ in self.records())
        rows = number = 0
        said: dict[str, int] = {}
        for number, (kind, body) in enumerate(read_blocks(self.path, KIND)):
            if kind == b"P":
                rows += len(self._page(number, body)[1])
            elif kind == b"E":
                said = unpacked_map(self.path, KIND, number, body)
        if (said.get("records"), said.get("rows")) != (records, rows):
            raise damaged(self.path, KIND, number, f"it has {records} records and {rows} rows and should have others")
        return said


def read(path: str | os.PathLike[str]) -> Backup:
    """Open a backup.

    Raises `NotFound`, `BadRequest` for another kind of file, and `Corrupt` that names the block.
    """
    path = Path(path)
    found = read_beginning(path, KIND)
    if found.origin is None or found.origin.cluster is None:
        raise damaged(path, KIND, 1, "the replica is missing, or of no cluster")
    return Backup(path, found.cluster, found.cluster_id, found.origin)
