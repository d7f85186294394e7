"""Limits of what users send, each written once: types that carry their bounds, for arguments and for entries."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta

from onyxq.core.ids import ID_BYTES, TaskId

NAME_CHARACTERS_MAX = 200
REMARK_CHARACTERS_MAX = 1_000
PRIORITY_MIN, PRIORITY_MAX = -(1 << 31), (1 << 31) - 1

PLAIN = r"^(?![\s\S]*[\x00-\x1f\x7f])"
"""Matches a text without control characters."""

Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=NAME_CHARACTERS_MAX, pattern=PLAIN)]
"""The name of a queue, of a periodic task and the like."""
Remark: TypeAlias = Annotated[str, Meta(max_length=REMARK_CHARACTERS_MAX, pattern=PLAIN)]
"""A short text for people, stored with what it is about."""
Priority: TypeAlias = Annotated[int, Meta(ge=PRIORITY_MIN, le=PRIORITY_MAX)]

Format: TypeAlias = Literal["bytes", "json"]
"""What a task's data is: any bytes, or JSON in UTF-8."""
Missed: TypeAlias = Literal["skip", "once", "all"]
"""What to do about times of a schedule at which nothing could be enqueued."""
RUN_BYTES_MAX = 256 * 1024
"""Data of several tasks that are stored as one row."""
TIMERS_QUEUE = "onyxq.timers"
"""The queue of all timers. Its settings apply to them: retries, back-off, retention, pauses."""
TIMER_URI_CHARS_MAX = 8_000
PERIODIC_DATA_BYTES_MAX = 64 << 10
JOB_KEEP_MS_MAX = 10 * 366 * 86_400_000
"""How long the outcome of a job may be kept."""

ID = {"id": True}
"""Marks the bytes of a task id."""
TaskIdBytes: TypeAlias = Annotated[TaskId, Meta(min_length=ID_BYTES, max_length=ID_BYTES, extra=ID)]
"""The id of a task; whether its partition exists is checked by the peer that has the replica."""
DATA = {"data": True, "too_large": True}
"""Marks bytes that in JSON are a value or, under the name with ``_base64``, bytes."""
MOMENT = {"moment": True}
"""Marks a time in milliseconds since the epoch."""
AGE = {"age": True}
"""Marks an age in milliseconds."""
CALLER = {"caller": True}
"""Marks a name of the caller, which the command line knows."""
