"""The settings of a queue: the one place that has their names, types, limits, defaults and meaning.

Pure.  The entry ``set_queue``, the arguments and answers of operations, the command line, the
dashboard and the documentation all follow from `Queue`.  A new setting is one field at its end.
Once ``set_queue`` is released, it also has the mark ``extra={"since": VERSION}``, the version of the
entry that brings it: peers of the release before must give that entry the same meaning.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Literal, TypeAlias

from attrs import frozen
from msgspec import Meta, inspect

from onyxq.core.errors import BadRequest
from onyxq.core.limits import RESERVED, BackoffMs, LeaseMs, Member, RetryCount, members

NO_LIMIT = -1
"""The number that means ``None`` (no limit) in entries, which hold no null."""
THOUSANDTHS = {"thousandths": True}
"""Marks a number that users give in units, and entries hold in thousandths: they hold no floats."""

DAY_MS = 86_400_000
PerSecond: TypeAlias = Annotated[int, Meta(ge=0, le=1_000_000_000, extra=THOUSANDTHS)]
"""Tasks per 1,000 seconds; users give tasks per second. 0: no limit."""


@frozen
class Queue:
    """The settings of a queue. A queue has the defaults until ``set_queue`` changes them."""

    paused: Annotated[bool, Meta(description="Grant no tasks; existing claims continue.")] = False
    paused_by: str = ""
    paused_why: str = ""
    lease_ms: Annotated[LeaseMs, Meta(description="Lease of claims that name none, in milliseconds.")] = 30_000
    retries: Annotated[
        RetryCount | None,
        Meta(
            description="Retries of tasks that set no number themselves; null: until an attempt succeeds.",
            extra={"null": "no limit"},
        ),
    ] = 25
    backoff_ms: Annotated[
        BackoffMs, Meta(description="Pause before the first retry, for tasks that set none; it doubles.")
    ] = 1_000
    on_dead: Annotated[
        Literal["goes on", "stops"], Meta(description="Effect of a dead letter on the later tasks of its ordering key.")
    ] = "goes on"
    retention_ms: Annotated[
        int, Meta(ge=0, le=10 * 366 * DAY_MS, description="How long finished tasks are kept, in milliseconds.")
    ] = 7 * DAY_MS
    grace_ms: Annotated[
        int, Meta(ge=0, le=366 * DAY_MS, description="How far in the past the due time of a new task may be.")
    ] = 10_000
    rate: Annotated[
        PerSecond, Meta(description="Most tasks that the whole cluster grants per second; 0: no limit.")
    ] = 0
    concurrency: Annotated[
        int, Meta(ge=0, le=1_000_000, description="Most tasks claimed at a time in the whole cluster; 0: no limit.")
    ] = 0
    key_rate: Annotated[
        PerSecond, Meta(description="Most tasks of one ordering key that are granted per second; 0: no limit.")
    ] = 0
    durability: Annotated[
        Literal["strict", "opportunistic"],
        Meta(description="opportunistic: an enqueue is acknowledged before it is on disk."),
    ] = "strict"
    archive: Annotated[bool, Meta(description="Archive finished tasks before they are purged.")] = False


DEFAULTS = Queue()
NOT_SET = ("paused_by", "paused_why")
"""Fields that say who paused the queue and why; they change with ``paused`` only."""

SETTINGS: Mapping[str, Member] = MappingProxyType(
    {name: member for name, member in members(Queue).items() if name not in NOT_SET}
)
"""All settings by name."""


_UNFIT = {int: "is no number to set", str: "is no word to set", bool: "is nothing to switch"}


def is_setting(name: str, version: int) -> bool:
    """Return whether a version of the entry ``set_queue`` has a setting: its mark ``since`` names the first one."""
    return name in SETTINGS and int(SETTINGS[name].marks.get("since", 1)) <= version


def problem_of(name: str, value: int | str | bool, version: int) -> str:
    """Return what is wrong with a value of a version of ``set_queue``, in words; empty if nothing is."""
    setting = SETTINGS[name] if is_setting(name, version) else None
    match (setting.node if setting else None), value:
        case inspect.BoolType(), bool():
            return ""
        case inspect.LiteralType(values), str():
            return "" if value in values else f"must be one of: {', '.join(map(str, values))}"
        case inspect.IntType(ge=int(low), le=int(high)), int() if type(value) is int:
            low = NO_LIMIT if setting and setting.nullable else low
            return "" if low <= value <= high else f"must be {low} to {high}"
    return _UNFIT[type(value)]


def check_writable(queue: str, field: str) -> None:
    """Raise `BadRequest` for one of OnyxQ's own queues: only the operations that own it write to it."""
    if queue.startswith(RESERVED):
        raise BadRequest(
            f"{field} must not begin with {RESERVED}: {queue[:100]!r} is for OnyxQ's own tasks",
            field=field,
            hint="Choose another queue. Timers, callbacks and flows have operations of their own.",
        )
