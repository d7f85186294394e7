"""Files of checksummed blocks: the format of log dumps and cluster backups.

A magic number, then blocks ``kind (1 byte) | body length (4) | CRC-32 (4) | body``. The checksum also covers
the block's number, kind and length, so a changed, missing, repeated or misplaced block is detected and named.
The last block is of kind ``E``. Writing and reading keep one block in memory.
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
"""Maximum size of a block, both in the file and unpacked.

Protects against a damaged length.
"""
DECODED_BYTES_MAX = 512 << 20
"""Estimated maximum size of a decoded block, in bytes."""
COMPRESSION_LEVEL = 3
_HEAD = struct.Struct("<cII")
_SEALED = struct.Struct("<QcI")


@frozen
class Kind:
    """A kind of file."""

    magic: bytes
    blocks: tuple[bytes, ...]
    """The kinds of blocks that are allowed."""
    what: str
    """Name of the kind, for example ``dump of a log``."""
    make: str
    """The command that makes such a file."""
    damaged: str
    """What to do about a damaged file."""


class BlockFile:
    """Writes a file block by block; use ``with``.

    The file gets its name only once it is complete and durable, and then replaces an existing file. An
    interrupted writer leaves nothing under that name.
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
    """Yield the kind and checked body of each block up to the last.

    Raises `NotFound`, `BadRequest` for another kind of file, and `Corrupt`.
    """
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
    """Return a value as compressed msgpack."""
    return zlib.compress(msgpack.packb(value), COMPRESSION_LEVEL)


def unpacked(path: Path, kind: Kind, number: int, body: bytes) -> Any:
    """Return the value that `packed` packed, with tuples for lists; raises `Corrupt`."""
    try:
        found = zlib.decompressobj().decompress(body, BLOCK_BYTES_MAX + 1)
    except zlib.error as error:
        raise damaged(path, kind, number, str(error)) from None
    if len(found) > BLOCK_BYTES_MAX:
        raise damaged(path, kind, number, f"it unpacks to more than {BLOCK_BYTES_MAX} bytes")
    return _decoded(path, kind, number, found)


def unpacked_map(path: Path, kind: Kind, number: int, body: bytes) -> dict[str, Any]:
    """Return the msgpack map in a block; raises `Corrupt`."""
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
    """Return the error that names a damaged block."""
    return Corrupt(f"{path}: block {number} is damaged: {why}", field="file", hint=kind.damaged)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
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
