"""A log in one portable file: an origin and the records behind it, to replay elsewhere.

The file is a magic and blocks, each ``kind (1 byte) | body length (4) | CRC-32 (4) | body``;
the checksum covers the block's number, kind and length too, so that a block that is changed,
missing, repeated or out of order is named.  Blocks, in this order:

* ``H``: msgpack map: ``format``, ``cluster`` and ``cluster_id``, ``origin`` (its position, or null),
* ``O``: a part of the packed origin (`onyxq.snapshot`), none if the log starts at its beginning,
* ``R``: zlib of msgpack of records ``[position, ctime in ms, bytes]``, in the order of the log,
* ``E``: msgpack map: ``records`` and ``last``, how many there are and the last one's position.

Both writing and reading keep no more than a block (and the origin) in memory.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import msgpack
from attrs import frozen

from onyxq import snapshot
from onyxq.errors import BadRequest, Corrupt, NotFound
from onyxq.log.interface import Record
from onyxq.replica import EMPTY, START_POSITION, Replica

MAGIC = b"ONYXQLOG"
FORMAT = 1
BLOCK_BYTES = 1 << 20
"""Bytes of records that are compressed together."""
BLOCK_BYTES_MAX = 64 << 20
"""No block is longer: a damaged length is not believed."""
ORIGIN_PART_BYTES = 4 << 20
COMPRESSION_LEVEL = 3
_RECORD_OVERHEAD_BYTES = 24
_HEAD = struct.Struct("<cII")
_SEALED = struct.Struct("<QcI")


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
        self._blocks = 0
        self._pending: list[tuple[int, int, bytes]] = []
        self._pending_bytes = 0

    def __enter__(self) -> DumpWriter:
        self._part = self._path.with_name(f"{self._path.name}.{os.getpid()}.part")
        try:
            self._file: IO[bytes] = open(self._part, "wb")
        except OSError as error:
            raise BadRequest(f"{self._path} cannot be written: {error.strerror}", field="file") from None
        self._file.write(MAGIC)
        header = {
            "format": FORMAT,
            "cluster": self._cluster,
            "cluster_id": self._cluster_id,
            "origin": self._start,
        }
        self._block(b"H", msgpack.packb(header))
        for start in range(0, len(self._origin), ORIGIN_PART_BYTES):
            self._block(b"O", self._origin[start : start + ORIGIN_PART_BYTES])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._file.close()
            self._part.unlink(missing_ok=True)
            return
        self._flush()
        self._block(b"E", msgpack.packb({"records": self.records, "last": self.last}))
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        os.replace(self._part, self._path)
        sync_directory(self._path.parent)

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
            self._block(b"R", zlib.compress(msgpack.packb(self._pending), COMPRESSION_LEVEL))
            self._pending, self._pending_bytes = [], 0

    def _block(self, kind: bytes, body: bytes) -> None:
        self._file.write(_HEAD.pack(kind, len(body), _checksum(self._blocks, kind, body)))
        self._file.write(body)
        self._blocks += 1


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
    for kind, body in _blocks(path):
        if not header:
            if kind != b"H":
                raise _damaged(path, 0, "the header is expected there")
            header = _header(path, body)
        elif kind == b"O":
            parts.append(body)
        else:
            break
    try:
        origin = snapshot.unpack(b"".join(parts)) if parts else None
    except Corrupt as error:
        raise _damaged(path, 1, error.message) from None
    if header["origin"] != (None if origin is None else origin.position):
        raise _damaged(path, 1, "the origin does not fit the header")
    return Dump(header["cluster"], origin, _Records(path), header["cluster_id"])


@frozen
class _Records:
    """The records of a file, read anew each time."""

    path: Path

    def __iter__(self) -> Iterator[Record]:
        last, count = START_POSITION, 0
        for number, (kind, body) in enumerate(_blocks(self.path)):
            if kind == b"R":
                for record in _records(self.path, number, body):
                    if record.position <= last:
                        raise _damaged(self.path, number, f"record {record.position} is out of order")
                    last, count = record.position, count + 1
                    yield record
            elif kind == b"E" and _unpack(self.path, number, body).get("records") != count:
                raise _damaged(self.path, number, f"it has {count} records and should have others")


def sync_directory(path: Path) -> None:
    """Make names in a directory durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _blocks(path: Path) -> Iterator[tuple[bytes, bytes]]:
    """Kind and checked body of each block up to the last."""
    with _opened(path) as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise BadRequest(f"{path} is no dump of a log", field="file", hint="Make one with onyxq log dump.")
        number, kind = 0, b""
        while kind != b"E":
            head = file.read(_HEAD.size)
            if len(head) < _HEAD.size:
                raise _damaged(path, number, "the file ends there")
            kind, size, checksum = _HEAD.unpack(head)
            body = file.read(size) if size <= BLOCK_BYTES_MAX else b""
            if len(body) < size and size <= BLOCK_BYTES_MAX:
                raise _damaged(path, number, "the file ends in it")
            if checksum != _checksum(number, kind, body) or size > BLOCK_BYTES_MAX or kind not in _FOLLOWS:
                raise _damaged(path, number, "it does not match its checksum")
            yield kind, body
            number += 1


def _opened(path: Path) -> IO[bytes]:
    try:
        return open(path, "rb")
    except OSError as error:
        why = error.strerror
    raise NotFound(f"{path} cannot be read: {why}", field="file", hint="Check the file's name.")


_FOLLOWS = (b"H", b"O", b"R", b"E")


def _checksum(number: int, kind: bytes, body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(_SEALED.pack(number, kind, len(body))))


def _header(path: Path, body: bytes) -> dict[str, Any]:
    header = _unpack(path, 0, body)
    if header.get("format") != FORMAT:
        raise BadRequest(
            f"{path} has format {header.get('format')}, this program reads {FORMAT}",
            field="file",
            hint="Read it with the version that wrote it.",
        )
    return {"cluster": "", "cluster_id": "", "origin": None, **header}


def _records(path: Path, number: int, body: bytes) -> list[Record]:
    try:
        return [Record(*one) for one in msgpack.unpackb(zlib.decompress(body), use_list=False)]
    except (zlib.error, TypeError, ValueError, msgpack.UnpackException) as error:
        raise _damaged(path, number, str(error)) from None


def _unpack(path: Path, number: int, body: bytes) -> dict[str, Any]:
    try:
        found = msgpack.unpackb(body)
    except (ValueError, msgpack.UnpackException) as error:
        raise _damaged(path, number, str(error)) from None
    if not isinstance(found, dict):
        raise _damaged(path, number, "a map is expected")
    return found


def _damaged(path: Path, number: int, why: str) -> Corrupt:
    return Corrupt(
        f"{path}: block {number} is damaged: {why}",
        field="file",
        hint="Records of the blocks before it can be replayed with --until; dump the log again if it is still there.",
    )
