"""The file format of history: dumps and archives of the log, backups, and exports of a stopped node.

A file is a magic number, then blocks ``kind (1 byte) | packing (1) | length of the body (4) | CRC-32 (4) | body``.
The checksum also covers the block's number and head, so a changed, missing, repeated or misplaced block is detected
and named. A body is msgpack, compressed if that makes it smaller:

* ``H``: the header, a map: ``format``, ``holds`` (the kind of file), ``cluster`` and ``cluster_id``, ``origin``
  (position of the replica, or null), ``after`` (position after which the records follow).
* ``S``: a part of the packed replica (`onyxq.core.snapshot`); none if the log starts at its beginning.
* ``R``: records of the log (`onyxq.core.log.stored`), in the order of the log.
* ``P``: rows of a partition; in backups only (`onyxq.history.backup.file`).
* ``N``: a map of what a node has read; in exports only (`onyxq.history.recovery.findings`).
* ``E``: the end, a map: numbers of ``records`` and ``rows``, ``last`` position, and a ``digest`` of all blocks before.

Writing and reading keep one block and the replica in memory.
"""

from __future__ import annotations

import fcntl
import glob
import hashlib
import os
import struct
import zlib
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgpack
from attrs import frozen

from onyxq.core import snapshot
from onyxq.core.errors import BadRequest, Corrupt, NotFound, TooLarge
from onyxq.core.ids import STRETCH_TASKS
from onyxq.core.log.interface import START, Record
from onyxq.core.log.stored import pack_records, unpack_records
from onyxq.core.replica import Replica
from onyxq.core.snapshot import COMPRESSION_LEVEL, DIGEST_BYTES
from onyxq.system.directories import NewFile, open_regular, sync_directory, writing
from onyxq.wire.weight import decoded_bytes

MAGIC = b"ONYXQHIS"
FORMAT = 1
HEADER, SNAPSHOT, RECORDS, ROWS, NODE, END = b"H", b"S", b"R", b"P", b"N", b"E"
BLOCK_BYTES_MAX = 64 << 20
"""Maximum size of a block, both in the file and unpacked.

Protects against a damaged length.
"""
DECODED_BYTES_MAX = 512 << 20
"""Estimated maximum size of a decoded block, in bytes."""
RECORDS_BYTES = 1 << 20
"""Bytes of records in one block."""
SNAPSHOT_PART_BYTES = 4 << 20
PLAIN, COMPRESSED = 0, 1
_RECORD_OVERHEAD_BYTES = 24
_HEAD = struct.Struct("<cBII")
_SEALED = struct.Struct("<QcBI")


@frozen
class Kind:
    """A kind of file."""

    name: str
    """Its name in the header."""
    blocks: tuple[bytes, ...]
    """The kinds of blocks that it may have, besides header, snapshot, records and end."""
    what: str
    """What it is, for example ``dump of a log``."""
    make: str
    """The command that makes such a file."""
    damaged: str
    """What to do about a damaged file."""


class HistoryFileWriter:
    """Writes a file record by record; use ``with``, or call `finish` or `abort` at the end.

    The file gets its name only once it is complete and durable, and then replaces an existing file. An
    interrupted writer leaves nothing under that name. The next writer of that name removes the temporary file
    of a process that died.
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
        """Begin the file; raises `Corrupt` if ``origin`` is damaged, and `BadRequest` if it cannot be written.

        ``origin``: the packed replica from which the records continue; empty for the beginning of the log.
        ``after``: position after which records are taken, if it is not the origin's.
        """
        self.records = self.rows = 0
        self.first: int | None = None
        """Position of the first record."""
        start = snapshot.unpack(origin).position if origin else None
        self.last = after if after is not None else START if start is None else start
        self._path = Path(path)
        self._blocks = 0
        self._digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
        self._pending: list[Record] = []
        self._pending_bytes = 0
        header = {"format": FORMAT, "holds": kind.name, "cluster": cluster, "cluster_id": cluster_id}
        _remove_abandoned(self._path)
        with writing(self._path, "file"):
            self._file = NewFile(self._path.with_name(f"{self._path.name}.{os.getpid()}.part"))
            with suppress(OSError):  # without locks, the file of a process that dies stays
                fcntl.flock(self._file.stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._file.stream.write(MAGIC)
            self._file.stream.flush()
        self.add_block(HEADER, {**header, "origin": start, "after": self.last})
        for place in range(0, len(origin), SNAPSHOT_PART_BYTES):
            self._write(SNAPSHOT, PLAIN, origin[place : place + SNAPSHOT_PART_BYTES])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.finish()
        else:
            self.abort()

    def add(self, record: Record) -> None:
        """Append a record, unless it is at or before the position of the last one."""
        if record.position <= self.last:
            return
        self._pending.append(record)
        self._pending_bytes += len(record.data) + _RECORD_OVERHEAD_BYTES
        self.first = record.position if self.first is None else self.first
        self.last = record.position
        self.records += 1
        if self._pending_bytes >= RECORDS_BYTES:
            self._flush()

    def add_all(self, records: Iterable[Record]) -> None:
        """Append records; see `add`."""
        for record in records:
            self.add(record)

    def add_rows(self, partition: int, rows: Sequence[Sequence[bytes]]) -> None:
        """Append a page of a partition's rows."""
        if rows:
            self.add_block(ROWS, [partition, rows])
            self.rows += len(rows)

    def add_block(self, kind: bytes, value: Any) -> None:
        """Append a block of msgpack."""
        self._add(kind, msgpack.packb(value))

    def finish(self) -> None:
        """Make the file durable, and give it its name.

        Raises `BadRequest`, and then removes what was written. Once the complete file has its name it stays, even
        if a crash may undo that because the directory cannot be synced.
        """
        try:
            self._flush()
            said = {"records": self.records, "rows": self.rows, "last": self.last, "digest": self._digest.digest()}
            self.add_block(END, said)
            with writing(self._path, "file"):
                self._file.finish()
                self._file.publish(self._path)
        except BaseException:
            self.abort()
            raise
        try:
            sync_directory(self._path.parent)
        except OSError as error:
            why = f"a crash may remove it, because its directory cannot be synced: {error.strerror}"
            raise BadRequest(f"{self._path} is complete, but {why}", field="file") from None

    def abort(self) -> None:
        """Remove the file."""
        self._file.abort()

    def _flush(self) -> None:
        if self._pending:
            self._add(RECORDS, pack_records(self._pending))
            self._pending, self._pending_bytes = [], 0

    def _add(self, kind: bytes, body: bytes) -> None:
        smaller = zlib.compress(body, COMPRESSION_LEVEL)
        if len(smaller) < len(body):
            self._write(kind, COMPRESSED, smaller)
        else:
            self._write(kind, PLAIN, body)

    def _write(self, kind: bytes, packing: int, body: bytes) -> None:
        block = packed_block(self._blocks, kind, packing, body)
        with writing(self._path, "file"):
            self._file.stream.write(block)
        self._digest.update(block)
        self._blocks += 1


def _remove_abandoned(path: Path) -> None:
    """Remove the temporary files of processes that died while they wrote a file; a living process locks its file."""
    for part in path.parent.glob(f"{glob.escape(path.name)}.*.part"):
        with suppress(OSError), open_regular(part) as file:  # locked, or another user's
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if file.read(len(MAGIC)) == MAGIC:  # it is written under the lock
                part.unlink()


def packed_block(number: int, kind: bytes, packing: int, body: bytes) -> bytes:
    """Return the bytes of a block."""
    return _HEAD.pack(kind, packing, len(body), _checksum(number, kind, packing, body)) + body


# --- reading


@frozen
class Block:
    """A block that matches its checksum."""

    path: Path
    of: Kind
    """The kind of its file."""
    number: int
    kind: bytes
    packing: int
    body: bytes

    def error(self, why: str) -> Corrupt:
        """Return the error that names the block as damaged."""
        return damaged(self.path, self.of, self.number, why)

    def data(self) -> bytes:
        """Return the body, unpacked within the limits of memory; raises `Corrupt`."""
        body = self.body
        try:
            if self.packing == COMPRESSED:
                body = zlib.decompressobj().decompress(body, BLOCK_BYTES_MAX + 1)
            if len(body) > BLOCK_BYTES_MAX:
                raise self.error(f"it unpacks to more than {BLOCK_BYTES_MAX} bytes")
            decoded_bytes(memoryview(body), DECODED_BYTES_MAX)
        except (zlib.error, TooLarge) as error:
            raise self.error(str(error)) from None
        return body

    def value(self) -> Any:
        """Return the msgpack in the body, with tuples for lists; raises `Corrupt`."""
        try:
            return msgpack.unpackb(self.data(), use_list=False, strict_map_key=False)
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise self.error(str(error)) from None

    def map(self) -> dict[Any, Any]:
        """Return the map in the body; raises `Corrupt`."""
        found = self.value()
        if not isinstance(found, dict):
            raise self.error("a map is expected")
        return found

    def records(self, *, after: int) -> list[Record]:
        """Return the records in the body, which must follow ``after``; raises `Corrupt`."""
        try:
            return unpack_records(self.data(), after=after)
        except Corrupt as error:
            raise self.error(error.message) from None


@frozen
class HistoryFile:
    """A file whose header and replica were checked. Iterating yields its records, any number of times.

    Every pass checks all blocks and the end. It raises `Corrupt` that names a damaged block, after what lies before it.
    """

    path: Path
    kind: Kind
    cluster: str
    cluster_id: str
    origin: Replica | None
    after: int
    """Position after which the records follow."""

    def __iter__(self) -> Iterator[Record]:
        for found in self.contents():
            if isinstance(found, list):
                yield from found

    def contents(self) -> Iterator[list[Record] | Block]:
        """Yield the file's blocks in order: the list of records of a block of records, any other block as it is."""
        last, count = self.after, 0
        for block in read_blocks(self.path, self.kind):
            if block.kind == RECORDS:
                records = block.records(after=last)
                last, count = (records[-1].position if records else last), count + len(records)
                yield records
                continue
            if block.kind == END:
                said = block.map()
                if (said.get("records"), said.get("last")) != (count, last):
                    raise block.error(f"it has {count} records up to {last} and should have others")
            yield block


def open_file(path: str | os.PathLike[str], kind: Kind) -> HistoryFile:
    """Check the header and the replica of a file.

    Raises `NotFound`, `BadRequest` for another kind of file or a newer format, and `Corrupt`.
    """
    path = Path(path)
    blocks = read_blocks(path, kind)
    header = _header(next(blocks))
    parts = []
    for block in blocks:
        if block.kind != SNAPSHOT:
            break
        parts.append(block.body)
    try:
        origin = snapshot.unpack(b"".join(parts)) if parts else None
    except Corrupt as error:
        raise damaged(path, kind, 1, error.message) from None
    if header["origin"] != (None if origin is None else origin.position):
        raise damaged(path, kind, 1, "the origin does not fit the header")
    if origin is not None and not _fits(origin):
        raise damaged(path, kind, 1, "claims of the origin are outside their stretches")
    return HistoryFile(path, kind, header["cluster"], header["cluster_id"], origin, header["after"])


def cluster_in(path: str | os.PathLike[str], kind: Kind) -> str:
    """Return the cluster's id in the header of a file; raises what `open_file` raises."""
    with closing(read_blocks(Path(path), kind)) as blocks:
        return str(_header(next(blocks))["cluster_id"])


def _fits(origin: Replica) -> bool:
    """Return whether all claims lie in their stretches: masks of others could need any amount of memory."""
    claimed = [piece[:2] for stretches in origin.claims.values() for pieces in stretches.values() for piece in pieces]
    counted = [one[1:] for pieces in origin.limited.values() for one in pieces]
    return all(0 <= offset < offset + count <= STRETCH_TASKS for offset, count in (*claimed, *counted))


def damaged(path: Path, kind: Kind, number: int, why: str) -> Corrupt:
    """Return the error that names a damaged block."""
    return Corrupt(f"{path}: block {number} is damaged: {why}", field="file", hint=kind.damaged)


def read_blocks(path: Path, kind: Kind) -> Generator[Block, None, None]:
    """Yield each block up to the end, checked; raises `NotFound`, `BadRequest` and `Corrupt`."""
    allowed = (HEADER, SNAPSHOT, RECORDS, END, *kind.blocks)
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    try:
        file = open_regular(path)
    except OSError as error:
        why = error.strerror
        raise NotFound(f"{path} cannot be read: {why}", field="file", hint="Check the file's name.") from None
    with file:
        if file.read(len(MAGIC)) != MAGIC:
            raise BadRequest(f"{path} is not a {kind.what}", field="file", hint=f"Make one with {kind.make}.")
        number, found = 0, b""
        while found != END:
            head = file.read(_HEAD.size)
            if len(head) < _HEAD.size:
                raise damaged(path, kind, number, "the file ends there")
            found, packing, size, checksum = _HEAD.unpack(head)
            body = file.read(size) if size <= BLOCK_BYTES_MAX else b""
            if len(body) < size <= BLOCK_BYTES_MAX:
                raise damaged(path, kind, number, "the file ends in it")
            if checksum != _checksum(number, found, packing, body) or size > BLOCK_BYTES_MAX:
                raise damaged(path, kind, number, "it does not match its checksum")
            block = Block(path, kind, number, found, packing, body)
            if number and found not in allowed:
                raise block.error(f"a {kind.what} has no block of kind {found!r}")
            if found == END and (block.map().get("digest") != digest.digest() or file.read(1)):
                raise block.error("it is not the end of this file")
            digest.update(head)
            digest.update(body)
            yield block
            number += 1


def _header(block: Block) -> dict[str, Any]:
    if block.kind != HEADER:
        raise block.error("the header is expected there")
    header, kind = block.map(), block.of
    if header.get("format") != FORMAT:
        raise BadRequest(
            f"{block.path} has format {header.get('format')}, this program reads {FORMAT}",
            field="file",
            hint="Read it with the version that wrote it.",
        )
    if header.get("holds") != kind.name:
        raise BadRequest(
            f"{block.path} is not a {kind.what}: it holds a {header.get('holds')}",
            field="file",
            hint=f"Make one with {kind.make}.",
        )
    texts = (type(header.get(name)) is str for name in ("cluster", "cluster_id"))
    if not all(texts) or type(header.get("after")) is not int or "origin" not in header:
        raise block.error("the header lacks something")
    return header


def _checksum(number: int, kind: bytes, packing: int, body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(_SEALED.pack(number, kind, packing, len(body))))
