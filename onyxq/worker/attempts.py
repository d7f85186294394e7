"""One attempt at a task, shared by the worker and the code that it runs (design: claims)."""

from __future__ import annotations

import json
import threading
import traceback
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import Any, NamedTuple

import anyio

from onyxq.client import AsyncClient, Claim, Committed
from onyxq.client.transactions import Gathered
from onyxq.core.errors import AlreadyFinished, BadRequest, StaleToken
from onyxq.core.texts import without_middle
from onyxq.worker.console import trimmed
from onyxq.worker.retries import FailedThere, Retrying, Snooze

PROGRESS_S = 1.0
"""Shortest time between two stored progress reports, in seconds."""
PROGRESS = "progress"
ERROR_CHARACTERS_MAX = 4_000
TRACEBACK_BYTES_MAX = 16 * 1024
"""Most bytes of a traceback that are sent; leaders keep less of it."""

current_client: ContextVar[AsyncClient] = ContextVar("current_client")
"""Within a task: the worker's client."""
current_claim: ContextVar[Claim] = ContextVar("current_claim")
"""Within a task: its claim, for updates and as a fencing token."""


class TaskCancelled(BaseException):
    """The attempt must end and its outcome no longer counts; raised by ``check()``."""


def ended_by_check(error: BaseException) -> bool:
    """Return whether an error is a `TaskCancelled`, or the group of one in which task groups wrap it."""
    if isinstance(error, BaseExceptionGroup):
        found, others = error.split(TaskCancelled)
        return found is not None and (others is None or isinstance(others, Exception))
    return isinstance(error, TaskCancelled)


class LogEntry(NamedTuple):
    """A checkpoint that an attempt logged."""

    token: int
    """Token of the attempt's claim; later attempts have higher ones."""
    seq: int
    value: Any
    """The value that was logged: what its JSON means; bytes if it is not JSON."""
    at_ms: int


class Progress(NamedTuple):
    """Progress of an attempt: ``done`` out of ``total`` (None if unknown), at ``at_ms`` since the epoch."""

    done: float
    total: float | None
    note: str
    at_ms: int


class Attempt:
    """An attempt of a worker at a claimed task."""

    def __init__(self, claim: Claim, *, random_name: Callable[[], str]) -> None:
        self.claim = claim
        self.name = ""
        """Name of the application's task, once it is known."""
        self.retrying = Retrying()
        """The options of the application's task about retries."""
        self.random_name = random_name
        self.cancelled = threading.Event()
        """Set when the attempt must end: the claim is lost, its time is over, or the worker stops."""
        self.ends_at = float("inf")
        """When its time is over (monotonic second of the event loop's clock)."""
        self.on_lost: Callable[[Claim], None] = lambda claim: None
        """Called when the claim turns out to be invalid."""
        self.committing = False
        """Whether a transaction that completes the task is being committed: a failed renewal then means nothing."""
        self.ended = False
        """Whether a transaction completed the task."""
        self._progress_at = float("-inf")
        self._earlier: list[LogEntry] | None = None

    @property
    def shown_as(self) -> str:
        """The name of its task; if it is unknown, the queue."""
        return self.name or f"a task of {self.claim.queue}"

    async def log(self, client: AsyncClient, value: Any) -> int:
        """Store an update; return its number, from 0 per attempt. Raise `Conflict` if the claim is no longer valid."""
        try:
            return await client.update(self.claim, pack(value))
        except (StaleToken, AlreadyFinished):
            self.on_lost(self.claim)
            raise

    async def progress(self, client: AsyncClient, done: float, total: float | None, note: str) -> None:
        """Store progress at most once a second, and always when ``done`` reaches ``total``."""
        now = anyio.current_time()
        if now < self._progress_at + PROGRESS_S and (total is None or done < total):
            return
        self._progress_at = now
        await self.log(client, {PROGRESS: {"done": done, "total": total, "note": note}})

    async def earlier(self, client: AsyncClient) -> list[LogEntry]:
        """Return the checkpoints of earlier attempts, oldest first, without progress. They are read once."""
        if self._earlier is None:
            updates = await client.task_log(self.claim.id)
            found = (LogEntry(one.token, one.seq, unpack(one.data), one.at_ms) for one in updates)
            self._earlier = [one for one in found if self._is_earlier(one)]
        return list(self._earlier)

    def _is_earlier(self, entry: LogEntry) -> bool:
        """Return whether an entry is a checkpoint of an earlier attempt."""
        return entry.token != self.claim.token and not _is_progress(entry.value)

    async def results(self, client: AsyncClient) -> list[Any]:
        """Return the results of the tasks that this one depends on, in that order; None if a task has none."""
        found = await client.results(self.claim.depends)
        return [None if one is None else unpack(one) for one in found]

    async def commit(self, client: AsyncClient, gathered: Gathered) -> Committed:
        """Commit a transaction; if it completes the task, the attempt has ended."""
        mine = gathered.completes(self.claim)
        self.committing = mine
        try:
            committed = await client.commit(gathered)
        finally:
            self.committing = False
        self.ended = self.ended or mine
        return committed


current_attempt: ContextVar[Attempt] = ContextVar("current_attempt")
"""Within a task: the attempt."""


def pack(value: Any) -> bytes:
    """Return bytes unchanged and anything else as JSON; raise `BadRequest` if that is impossible."""
    if type(value) is bytes:
        return value
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise BadRequest(f"neither bytes nor JSON: {error}", field="value") from None


def unpack(data: bytes) -> Any:
    """Return the value that `pack` stored; data that is not JSON, or nested too deeply, stays bytes."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return data


def describe(error: BaseException) -> str:
    """Return the text stored for a failed attempt."""
    try:
        text = str(error)
    except Exception:
        text = "its text cannot be made"  # The class is the user's. The failure must be reported nevertheless.
    if not isinstance(error, (FailedThere, Snooze)):
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    # Half of a surrogate pair, as in names of files, cannot be encoded: the failure could not be reported.
    return text.encode(errors="backslashreplace").decode()[:ERROR_CHARACTERS_MAX]


def traceback_of(error: BaseException) -> str:
    """Return the traceback that is stored for a failed attempt, with the errors that caused the error."""
    if isinstance(error, FailedThere):
        return error.trace
    shown = traceback.format_exception(type(error), error, trimmed(error.__traceback__))
    return without_middle("".join(shown), TRACEBACK_BYTES_MAX)


def latest_progress(entries: Iterable[tuple[bytes, int]]) -> Progress | None:
    """Return the latest progress among updates, each its data and its time; None if there is none."""
    found: Progress | None = None
    for data, at_ms in entries:
        value = unpack(data)
        if _is_progress(value):
            said = value[PROGRESS]
            found = Progress(said.get("done", 0), said.get("total"), said.get("note", ""), at_ms)
    return found


def _is_progress(value: Any) -> bool:
    return isinstance(value, dict) and len(value) == 1 and isinstance(value.get(PROGRESS), dict)
