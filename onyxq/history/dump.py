"""A log in one portable file: an origin and the records after it, to replay elsewhere.

`onyxq.history.file_format` describes the format.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from attrs import frozen

from onyxq.core import snapshot
from onyxq.core.limits import INT_MAX
from onyxq.core.log.interface import Record
from onyxq.core.replica import EMPTY, Replica
from onyxq.history.file_format import HistoryFile, HistoryFileWriter, Kind, open_file

KIND = Kind(
    "dump",
    (),
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


def write(
    path: str | os.PathLike[str],
    dump: Dump,
    *,
    upto: int = INT_MAX,
    progress: Callable[[HistoryFileWriter], None] = lambda _: None,
) -> HistoryFileWriter:
    """Write the records of a dump up to a position, and return the writer, which has the numbers.

    ``progress`` is called with the writer after each record.
    """
    origin = b"" if dump.origin is None else snapshot.pack(dump.origin)
    with HistoryFileWriter(path, KIND, cluster=dump.cluster, cluster_id=dump.cluster_id, origin=origin) as writer:
        for record in dump.records:
            if record.position > upto:
                break
            writer.add(record)
            progress(writer)
    return writer


def read(path: str | os.PathLike[str]) -> Dump:
    """Open a dump and check its header and origin.

    Its records are checked while they are read. Raises `NotFound`, `BadRequest` for another kind of file or a newer
    format, and `Corrupt` that names the damaged block. Iterating over the records raises the same errors.
    """
    return as_dump(open_file(path, KIND))


def as_dump(file: HistoryFile) -> Dump:
    """Return a dump whose records are read from an open file."""
    return Dump(file.cluster, file.origin, file, file.cluster_id)
