"""One attempt at a task, as the worker and the code that runs both see it (design: claims)."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import Any, NamedTuple

import anyio

from onyxq.client import AsyncClient, Claim, Committed
from onyxq.client.transactions import Gathered
from onyxq.core.errors import AlreadyFinished, BadRequest, StaleToken

PROGRESS_S = 1.0
"""Progress is stored at most this often."""
PROGRESS = "progress"
ERROR_CHARACTERS_MAX = 4_000

current_client: ContextVar[AsyncClient] = ContextVar("current_client")
"""Within a task: the worker's client."""
current_claim: ContextVar[Claim] = ContextVar("current_claim")
"""Within a task: its claim, for updates and as a fencing token."""


class TaskCancelled(BaseException):
    """Raised by ``check()``: the attempt is to end, and what it returns is of no use any more."""


class FailedThere(Exception):
    """A function raised in a process of its own; the text says what, a note where."""

    def __init__(self, text: str, trace: str) -> None:
        super().__init__(text)
        self.add_note(trace)


class LogEntry(NamedTuple):
    """What an attempt logged."""

    token: int
    """Of the attempt's claim: higher for later attempts."""
    seq: int
    value: Any
    """As it was logged: bytes, or what JSON makes of anything else."""
    at_ms: int


class Progress(NamedTuple):
    """How far an attempt has come."""

    done: float
    total: float | None
    note: str
    at_ms: int


class Attempt:
    """A claim that a worker works on."""

    def __init__(self, claim: Claim, *, random_name: Callable[[], str]) -> None:
        self.claim = claim
        self.name = ""
        """Of the application's task, once it is known."""
        self.random_name = random_name
        self.cancelled = threading.Event()
        """Set when the attempt is to end: the claim is lost, its time is over, or the worker stops."""
        self.ends_at = float("inf")
        """When its time is over, by the event loop's clock."""
        self.on_lost: Callable[[Claim], None] = lambda claim: None
        """Told that the claim no longer stands."""
        self.committing = False
        """Its claim may be moving into a transaction: that it cannot be renewed says nothing."""
        self.ended = False
        """A transaction finished it."""
        self._progress_at = float("-inf")
        self._earlier: list[LogEntry] | None = None

    async def log(self, client: AsyncClient, value: Any) -> int:
        """Store an update; its number, from 0 per attempt. Raises `Conflict` if the claim no longer stands."""
        try:
            return await client.update(self.claim, pack(value))
        except (StaleToken, AlreadyFinished):
            self.on_lost(self.claim)
            raise

    async def progress(self, client: AsyncClient, done: float, total: float | None, note: str) -> None:
        """Store how far it is; not more often than once a second, but always the end."""
        now = anyio.current_time()
        if now < self._progress_at + PROGRESS_S and (total is None or done < total):
            return
        self._progress_at = now
        await self.log(client, {PROGRESS: {"done": done, "total": total, "note": note}})

    async def earlier(self, client: AsyncClient) -> list[LogEntry]:
        """What earlier attempts logged, oldest first; progress is left out. Asked for once."""
        if self._earlier is None:
            updates = await client.task_log(self.claim.id)
            found = (LogEntry(one.token, one.seq, unpack(one.data), one.at_ms) for one in updates)
            self._earlier = [one for one in found if one.token != self.claim.token and not _is_progress(one.value)]
        return list(self._earlier)

    async def results(self, client: AsyncClient) -> list[Any]:
        """Results of the tasks that this one depends on, in that order; None where there is none."""
        found = await client.results(self.claim.depends)
        return [None if one is None else unpack(one) for one in found]

    async def commit(self, client: AsyncClient, gathered: Gathered) -> Committed:
        """Commit a transaction; if it completes the task, that is its end."""
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
    """Bytes as they are, anything else as JSON; raises `BadRequest`."""
    if type(value) is bytes:
        return value
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise BadRequest(f"neither bytes nor JSON: {error}", field="value") from None


def unpack(data: bytes) -> Any:
    """The reverse of `pack`: what is no JSON stays bytes."""
    try:
        return json.loads(data)
    except ValueError:
        return data


def describe(error: BaseException) -> str:
    """The text stored for a failed attempt."""
    if isinstance(error, FailedThere):
        text = str(error)
    else:
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    # Half of a surrogate pair, as in names of files, cannot be sent: the failure would never be heard of.
    return text.encode(errors="backslashreplace").decode()[:ERROR_CHARACTERS_MAX]


def latest_progress(entries: Iterable[tuple[bytes, int]]) -> Progress | None:
    """The latest progress among updates, each its data and its time."""
    found: Progress | None = None
    for data, at_ms in entries:
        value = unpack(data)
        if _is_progress(value):
            said = value[PROGRESS]
            found = Progress(said.get("done", 0), said.get("total"), said.get("note", ""), at_ms)
    return found


def _is_progress(value: Any) -> bool:
    return isinstance(value, dict) and len(value) == 1 and isinstance(value.get(PROGRESS), dict)
