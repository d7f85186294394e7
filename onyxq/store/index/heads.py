"""The parts of a task row's header that determine its place in the indexes.

Plain rows have few, short headers, so decoded headers are cached.  A row with a key,
dependencies or an expiry time also has `Rules`.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple, get_args

import msgpack

from onyxq.core.errors import BadRequest
from onyxq.core.facts import key_digest, period_digest
from onyxq.core.ids import ID_BYTES, STRETCH_TASKS, ms_of
from onyxq.core.limits import DEPENDS_MAX, NAME_CHARACTERS_MAX, PRIORITY_MAX, PRIORITY_MIN, UniqueUntil
from onyxq.core.task_headers import DUE_MS, UNIQUE_PERIOD_MS, UNIQUE_UNTIL, until_of

DUE_MS_MAX = (1 << 62) - 1
"""Largest due time that is kept, in ms: greater ones become this, which means never."""
REMEMBERED_BYTES = 256
"""Size of the largest cached header. Longer headers are decoded each time."""
_MARK_MAX = (1 << 63) - 1
_UNTIL = get_args(UniqueUntil)
_HEAD = struct.Struct("<II")


class Order(NamedTuple):
    """Place of a row among those of its key, before its id."""

    due_ms: int
    epoch: int
    number: int


class Rules(NamedTuple):
    """Contents of a header beyond queue and priority."""

    key: bytes
    """`key_digest` of the ordering key; empty without one."""
    unique: bytes
    """`key_digest` of the unique key; empty without one."""
    period_ms: int | None
    until: UniqueUntil
    """When the unique key is free again."""
    order: Order | None
    scheduled: bool
    """Whether the due time was requested and lay in the future."""
    depends: bool
    expires_ms: int | None
    due_ms: int | None = None
    """The due time, if it is another one than that of the id."""

    @property
    def watches_grants(self) -> bool:
        """Whether the first grant changes what follows from the row."""
        return self.expires_ms is not None or (bool(self.unique) and self.until == "started")

    def unique_of(self, first: bytes) -> bytes:
        """Return the digest of the row's unique key within its period."""
        return period_digest(self.unique, self.period_ms, ms_of(first))

    def order_of(self, first: bytes) -> Order:
        """Return the row's order, also if its leader gave none."""
        return self.order or Order(ms_of(first), 0, 0)


class QueueKey(NamedTuple):
    """Contents of a task row's header that determine its place in the indexes."""

    name: str
    priority: int
    digest: bytes
    """16 bytes that name the queue in keys."""
    place: bytes
    """``digest`` and the inverted priority: the part of a ready key before the due time."""
    rules: Rules | None = None


@lru_cache(maxsize=4096)
def queue_digest(queue: str) -> bytes:
    """Return the 16 bytes that name a queue in keys."""
    return blake2b(queue.encode(), digest_size=16).digest()


def queue_key(header: bytes) -> QueueKey:
    """Decode a task row's packed header; raises `BadRequest` naming the field."""
    return _remembered(header) if len(header) <= REMEMBERED_BYTES else _read(header)


def task_head(value: bytes) -> tuple[int, QueueKey]:
    """Return count and header of a task row's value (or a view of it); raises `BadRequest`."""
    try:
        head_bytes, count = _HEAD.unpack_from(value)
    except struct.error:
        raise BadRequest("a task run is cut off", field="rows") from None
    if not 1 <= count <= STRETCH_TASKS:
        raise BadRequest("a task run's count is out of range", field="rows")
    return count, queue_key(bytes(value[8 : 8 + head_bytes]))


def _read(header: bytes) -> QueueKey:
    try:
        fields = msgpack.unpackb(header)
        queue, priority = fields["queue"], fields.get("priority", 0)
    except (ValueError, TypeError, KeyError, AttributeError, msgpack.UnpackException):
        raise BadRequest("a task run's header is malformed", field="queue") from None
    if not isinstance(queue, str) or not 1 <= len(queue) <= NAME_CHARACTERS_MAX:
        raise BadRequest(f"a queue name has 1 to {NAME_CHARACTERS_MAX} characters", field="queue")
    if type(priority) is not int or not PRIORITY_MIN <= priority <= PRIORITY_MAX:
        raise BadRequest("a priority is a signed 32-bit number", field="priority")
    digest = queue_digest(queue)
    place = digest + (PRIORITY_MAX - priority).to_bytes(4, "big")
    return QueueKey(queue, priority, digest, place, _rules(queue, fields))


_remembered = lru_cache(maxsize=4096)(_read)


def _rules(queue: str, fields: dict[str, Any]) -> Rules | None:
    ordering, unique = _key(queue, fields, "ordering_key"), _key(queue, fields, "unique_key")
    depends = fields.get("depends")
    expires_ms = fields.get("expires_ms")
    if not ordering and not unique and depends is None and expires_ms is None:
        return None
    _check_depends(depends)
    if expires_ms is not None and (type(expires_ms) is not int or not 0 <= expires_ms <= DUE_MS_MAX):
        raise BadRequest("a time is in milliseconds since the epoch", field="expires_ms")
    scheduled = fields.get("scheduled", False)
    if type(scheduled) is not bool:
        raise BadRequest("true or false is expected", field="scheduled")
    period_ms, until, due_ms = (fields.get(name) for name in (UNIQUE_PERIOD_MS, UNIQUE_UNTIL, DUE_MS))
    if until is not None and until not in _UNTIL:
        raise BadRequest(f"one of {', '.join(_UNTIL)} is expected", field=UNIQUE_UNTIL)
    for name, value in ((UNIQUE_PERIOD_MS, period_ms), (DUE_MS, due_ms)):
        if value is not None and (type(value) is not int or not 0 <= value <= DUE_MS_MAX):
            raise BadRequest("a time in milliseconds is expected", field=name)
    order = _order(fields)
    return Rules(
        ordering, unique, period_ms, until_of(fields), order, scheduled, depends is not None, expires_ms, due_ms
    )


def _key(queue: str, fields: dict[str, Any], name: str) -> bytes:
    key = fields.get(name)
    if key is None:
        return b""
    if not isinstance(key, str) or not 1 <= len(key) <= NAME_CHARACTERS_MAX:
        raise BadRequest(f"a key has 1 to {NAME_CHARACTERS_MAX} characters", field=name)
    return key_digest(queue, key)


def _order(fields: dict[str, Any]) -> Order | None:
    order = fields.get("order")
    if order is None:
        return None
    if type(order) is not list or len(order) != 3 or any(type(one) is not int for one in order):
        raise BadRequest("three whole numbers are expected", field="order")
    if not 0 <= order[0] <= DUE_MS_MAX or not all(0 <= one <= _MARK_MAX for one in order[1:]):
        raise BadRequest("a number is out of range", field="order")
    return Order(*order)


def _check_depends(depends: Any) -> None:
    if depends is None:
        return
    ids = type(depends) is list and all(type(one) is bytes and len(one) == ID_BYTES for one in depends)
    if not ids or not 1 <= len(depends) <= DEPENDS_MAX:
        raise BadRequest(f"1 to {DEPENDS_MAX} task ids are expected", field="depends")
