"""Keys and small records of the store's indexes, and the checks on rows before they enter.

Stands between the bytes of facts and the index logic that both stores share.  Every key
starts with the partition, so a partition is a range of each table.

=========  ==========================================================  ==========================
table      key                                                         value
=========  ==========================================================  ==========================
rows       row key (`onyxq.facts`)                                     row value
ready      partition, queue (16), inverted priority (4), due (8),      attempts, row offset, bits
           first id
due        partition, due (8), first id                                queue, priority, then as in
                                                                       ready
stretch    partition, hour (4), leaf (1), stretch id                   `Stretch`
counts     partition, queue (16)                                       five numbers, queue name
hours      partition, hour (4)                                         rows, sum of row hashes
leaves     partition, hour (4), leaf (1)                               rows, sum of row hashes
epochs     partition                                                   epoch
meta       name                                                        bytes
=========  ==========================================================  ==========================

A queue is named in keys by a 16-byte hash, which keeps keys short whatever its name is.
A stretch's key holds its hour and leaf, so the rows of a leaf are found without a scan.
"""

from __future__ import annotations

import struct
import zlib
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple, TypeAlias

import msgpack

from onyxq.errors import BadRequest, Corrupt
from onyxq.facts import (
    COMPLETION,
    HISTORY,
    RETRIED,
    TASK,
    History,
    Mark,
    Row,
    check_key,
    completion_head,
    unpack_history,
    unpack_update,
    unseal,
)
from onyxq.ids import STRETCH_TASKS, TaskId, mask_of, ms_of, stretch_of
from onyxq.store.interface import LEAVES, Piece

HOUR_MS = 3_600_000
QUEUE_CHARS_MAX = 200
PRIORITY_MAX = (1 << 31) - 1
ATTEMPTS_MAX = (1 << 32) - 1
DUE_MS_MAX = (1 << 62) - 1
"""Due times above are kept as this: never."""
OUTCOMES_COUNT = 3

_HEAD = struct.Struct("<II")
_CRC = struct.Struct("<I")
_ORDER = struct.Struct(">QI")
_PLACE = struct.Struct(">IQ")
_DUE = struct.Struct(">Q")
_PIECE = struct.Struct("<IH")
COUNTS = struct.Struct("<5Q")
DIGEST = struct.Struct("<QQ")
EPOCH = struct.Struct("<Q")
_LEAF = struct.Struct(">IB")
HASH_MASK = (1 << 64) - 1


class QueueKey(NamedTuple):
    """What a task row's header says about its place in the indexes."""

    name: str
    priority: int
    digest: bytes
    """16 bytes that name the queue in keys."""
    place: bytes
    """``digest`` and the inverted priority: the part of a ready key before the due time."""


Detail: TypeAlias = QueueKey | History | tuple[int, int] | None


class Prepared(NamedTuple):
    """A row that passed all checks, with what indexing needs of it."""

    key: bytes
    value: bytes
    kind: bytes
    first: TaskId
    stretch: TaskId
    mask: int
    """Tasks the row is about, as a mask of the stretch."""
    detail: Detail
    """Task: its `QueueKey`; history: the event; completion: (token, outcome)."""


@lru_cache(maxsize=4096)
def queue_digest(queue: str) -> bytes:
    """The 16 bytes that name a queue in keys."""
    return blake2b(queue.encode(), digest_size=16).digest()


@lru_cache(maxsize=4096)
def queue_key(header: bytes) -> QueueKey:
    """Queue and priority in a task row's packed header; raises `BadRequest`."""
    try:
        fields = msgpack.unpackb(header)
        queue, priority = fields["queue"], fields.get("priority", 0)
    except (ValueError, TypeError, KeyError, AttributeError, msgpack.UnpackException):
        raise BadRequest("a task run's header is malformed", field="queue") from None
    if not isinstance(queue, str) or not 1 <= len(queue) <= QUEUE_CHARS_MAX:
        raise BadRequest(f"a queue name has 1 to {QUEUE_CHARS_MAX} characters", field="queue")
    if type(priority) is not int or not -PRIORITY_MAX - 1 <= priority <= PRIORITY_MAX:
        raise BadRequest("a priority is a signed 32-bit number", field="priority")
    digest = queue_digest(queue)
    return QueueKey(queue, priority, digest, digest + (PRIORITY_MAX - priority).to_bytes(4, "big"))


def task_head(value: bytes) -> tuple[int, QueueKey]:
    """Count and queue of a task row's value (or a view of it); raises `BadRequest`."""
    head_bytes, count = _HEAD.unpack_from(value)
    if not 1 <= count <= STRETCH_TASKS:
        raise BadRequest("a task run's count is out of range", field="rows")
    return count, queue_key(bytes(value[8 : 8 + head_bytes]))


def row_hash(key: bytes, value: bytes) -> int:
    """A row's contribution to digests: it depends on the key and the value's checksum."""
    return int.from_bytes(blake2b(key + value[-4:], digest_size=8).digest(), "little")


# --- checks before a row enters ----------------------------------------------


def prepare(row: Row) -> Prepared:
    """Check one row; raises `BadRequest` if it is malformed or damaged."""
    key, value = row
    check_key(key)
    kind = key[2:3]
    first = TaskId(key[3:23])
    try:
        count, detail = _check_body(kind, key, value)
    except (Corrupt, struct.error, TypeError, ValueError, msgpack.UnpackException) as error:
        raise BadRequest(f"a row of kind {kind!r} is malformed: {error}", field="rows") from None
    stretch = stretch_of(first)
    mask = mask_of(first, count)
    if count < 1 or mask >> STRETCH_TASKS:
        raise BadRequest(f"a row of {count} tasks does not lie in one stretch", field="rows")
    return Prepared(key, value, kind, first, stretch, mask, detail)


def _check_body(kind: bytes, key: bytes, value: bytes) -> tuple[int, Detail]:
    if kind == TASK:
        return _check_task(key, value)
    body = unseal(key, value)
    if kind == COMPLETION:
        return _check_completion(key, body)
    if kind == HISTORY:
        return _check_history(key, body)
    return _check_update(key, body)


def _check_task(key: bytes, value: bytes) -> tuple[int, QueueKey]:
    body = memoryview(value)[:-4]  # large, so it is not copied as `unseal` does
    head_bytes, count = _HEAD.unpack_from(body)
    if _CRC.unpack(value[-4:])[0] != zlib.crc32(body, zlib.crc32(key)):
        raise Corrupt("it does not match its checksum")
    table = 8 + head_bytes
    if not 1 <= count <= STRETCH_TASKS or len(key) != 23 or table + 8 * count > len(body):
        raise ValueError("its table is out of range")
    if sum(body[table : table + 4 * count].cast("I")) != len(body) - table - 8 * count:
        raise ValueError("its lengths do not add up")
    return count, queue_key(bytes(body[8:table]))


def _check_completion(key: bytes, body: bytes) -> tuple[int, tuple[int, int]]:
    token, count, outcome, mark = completion_head(body)
    if key[23:] != _ORDER.pack(token, count) or outcome not in range(OUTCOMES_COUNT):
        raise ValueError("key and body disagree")
    _check_mark(mark)
    return count, (token, outcome)


def _check_update(key: bytes, body: bytes) -> tuple[int, None]:
    update = unpack_update(body)
    if key[23:] != _ORDER.pack(update.token, update.seq) or not isinstance(update.data, bytes):
        raise ValueError("key and body disagree")
    _check_mark(update.mark)
    return 1, None


def _check_mark(mark: Mark) -> None:
    if type(mark.epoch) is not int or type(mark.number) is not int:
        raise ValueError("whole numbers expected")


def _check_history(key: bytes, body: bytes) -> tuple[int, History]:
    event = unpack_history(body)
    if key[23:] != _ORDER.pack(event.position, event.index) or event.event not in range(RETRIED + 1):
        raise ValueError("key and body disagree")
    if type(event.retry_ms) is not int or type(event.attempts) is not int:
        raise ValueError("whole numbers expected")
    return event.count, event


# --- keys ----------------------------------------------------------------------


def leaf_key(stretch: bytes) -> bytes:
    """Partition, hour and leaf of a stretch: 7 bytes."""
    return stretch[6:8] + _LEAF.pack(ms_of(stretch) // HOUR_MS, zlib.crc32(stretch) % LEAVES)


def stretch_key(stretch: bytes) -> bytes:
    """Key of a stretch's record."""
    return leaf_key(stretch) + stretch


def ready_key(queue: QueueKey, due_ms: int, first: bytes) -> bytes:
    """Key of a piece in ``ready``."""
    return first[6:8] + queue.place + _DUE.pack(due_ms) + first


def due_key(due_ms: int, first: bytes) -> bytes:
    """Key of a piece in ``due``."""
    return first[6:8] + _DUE.pack(due_ms) + first


def ready_key_of(piece: Piece) -> bytes:
    """Key under which a piece is, or was, in ``ready``."""
    inverted = (PRIORITY_MAX - piece.priority).to_bytes(4, "big")
    return piece.first[6:8] + queue_digest(piece.queue) + inverted + _DUE.pack(piece.due_ms) + piece.first


def due_ms_of(key: bytes) -> int:
    """Due time in a key of ``due``."""
    return int(_DUE.unpack_from(key, 2)[0])


def pack_piece(attempts: int, row_offset: int, bits: int) -> bytes:
    """Value of a piece in ``ready``; in ``due`` the queue's place goes before it."""
    return _PIECE.pack(attempts, row_offset) + bits.to_bytes((bits.bit_length() + 7) >> 3, "little")


def bits_of(value: bytes) -> int:
    """The bits in a piece's value."""
    return int.from_bytes(value[6:], "little")


def with_bits(value: bytes, bits: int) -> bytes:
    """A piece's value with other bits."""
    return bytes(value[:6]) + bits.to_bytes((bits.bit_length() + 7) >> 3, "little")


def unpack_ready(queue: str, key: bytes, value: bytes) -> Piece:
    """The piece of an entry in ``ready``."""
    inverted, due_ms = _PLACE.unpack_from(key, 18)
    first = TaskId(key[30:50])
    attempts, offset = _PIECE.unpack_from(value)
    row_first = TaskId(first[:16] + ((int.from_bytes(first[16:], "big") & -STRETCH_TASKS) + offset).to_bytes(4, "big"))
    return Piece(queue, PRIORITY_MAX - inverted, due_ms, first, bits_of(value), attempts, row_first)


# --- the record of a stretch ---------------------------------------------------

State: TypeAlias = tuple[int, int, int, int]
"""What history says of a task: position and index of its last RETRIED, the due time
that set, and the attempts counted. A join of events in any order gives the same."""
UNMOVED: State = (-1, -1, -1, 0)


class Stretch:
    """What is known of 1,024 consecutive ids; masks as ints.

    ``moved`` and ``done`` are functions of the rows alone, whatever order they came in;
    they may speak of tasks whose row is not there yet.
    """

    __slots__ = ("dirty", "done", "key", "known", "moved", "owned")

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.known = 0
        self.done = [0, 0, 0]
        """Finished tasks per outcome, disjoint."""
        self.moved: dict[State, int] = {}
        self.owned: dict[int, int] = {}
        """Row offset -> the tasks that count as the row's, where rows overlap."""
        self.dirty = False

    @property
    def finished(self) -> int:
        """Mask of the finished tasks."""
        return self.done[0] | self.done[1] | self.done[2]

    def pack(self) -> bytes:
        """The record's bytes; equal facts give equal bytes."""
        masks = [_pack_mask(mask) for mask in (self.known, *self.done)]
        moved = [(*state, _pack_mask(bits)) for state, bits in sorted(self.moved.items())]
        owned = [(offset, _pack_mask(bits)) for offset, bits in sorted(self.owned.items())]
        packed: bytes = msgpack.packb((*masks, moved, owned))
        return packed

    @classmethod
    def unpack(cls, key: bytes, value: bytes) -> Stretch:
        """The record that `pack` wrote."""
        out = cls(key)
        known, first, second, third, moved, owned = msgpack.unpackb(value)
        out.known = int.from_bytes(known, "little")
        out.done = [int.from_bytes(mask, "little") for mask in (first, second, third)]
        if moved:
            out.moved = {(a, b, c, d): int.from_bytes(bits, "little") for a, b, c, d, bits in moved}
        if owned:
            out.owned = {offset: int.from_bytes(bits, "little") for offset, bits in owned}
        return out


def _pack_mask(bits: int) -> bytes:
    return bits.to_bytes((bits.bit_length() + 7) >> 3, "little")


def join(state: State, event: History) -> State:
    """A task's state once an event is known: the latest retry, the most attempts."""
    position, index, due_ms, attempts = state
    attempts = max(attempts, min(max(event.attempts, 0), ATTEMPTS_MAX))
    if event.event == RETRIED:
        stamp = (event.position, event.index, min(max(event.retry_ms, 0), DUE_MS_MAX))
        return (*max(stamp, (position, index, due_ms)), attempts)
    return position, index, due_ms, attempts


def moved_by(moved: dict[State, int], mask: int, event: History) -> dict[State, int]:
    """``moved`` once a RETRIED or EXPIRED event on the tasks of ``mask`` is known."""
    out: dict[State, int] = {}
    rest = mask
    for state, bits in moved.items():
        hit = bits & mask
        if bits != hit:
            out[state] = out.get(state, 0) | (bits ^ hit)
        if hit:
            joined = join(state, event)
            out[joined] = out.get(joined, 0) | hit
            rest &= ~hit
    if rest:
        joined = join(UNMOVED, event)
        out[joined] = out.get(joined, 0) | rest
    out.pop(UNMOVED, None)
    return out
