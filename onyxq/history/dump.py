"""A log in one portable file: an origin and the records after it, to replay elsewhere.

`onyxq.history.log_file` describes the format.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from attrs import frozen

from onyxq.core import snapshot
from onyxq.core.log.interface import Record
from onyxq.core.replica import EMPTY, Replica
from onyxq.history.blocks import Kind
from onyxq.history.log_file import LogFileWriter, read_beginning, read_records

MAGIC = b"ONYXQLOG"
KIND = Kind(
    MAGIC,
    (b"H", b"O", b"R", b"E"),
    what="dump of a log",
    make="onyxq log dump",
    damaged="Records of the blocks before it can be replayed with --until; dump the log again if it is still there.",
)


@frozen
class Dump:
    """A log from its origin or its beginning.

    ``records`` can be iterated repeatedly.
    """

    cluster: str
    origin: Replica | None
    records: Iterable[Record]
    cluster_id: str = ""

    @property
    def start(self) -> Replica:
        """The replica before the first record."""
        return EMPTY if self.origin is None else self.origin


class DumpWriter(LogFileWriter):
    """Writes a dump; see `LogFileWriter`."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        cluster: str,
        cluster_id: str = "",
        origin: bytes = b"",
        after: int | None = None,
    ) -> None:
        super().__init__(path, KIND, cluster=cluster, cluster_id=cluster_id, origin=origin, after=after)


def write(path: str | os.PathLike[str], dump: Dump) -> int:
    """Write a whole dump, and return its number of records."""
    origin = b"" if dump.origin is None else snapshot.pack(dump.origin)
    with DumpWriter(path, cluster=dump.cluster, cluster_id=dump.cluster_id, origin=origin) as writer:
        for record in dump.records:
            writer.add(record)
    return writer.records


def read(path: str | os.PathLike[str]) -> Dump:
    """Open a dump and check its header and origin.

    Its records are checked while they are read. Raises `NotFound`, `BadRequest` for another kind of file or a newer
    format, and `Corrupt` that names the damaged block. Iterating over the records raises the same errors.
    """
    path = Path(path)
    found = read_beginning(path, KIND)
    return Dump(found.cluster, found.origin, _Records(path), found.cluster_id)


@frozen
class _Records:
    """The records of a file, read again by each iteration."""

    path: Path

    def __iter__(self) -> Iterator[Record]:
        return read_records(self.path, KIND)
