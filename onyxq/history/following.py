"""Going through a cluster's log from outside: origin, replica, records, and what each entry changed.

Without I/O: what is to be asked of a peer is yielded as an `Ask` and its answer sent back,
so that blocking and asynchronous callers share every decision; `drive` and `drive_async`
do the asking.  Whoever follows the log steps it himself: any replica on the way, verdicts
and differences are computed here, and the peer only hands out bytes.
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
"""How long a peer may hold back the answer that nothing is new."""
ORIGIN_TRIES = 10
PASSING = (Unavailable, Overloaded, TimedOut)
"""Errors after which the same question may be answered."""
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
    """One entry as the log has it. ``str`` tells it in words."""

    name: str
    args: Any
    """The entry's typed arguments, or the raw list of what does not fit its types."""
    version: int
    index: int
    """Its place in its record."""
    peer: str
    """Who wrote it; empty for ``set_replica``."""
    at_ms: int
    """The record's time as the log's clock said; 0 for ``set_replica``."""

    def __str__(self) -> str:
        return sentence(self.name, self.args)


class Event(NamedTuple):
    """What a subscriber is told: an entry, what became of it, and all that differs since the event before."""

    position: int
    entry: LogEntry
    verdict: str
    diff: tuple[Change, ...]


Talk: TypeAlias = Generator[Ask, Any, T]
Following: TypeAlias = Generator[Ask | Event, Any, None]


class Trimmed(NotFound):
    """The log no longer has the records that are asked for; it goes on behind ``origin``."""

    code, hint = "trimmed", "An archive (--archive DIR) or an older dump (--file FILE) may reach further back."

    def __init__(self, start: int, origin: int) -> None:
        super().__init__(f"records from {start} on are trimmed: the log goes on behind its origin at {origin}")
        self.origin = origin


def origin() -> Talk[bytes]:
    """The packed origin, empty before the first collection."""
    return (yield from _parts("origin"))


def replica() -> Talk[Replica]:
    """The replica of whoever is asked."""
    return snapshot.unpack((yield from _parts("replica")))


def records(start: int, last: int) -> Generator[Ask | Record, Any, None]:
    """Every record from ``start`` to ``last``, which must be written; raises `Trimmed`."""
    while start <= last:
        answer = yield Ask("log.raw", {"from": start, "limit": PAGE_RECORDS, "wait_ms": WAIT_MS})
        if "trimmed" in answer:
            raise Trimmed(start, answer["trimmed"])
        for one in answer["records"]:
            if one[0] <= last:
                yield Record(*one)
        if not answer["records"]:
            if answer["position"] >= start:
                return  # the rest of a segment is empty
            continue  # another peer answers, one that is behind
        start = answer["records"][-1][0] + 1


def follow(start: int | None) -> Following:
    """Events from ``start`` (None: the present) on, for ever; see `onyxq.api.subscribe`."""
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
    """A replica before ``start`` from which the log can be stepped; `EMPTY` if there is none."""
    if start is None:
        return (yield from replica())
    packed = yield from origin()
    if not packed:
        return EMPTY
    found = snapshot.unpack(packed)
    return found if found.position < start else EMPTY


def _events(shown: Replica, before: Replica, record: Record) -> tuple[Replica, list[tuple[Event, Replica]]]:
    """The replica behind a record, and an event for each entry with the replica that it told of."""
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
    """All parts of an answer that comes in parts, begun anew while it changes."""
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
    """The outcome of a talk whose questions ``call`` answers."""
    try:
        question = next(talk)
        while True:
            question = _answered(talk, lambda one=question: call(one.method, one.args))  # type: ignore[misc]
    except StopIteration as done:
        found: T = done.value
        return found


async def ask_async(talk: Talk[T], call: Callable[[str, dict[str, Any]], Awaitable[Any]]) -> T:
    """As `ask`, for an asynchronous ``call``."""
    try:
        question = next(talk)
        while True:
            try:
                answer = await call(question.method, question.args)
            except OnyxqError as error:
                question = talk.throw(error)
            else:
                question = talk.send(answer)
    except StopIteration as done:
        found: T = done.value
        return found


def drive(following: Generator[Any, Any, None], call: Callable[[str, dict[str, Any]], Any]) -> Iterator[Any]:
    """What is found on the way, with the questions answered by ``call``."""
    try:
        item = next(following)
        while True:
            if isinstance(item, Ask):
                item = _answered(following, lambda one=item: call(one.method, one.args))  # type: ignore[misc]
            else:
                yield item
                item = next(following)
    except StopIteration:
        return


async def drive_async(
    following: Generator[Any, Any, None], call: Callable[[str, dict[str, Any]], Awaitable[Any]]
) -> AsyncGenerator[Any, None]:
    """As `drive`, for an asynchronous ``call``."""
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


def _answered(talk: Generator[Any, Any, Any], call: Callable[[], Any]) -> Any:
    """What a talk says once it heard the answer, or the error."""
    try:
        answer = call()
    except OnyxqError as error:
        return talk.throw(error)
    return talk.send(answer)
