"""Files of blocks, each under a checksum: what dumps of a log and backups of a cluster are made of.

A magic, then blocks ``kind (1 byte) | body length (4) | CRC-32 (4) | body``; the checksum covers
the block's number, kind and length too, so that a block that is changed, missing, repeated or out
of order is named.  The last is of kind ``E``.  Both writing and reading keep one block in memory.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import msgpack
from attrs import frozen

from onyxq.core.errors import BadRequest, Corrupt, NotFound, TooLarge
from onyxq.system.directories import create
from onyxq.wire.weight import decoded_bytes

END = b"E"
BLOCK_BYTES_MAX = 64 << 20
"""No block is longer, as it is in the file and unpacked: a damaged length is not believed."""
DECODED_BYTES_MAX = 512 << 20
"""Estimated bytes of a decoded block."""
COMPRESSION_LEVEL = 3
_HEAD = struct.Struct("<cII")
_SEALED = struct.Struct("<QcI")


@frozen
class Kind:
    """A kind of such files."""

    magic: bytes
    blocks: tuple[bytes, ...]
    """Kinds of blocks that there may be."""
    what: str
    """``a dump of a log``."""
    make: str
    """The command that makes one."""
    damaged: str
    """What to do about one that is damaged."""


class BlockFile:
    """Writes such a file block by block; use ``with``.

    The file has its name only once it is complete and durable: what stood there before is
    replaced then, and a writer that is interrupted leaves nothing under it.
    """

    def __init__(self, path: str | os.PathLike[str], kind: Kind) -> None:
        self._path = Path(path)
        self._part = self._path.with_name(f"{self._path.name}.{os.getpid()}.part")
        self._kind = kind
        self._blocks = 0

    def __enter__(self) -> BlockFile:
        try:
            self._file: IO[bytes] = create(self._part)
        except OSError as error:
            raise BadRequest(f"{self._path} cannot be written: {error.strerror}", field="file") from None
        self._file.write(self._kind.magic)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._file.close()
            self._part.unlink(missing_ok=True)
            return
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        os.replace(self._part, self._path)
        sync_directory(self._path.parent)

    def add(self, kind: bytes, body: bytes) -> None:
        """Append a block."""
        self._file.write(_HEAD.pack(kind, len(body), _checksum(self._blocks, kind, body)))
        self._file.write(body)
        self._blocks += 1


def read_blocks(path: Path, kind: Kind) -> Iterator[tuple[bytes, bytes]]:
    """Kind and checked body of each block up to the last; raises `NotFound`, `BadRequest`, `Corrupt`."""
    with _opened(path) as file:
        if file.read(len(kind.magic)) != kind.magic:
            raise BadRequest(f"{path} is no {kind.what}", field="file", hint=f"Make one with {kind.make}.")
        number, found = 0, b""
        while found != END:
            head = file.read(_HEAD.size)
            if len(head) < _HEAD.size:
                raise damaged(path, kind, number, "the file ends there")
            found, size, checksum = _HEAD.unpack(head)
            body = file.read(size) if size <= BLOCK_BYTES_MAX else b""
            if len(body) < size and size <= BLOCK_BYTES_MAX:
                raise damaged(path, kind, number, "the file ends in it")
            if checksum != _checksum(number, found, body) or size > BLOCK_BYTES_MAX or found not in kind.blocks:
                raise damaged(path, kind, number, "it does not match its checksum")
            yield found, body
            number += 1


def packed(value: Any) -> bytes:
    """A value's msgpack, compressed."""
    return zlib.compress(msgpack.packb(value), COMPRESSION_LEVEL)


def unpacked(path: Path, kind: Kind, number: int, body: bytes) -> Any:
    """What `packed` packed, with tuples for lists; raises `Corrupt`."""
    try:
        found = zlib.decompressobj().decompress(body, BLOCK_BYTES_MAX + 1)
    except zlib.error as error:
        raise damaged(path, kind, number, str(error)) from None
    if len(found) > BLOCK_BYTES_MAX:
        raise damaged(path, kind, number, f"it unpacks to more than {BLOCK_BYTES_MAX} bytes")
    return _decoded(path, kind, number, found)


def unpacked_map(path: Path, kind: Kind, number: int, body: bytes) -> dict[str, Any]:
    """The msgpack map that a block is; raises `Corrupt`."""
    found = _decoded(path, kind, number, body)
    if not isinstance(found, dict):
        raise damaged(path, kind, number, "a map is expected")
    return found


def _decoded(path: Path, kind: Kind, number: int, data: bytes) -> Any:
    try:
        decoded_bytes(memoryview(data), DECODED_BYTES_MAX)
        return msgpack.unpackb(data, use_list=False, strict_map_key=False)
    except (ValueError, TypeError, TooLarge, msgpack.UnpackException) as error:
        raise damaged(path, kind, number, str(error)) from None


def damaged(path: Path, kind: Kind, number: int, why: str) -> Corrupt:
    """The error that names a block."""
    return Corrupt(f"{path}: block {number} is damaged: {why}", field="file", hint=kind.damaged)


def sync_directory(path: Path) -> None:
    """Make names in a directory durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _opened(path: Path) -> IO[bytes]:
    try:
        return open(path, "rb")
    except OSError as error:
        why = error.strerror
    raise NotFound(f"{path} cannot be read: {why}", field="file", hint="Check the file's name.")


def _checksum(number: int, kind: bytes, body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(_SEALED.pack(number, kind, len(body))))
