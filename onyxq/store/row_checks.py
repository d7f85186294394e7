"""Checks on rows before they enter a store, and what indexing needs of each."""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple, TypeAlias

import msgpack

from onyxq.core.errors import BadRequest, Corrupt
from onyxq.core.facts import (
    COMPLETION,
    EVENTS,
    HISTORY,
    OUTCOMES,
    TASK,
    UPDATE,
    History,
    Mark,
    Row,
    check_key,
    completion_head,
    history_row,
    unpack_history,
    unpack_resolution,
    unpack_update,
    unseal,
)
from onyxq.core.ids import STRETCH_TASKS, TaskId, mask_of, stretch_of
from onyxq.store.index.heads import QueueKey, queue_key

_HEAD = struct.Struct("<II")
_CRC = struct.Struct("<I")
_ORDER = struct.Struct(">QI")
_ALONE = bytes(12)
_OUTCOMES = range(len(OUTCOMES))

Detail: TypeAlias = QueueKey | History | tuple[int, int] | None


class Prepared(NamedTuple):
    """A row that passed all checks, with what indexing needs of it."""

    key: bytes
    value: bytes
    kind: bytes
    first: TaskId
    stretch: TaskId
    mask: int
    """Tasks that the row is about, as a mask of the stretch."""
    detail: Detail
    """Task: its `QueueKey`; history: the event; completion: (token, outcome)."""


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


def prepared_history(first: bytes, event: History) -> Prepared:
    """Return the row of a log entry's effect on a run's claim, without the checks of `prepare`: they would pass."""
    key, value = history_row(first, event)
    return Prepared(key, value, HISTORY, TaskId(first), stretch_of(first), mask_of(first, event.count), event)


def _check_body(kind: bytes, key: bytes, value: bytes) -> tuple[int, Detail]:
    if kind == TASK:
        return _check_task(key, value)
    body = unseal(key, value)
    if kind == COMPLETION:
        return _check_completion(key, body)
    if kind == HISTORY:
        return _check_history(key, body)
    if kind == UPDATE:
        return _check_update(key, body)
    if key[23:] != _ALONE:
        raise ValueError("its key is malformed")
    return _check_resolution(body)


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
    queue = queue_key(bytes(body[8:table]))
    if queue.rules is not None and queue.rules.unique and count != 1:
        raise BadRequest("a row with a unique key holds one task", field="unique_key")
    return count, queue


def _check_completion(key: bytes, body: bytes) -> tuple[int, tuple[int, int]]:
    token, count, outcome, mark = completion_head(body)
    if key[23:] != _ORDER.pack(token, count) or outcome not in _OUTCOMES:
        raise ValueError("key and body disagree")
    _check_mark(mark)
    return count, (token, outcome)


def _check_update(key: bytes, body: bytes) -> tuple[int, None]:
    update = unpack_update(body)
    if key[23:] != _ORDER.pack(update.token, update.seq) or not isinstance(update.data, bytes):
        raise ValueError("key and body disagree")
    _check_mark(update.mark)
    return 1, None


def _check_resolution(body: bytes) -> tuple[int, None]:
    resolution = unpack_resolution(body)
    _check_mark(resolution.mark)
    if type(resolution.count) is not int or type(resolution.at_ms) is not int:
        raise ValueError("whole numbers expected")
    return resolution.count, None


def _check_mark(mark: Mark) -> None:
    if type(mark.epoch) is not int or type(mark.number) is not int:
        raise ValueError("whole numbers expected")


def _check_history(key: bytes, body: bytes) -> tuple[int, History]:
    event = unpack_history(body)
    if key[23:] != _ORDER.pack(event.position, event.index) or event.event not in EVENTS:
        raise ValueError("key and body disagree")
    if type(event.retry_ms) is not int or type(event.attempts) is not int:
        raise ValueError("whole numbers expected")
    return event.count, event
