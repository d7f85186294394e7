"""The new log of a recovered cluster, and the checks before it replaces the old log."""

from __future__ import annotations

from collections.abc import Callable

import trio
from attrs import frozen

from onyxq.core import snapshot
from onyxq.core.errors import Conflict, Corrupt, LogUnavailable
from onyxq.core.log.interface import START, LogBackend, LogSession, Trimmed, segment_of
from onyxq.core.log.record import encode_record
from onyxq.core.replica import EMPTY, Replica
from onyxq.core.step import step
from onyxq.history.recovery.findings import Newest
from onyxq.history.recovery.new_replica import SEGMENTS_AHEAD, WRITER, new_replica
from onyxq.system.extensions import installed

PULSES_S = 20.0
"""Longest wait for ZooKeeper to end the sessions of stopped peers, in seconds."""
PULSES_LOOK_S = 0.5
READ_S = 60.0
"""Time limit for reading the present log, in seconds."""
LOOK_S = 10.0
"""Time limit for asking whether a record that did not arrive is missing, in seconds."""
NOT_READ = (
    "Nothing was changed: the log may be intact. Check ZooKeeper and run the command again. Only if you know that the"
    " log is lost, delete it first: onyxq cluster destroy NAME."
)

EMPTY_LOG, OTHER_CLUSTER, OLDER, FORKED, INTACT, LATER, UNREADABLE = (
    "empty",
    "of another cluster",
    "older",
    "another one",
    "intact",
    "later",
    "unreadable",
)


@frozen
class Present:
    """The state of the present log."""

    state: str
    """The state, compared with what the nodes have read:

    ``empty``; ``of another cluster``; ``older`` than what they have read; ``another one`` than they have read;
    ``intact``: it continues what they have read; ``later``: its snapshot is after all that they have read, and
    nothing shows that it is another log; ``unreadable``: damaged.
    """
    position: int = START
    about: str = ""
    """Details in words."""


async def present_log(session: LogSession, newest: Newest) -> Present:
    """Compare the log with what nodes have read of it.

    Raises `LogUnavailable` if it cannot be reached, `OlderThanCluster` and `ExtensionFailed`: nothing is known of
    such a log, and it may be intact.
    """
    replica, at_end, tail = EMPTY, b"", START
    try:
        with trio.fail_after(READ_S):
            tail = await session.tail()
            origin = await session.origin()
            if tail == START and origin is None:
                return Present(EMPTY_LOG)
            replica = snapshot.unpack(origin.data) if origin is not None else EMPTY
            beyond = replica if replica.position >= newest.replica.position else None
            while replica.position < tail:
                found = await session.read(replica.position + 1)
                if isinstance(found, Trimmed):
                    return await present_log(session, newest)
                replica = step(replica, found, installed()).replica
                if replica.position == newest.replica.position:
                    at_end = replica.digest
    except trio.TooSlowError:
        if await _is_missing(session, replica.position + 1, tail):
            about = f"record {replica.position + 1} is missing, although the log was written up to {tail}"
            return Present(UNREADABLE, replica.position, about)
        raise LogUnavailable(f"the log could not be read within {READ_S:.0f} s", hint=NOT_READ) from None
    except Corrupt as error:
        return Present(UNREADABLE, replica.position, error.message)
    return _judged(replica, newest.replica, at_end, beyond)


async def _is_missing(session: LogSession, position: int, tail: int) -> bool:
    """Return whether the log answers that it lacks a record up to its end: readers would wait for it for ever."""
    with trio.move_on_after(LOOK_S):
        return position <= tail and await session.look(position) is None
    return False


def _judged(log: Replica, read: Replica, at_end: bytes, beyond: Replica | None) -> Present:
    assert read.cluster is not None
    if log.cluster is None:
        return Present(EMPTY_LOG, log.position, "it has no cluster")
    if log.cluster.id != read.cluster.id:
        return Present(OTHER_CLUSTER, log.position, f"cluster {log.cluster.id}")
    if log.position < read.position:
        return Present(OLDER, log.position)
    if beyond is None:
        return Present(INTACT if at_end == read.digest else FORKED, log.position)
    if beyond.position == read.position:
        return Present(INTACT if beyond.digest == read.digest else FORKED, log.position)
    known = dict(beyond.milestones)
    differs = any(known.get(place, found) != found for place, found in read.milestones)
    return Present(FORKED if differs else LATER, log.position)


async def check_nobody_runs(session: LogSession) -> None:
    """Wait until no peer has a session with the log; raises `Conflict` naming those that still have one."""
    pulses: dict[str, bytes] = {}
    with trio.move_on_after(PULSES_S):
        while pulses := await session.pulses():
            await trio.sleep(PULSES_LOOK_S)
    if pulses:
        running = ", ".join(f"{peer} at {address.decode(errors='replace')}" for peer, address in pulses.items())
        raise Conflict(
            f"these peers still run: {running}",
            hint="Stop every peer, then run the command again. After kill -9 wait for the session timeout.",
        )


async def begin_log(
    session: LogSession, cluster_id: str, writer: str, *, segment: int, now_ms: Callable[[], int]
) -> int:
    """Write a record that changes nothing into ``segment``, or a later present one; return its position.

    ``session``: of a log whose segments may be closed after one record.
    """
    number = 0
    while True:
        number += 1
        position = await session.append(encode_record(cluster_id, writer, number, now_ms(), []))
        if segment_of(position) >= segment:
            return position
        await session.rotate()


async def begin_anew(backend: LogBackend, newest: Newest, *, replace: bool, now_ms: Callable[[], int]) -> Replica:
    """Begin a new log of the cluster; return the replica with which it begins.

    ``backend``: its segments may be closed after one record. ``replace``: delete the existing log.
    It can be repeated after an interruption. Raises `Conflict` if another process began a log meanwhile.
    """
    if replace:
        await backend.destroy()
    session = await backend.session()
    try:
        return await _begin(session, newest, now_ms)
    finally:
        with trio.CancelScope(shield=True):
            await session.aclose()


async def _begin(session: LogSession, newest: Newest, now_ms: Callable[[], int]) -> Replica:
    cluster = newest.replica.cluster
    assert cluster is not None
    segment = segment_of(newest.position) + SEGMENTS_AHEAD
    position = await begin_log(session, cluster.id, WRITER, segment=segment, now_ms=now_ms)
    made = new_replica(newest.replica, position=position, epochs=newest.epochs)
    if not await session.store_origin(position, snapshot.pack(made), expected_version=-1):
        raise Conflict("another process began a log meanwhile", hint="Stop every peer, then run the command again.")
    await session.trim(position)
    return made
