"""Keys and small records of the store's indexes.

Every key starts with the partition, so a partition is a range of each table.

=========  ==========================================================  ==========================
table      key                                                         value
=========  ==========================================================  ==========================
rows       row key (`onyxq.core.facts`)                                     row value
ready      partition, queue (16), inverted priority (4), due (8),      attempts, row offset, (base,
           first id                                                    key,) bits
due        partition, due (8), first id                                queue, priority, then as in
                                                                       ready
waiting    partition, first id of the row                              bits
keyed      partition, ordering key (16), scheduled (1), order (24),    bits
           first id of the row
unique     partition, unique key (16), claimant (1), epoch (8),        nothing
           number (8), due (8), id
expiring   partition, time (8), first id of the row                    bits
dead       partition, queue (16), first id of the row                  bits
stretch    partition, hour (4), leaf (1), stretch id                   `Stretch`
counts     partition, queue (16)                                       six numbers, name
hours      partition, hour (4)                                         rows, sum of row hashes
leaves     partition, hour (4), leaf (1)                               rows, sum of row hashes
pending    partition, transaction (16), number (4)                     `onyxq.store.index.pending_rows`
epochs     partition                                                   epoch, checksum
log        see `onyxq.store.kept_log`
meta       name                                                        bytes, checksum
=========  ==========================================================  ==========================

A checksum follows each value of a table between ``rows`` and ``pending``
(`onyxq.store.tables.CheckedTable`).

Keys name a queue by a 16-byte hash, so they are short even if its name is long.  The same holds
for a transaction, and for an ordering or unique key together with its queue.  *Bits* are a
mask of the row's stretch.  A stretch's key holds its hour and leaf, so the rows of a leaf
are found without a scan.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

from onyxq.core.facts import seal, unseal
from onyxq.core.ids import COUNTER_MAX, STRETCH_TASKS, TaskId, counter_of, ms_of, with_counter
from onyxq.core.limits import PRIORITY_MAX
from onyxq.store.index.heads import Order, QueueKey, queue_digest
from onyxq.store.interface import LEAVES, Piece

TOTAL, SCHEDULED, WAITING = 0, 4, 5
"""Places in a counts record; those of the outcomes lie between."""
OUTCOME_PLACES = (1, 2, 3, 2)
HOUR_MS = 3_600_000
ATTEMPTS_MAX = (1 << 32) - 1

RELEASED, CLAIMANT = b"\0", b"\1"
"""Whether a row has released its unique key, or claims it."""
_PLACE = struct.Struct(">IQ")
_DUE = struct.Struct(">Q")
_PIECE = struct.Struct("<IH")
_MORE = struct.Struct("<I16s")
_MORE_END = _PIECE.size + _MORE.size
_HAS_MORE = 1 << 15
"""Flag in a piece's row offset: base and key follow."""
_NO_KEY = bytes(16)
_ORDER = struct.Struct(">QQQ")
_COUNTS = struct.Struct("<6Q")
DIGEST = struct.Struct("<QQ")
_NUMBER = struct.Struct("<Q")
_LEAF = struct.Struct(">IB")
HASH_MASK = (1 << 64) - 1


def row_hash(key: bytes, value: bytes) -> int:
    """Return a row's contribution to digests, which depends on the key and the value's checksum."""
    return int.from_bytes(blake2b(key + value[-4:], digest_size=8).digest(), "little")


def pack_number(key: bytes, number: int) -> bytes:
    """Pack an epoch or position as a value."""
    return seal(key, _NUMBER.pack(number))


def unpack_number(key: bytes, value: bytes) -> int:
    """Return the number that `pack_number` packed; raises `Corrupt`."""
    return int(_NUMBER.unpack(unseal(bytes(key), bytes(value)))[0])


def pack_counts(numbers: Sequence[int], name: str) -> bytes:
    """Pack a queue's counts as a value."""
    return _COUNTS.pack(*numbers) + name.encode()


def unpack_counts(value: bytes) -> tuple[tuple[int, ...], str]:
    """Return the counts and the name that `pack_counts` packed."""
    return _COUNTS.unpack_from(value), str(value[_COUNTS.size :], "utf-8")


def pack_mask(bits: int) -> bytes:
    """Return a mask's bytes."""
    return bits.to_bytes((bits.bit_length() + 7) >> 3, "little") if bits else b""


def unpack_mask(value: bytes) -> int:
    """Return the mask that `pack_mask` packed."""
    return int.from_bytes(value, "little")


# --- keys ----------------------------------------------------------------------


def leaf_key(stretch: bytes) -> bytes:
    """Return partition, hour and leaf of a stretch: 7 bytes."""
    return stretch[6:8] + _LEAF.pack(ms_of(stretch) // HOUR_MS, zlib.crc32(stretch) % LEAVES)


def stretch_key(stretch: bytes) -> bytes:
    """Return the key of a stretch's record."""
    return leaf_key(stretch) + stretch


def ready_key(queue: QueueKey, due_ms: int, first: bytes) -> bytes:
    """Return the key of a piece in ``ready``."""
    return first[6:8] + queue.place + _DUE.pack(due_ms) + first


def due_key(due_ms: int, first: bytes) -> bytes:
    """Return the key of a piece in ``due``."""
    return first[6:8] + _DUE.pack(due_ms) + first


def due_start(partition: int, due_ms: int) -> bytes:
    """Return the first key in ``due`` of pieces of a partition that are due then or later."""
    return partition.to_bytes(2, "big") + _DUE.pack(due_ms)


def expiring_key(expires_ms: int, first: bytes) -> bytes:
    """Return the key of a row in ``expiring``."""
    return first[6:8] + _DUE.pack(expires_ms) + first


def keyed_key(digest: bytes, order: Order, first: bytes, *, scheduled: bool) -> bytes:
    """Return the key of a row in ``keyed``."""
    return first[6:8] + digest + (b"\1" if scheduled else b"\0") + _ORDER.pack(*order) + first


def unique_key(digest: bytes, order: Order, first: bytes, *, released: bool) -> bytes:
    """Return the key of a row in ``unique``: the highest mark comes last, of rows that have not released the key."""
    due_ms, epoch, number = order
    return first[6:8] + digest + (RELEASED if released else CLAIMANT) + _ORDER.pack(epoch, number, due_ms) + first


def dead_key(queue: bytes, first: bytes) -> bytes:
    """Return the key of a row in ``dead``, from a queue's digest."""
    return first[6:8] + queue + first


def first_at(key: bytes) -> TaskId:
    """Return the id at the end of a key of any index."""
    return TaskId(bytes(key[-20:]))


def ready_key_of(piece: Piece) -> bytes:
    """Return the key under which a piece is, or was, in ``ready``."""
    inverted = (PRIORITY_MAX - piece.priority).to_bytes(4, "big")
    return piece.first[6:8] + queue_digest(piece.queue) + inverted + _DUE.pack(piece.due_ms) + piece.first


def due_ms_of(key: bytes) -> int:
    """Return the time in a key of ``due`` or ``expiring``, in ms."""
    return int(_DUE.unpack_from(key, 2)[0])


def order_ms_of(key: bytes) -> int:
    """Return the due time of the order in a key of ``keyed``, in ms."""
    return int(_DUE.unpack_from(key, 19)[0])


# --- pieces --------------------------------------------------------------------


class Alike(NamedTuple):
    """Common values of the tasks of a piece, besides their row."""

    due_ms: int
    attempts: int
    base: int


def pack_piece(alike: Alike, row_offset: int, bits: int, key: bytes = b"") -> bytes:
    """Return a piece's value in ``ready``; in ``due`` the queue's place comes before it."""
    if not alike.base and not key:
        return _PIECE.pack(alike.attempts, row_offset) + pack_mask(bits)
    head = _PIECE.pack(alike.attempts, row_offset | _HAS_MORE)
    return head + _MORE.pack(alike.base, key or _NO_KEY) + pack_mask(bits)


def _bits_at(value: bytes) -> int:
    return _MORE_END if value[5] & 0x80 else _PIECE.size


def bits_of(value: bytes) -> int:
    """Return the bits in a piece's value."""
    return int.from_bytes(value[_bits_at(value) :], "little")


def with_bits(value: bytes, bits: int) -> bytes:
    """Return a piece's value with other bits."""
    return bytes(value[: _bits_at(value)]) + pack_mask(bits)


def unpack_ready(queue: str, key: bytes, value: bytes) -> Piece:
    """Return the piece of an entry in ``ready``."""
    inverted, due_ms = _PLACE.unpack_from(key, 18)
    first = TaskId(key[30:50])
    attempts, offset = _PIECE.unpack_from(value)
    base, digest = 0, b""
    if offset & _HAS_MORE and len(value) >= _MORE_END:
        base, digest = _MORE.unpack_from(value, 6)
        digest = b"" if digest == _NO_KEY else digest
    counter = (int.from_bytes(first[16:], "big") & -STRETCH_TASKS) + (offset & ~_HAS_MORE)
    row_first = TaskId(first[:16] + (counter & COUNTER_MAX).to_bytes(4, "big"))
    return Piece(queue, PRIORITY_MAX - inverted, due_ms, first, bits_of(value), attempts, row_first, base, digest)


def lowest(stretch: bytes, bits: int) -> TaskId:
    """Return the id of the lowest task in a mask."""
    return with_counter(stretch, counter_of(stretch) + (bits & -bits).bit_length() - 1)
