"""Values that clients receive: tasks, claims, updates, pages and verdicts (design: interfaces)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from string import hexdigits
from typing import Any, Literal, NamedTuple, TypeAlias

from attrs import frozen

from onyxq.core.entry import APPLIED
from onyxq.core.errors import BadRequest
from onyxq.core.ids import ID_BYTES, TaskId
from onyxq.core.limits import Format, OnConflict, UniqueUntil
from onyxq.operations.table.task import State

SHOWN_CHARS = 80
"""Most characters of a wrong value that an error shows."""

ClaimOutcome: TypeAlias = Literal["completed", "failed", "released", "expired", "cancelled"]
"""How a claim ended."""

_HEX = re.compile(r"[0-9a-fA-F]{40}")


class ClaimRecord(NamedTuple):
    """One claim in a task's history, which is an attempt; times are milliseconds since the epoch."""

    token: int
    worker: str
    start_ms: int
    end_ms: int | None
    outcome: ClaimOutcome | None
    """None while it is held."""
    attempt: int
    """Its number, from 1. After a claim that does not count, such as a snooze, the same number follows."""
    duration_ms: int | None
    retry_ms: int | None
    """When the task was due again after a failure or a snooze."""
    given_up: bool
    """Whether the worker failed the task for good although retries were left."""
    error: str | None
    traceback: str | None
    """Kept of the first 2 and the last 6 failures of a task; a list has the last one of each task only."""


class TaskCallback(NamedTuple):
    """The callback of a task and its delivery; times are milliseconds since the epoch."""

    transport: str
    uri: str
    """Without user, password, query and fragment, which may be secrets."""
    method: str
    task: TaskId
    """The task in the queue ``onyxq.timers`` that delivers it."""
    state: str
    """``waiting`` until its task ends; then ``scheduled``, ``ready`` or ``claimed``; at the end ``delivered``,
    ``failed`` or ``cancelled``. ``purged``: it has ended and is no longer kept."""
    attempts: int
    """Number of attempts that failed or whose lease expired."""
    at_ms: int | None
    """When the next attempt is due; None if there is none."""
    delivered_ms: int | None
    error: str | None
    """Error of the last attempt that failed."""


class TaskUpdate(NamedTuple):
    """One update of a task; ``at_ms`` is in milliseconds since the epoch."""

    token: int
    seq: int
    data: bytes
    at_ms: int


@frozen(kw_only=True, repr=False)
class Task:
    """A stored task, as a read returns it.

    ``state`` is ``scheduled``, ``waiting``, ``ready``, ``claimed``, ``completed``, ``failed`` or ``cancelled``.
    A ``waiting`` task waits for tasks that it depends on, or for earlier tasks of its ordering key.
    Times are milliseconds since the epoch.
    """

    id: TaskId
    queue: str
    data: bytes
    format: Format
    priority: int
    state: State
    at_ms: int
    attempts: int
    claims: tuple[ClaimRecord, ...]
    updates: int
    depends: tuple[TaskId, ...] = ()
    ordering_key: str | None = None
    unique_key: str | None = None
    expires_ms: int | None = None
    retries: int | None = None
    """Failed attempts allowed beyond the first, as the task or its queue sets it; None for no limit."""
    attempts_max: int | None = None
    """Number of attempts after which it fails for good; None for no limit."""
    created_ms: int | None = None
    """When its id was made; if it was enqueued for later, when it was due."""
    started_ms: int | None = None
    """When it was claimed first."""
    finished_ms: int | None = None
    duration_ms: int | None = None
    """From the first start to the end."""
    claims_left_out: int = 0
    """Number of claims that ``claims`` lacks: it has the first 10 and the last 40 at most."""
    result: bytes | None = None
    error: str | None = None
    unique_until: UniqueUntil | None = None
    """When its unique key is free again: ``started``, ``finished`` or ``purged``; None if it has no such key."""
    unique_period_ms: int | None = None
    on_conflict: OnConflict | None = None
    callback: TaskCallback | None = None
    flow: TaskId | None = None
    """Id of its flow; None: it is not a task of a flow with an id."""

    def __repr__(self) -> str:
        return f"<task {self.id.hex()} of queue {self.queue!r}: {self.state}>"

    @staticmethod
    def of(answer: dict[str, Any]) -> Task:
        """Return the task in an answer; fields that this version does not know are left out."""
        known = {name: answer[name] for name in Task.__annotations__ if name in answer}
        known["claims"] = tuple(
            ClaimRecord(*(claim.get(name) for name in ClaimRecord._fields)) for claim in known.get("claims", ())
        )
        known["depends"] = tuple(known.get("depends", ()))
        if (callback := known.get("callback")) is not None:
            known["callback"] = TaskCallback(*(callback.get(name) for name in TaskCallback._fields))
        return Task(**known)


class Page(NamedTuple):
    """A page of tasks, and the id to pass as ``after`` for the next page; None on the last page."""

    tasks: tuple[Task, ...]
    after: TaskId | None


def wrong(field: str, expected: str, value: Any) -> BadRequest:
    """Return the error for an option of a wrong value, such as ``delay_ms must be 0 or more, not -5``."""
    text = repr(value)
    shown = text if len(text) <= SHOWN_CHARS else text[: SHOWN_CHARS - 1] + "…"
    return BadRequest(f"{field} must be {expected}, not {shown}", field=field)


def not_bytes(payload: object) -> BadRequest:
    """Return the error for a payload that is not bytes, with what to write instead."""
    hint = 'Encode it: json.dumps(value).encode(), with format="json". An App takes any arguments of its functions.'
    if isinstance(payload, str):
        hint = 'Encode it: text.encode(); for JSON add format="json".'
    return BadRequest(f"a payload is bytes, not {type(payload).__name__}", field="data", hint=hint)


def as_id(value: bytes | str) -> TaskId:
    """Return a task id from its 20 bytes or 40 hex digits; raise `BadRequest` for anything else."""
    if isinstance(value, str) and _HEX.fullmatch(value):
        return TaskId(bytes.fromhex(value))
    if isinstance(value, bytes) and len(value) == ID_BYTES:
        return TaskId(bytes(value))  # a handle becomes a plain id
    hint = "The first digits of an id are enough on the command line only." if _is_part(value) else None
    raise BadRequest(f"a task id is {ID_BYTES} bytes or 40 hex digits, not {value!r}", field="id", hint=hint)


def _is_part(value: object) -> bool:
    return isinstance(value, str) and len(value) < 2 * ID_BYTES and set(value) <= set(hexdigits)


def queue_names(queues: str | Sequence[str]) -> tuple[str, ...]:
    """Return the names of queues; a text is one name."""
    return (queues,) if isinstance(queues, str) else tuple(queues)


@frozen
class Submitted:
    """The outcome of a submitted entry: the position of its record in the log, and the verdict."""

    position: int
    verdict: str

    @property
    def applied(self) -> bool:
        """Whether the entry took effect."""
        return self.verdict == APPLIED
