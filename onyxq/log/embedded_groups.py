"""Groups: what the embedded log writes and flushes at once, as bytes of its files.

A group is ``kind (1 byte) | length of the body (4) | CRC-32 (4) | body | CRC-32 (4)``, filled up to whole sectors.
The checksums also cover the number of the file and the group's offset in it.

A new file consists of zeros, and a disk writes each sector whole or not at all.  Groups are written under a mask,
so that no sector of them consists of zeros.  So a group with a sector of zeros was not written completely, and was
never acknowledged.  A group that does not match its checksum for another reason is damaged.
"""

from __future__ import annotations

import hashlib
import struct
from typing import NamedTuple

from onyxq.core.errors import Corrupt
from onyxq.core.facts import seal, unseal

RECORDS, STATE = b"R", b"S"
SECTOR_BYTES = 512
_MASK = hashlib.shake_128(b"onyxq").digest(SECTOR_BYTES)
_HEAD, _PLACE = struct.Struct("<cI"), struct.Struct("<QQ")
_SEALED_HEAD_BYTES, _CHECKSUM_BYTES = 9, 4


class Group(NamedTuple):
    """A group that matches its checksums."""

    kind: bytes
    body: bytes
    size: int
    """Its bytes in the file."""


def pack_group(number: int, offset: int, kind: bytes, body: bytes) -> bytes:
    """Return the bytes of a group for an offset in the file of that number."""
    place = _PLACE.pack(number, offset)
    data = seal(place, _HEAD.pack(kind, len(body))) + seal(place, body)
    return _masked(data + bytes(-len(data) % SECTOR_BYTES))


def unpack_group(number: int, offset: int, data: memoryview) -> Group | None:
    """Return the group at the start of ``data``; None if it was not written completely.

    Raises `Corrupt` if it is damaged.
    """
    if not any(data[:SECTOR_BYTES]):
        return None
    place = _PLACE.pack(number, offset)
    kind, length = _head(place, data)
    end = _SEALED_HEAD_BYTES + length + _CHECKSUM_BYTES
    size = end + -end % SECTOR_BYTES
    try:
        return Group(kind, unseal(place, _masked(data[:size])[_SEALED_HEAD_BYTES:end]), size)
    except Corrupt:
        if all(any(data[at : at + SECTOR_BYTES]) for at in range(0, size, SECTOR_BYTES)):
            raise
        return None


def begins_group(number: int, offset: int, data: memoryview) -> bool:
    """Return whether a group, complete or not, was written at the start of ``data``."""
    try:
        _head(_PLACE.pack(number, offset), data)
    except Corrupt:
        return False
    return True


def _head(place: bytes, data: memoryview) -> tuple[bytes, int]:
    kind, length = _HEAD.unpack(unseal(place, _masked(data[:_SEALED_HEAD_BYTES])))
    return kind, length


def _masked(data: bytes | memoryview) -> bytes:
    """Return bytes under the mask, or those that were under it."""
    size = len(data)
    mask = (_MASK * (size // SECTOR_BYTES + 1))[:size]
    return (int.from_bytes(data, "little") ^ int.from_bytes(mask, "little")).to_bytes(size, "little")
