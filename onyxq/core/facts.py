"""Facts: the immutable rows that a cohort keeps, and their bytes (design: facts).

A row is ``(key, value)``.  The key is
``partition (2 bytes) + kind (1 byte) + first task id (20 bytes) + rest``.  So the rows of one
partition and kind are in id order.  The value ends with a CRC-32 of key and body.

A leader may lack rows that an earlier leader wrote without a majority.  It may then write
another value under the same key.  Where the two values meet, the one with the higher `rank`
stays, so copies become equal in any order of arrival.  The `Mark` in a value ensures that an
acknowledged value is never the lower one (see ``docs/decisions.rst``).  A task with a unique key
may change before its first attempt: its leader writes its row again with a higher mark.

Kinds:

* ``T`` task run,
* ``C`` completion of a run,
* ``U`` update,
* ``H`` history: an entry's effect on a claim,
* ``R`` resolution: all dependencies of a run are done.

The body of a task row is ``header length (4) | count (4) | header (msgpack map) |
count x payload length (4) | count x payload CRC-32 (4) | payloads``.  The same bytes
travel from the client to the disk and on to the worker.  `slice_task` cuts out a part
without decoding any payload.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import msgpack

from onyxq.core.errors import BadRequest, Corrupt, TooLarge
from onyxq.core.ids import ID_BYTES, RUN_TASKS_MAX, TaskId, ms_of
from onyxq.core.limits import RUN_BYTES_MAX

TASK, COMPLETION, UPDATE, HISTORY, RESOLUTION = b"T", b"C", b"U", b"H", b"R"
KINDS = (COMPLETION, HISTORY, RESOLUTION, TASK, UPDATE)
KEY_BYTES = (23, 35)
"""Length of a task row's key, and of any other row's key, in bytes."""

TASK_BYTES_MAX = 16 * 1024 * 1024
"""Most payload bytes of a single task."""

# Outcomes of a completion. STOPPED: failed, and the ordering key waits until the
# task is reopened or given up.
COMPLETED, FAILED, CANCELLED, STOPPED = 0, 1, 2, 3
OUTCOMES = ("completed", "failed", "cancelled", "failed")

CLAIMED = b"claimed"
"""Result of a cancelled task that was claimed: the cancel ended that claim. Other cancelled tasks have no result."""

# Events of a history row. (4 means that a completion exists; it occurs only in the log.)
GRANTED, RELEASED, EXPIRED, RETRIED, REOPENED = 0, 1, 2, 3, 5
EVENTS = (GRANTED, RELEASED, EXPIRED, RETRIED, REOPENED)

REPORT = (1 << 32) - 1
"""Sequence number of a claim's report: the update in which its leader stores how the attempt failed."""

COMPLETION_FIELDS = 7
SHORT_BYTES = 256
"""Longest body of a completion that is decoded as a whole, in bytes: up to here that is faster than decoding a part."""

_HEAD = struct.Struct("<II")
_CRC = struct.Struct("<I")
SEALED = 0x2144DF1C
"""CRC-32 of anything that is followed by its own CRC-32."""
_ORDER = struct.Struct(">QI")
_ALONE = bytes(12)
"""Rest of the key of a kind of row that a run has at most once."""


class Row(NamedTuple):
    """One fact; the module's first paragraph explains both parts."""

    key: bytes
    value: bytes


class TaskRun(NamedTuple):
    """A decoded task row: its header, payload lengths, checksums and packed payloads."""

    header: dict[str, Any]
    count: int  # type: ignore[assignment]  # shadows the tuple's method
    lengths: array[int]
    checksums: array[int]
    payloads: bytes

    def payload(self, index: int) -> bytes:
        """Return the checked payload of one task; raises `Corrupt`."""
        start = sum(self.lengths[:index])
        data = self.payloads[start : start + self.lengths[index]]
        if zlib.crc32(data) != self.checksums[index]:
            raise Corrupt(f"payload {index} does not match its checksum")
        return data

    def all_payloads(self) -> list[bytes]:
        """Return every payload, checked; raises `Corrupt`."""
        out, start = [], 0
        for length, crc in zip(self.lengths, self.checksums, strict=True):
            data = self.payloads[start : start + length]
            if zlib.crc32(data) != crc:
                raise Corrupt("a payload does not match its checksum")
            out.append(data)
            start += length
        return out


class Mark(NamedTuple):
    """``(epoch, number)``: the leader that wrote a row, and a number that rises with each of its marks.

    Later marks are greater.  If a leader writes a row again because it may not have been acknowledged,
    the row gets a new mark.
    """

    epoch: int
    number: int


UNMARKED = Mark(0, 0)


class Completion(NamedTuple):
    """A decoded completion row. ``results``: one per task, or empty if no task has a result."""

    token: int
    count: int  # type: ignore[assignment]  # shadows the tuple's method
    outcome: int
    at_ms: int
    results: list[bytes | None]
    mark: Mark = UNMARKED

    def part(self, offset: int, count: int) -> Completion:
        """Return the completion of ``count`` of its tasks from ``offset`` on."""
        return self._replace(count=count, results=self.results[offset : offset + count])


class Update(NamedTuple):
    """A decoded update row."""

    token: int
    seq: int
    at_ms: int
    data: bytes
    mark: Mark = UNMARKED


class Report(NamedTuple):
    """What is stored of a failed attempt besides its end: whether it gave the task up, and the traceback."""

    given_up: bool
    traceback: str


class Resolution(NamedTuple):
    """A decoded resolution row: ``count`` tasks have no unfinished dependencies left."""

    count: int  # type: ignore[assignment]  # shadows the tuple's method
    at_ms: int
    mark: Mark = UNMARKED


class History(NamedTuple):
    """A decoded history row: the effect of entry ``(position, index)`` on the run's claim.

    ``event`` is one of

    * GRANTED: ``worker`` and ``at_ms`` are set,
    * RELEASED: given back, not counted as an attempt,
    * RETRIED: failed; ``retry_ms`` is the wall-clock time at which the task is due again,
    * EXPIRED,
    * REOPENED: a failed task begins a new life, due at ``retry_ms``; completions
      whose token is below ``position`` no longer count.

    RETRIED, EXPIRED and REOPENED raise the attempt count to ``attempts``.
    """

    position: int
    index: int  # type: ignore[assignment]  # shadows the tuple's method
    count: int  # type: ignore[assignment]  # shadows the tuple's method
    event: int
    token: int
    at_ms: int
    worker: str
    retry_ms: int
    attempts: int
    note: str


def key_of(kind: bytes, first: bytes, rest: bytes = b"") -> bytes:
    """Return the key of a row about the run that starts at ``first``."""
    return first[6:8] + kind + first + rest


def first_of(key: bytes) -> TaskId:
    """Return the first task id of the row at ``key``."""
    return TaskId(bytes(key[3 : 3 + ID_BYTES]))


def seal(key: bytes, body: bytes) -> bytes:
    """Return the value of a row: its body, then the checksum over key and body."""
    return body + _CRC.pack(zlib.crc32(body, zlib.crc32(key)))


def sealed(key: bytes, value: bytes) -> bool:
    """Return whether a value, or a view of it, ends with the checksum over key and body."""
    return len(value) >= 4 and zlib.crc32(value, zlib.crc32(key)) == SEALED


def unseal(key: bytes, value: bytes) -> bytes:
    """Return the body of a value; raises `Corrupt` if key or value were changed."""
    body = value[:-4]
    if len(value) < 4 or _CRC.unpack(value[-4:])[0] != zlib.crc32(body, zlib.crc32(key)):
        raise Corrupt(f"the row of kind {key[2:3]!r} at task {key[3:23].hex()} does not match its checksum")
    return body


def pack_task(header: dict[str, Any], payloads: Sequence[bytes]) -> bytes:
    """Return the body of a task row."""
    head = msgpack.packb(header)
    lengths = array("I", map(len, payloads))
    checksums = array("I", map(zlib.crc32, payloads))
    return b"".join((_HEAD.pack(len(head), len(payloads)), head, lengths.tobytes(), checksums.tobytes(), *payloads))


def unpack_task(body: bytes) -> TaskRun:
    """Decode the body of a task row; raises `BadRequest` if it is malformed."""
    packed, lengths, checksums = task_table(body)
    try:
        header = msgpack.unpackb(packed)
    except (ValueError, msgpack.UnpackException) as error:
        raise BadRequest(f"a task run is malformed: {error}", field="runs") from None
    if not isinstance(header, dict):
        raise BadRequest("the header of a task run must be a map", field="runs")
    return TaskRun(header, len(lengths), lengths, checksums, body[8 + len(packed) + 8 * len(lengths) :])


def task_table(body: bytes) -> tuple[bytes, array[int], array[int]]:
    """Return the packed header, the payload lengths and the checksums of a task row; raises `BadRequest`."""
    try:
        head_bytes, count = _HEAD.unpack_from(body)
    except struct.error as error:
        raise BadRequest(f"a task run is malformed: {error}", field="runs") from None
    table = 8 + head_bytes
    middle = table + 4 * count
    start = middle + 4 * count
    if not 1 <= count <= RUN_TASKS_MAX or start > len(body):
        raise BadRequest("a task run's table is out of range", field="runs")
    lengths = array("I", body[table:middle])
    if sum(lengths) != len(body) - start:
        raise BadRequest("a task run's lengths do not add up", field="runs")
    return body[8:table], lengths, array("I", body[middle:start])


def check_payloads(body: bytes, lengths: array[int], checksums: array[int]) -> None:
    """Raise `TooLarge` if a task row has too many payload bytes, `Corrupt` if a checksum does not match."""
    count, size = len(lengths), sum(lengths)
    limit = TASK_BYTES_MAX if count == 1 else RUN_BYTES_MAX
    if size > limit:
        raise TooLarge(f"{size} payload bytes in a run of {count}; at most {limit}", field="data")
    start = len(body) - size
    for length, checksum in zip(lengths, checksums, strict=True):
        end = start + length
        if zlib.crc32(body[start:end]) != checksum:
            raise Corrupt("a payload does not match its checksum")
        start = end


def task_header(body: bytes) -> tuple[dict[str, Any], int]:
    """Return header and count of a task row's body that was checked before."""
    head_bytes, count = _HEAD.unpack_from(body)
    return msgpack.unpackb(body[8 : 8 + head_bytes]), count


def slice_task(body: bytes, offset: int, count: int) -> bytes:
    """Return the body of the sub-run of ``count`` tasks from ``offset`` on."""
    head_bytes, total = _HEAD.unpack_from(body)
    if offset == 0 and count == total:
        return body
    table = 8 + head_bytes
    crcs = table + 4 * total
    data = crcs + 4 * total
    lengths = array("I")
    lengths.frombytes(body[table:crcs])
    start = data + sum(lengths[:offset])
    end = start + sum(lengths[offset : offset + count])
    return b"".join(
        (
            _HEAD.pack(head_bytes, count),
            body[8:table],
            body[table + 4 * offset : table + 4 * (offset + count)],
            body[crcs + 4 * offset : crcs + 4 * (offset + count)],
            body[start:end],
        )
    )


def task_row(first: bytes, body: bytes) -> Row:
    """Return the row of a task run whose body is ``body``."""
    key = key_of(TASK, first)
    return Row(key, seal(key, body))


def completion_row(first: bytes, done: Completion) -> Row:
    """Return the row of a completion.

    Where several completions cover a task, the one with the highest mark counts, then the one with the highest token.
    """
    key = key_of(COMPLETION, first, _ORDER.pack(done.token, done.count))
    fields = (done.token, done.count, done.outcome, *done.mark, done.at_ms, done.results)
    return Row(key, seal(key, msgpack.packb(fields)))


def update_row(task_id: bytes, update: Update) -> Row:
    """Return the row of one update of one task."""
    key = key_of(UPDATE, task_id, _ORDER.pack(update.token, update.seq))
    fields = (update.token, update.seq, *update.mark, update.at_ms, update.data)
    return Row(key, seal(key, msgpack.packb(fields)))


def report_update(token: int, report: Report, *, at_ms: int, mark: Mark) -> Update:
    """Return the update that stores the report of a failed attempt."""
    return Update(token, REPORT, at_ms, msgpack.packb(report), mark)


def report_of(update: Update) -> Report:
    """Return the report that an update with the number `REPORT` stores."""
    return Report(*msgpack.unpackb(update.data))


def history_row(first: bytes, event: History) -> Row:
    """Return the row of one log entry's effect on a run's claim."""
    key = key_of(HISTORY, first, _ORDER.pack(event.position, event.index))
    return Row(key, seal(key, msgpack.packb(tuple(event))))


def resolution_row(first: bytes, resolution: Resolution) -> Row:
    """Return the row that records that the dependencies of a run are done."""
    key = key_of(RESOLUTION, first, _ALONE)
    fields = (resolution.count, *resolution.mark, resolution.at_ms)
    return Row(key, seal(key, msgpack.packb(fields)))


def unpack_resolution(body: bytes) -> Resolution:
    """Decode the body of a resolution row."""
    count, epoch, number, at_ms = msgpack.unpackb(body)
    return Resolution(count, at_ms, Mark(epoch, number))


def unpack_completion(body: bytes) -> Completion:
    """Decode the body of a completion row."""
    token, count, outcome, epoch, number, at_ms, results = msgpack.unpackb(body)
    return Completion(token, count, outcome, at_ms, results, Mark(epoch, number))


def completion_head(body: bytes) -> tuple[int, int, int, Mark]:
    """Return token, count, outcome and mark of a completion row's body, without decoding long results."""
    if len(body) > SHORT_BYTES:
        token, count, outcome, epoch, number = _first_fields(body, 5)
    else:
        token, count, outcome, epoch, number, _, _ = msgpack.unpackb(body)
    return token, count, outcome, Mark(epoch, number)


def completion_time(body: bytes) -> int:
    """Return when a completion was stored, in ms, without decoding its results."""
    return int(_first_fields(body, 6)[5])


def _first_fields(body: bytes, count: int) -> list[Any]:
    unpacker = msgpack.Unpacker(max_buffer_size=0)
    unpacker.feed(body[:64])
    if unpacker.read_array_header() != COMPLETION_FIELDS:
        raise ValueError(f"{COMPLETION_FIELDS} fields expected")
    return [unpacker.unpack() for _ in range(count)]


def unpack_update(body: bytes) -> Update:
    """Decode the body of an update row."""
    token, seq, epoch, number, at_ms, data = msgpack.unpackb(body)
    return Update(token, seq, at_ms, data, Mark(epoch, number))


def unpack_history(body: bytes) -> History:
    """Decode the body of a history row."""
    return History(*msgpack.unpackb(body))


def task_mark(header: dict[str, Any]) -> Mark:
    """Return the mark of a task row: that of its last change or, if it was never changed, that of its order."""
    changed = header.get("mark")
    return Mark(*(changed or (header.get("order") or (0, *UNMARKED))[1:]))


def rank(key: bytes, value: bytes) -> tuple[int, int, int, bytes]:
    """Return the rank of a sound value; of two values under one key, the one with the greater rank stays.

    A longer task run contains the tasks of the shorter one.  History rows are equal everywhere.
    """
    kind, body = key[2:3], value[:-4]
    if kind == TASK:
        header, count = task_header(body)
        return (*task_mark(header), count, value)
    mark = UNMARKED
    if kind == COMPLETION:
        mark = completion_head(body)[3]
    elif kind == UPDATE:
        mark = unpack_update(body).mark
    elif kind == RESOLUTION:
        mark = unpack_resolution(body).mark
    return (*mark, 0, value)


def key_digest(queue: str, key: str) -> bytes:
    """Return the 16 bytes that name an ordering or unique key of a queue in indexes."""
    return blake2b(f"{queue}\0{key}".encode(), digest_size=16).digest()


def period_digest(digest: bytes, period_ms: int | None, due_ms: int) -> bytes:
    """Return the 16 bytes that name a unique key within its period, from `key_digest`; without a period, the digest.

    Periods are counted from the epoch. The one of a task is that of the due time in its id.
    """
    if not period_ms:
        return digest
    return blake2b(digest + struct.pack("<QQ", period_ms, due_ms // period_ms), digest_size=16).digest()


def unique_digest(header: dict[str, Any], first: bytes) -> bytes:
    """Return the 16 bytes that name the unique key of a task, within its period, in indexes."""
    digest = key_digest(header["queue"], header["unique_key"])
    return period_digest(digest, header.get("unique_period_ms"), ms_of(first))


def partition_of_keys(queue: str, key: str, partitions: int) -> int:
    """Return the partition of tasks with a key: the ordering key or, if there is none, the unique key."""
    return int.from_bytes(key_digest(queue, key)[:8], "big") % partitions


def partition_of_key(key: bytes) -> int:
    """Return the partition that a row belongs to."""
    return int.from_bytes(key[:2], "big")


def check_key(key: bytes) -> None:
    """Raise `BadRequest` unless ``key`` is a well-formed row key."""
    known = type(key) is bytes and len(key) in KEY_BYTES and key[2:3] in KINDS
    if not known or key[:2] != key[9:11]:  # the id's partition
        raise BadRequest("a row's key is malformed", field="rows")
