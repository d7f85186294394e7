"""A log in one portable file: an origin and the records behind it, to replay elsewhere.

The file is made of checked blocks (`onyxq.blocks`), in this order:

* ``H``: msgpack map: ``format``, ``cluster`` and ``cluster_id``, ``origin`` (its position, or null),
* ``O``: a part of the packed origin (`onyxq.snapshot`), none if the log starts at its beginning,
* ``R``: zlib of msgpack of records ``[position, ctime in ms, bytes]``, in the order of the log,
* ``E``: msgpack map: ``records`` and ``last``, how many there are and the last one's position.

Both writing and reading keep no more than a block (and the origin) in memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import msgpack
from attrs import frozen

from onyxq import snapshot
from onyxq.blocks import BlockFile, Kind, damaged, packed, read_blocks, unpacked, unpacked_map
from onyxq.errors import BadRequest, Corrupt
from onyxq.log.interface import Record
from onyxq.replica import EMPTY, START_POSITION, Replica

MAGIC = b"ONYXQLOG"
FORMAT = 1
BLOCK_BYTES = 1 << 20
"""Bytes of records that are compressed together."""
ORIGIN_PART_BYTES = 4 << 20
KIND = Kind(
    MAGIC,
    (b"H", b"O", b"R", b"E"),
    what="dump of a log",
    make="onyxq log dump",
    damaged="Records of the blocks before it can be replayed with --until; dump the log again if it is still there.",
)
_RECORD_OVERHEAD_BYTES = 24


@frozen
class Dump:
    """A log from an origin, or from its beginning, on. ``records`` may be gone through repeatedly."""

    cluster: str
    origin: Replica | None
    records: Iterable[Record]
    cluster_id: str = ""

    @property
    def start(self) -> Replica:
        """The replica before the first record."""
        return EMPTY if self.origin is None else self.origin


class DumpWriter:
    """Writes a dump record by record; use ``with``.

    The file has its name only once it is complete and durable: what stood there before is
    replaced then, and a writer that is interrupted leaves nothing under it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        cluster: str,
        cluster_id: str = "",
        origin: bytes = b"",
        after: int | None = None,
    ) -> None:
        """``origin``: the packed replica from which the records go on, empty for the beginning; raises `Corrupt`.

        ``after``: position behind which records are taken, if that is not the origin's.
        """
        self.records = 0
        self._start = snapshot.unpack(origin).position if origin else None
        self.last = START_POSITION if self._start is None else self._start
        if after is not None:
            self.last = after
        self._path = Path(path)
        self._cluster, self._cluster_id, self._origin = cluster, cluster_id, origin
        self._pending: list[tuple[int, int, bytes]] = []
        self._pending_bytes = 0

    def __enter__(self) -> DumpWriter:
        self._file = BlockFile(self._path, KIND).__enter__()
        header = {
            "format": FORMAT,
            "cluster": self._cluster,
            "cluster_id": self._cluster_id,
            "origin": self._start,
        }
        self._file.add(b"H", msgpack.packb(header))
        for start in range(0, len(self._origin), ORIGIN_PART_BYTES):
            self._file.add(b"O", self._origin[start : start + ORIGIN_PART_BYTES])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._flush()
            self._file.add(b"E", msgpack.packb({"records": self.records, "last": self.last}))
        self._file.__exit__(kind, error, trace)

    def add(self, record: Record) -> None:
        """Append a record, which must lie behind the last one (one that does not is left out)."""
        if record.position <= self.last:
            return
        self._pending.append((record.position, record.ctime_ms, record.data))
        self._pending_bytes += len(record.data) + _RECORD_OVERHEAD_BYTES
        self.last = record.position
        self.records += 1
        if self._pending_bytes >= BLOCK_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._pending:
            self._file.add(b"R", packed(self._pending))
            self._pending, self._pending_bytes = [], 0


def write(path: str | os.PathLike[str], dump: Dump) -> int:
    """Write a whole dump; how many records it has."""
    origin = b"" if dump.origin is None else snapshot.pack(dump.origin)
    with DumpWriter(path, cluster=dump.cluster, cluster_id=dump.cluster_id, origin=origin) as writer:
        for record in dump.records:
            writer.add(record)
    return writer.records


def read(path: str | os.PathLike[str]) -> Dump:
    """Open a dump: its header and origin are checked now, its records as they are gone through.

    Raises `NotFound`, `BadRequest` for another kind of file or a newer format, and
    `Corrupt` naming the block that is damaged; so does going through the records.
    """
    path = Path(path)
    header: dict[str, Any] = {}
    parts: list[bytes] = []
    for kind, body in read_blocks(path, KIND):
        if not header:
            if kind != b"H":
                raise damaged(path, KIND, 0, "the header is expected there")
            header = _header(path, body)
        elif kind == b"O":
            parts.append(body)
        else:
            break
    try:
        origin = snapshot.unpack(b"".join(parts)) if parts else None
    except Corrupt as error:
        raise damaged(path, KIND, 1, error.message) from None
    if header["origin"] != (None if origin is None else origin.position):
        raise damaged(path, KIND, 1, "the origin does not fit the header")
    return Dump(header["cluster"], origin, _Records(path), header["cluster_id"])


@frozen
class _Records:
    """The records of a file, read anew each time."""

    path: Path

    def __iter__(self) -> Iterator[Record]:
        last, count = START_POSITION, 0
        for number, (kind, body) in enumerate(read_blocks(self.path, KIND)):
            if kind == b"R":
                for record in _records(self.path, number, body):
                    if record.position <= last:
                        raise damaged(self.path, KIND, number, f"record {record.position} is out of order")
                    last, count = record.position, count + 1
                    yield record
            elif kind == b"E" and unpacked_map(self.path, KIND, number, body).get("records") != count:
                raise damaged(self.path, KIND, number, f"it has {count} records and should have others")


def _header(path: Path, body: bytes) -> dict[str, Any]:
    header = unpacked_map(path, KIND, 0, body)
    if header.get("format") != FORMAT:
        raise BadRequest(
            f"{path} has format {header.get('format')}, this program reads {FORMAT}",
            field="file",
            hint="Read it with the version that wrote it.",
        )
    return {"cluster": "", "cluster_id": "", "origin": None, **header}


def _records(path: Path, number: int, body: bytes) -> list[Record]:
    try:
        return [Record(*one) for one in unpacked(path, KIND, number, body)]
    except TypeError as error:
        raise damaged(path, KIND, number, str(error)) from None
