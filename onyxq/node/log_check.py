"""Checks that the log is still the one that a node has read (design: a log that went back).

ZooKeeper may be restored from an older copy or wiped, or one of its servers may be. Then it lacks records that
nodes have acted upon, and a node that continued would issue tokens a second time. So a node checks the log
before it appends anything, after every reconnection, and every few seconds while it is connected.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, Protocol, TypeAlias

import msgpack
import trio
from attrs import frozen

from onyxq.core.entry import Entries
from onyxq.core.errors import LogUnavailable, LogWentBack, OnyxqError
from onyxq.core.log.digest import ReadMark, chained, trail_at
from onyxq.core.log.interface import START, LogSession, Record, SessionLost, Trimmed
from onyxq.core.replica import EMPTY, Cluster, Replica
from onyxq.core.step import step
from onyxq.node.collector import unpacked
from onyxq.node.recent_records import RecentRecords
from onyxq.store.interface import MILESTONES_META
from onyxq.store.store import Store

LOOK_EVERY_S = 2.0
SESSION_LOOK_S = 1.5
"""Time limit for a look over the session, in seconds: a session that breaks would wait until it reconnects."""
LOOK_TIMEOUT_S = 5.0
"""Time limit for a look over a new connection, in seconds."""
READ_WAIT_S = 0.5
"""Longest wait of a node, asked for a promise, until it has read as far as the leader, in seconds."""
READ_TIMEOUT_S = 1.0
AWAY_TIMEOUTS = 2
"""A session that was disconnected for this many session timeouts while the log answered others has expired."""

Look: TypeAlias = Callable[[int], Awaitable[Record | Trimmed | None]]
"""`LogBackend.look`."""


@frozen
class ReadAgain:
    """The part of the log that a starting node reads again, found to be what it read before."""

    start: Replica
    """The snapshot; `EMPTY` before the first collection."""
    packed: bytes
    """The snapshot in packed form."""
    records: list[Record]
    """The records after it, up to where the node had read."""


def stored_mark(store: Store) -> ReadMark:
    """Return how far a node had read when the last transaction of its store was made."""
    kept = store.meta(MILESTONES_META)
    milestones = msgpack.unpackb(kept, use_list=False) if kept is not None else ()
    return ReadMark(store.log_position(), store.log_digest(), milestones)


def mark_of(replica: Replica) -> ReadMark:
    """Return how far a node with this replica has read."""
    return ReadMark(replica.position, replica.digest, replica.milestones)


async def read_again(session: LogSession, mark: ReadMark) -> ReadAgain:
    """Read the log up to ``mark``, and return what was read; raises `LogWentBack` if it is another log."""
    while True:
        origin = await session.origin()
        packed = origin.data if origin is not None else b""
        start = await unpacked(packed) if packed else EMPTY
        if start.position >= mark.position:
            check_snapshot(mark, start)
            return ReadAgain(start, packed, [])
        if await session.look(mark.position) is None:
            raise ends_before(mark.position, await session.tail())
        records = await _records(session, start.position, mark.position)
        if records is not None:
            digest = start.digest
            for record in records:
                digest = chained(digest, record.position, record.ctime_ms, record.data)
            if not mark.is_at(records[-1].position, digest):
                raise other_record(mark.position)
            return ReadAgain(start, packed, records)


async def _records(session: LogSession, after: int, last: int) -> list[Record] | None:
    """Return the records up to ``last``; None if some are trimmed meanwhile, so that there is a newer snapshot."""
    records: list[Record] = []
    while after < last:
        found = await session.read(after + 1)
        if isinstance(found, Trimmed):
            return None
        records.append(found)
        after = found.position
    return records


async def cluster_of(session: LogSession, entries: Entries) -> Cluster | None:
    """Return the cluster to which the log belongs; None if it has none."""
    origin = await session.origin()
    replica = await unpacked(origin.data) if origin is not None else EMPTY
    end = await session.tail()
    while replica.cluster is None and replica.position < end:
        found = await session.read(replica.position + 1)
        if isinstance(found, Trimmed):
            return await cluster_of(session, entries)
        replica = step(replica, found, entries).replica
    return replica.cluster


class Reader(Protocol):
    """The members of a node that checks of its log use."""

    node_id: str
    replica: Replica
    records: RecentRecords
    went_back: LogWentBack | None
    log_end: int
    """Position of the last record that the log is known to have."""

    async def moved(self) -> None:
        """Wait for the next step of the log."""
        ...

    async def call(self, node: str, method: str, args: dict[str, Any], *, timeout_s: float) -> Any:
        """Call a method of another node; raises `Unavailable`."""
        ...


class Testimony(NamedTuple):
    """How far a node has read the log, and what it read there."""

    position: int
    """Position of the last record that the node has read."""
    digest: bytes
    """The digest of the log up to there."""
    step: bytes | None
    """The node's `step_of` the position that it was asked for."""
    record: bytes | None
    """Digest of the last record; None if the node has its replica from a snapshot."""


def testimony(node: Reader, position: int) -> Testimony:
    """Return what a node has read; ``position``: how far the node that asks has read."""
    replica, newest = node.replica, node.records.newest
    record = _digest(newest) if newest else None
    return Testimony(replica.position, replica.digest, step_of(replica, position), record)


async def testimony_of(node: Reader, other: str, position: int) -> Testimony:
    """Ask another node for its `testimony`; raises `Unavailable`."""
    return Testimony(*await node.call(other, "cohort.log", {"position": position}, timeout_s=READ_TIMEOUT_S))


def _digest(record: Record) -> bytes:
    return chained(b"", record.position, record.ctime_ms, record.data)


class Witnesses:
    """The other nodes, which may have read more of the log than this node has.

    A node that lost the log before an older copy was made finds nothing missing in that copy. Only the nodes that
    read on know that the copy is not the log. So a node asks them after each reconnection before it reads on, and
    then every few seconds until half of them have answered.
    """

    def __init__(self, node: Reader) -> None:
        self._node = node
        self._asked_over = -1
        """The session's connection over which half of the others have confirmed the log."""

    async def ask(self, session: LogSession) -> None:
        """Ask all other nodes at once, unless half of them answered over this connection; raises `LogWentBack`."""
        connection, replica = session.connections, self._node.replica
        if connection == self._asked_over or replica.cluster is None:
            return
        me = self._node.node_id
        others = [other for other, node in sorted(replica.nodes.items()) if not node.replaced and other != me]
        heard: dict[str, Testimony] = {}

        async def hear(other: str) -> None:
            try:
                heard[other] = await testimony_of(self._node, other, replica.position)
            except OnyxqError:
                return  # it is asked again

        with trio.move_on_after(READ_TIMEOUT_S):
            async with trio.open_nursery() as nursery:
                for other in others:
                    nursery.start_soon(hear, other)
        for other, told in sorted(heard.items()):
            await self._check(session, other, told)
        if 2 * len(heard) >= len(others) and connection == session.connections:
            self._asked_over = connection

    async def _check(self, session: LogSession, other: str, told: Testimony) -> None:
        """Raise `LogWentBack` if the log lacks what another node read after all that this node has read."""
        replica = self._node.replica
        if told.position <= replica.position or told.step not in (None, step_of(replica, replica.position)):
            return
        if not await _holds(session, told):
            raise LogWentBack(f"the log lacks the record at position {told.position}, which node {other} has read")


async def _holds(session: LogSession, told: Testimony) -> bool:
    """Return whether the log holds what another node read last, as far as the log still shows it."""
    found = await session.look(told.position)
    if isinstance(found, Record):
        return told.record in (None, _digest(found))
    origin = await session.origin() if found is not None else None
    if origin is None:
        return False
    snapshot = await unpacked(origin.data)
    mark = ReadMark(told.position, told.digest)
    return told.position < snapshot.void_below or mark.contradicted_by(snapshot.trail, snapshot.milestones) is None


async def watch(node: Reader, session: LogSession, look: Look, witnesses: Witnesses) -> None:
    """Check every few seconds that the log is the one that was read; raises `LogWentBack`, `SessionLost`.

    It also notes where the log ends. ``look``: `LogBackend.look`. A log that was set back refuses this session
    for ever, because the session saw newer records. So while the session is disconnected, the check uses
    another connection.
    """
    connected_at = trio.current_time()
    while True:
        await trio.sleep(LOOK_EVERY_S)
        position, known = node.replica.position, node.records.newest
        found: Record | Trimmed | None = None
        try:
            if session.connected:
                connected_at = trio.current_time()
                fits = False
                with trio.move_on_after(SESSION_LOOK_S):
                    fits = _fits(position, known, await session.look(position))
                    node.log_end = await session.tail()
                if fits:
                    with trio.move_on_after(LOOK_TIMEOUT_S):
                        await witnesses.ask(session)
                    continue
            with trio.move_on_after(LOOK_TIMEOUT_S) as looking:
                found = await look(position)
        except LogUnavailable:
            continue
        if looking.cancelled_caught:
            continue
        check_record(position, known, found)
        away_s = trio.current_time() - connected_at
        # A log is not trimmed beyond what its peers have read: a disconnected reader is then not a peer any more.
        stale = isinstance(found, Trimmed) and not session.connected
        if stale or away_s > AWAY_TIMEOUTS * node.replica.settings.session_timeout_ms / 1000:
            raise SessionLost("the log answers, but not to this session, which must have expired")


def _fits(position: int, known: Record | None, found: Record | Trimmed | None) -> bool:
    try:
        check_record(position, known, found)
    except LogWentBack:
        return False
    return True


def step_of(replica: Replica, position: int) -> bytes | None:
    """Return the trail's bytes of the digest at a position; None if the replica does not cover it."""
    return trail_at(replica.trail, position)


async def confirm_leader(node: Reader, leader: str, position: int, step: bytes | None) -> None:
    """Raise `LogUnavailable` unless a leader that asks for a promise reads the same log as this node.

    ``leader``: the leader's node, which has read up to ``position``; ``step``: its `step_of` there. Peers of a
    log that was set back could elect their own leader. It cannot serve without the promises of nodes that have
    read more.
    """
    if node.went_back is not None:
        raise LogUnavailable(node.went_back.message, hint=node.went_back.advice)
    with trio.move_on_after(READ_WAIT_S):
        while node.replica.position < position:
            await node.moved()
    mine = node.replica
    if mine.position < position:  # This node lags or cannot reach the log: the leader has read more.
        position, step = mine.position, step_of(mine, mine.position)
        known = (await testimony_of(node, leader, position)).step
    else:
        known = step_of(mine, position)
    if known != step:
        problem = "has" if known is not None else "may have"
        raise LogUnavailable(f"node {leader} {problem} read another log than this node, up to position {position}")


def check_snapshot(mark: ReadMark, snapshot: Replica) -> None:
    """Raise `LogWentBack` if a snapshot at or after ``mark`` is known to be of another log.

    The new log after a recovery is not one: it begins after all that was read of the lost log.
    """
    if mark.position < snapshot.void_below:
        return
    place = mark.contradicted_by(snapshot.trail, snapshot.milestones)
    if place is not None:
        raise other_record(place)


def check_record(position: int, known: Record | None, found: Record | Trimmed | None) -> None:
    """Raise `LogWentBack` unless the record found at ``position`` is the one that was read there.

    ``known``: the record that was read; None if the node has it from a snapshot. A trimmed record is accepted:
    the snapshot, which is at or after it, is checked when it is read.
    """
    if found is None:
        raise ends_before(position)
    if isinstance(found, Record) and known is not None and found != known:
        raise other_record(position)


def ends_before(position: int, end: int | None = None) -> LogWentBack:
    """Return the error for a log without the record at ``position``, which was read; ``end``: its last position."""
    if end == START:
        return LogWentBack(f"the log is empty, and this node has read it up to position {position}")
    ends = "ends before" if end is None else f"ends at position {end}, before"
    return LogWentBack(f"the log {ends} position {position}, up to which this node has read it")


def other_record(position: int) -> LogWentBack:
    """Return the error for a log whose record at ``position`` is not the one that was read there."""
    return LogWentBack(f"the log holds another record at or before position {position} than the one this node has read")
