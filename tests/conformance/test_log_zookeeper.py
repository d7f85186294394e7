"""What ZooKeeper does to a log: servers that freeze, die and come back, sessions that expire."""

from __future__ import annotations

import contextlib
import functools
import random
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import trio
from kazoo.client import KazooClient

from onyxq.errors import Corrupt, LogUnavailable
from onyxq.log.interface import SEGMENT_RECORDS, AppendUnknown, Record, SessionLost
from onyxq.log.kazoo_client import SessionClient
from onyxq.log.zookeeper import ZookeeperBackend, ZookeeperSession
from onyxq.log.zookeeper_reader import END
from onyxq.log.zookeeper_server import ZookeeperServer
from onyxq.replica import SEGMENT_POSITIONS

pytestmark = pytest.mark.anyio

TEST_TIMEOUT_S = 40.0
SESSION_TIMEOUT_MS = 3_000

Opener = Callable[[], Awaitable[ZookeeperSession]]


def bounded(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """A test that waits for ever fails instead."""

    @functools.wraps(test)
    async def run(*args: Any, **kwargs: Any) -> None:
        with trio.fail_after(TEST_TIMEOUT_S):
            await test(*args, **kwargs)

    return run


@pytest.fixture
def backend(zookeeper: ZookeeperServer, cluster: str) -> ZookeeperBackend:
    """An empty log with a short session timeout."""
    return ZookeeperBackend(zookeeper.hosts, cluster, session_timeout_ms=SESSION_TIMEOUT_MS)


@pytest.fixture
async def opened(backend: ZookeeperBackend) -> AsyncIterator[Opener]:
    """Opens sessions that are closed after the test."""
    sessions: list[ZookeeperSession] = []

    async def open_one() -> ZookeeperSession:
        sessions.append(await backend.session())
        return sessions[-1]

    yield open_one
    for session in sessions:
        await session.aclose()


def is_down(session: ZookeeperSession) -> bool:
    """Whether the session knows that it cannot reach the log."""
    return not session.connected


def break_connection(session: ZookeeperSession) -> None:
    """Cut the session's connection, if it has one."""
    stream = session._link.client._connection._socket
    if stream is not None:
        with contextlib.suppress(OSError):
            stream.shutdown(socket.SHUT_RDWR)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that a server or a thread brings about."""
    while not condition():
        await trio.sleep(0.01)


async def expire(zookeeper: ZookeeperServer, session_id: tuple[int, bytes] | None) -> None:
    """End a session at the server, as its timeout would: another connection with its id closes it."""
    twin = KazooClient(zookeeper.hosts, client_id=session_id)
    await trio.to_thread.run_sync(twin.start)
    await trio.to_thread.run_sync(twin.stop)
    twin.close()


async def append_until_known(session: ZookeeperSession, number: int, unknown: list[int]) -> int:
    """Append as an outbox does: again and again until the outcome is known."""
    while True:
        try:
            return await session.append(b"%d" % number)
        except AppendUnknown:
            unknown.append(number)


async def read_numbers(session: ZookeeperSession, last: int) -> list[int]:
    """The numbers in the log, each once, up to ``last``."""
    numbers: list[int] = []
    position = 0
    while not numbers or numbers[-1] != last:
        record = await session.read(position)
        assert isinstance(record, Record)
        if not numbers or int(record.data) == numbers[-1] + 1:
            numbers.append(int(record.data))
        position += 1
    return numbers


@bounded
async def test_clusters_in_one_zookeeper_do_not_see_each_other(
    zookeeper: ZookeeperServer, backend: ZookeeperBackend, cluster: str
) -> None:
    """Records, pulses and origins are each cluster's own; destroying one leaves the other."""
    neighbour = ZookeeperBackend(zookeeper.hosts, cluster + "-2")
    one, other = await backend.session(), await neighbour.session()
    await one.append(b"one")
    await one.set_pulse("a", b"")
    assert await one.store_origin(0, b"o", expected_version=-1)
    assert (await other.tail(), await other.pulses(), await other.origin()) == (-1, {}, None)
    await neighbour.destroy()
    found = await one.read(0)
    assert isinstance(found, Record) and found.data == b"one"
    await one.aclose()
    await other.aclose()


@bounded
async def test_a_zookeeper_that_is_not_there_is_a_clear_error() -> None:
    """Named, and in the time given."""
    backend = ZookeeperBackend("127.0.0.1:1", "main", open_timeout_s=0.3)
    with pytest.raises(LogUnavailable, match=r"127\.0\.0\.1:1"):
        await backend.session()


@pytest.mark.slow
@bounded
async def test_a_frozen_server_is_noticed_and_the_session_goes_on_after_it(
    zookeeper: ZookeeperServer, opened: Opener
) -> None:
    """The append in flight is unknown within two thirds of the session timeout; nothing is lost."""
    session = await opened()
    identity = session.session_id
    assert await session.append(b"0") == 0
    zookeeper.pause()
    try:
        started = trio.current_time()
        with pytest.raises(AppendUnknown):
            await session.append(b"1")
        assert is_down(session)
        assert trio.current_time() - started < SESSION_TIMEOUT_MS / 1000 * 0.8
    finally:
        zookeeper.resume()
    await append_until_known(session, 2, [])
    assert session.connected and session.session_id == identity
    assert (await read_numbers(session, 2))[0] == 0


@pytest.mark.slow
@bounded
async def test_a_frozen_server_is_noticed_by_an_idle_session(zookeeper: ZookeeperServer, opened: Opener) -> None:
    """Nobody needs to call for it to be known."""
    session = await opened()
    zookeeper.pause()
    try:
        with trio.fail_after(SESSION_TIMEOUT_MS / 1000):
            await until(lambda: not session.connected)
    finally:
        zookeeper.resume()
    await until(lambda: session.connected)


@pytest.mark.slow
@bounded
async def test_a_frozen_server_is_noticed_under_a_stream_of_calls(zookeeper: ZookeeperServer, opened: Opener) -> None:
    """Calls that are sent but never answered are no sign of life."""
    session = await opened()
    zookeeper.pause()
    try:
        with trio.fail_after(SESSION_TIMEOUT_MS / 1000):
            while session.connected:
                with trio.move_on_after(0.05):
                    await session.tail()
    finally:
        zookeeper.resume()
    await until(lambda: session.connected)


@pytest.mark.slow
@bounded
async def test_a_server_killed_amid_appends_comes_back_to_the_same_session(
    zookeeper: ZookeeperServer, opened: Opener
) -> None:
    """Acknowledged records survive, readers waiting at the tail go on, pulses stay."""
    session, reader = await opened(), await opened()
    await session.set_pulse("a", b"")
    identity = session.session_id
    unknown: list[int] = []
    numbers: list[int] = []

    async def write() -> None:
        for number in range(400):
            await append_until_known(session, number, unknown)

    async def read() -> None:
        numbers.extend(await read_numbers(reader, 399))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        nursery.start_soon(write)
        await until_tail(session, 50)
        zookeeper.kill()
        await until(lambda: not session.connected)
        zookeeper.spawn()
    assert numbers == list(range(400))
    assert unknown
    assert session.session_id == identity
    assert await session.pulses() == {"a": b""}


async def until_tail(session: ZookeeperSession, position: int) -> None:
    """Wait until the log has grown so far."""
    while await session.tail() < position:
        await trio.sleep(0.01)


@bounded
async def test_a_reader_that_waits_while_the_server_restarts_is_woken(
    zookeeper: ZookeeperServer, opened: Opener
) -> None:
    """The watch ends with the connection; nothing written meanwhile is missed."""
    reader, writer = await opened(), await opened()
    got: list[Record] = []

    async def read() -> None:
        record = await reader.read(0)
        assert isinstance(record, Record)
        got.append(record)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await reader.tail()
        zookeeper.kill()
        await until(lambda: not (reader.connected or writer.connected))
        zookeeper.spawn()
        await append_until_known(writer, 0, [])
        with trio.fail_after(4):
            await until(lambda: bool(got))


@bounded
async def test_an_expired_session_is_lost_everywhere_and_for_good(zookeeper: ZookeeperServer, opened: Opener) -> None:
    """Waiting calls end, the pulse is gone, and no call is carried out in a new session."""
    session, other = await opened(), await opened()
    await session.set_pulse("a", b"")
    ended: list[str] = []

    async def wait(name: str, call: Callable[[], Awaitable[Any]]) -> None:
        with pytest.raises(SessionLost):
            await call()
        ended.append(name)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait, "read", lambda: session.read(0))
        nursery.start_soon(session.wait_lost)
        nursery.start_soon(other.wait_pulse_gone, "a")
        await expire(zookeeper, session.session_id)
    assert ended == ["read"]
    assert not session.connected
    with pytest.raises(SessionLost):
        await session.append(b"zombie")
    assert await other.tail() == -1


@bounded
async def test_a_client_whose_session_expired_never_connects_again(zookeeper: ZookeeperServer) -> None:
    """Where kazoo would open a new session, in which calls would be carried out."""
    client = SessionClient(zookeeper.hosts, session_timeout_ms=SESSION_TIMEOUT_MS)
    states: list[str] = []
    client.add_listener(states.append)
    await trio.to_thread.run_sync(client.start)
    await expire(zookeeper, client.client_id)
    try:
        assert await trio.to_thread.run_sync(client._connection.connection_stopped.wait, 10.0)
        assert states[-1] == "LOST"
    finally:
        await trio.to_thread.run_sync(client.finish)


@bounded
async def test_no_call_gets_into_a_new_session_while_one_expires(zookeeper: ZookeeperServer, opened: Opener) -> None:
    """An append made at any moment of the expiry is refused or was in the old session."""
    session, other = await opened(), await opened()
    known: list[int] = []

    async def write() -> None:
        number = 0
        with pytest.raises(SessionLost):
            while True:
                await append_until_known(session, number, [])
                known.append(number)
                number += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        await until_tail(other, 20)
        await expire(zookeeper, session.session_id)
    await session.aclose()  # ends kazoo's threads: what they were to send is sent
    assert await other.tail() + 1 - len(known) in (0, 1)


@pytest.mark.slow
@pytest.mark.parametrize("segment_records", [SEGMENT_RECORDS, 40])
@bounded
async def test_readers_never_stall_or_differ_while_connections_break_and_the_log_is_trimmed(
    zookeeper: ZookeeperServer, cluster: str, segment_records: int
) -> None:
    """Three readers, two of which append, against trims and broken connections, all at random moments; in one
    segment and in many."""
    backend = ZookeeperBackend(
        zookeeper.hosts, cluster, session_timeout_ms=SESSION_TIMEOUT_MS, segment_records=segment_records
    )
    chance = random.Random(7)
    sessions = [await backend.session() for _ in range(3)]
    seen: dict[int, Record] = {}
    positions = [0, 0, 0]
    known: list[int] = []

    async def read(number: int) -> None:
        while True:
            found = await sessions[number].read(positions[number])
            if isinstance(found, Record):
                assert seen.setdefault(found.position, found) == found
                positions[number] = found.position + 1
            else:
                assert found.origin >= positions[number]
                positions[number] = found.origin + 1

    async def write(number: int, stop: trio.Event) -> None:
        while not stop.is_set():
            known.append(await append_until_known(sessions[number], chance.randrange(1_000_000), []))
            await trio.sleep(chance.random() * 0.01)

    async def trim(session: ZookeeperSession, stop: trio.Event) -> None:
        while not stop.is_set():
            found, written = await session.origin(), sorted(known)[:-5]
            version = found.version if found else -1
            if written and await session.store_origin(written[-1], b"o", expected_version=version):
                await session.trim(chance.choice(written[-10:]))
            await session.rotate()
            await trio.sleep(chance.random() * 0.3)

    async def disturb(stop: trio.Event) -> None:
        while not stop.is_set():
            break_connection(chance.choice(sessions))
            await trio.sleep(chance.random() * 0.6)

    async with trio.open_nursery() as readers:
        for number in range(3):
            readers.start_soon(read, number)
        stop = trio.Event()
        async with trio.open_nursery() as others:
            others.start_soon(write, 0, stop)
            others.start_soon(write, 1, stop)
            others.start_soon(trim, sessions[2], stop)
            others.start_soon(disturb, stop)
            await until(lambda: len(known) >= 300)
            stop.set()
        tail = await sessions[0].tail()
        with trio.fail_after(10):
            await until(lambda: min(positions) > tail)
        readers.cancel_scope.cancel()
    origin = await sessions[0].origin()
    assert origin is not None and all(position in seen for position in known if position > origin.position)
    assert (tail >= SEGMENT_POSITIONS) == (segment_records == 40)
    for session in sessions:
        await session.aclose()


@bounded
async def test_a_hole_in_the_log_is_a_clear_error(backend: ZookeeperBackend, opened: Opener) -> None:
    """A record somebody deleted by hand must not make readers wait for ever."""
    session = await opened()
    for number in range(5):
        await session.append(b"%d" % number)
    intruder = KazooClient(backend.hosts)
    await trio.to_thread.run_sync(intruder.start)
    intruder.delete(f"/onyxq/{backend.cluster}/log/0/e-0000000002")
    intruder.stop()
    intruder.close()
    reader = await opened()
    await reader.read(0)
    await reader.read(1)
    with pytest.raises(Corrupt, match="record 2"):
        await reader.read(2)


@bounded
async def test_chunks_of_a_crashed_writer_go_with_the_next_origin(backend: ZookeeperBackend, opened: Opener) -> None:
    """Nothing but the present origin's chunks and the pointer remain."""
    session = await opened()
    intruder = KazooClient(backend.hosts)
    await trio.to_thread.run_sync(intruder.start)
    directory = f"/onyxq/{backend.cluster}/origin"
    intruder.create(f"{directory}/3-crashed-0", b"half")
    assert await session.store_origin(5, b"five", expected_version=-1)
    assert await session.store_origin(9, bytes(1_200_000), expected_version=0)
    names = intruder.get_children(directory)
    intruder.stop()
    intruder.close()
    assert sorted(name.split("-")[0] for name in names) == ["9", "9", "9", "pointer"]


@bounded
async def test_a_damaged_chunk_is_a_clear_error(backend: ZookeeperBackend, opened: Opener) -> None:
    """The checksum is over the whole origin."""
    session = await opened()
    assert await session.store_origin(5, b"five", expected_version=-1)
    intruder = KazooClient(backend.hosts)
    await trio.to_thread.run_sync(intruder.start)
    directory = f"/onyxq/{backend.cluster}/origin"
    chunk = next(name for name in intruder.get_children(directory) if name.startswith("5-"))
    intruder.set(f"{directory}/{chunk}", b"fivf")
    intruder.stop()
    intruder.close()
    with pytest.raises(Corrupt, match="checksum"):
        await session.origin()


@pytest.mark.slow
@bounded
async def test_an_ensemble_whose_leader_dies_goes_on_in_the_same_session(
    ensemble: ZookeeperServer, cluster: str
) -> None:
    """Writing pauses for an election; nothing acknowledged is lost or out of order."""
    session = await ZookeeperBackend(ensemble.hosts, cluster).session()
    identity = session.session_id
    for number in range(100):
        await append_until_known(session, number, [])
    ensemble.kill(ensemble.leader())
    for number in range(100, 200):
        await append_until_known(session, number, [])
    assert await read_numbers(session, 199) == list(range(200))
    assert session.session_id == identity
    await session.aclose()


@bounded
async def test_bytes_that_look_like_a_segments_end_are_a_record_like_any_other(opened: Opener) -> None:
    """Only what was written together with the next segment ends one."""
    writer, reader = await opened(), await opened()
    for data in (b"0", END, b"2"):
        await writer.append(data)
    for session in (writer, reader):
        found = [await session.read(position) for position in range(3)]
        assert [record.data for record in found if isinstance(record, Record)] == [b"0", END, b"2"]
