"""Limits of what users send, each written once: types that carry their bounds, and what a class of them declares.

Pure.  Arguments and results of operations and the settings of queues are classes with such types (`msgspec`
structs and attrs classes).  Checks, schemas and help follow from a declaration, and read it with `members`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from attrs import frozen
from msgspec import Meta, inspect

from onyxq.core.ids import ID_BYTES, TaskId

NAME_CHARACTERS_MAX = 200
REMARK_CHARACTERS_MAX = 1_000
EXTENSION_CHARACTERS_MAX = 100
"""Characters of the name of an extension, and of one of its entries."""
PRIORITY_MIN, PRIORITY_MAX = -(1 << 31), (1 << 31) - 1
ENTRY_BYTES_MAX = 256 * 1024
"""Bytes of an entry of the log."""
INT_MIN, INT_MAX = -(1 << 63), (1 << 63) - 1
"""Integers that fit everywhere: in entries, rows and MessagePack."""
TIME_MS_MAX = (1 << 48) - 1
"""Latest time that an id can hold, in milliseconds since the epoch."""
POSITION_MAX = 1 << 62
"""Highest position of the log that may be named."""
ITEMS_MAX = 20_000
"""Most items in a list of one request."""
DEPENDS_MAX = 100
"""Most tasks on which a task may depend."""
HOLD_MS_MAX = 600_000
"""Longest time for which a backup makes transactions wait."""

PLAIN = r"^[^\x00-\x1f\x7f]*(?![\s\S])"
"""Matches a text without control characters."""
_PLAIN = re.compile(PLAIN)


def is_plain(text: str) -> bool:
    """Return whether a text has no control characters."""
    return _PLAIN.match(text) is not None


Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=NAME_CHARACTERS_MAX, pattern=PLAIN)]
"""The name of a queue, of a periodic task and the like."""
Remark: TypeAlias = Annotated[str, Meta(max_length=REMARK_CHARACTERS_MAX, pattern=PLAIN)]
"""A short text for people, stored with what it is about."""
Priority: TypeAlias = Annotated[int, Meta(ge=PRIORITY_MIN, le=PRIORITY_MAX)]

TimeMs: TypeAlias = Annotated[int, Meta(ge=0, le=TIME_MS_MAX)]
ExpiresMs: TypeAlias = Annotated[int, Meta(ge=1, le=TIME_MS_MAX)]
ExpiresAfterMs: TypeAlias = Annotated[int, Meta(ge=1, le=TIME_MS_MAX)]
"""Time from when a task is due until it must have started, in milliseconds."""
RETRIES_MAX = 1_000_000
RetryCount: TypeAlias = Annotated[int, Meta(ge=0, le=RETRIES_MAX)]
BACKOFF_MS_MAX = 86_400_000
BackoffMs: TypeAlias = Annotated[int, Meta(ge=0, le=BACKOFF_MS_MAX)]
Fate: TypeAlias = Literal["fail", "cancel", "run"]
"""What happens to a task when a task that it depends on fails or is cancelled."""
UniqueUntil: TypeAlias = Literal["started", "finished", "purged"]
"""When a task's unique key is free again: once an attempt began, once the task ended, or once it is purged."""
UNIQUE_PERIOD_MS_MAX = 366 * 86_400_000
UniquePeriodMs: TypeAlias = Annotated[int, Meta(ge=1, le=UNIQUE_PERIOD_MS_MAX)]
OnConflict: TypeAlias = Literal["keep", "replace", "extend", "refuse"]
"""What an enqueue does to the task that holds its unique key."""
TRACEPARENT = "00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
"""Pattern of version, trace, span, flags (source: W3C Trace Context, level 1)."""
TRACEPARENT_CHARACTERS = 55
Trace: TypeAlias = Annotated[
    str, Meta(min_length=TRACEPARENT_CHARACTERS, max_length=TRACEPARENT_CHARACTERS, pattern=f"^(?:{TRACEPARENT})$")
]
"""A W3C ``traceparent``."""

Format: TypeAlias = Literal["bytes", "json"]
"""What a task's data is: any bytes, or JSON in UTF-8."""
Missed: TypeAlias = Literal["skip", "once", "all"]
"""What to do about times of a schedule at which nothing could be enqueued."""
RUN_BYTES_MAX = 256 * 1024
"""Data of several tasks that are stored as one row."""
RESERVED = "onyxq."
"""Beginning of the names of OnyxQ's own queues. Only the operations that own such a queue write to it."""
TIMERS_QUEUE = "onyxq.timers"
"""The queue of all timers. Its settings apply to them: retries, back-off, retention, pauses."""
REQUESTS_QUEUE = "onyxq.requests"
"""The queue of remembered requests. A request is remembered for the retention of this queue."""
TIMER_URI_CHARS_MAX = 8_000
FLOWS_QUEUE = "onyxq.flows"
"""The queue of the records of all flows. Its settings apply to them, such as the retention."""
FLOW_JOINS_QUEUE = "onyxq.flows.joins"
"""The queue of the joins of large flows: a record may depend on few tasks, so it depends on joins of them."""
PERIODIC_DATA_BYTES_MAX = 64 << 10
INPUT_SINCE_MS_MAX = 253_402_300_799_999
"""Latest time at which the inputs of a job may begin, in ms since the epoch: the end of the year 9999."""
JOB_KEEP_MS_MAX = 10 * 366 * 86_400_000
"""How long the outcome of a job may be kept."""

# --- claims, transactions

TRANSACTION_BYTES_MAX = 4 << 20
"""Payload bytes of one transaction: new tasks, with their headers, results and updates."""
LEASE_MS_MIN, LEASE_MS_MAX = 1_000, 86_400_000
LeaseMs: TypeAlias = Annotated[int, Meta(ge=LEASE_MS_MIN, le=LEASE_MS_MAX)]
"""A lease that users give, in milliseconds."""
AHEAD_MS_MAX = 1_000
"""Longest time before it is due at which a task may be claimed, in milliseconds."""
OFFSETS_BYTES_MAX = 64 * 1024
"""Bytes of the offsets of a batch."""
NAME_KEEP_MS = 600_000
"""Default time for which the name of a settled transaction is remembered, in ms."""
NAME_KEEP_MS_MAX = 7 * 86_400_000
DEADLINE_AHEAD_MS_MAX = 3_600_000
"""How far ahead in log time the deadline of a commit may be, in ms."""

# --- the task store

GROUP_CHARACTERS_MAX = 200
OWNER_MIN, OWNER_MAX = -(1 << 31), (1 << 31) - 1
"""Numbers that a client of the task store may have: TaskStore's clients read an owner as a signed 32-bit number."""
STORED_TASK_BYTES_LIMIT = ENTRY_BYTES_MAX - (16 << 10)
"""Most bytes that one task may be allowed to have: it must fit in one entry."""
STORE_BYTES_LIMIT = 1 << 30
"""Most bytes that all tasks together may be allowed to have."""

# --- marks

ID = {"id": True}
"""Marks the bytes of a task id."""
TaskIdBytes: TypeAlias = Annotated[TaskId, Meta(min_length=ID_BYTES, max_length=ID_BYTES, extra=ID)]
"""The id of a task; whether its partition exists is checked by the peer that has the replica."""
DATA = {"data": True, "too_large": True}
"""Marks bytes that in JSON are a value or, under the name with ``_base64``, bytes."""
BLOB = {"blob": True}
"""Marks bytes that in JSON are always base64, under the name with ``_base64``."""
ENCODED = {"encoded": True}
"""Marks a map that may hold bytes, which in JSON are base64 under the name with ``_base64``."""
MOMENT = {"moment": True}
"""Marks a time in milliseconds since the epoch."""
AGE = {"age": True}
"""Marks an age in milliseconds."""
CALLER = {"caller": True}
"""Marks a name of the caller, which the command line knows."""

# --- what a class declares

Node = inspect.Type
"""A type as `msgspec.inspect` describes it."""


@frozen
class Member:
    """A field of a class."""

    name: str
    node: Node
    """Its type, without ``None`` and without marks."""
    required: bool
    default: Any
    """None also if there is no default."""
    nullable: bool
    about: str
    """Its description; empty if it has none."""
    marks: Mapping[str, Any]
    """The ``extra`` of its annotations."""


def bare(node: Node) -> tuple[Node, bool, str, dict[str, Any]]:
    """Return a type without ``None`` and annotations, whether ``None`` fits, the description and the marks."""
    about, marks, nullable = "", dict[str, Any](), False
    while True:
        if isinstance(node, inspect.Metadata):
            about = about or (node.extra_json_schema or {}).get("description", "")
            marks = {**(node.extra or {}), **marks}
            node = node.type
        elif isinstance(node, inspect.UnionType) and node.includes_none:
            nullable = True
            others = tuple(one for one in node.types if not isinstance(one, inspect.NoneType))
            node = others[0] if len(others) == 1 else inspect.UnionType(others)
        else:
            return node, nullable, about, marks


@cache
def members(kind: Any) -> Mapping[str, Member]:
    """Return the members of a class by name, in their order."""
    node = inspect.type_info(kind)
    assert isinstance(node, (inspect.StructType, inspect.DataclassType))
    return MappingProxyType({one.encode_name: _member(one) for one in node.fields})


def _member(field: inspect.Field) -> Member:
    node, nullable, about, marks = bare(field.type)
    default = field.default
    if default is msgspec.NODEFAULT:
        default = None if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    return Member(field.encode_name, node, field.required, default, nullable, about, marks)
