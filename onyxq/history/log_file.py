"""The part that log dumps and cluster backups share: a replica, and the records after it.

Both are files of checksummed blocks (`onyxq.history.blocks`) with these kinds of blocks:

* ``H``: msgpack map: ``format``, ``cluster`` and ``cluster_id``, ``origin`` (the replica's position, or null),
* ``O``: a part of the packed replica (`onyxq.core.snapshot`), none if the log starts at its beginning,
* ``R``: zlib of msgpack of records ``[position, ctime in ms, bytes]``, in the order of the log,
* ``E``: msgpack map: ``records`` (their number) and ``last`` (the last position).

Writing and reading keep at most one block and the replica in memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgpack
from attrs import frozen

from onyxq.core import snapshot
from onyxq.core.entry import INT_MAX
from onyxq.core.errors import BadRequest, Corrupt
from onyxq.core.log.interface import Record
from onyxq.core.replica import START_POSITION, Replica
from onyxq.history.blocks import BlockFile, Kind, damaged, packed, read_blocks, unpacked, unpacked_map

FORMAT = 1
RECORDS_BYTES = 1 << 20
"""Bytes of records that are compressed together."""
ORIGIN_PART_BYTES = 4 << 20
_RECORD_OVERHEAD_BYTES = 24


class LogFileWriter:
    """Writes such a file record by record; use ``with``.

    The file gets its name only once it is complete and durable, and then replaces an existing file. An
    interrupted writer leaves nothing under that name.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        kind: Kind,
        *,
        cluster: str,
        cluster_id: str = "",
        origin: bytes = b"",
        after: int | None = None,
    ) -> None:
        """Prepare the file; raises `Corrupt` if ``origin`` is damaged.

        ``origin``: the packed replica from which the records continue; empty for the beginning of the log.
        ``after``: position after which records are taken, if it is not the origin's.
        """
        self.records = 0
        self._start = snapshot.unpack(origin).position if origin else None
        self.last = START_POSITION if self._start is None else self._start
        if after is not None:
            self.last = after
        self._blocks = BlockFile(path, kind)
        self._cluster, self._cluster_id, self._origin = cluster, cluster_id, origin
        self._pending: list[tuple[int, int, bytes]] = []
        self._pending_bytes = 0

    def __enter__(self) -> Self:
        self._blocks.__enter__()
        header = {
            "format": FORMAT,
            "cluster": self._cluster,
            "cluster_id": self._cluster_id,
            "origin": self._start,
        }
        self._blocks.add(b"H", msgpack.packb(header))
        for start in range(0, len(self._origin), ORIGIN_PART_BYTES):
            self._blocks.add(b"O", self._origin[start : start + ORIGIN_PART_BYTES])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._flush()
            self._blocks.add(b"E", msgpack.packb(self._end()))
        self._blocks.__exit__(kind, error, trace)

    def add(self, record: Record) -> None:
        """Append a record, unless it is at or before the position of the last one."""
        if record.position <= self.last:
            return
        self._pending.append((record.position, record.ctime_ms, record.data))
        self._pending_bytes += len(record.data) + _RECORD_OVERHEAD_BYTES
        self.last = record.position
        self.records += 1
        if self._pending_bytes >= RECORDS_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._pending:
            self._blocks.add(b"R", packed(self._pending))
            self._pending, self._pending_bytes = [], 0

    def _end(self) -> dict[str, int]:
        """Return the map of the last block."""
        return {"records": self.records, "last": self.last}


@frozen
class Beginning:
    """The beginning of such a file."""

    cluster: str
    cluster_id: str
    origin: Replica | None


def read_beginning(path: Path, kind: Kind) -> Beginning:
    """Return the header and the replica of a file.

    Raises `NotFound`, `BadRequest` for another kind of file or a newer format, and `Corrupt`.
    """
    blocks = read_blocks(path, kind)
    first, body = next(blocks)
    if first != b"H":
        raise damaged(path, kind, 0, "the header is expected there")
    header = _header(path, kind, body)
    parts = []
    for found, body in blocks:
        if found != b"O":
            break
        parts.append(body)
    try:
        origin = snapshot.unpack(b"".join(parts)) if parts else None
    except Corrupt as error:
        raise damaged(path, kind, 1, error.message) from None
    if header["origin"] != (None if origin is None else origin.position):
        raise damaged(path, kind, 1, "the origin does not fit the header")
    return Beginning(str(header["cluster"]), str(header["cluster_id"]), origin)


def read_records(path: Path, kind: Kind, *, after: int = START_POSITION) -> Iterator[Record]:
    """Yield the records after ``after``, in the order of the log.

    Raises `Corrupt` for a damaged block, and at the end if the number of records is wrong.
    """
    last, count = after, 0
    for number, (found, body) in enumerate(read_blocks(path, kind)):
        if found == b"R":
            for record in _records(path, kind, number, body):
                if record.position <= last:
                    raise damaged(path, kind, number, f"record {record.position} is out of order")
                last, count = record.position, count + 1
                yield record
        elif found == b"E" and unpacked_map(path, kind, number, body).get("records") != count:
            raise damaged(path, kind, number, f"it has {count} records and should have others")


def _header(path: Path, kind: Kind, body: bytes) -> dict[str, Any]:
    header = unpacked_map(path, kind, 0, body)
    if header.get("format") != FORMAT:
        raise BadRequest(
            f"{path} has format {header.get('format')}, this program reads {FORMAT}",
            field="file",
            hint="Read it with the version that wrote it.",
        )
    return {"cluster": "", "cluster_id": "", "origin": None, **header}


def _records(path: Path, kind: Kind, number: int, body: bytes) -> Iterator[Record]:
    found = unpacked(path, kind, number, body)
    for one in found if isinstance(found, tuple) else (found,):
        match one:
            case (int(position), int(ctime_ms), bytes(data)) if (
                0 <= min(position, ctime_ms) <= max(position, ctime_ms) <= INT_MAX
            ):
                yield Record(position, ctime_ms, data)
            case _:
                raise damaged(path, kind, number, "a record is malformed")
