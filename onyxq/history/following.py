"""Following a cluster's log from outside: origin, replica, records, and what each entry changed.

Without I/O: a generator yields each request to a peer as an `Ask` and receives the answer. Blocking and
asynchronous callers thus share every decision; `drive` and `drive_async` make the calls. The reader applies
the log: it computes replicas, verdicts and differences. The peer only sends bytes.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator
from typing import Any, NamedTuple, TypeAlias, TypeVar

from attrs import frozen

from onyxq.core import snapshot
from onyxq.core.diff import Change, diff
from onyxq.core.entry import APPLIED
from onyxq.core.errors import Conflict, NotFound, OnyxqError, Overloaded, TimedOut, Unavailable
from onyxq.core.log.interface import Record
from onyxq.core.replica import EMPTY, Replica
from onyxq.core.step import step
from onyxq.history.replay import traced
from onyxq.history.words import SET_REPLICA, sentence
from onyxq.system.extensions import installed

PAGE_RECORDS = 1_000
WAIT_MS = 5_000
"""Longest wait of a peer for new records before it answers, in ms."""
ORIGIN_TRIES = 10
PASSING = (Unavailable, Overloaded, TimedOut)
"""Errors after which a repeated call may succeed."""
PAUSE_FIRST_S, PAUSE_MAX_S = 0.1, 2.0

T = TypeVar("T")


class Ask(NamedTuple):
    """A call of a method of the API."""

    method: str
    args: dict[str, Any]


@frozen
class SetReplica:
    """Arguments of the synthetic entry ``set_replica``: the origin's position."""

    position: int


@frozen
class LogEntry:
    """An entry of the log.

    ``str`` describes it in a sentence.
    """

    name: str
    args: Any
    """The entry's typed arguments, or the raw list if they do not fit the types."""
    version: int
    index: int
    """Index of the entry in its record."""
    peer: str
    """Writer of the record; empty for ``set_replica``."""
    at_ms: int
    """Time of the record by the log's clock, in ms; 0 for ``set_replica``."""

    def __str__(self) -> str:
        return sentence(self.name, self.args)


class Event(NamedTuple):
    """What a subscriber receives: an entry, its verdict, and all differences since the event before."""

    position: int
    entry: LogEntry
    verdict: str
    diff: tuple[Change, ...]


Talk: TypeAlias = Generator[Ask, Any, T]
Following: TypeAlias = Generator[Ask | Event, Any, None]


class Trimmed(NotFound):
    """The log no longer has the requested records; it begins after ``origin``."""

    code, hint = "trimmed", "An archive (--archive DIR) or an older dump (--file FILE) may reach further back."

    def __init__(self, start: int, origin: int) -> None:
        super().__init__(f"records from {start} on are trimmed: the log continues after its snapshot at {origin}")
        self.origin = origin


def origin() -> Talk[bytes]:
    """Return the packed origin, empty before the first collection of the log."""
    return (yield from _parts("origin"))


def replica() -> Talk[Replica]:
    """Return the replica of the peer that answers."""
    return snapshot.unpack((yield from _parts("replica.part")))


def records(start: int, last: int) -> Generator[Ask | Record, Any, None]:
    """Yield every record from ``start`` to ``last``, which must be written.

    Raises `Trimmed` if the log no longer has them.
    """
    while start <= last:
        answer = yield Ask("log.raw", {"from": start, "limit": PAGE_RECORDS, "wait_ms": WAIT_MS})
        if "trimmed" in answer:
            raise Trimmed(start, answer["trimmed"])
        for one in answer["records"]:
            if one[0] <= last:
                yield Record(*one)
        if not answer["records"]:
            if answer["position"] >= start:
                return  # The rest of the segment is empty.
            continue  # Another peer answered, and it has read less of the log.
        start = answer["records"][-1][0] + 1


def follow(start: int | None) -> Following:
    """Yield events from position ``start`` (None: the present), for ever; see `onyxq.api.subscribe`."""
    shown = now = yield from _beginning(start)
    first = now.position + 1 if start is None else start
    while True:
        answer = yield Ask("log.raw", {"from": now.position + 1, "limit": PAGE_RECORDS, "wait_ms": WAIT_MS})
        if "trimmed" in answer:
            found = snapshot.unpack((yield from origin()))
            if found.position > now.position:
                now = found
                if now.position >= first:
                    yield _set_replica(shown, now)
                shown = now
            continue
        for one in answer["records"]:
            record = Record(*one)
            if record.position <= now.position:
                continue
            if record.position < first:
                shown = now = step(now, record, installed()).replica
                continue
            now, events = _events(shown, now, record)
            for event, after in events:
                yield event
                shown = after


def _beginning(start: int | None) -> Talk[Replica]:
    """Return a replica before ``start`` from which the log can be applied, or `EMPTY`."""
    if start is None:
        return (yield from replica())
    packed = yield from origin()
    if not packed:
        return EMPTY
    found = snapshot.unpack(packed)
    return found if found.position < start else EMPTY


def _events(shown: Replica, before: Replica, record: Record) -> tuple[Replica, list[tuple[Event, Replica]]]:
    """Return the replica after a record, and each entry's event with the replica after it."""
    done, seen = traced(before, record)
    events = []
    for outcome, after in seen:
        entry = LogEntry(outcome.name, outcome.args, outcome.version, outcome.index, done.peer, record.ctime_ms)
        events.append((Event(record.position, entry, outcome.verdict, diff(shown, after)), after))
        shown = after
    return done.replica, events


def _set_replica(shown: Replica, found: Replica) -> Event:
    entry = LogEntry(SET_REPLICA, SetReplica(found.position), 1, 0, "", 0)
    return Event(found.position, entry, APPLIED, diff(shown, found))


def _parts(method: str) -> Talk[bytes]:
    """Return an answer that comes in parts, read again from the first part if it changes meanwhile."""
    for _ in range(ORIGIN_TRIES):
        answer = yield Ask(method, {"part": 0})
        position, count = answer["position"], answer["parts"]
        parts = [answer["data"]] if count else []
        while len(parts) < count:
            try:
                answer = yield Ask(method, {"part": len(parts), "position": position})
            except Conflict:
                break
            parts.append(answer["data"])
        if len(parts) == count:
            return b"".join(parts)
    raise Unavailable(f"the {method} changes faster than it can be read")


# --- asking --------------------------------------------------------------------------


def ask(talk: Talk[T], call: Callable[[str, dict[str, Any]], Any]) -> T:
    """Return the result of a talk whose requests ``call`` answers."""
    found: list[T] = []
    for _ in drive(_into(talk, found), call):
        pass
    return found[0]


async def ask_async(talk: Talk[T], call: Callable[[str, dict[str, Any]], Awaitable[Any]]) -> T:
    """Return the result of a talk; like `ask`, for an asynchronous ``call``."""
    found: list[T] = []
    async for _ in drive_async(_into(talk, found), call):
        pass
    return found[0]


def _into(talk: Talk[T], found: list[T]) -> Talk[None]:
    found.append((yield from talk))


def drive(following: Generator[Any, Any, None], call: Callable[[str, dict[str, Any]], Any]) -> Iterator[Any]:
    """Yield the items of a generator whose requests ``call`` answers."""
    try:
        item = next(following)
        while True:
            if not isinstance(item, Ask):
                yield item
                item = next(following)
                continue
            try:
                answer = call(item.method, item.args)
            except OnyxqError as error:
                item = following.throw(error)
            else:
                item = following.send(answer)
    except StopIteration:
        return


async def drive_async(
    following: Generator[Any, Any, None], call: Callable[[str, dict[str, Any]], Awaitable[Any]]
) -> AsyncGenerator[Any, None]:
    """Yield the items of a generator; like `drive`, for an asynchronous ``call``."""
    try:
        item = next(following)
        while True:
            if not isinstance(item, Ask):
                yield item
                item = next(following)
                continue
            try:
                answer = await call(item.method, item.args)
            except OnyxqError as error:
                item = following.throw(error)
            else:
                item = following.send(answer)
    except StopIteration:
        return
