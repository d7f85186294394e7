"""Faults of ZooKeeper: servers that freeze, die and come back, sessions that expire."""

from __future__ import annotations

import contextlib
import random
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import accumulate
from typing import Any

import pytest
import trio
from attrs import define, field

from onyxq.core.log.interface import SEGMENT_RECORDS, START, AppendUnknown, Record, SessionLost, segment_start
from onyxq.errors import Corrupt, LogUnavailable
from onyxq.log.kazoo_client import append, get
from onyxq.log.kazoo_connection import RECONNECT_FIRST_S, SessionClient
from onyxq.log.zookeeper import ZookeeperBackend, ZookeeperSession
from onyxq.log.zookeeper_reader import END
from onyxq.log.zookeeper_server import ZookeeperServer
from tests.conformance.log_world import (
    SESSION_TIMEOUT_MS,
    TEST_TIMEOUT_S,
    bounded,
    expire,
    frozen,
    identity_of,
    intruder,
    killed,
    session_with,
    under_way,
    until,
)
from tests.conformance.zookeeper_proxy import AFTER, BEFORE, DURING, MISSING, POINTERS, proxies

pytestmark = pytest.mark.anyio

SILENCE_TIMEOUT_MS = 6_000
"""Session timeout for silent servers: silence is noticed after 4 s, and the session must outlive that."""
BUSY_TIMEOUT_MS = 4_000
RECORDS = 400
"""Records that are written while connections break."""

Opener = Callable[[], Awaitable[ZookeeperSession]]


@pytest.fixture
def session_timeout_ms() -> int:
    """Timeout of this module's sessions."""
    return SESSION_TIMEOUT_MS


@pytest.fixture
def backend(
    zookeeper: ZookeeperServer, cluster: str, session_timeout_ms: int, segment_records: int
) -> ZookeeperBackend:
    """An empty log."""
    return ZookeeperBackend(
        zookeeper.hosts, cluster, session_timeout_ms=session_timeout_ms, segment_records=segment_records
    )


@define(eq=False)
class Appended:
    """Records that writers know to be in the log, and waiting for more."""

    positions: list[int] = field(factory=list)
    _moved: trio.Event = field(factory=trio.Event)

    def add(self, position: int) -> None:
        """Add one record."""
        self.positions.append(position)
        self._moved.set()
        self._moved = trio.Event()

    async def reach(self, count: int) -> None:
        """Wait until there is a number of records."""
        while len(self.positions) < count:
            await self._moved.wait()


def is_down(session: ZookeeperSession) -> bool:
    """Whether the session knows that it cannot reach the log."""
    return not session.connected


def break_connection(session: ZookeeperSession) -> None:
    """Cut the session's connection, if it has one."""
    stream = session._link.client._connection._socket
    if stream is not None:
        with contextlib.suppress(OSError):
            stream.shutdown(socket.SHUT_RDWR)


async def append_until_known(session: ZookeeperSession, number: int, unknown: list[int]) -> int:
    """Append as an outbox does: repeat until the outcome is known."""
    while True:
        try:
            return await session.append(b"%d" % number)
        except AppendUnknown:
            unknown.append(number)


async def follow(session: ZookeeperSession, numbers: list[int], *, last: int | None = None) -> None:
    """Record the numbers in the log, each once, up to ``last`` (None: for ever)."""
    position = 0
    while last is None or not numbers or numbers[-1] != last:
        record = await session.read(position)
        assert isinstance(record, Record)
        if not numbers or int(record.data) == numbers[-1] + 1:
            numbers.append(int(record.data))
        position += 1


async def everything(session: ZookeeperSession) -> list[int]:
    """Return the numbers of all records in the log, with repetitions."""
    found = [await session.read(position) for position in range(await session.tail() + 1)]
    return [int(record.data) for record in found if isinstance(record, Record)]


@bounded
async def test_clusters_in_one_zookeeper_do_not_see_each_other(
    zookeeper: ZookeeperServer, backend: ZookeeperBackend, cluster: str
) -> None:
    """Each cluster has its own records, pulses and origins; destroying one leaves the other."""
    neighbour = ZookeeperBackend(zookeeper.hosts, cluster + "-2")
    async with session_with(backend) as one, session_with(neighbour) as other:
        await one.append(b"one")
        await one.set_pulse("a", b"")
        assert await one.store_origin(0, b"o", expected_version=-1)
        assert (await other.tail(), await other.pulses(), await other.origin()) == (-1, {}, None)
        await neighbour.destroy()
        found = await one.read(0)
        assert isinstance(found, Record) and found.data == b"one"


@bounded
async def test_a_zookeeper_that_is_not_there_is_a_clear_error() -> None:
    """The error names the server, and comes within the given time."""
    backend = ZookeeperBackend("127.0.0.1:1", "main", open_timeout_s=0.3)
    with pytest.raises(LogUnavailable, match=r"127\.0\.0\.1:1"):
        await backend.session()


@pytest.mark.long
@pytest.mark.parametrize("session_timeout_ms", [SILENCE_TIMEOUT_MS])
@bounded
async def test_a_frozen_server_is_noticed_and_the_session_goes_on_after_it(
    zookeeper: ZookeeperServer, opened: Opener
) -> None:
    """The outcome of the running append is unknown before the session can have expired; nothing is lost."""
    session = await opened()
    identity = identity_of(session)
    assert await session.append(b"0") == 0
    with frozen(zookeeper):
        started = trio.current_time()
        with pytest.raises(AppendUnknown):
            await session.append(b"1")
        assert is_down(session)
        assert trio.current_time() - started < SILENCE_TIMEOUT_MS / 1000
    await append_until_known(session, 2, [])
    assert identity_of(session) == identity
    numbers = await everything(session)
    assert (numbers[0], numbers[-1]) == (0, 2)


@pytest.mark.long
@pytest.mark.parametrize("session_timeout_ms", [SILENCE_TIMEOUT_MS])
@bounded
async def test_a_frozen_server_is_noticed_by_an_idle_session(zookeeper: ZookeeperServer, opened: Opener) -> None:
    """It is noticed without a call."""
    session = await opened()
    with frozen(zookeeper), trio.fail_after(SILENCE_TIMEOUT_MS / 1000):
        await until(lambda: is_down(session))
    await until(lambda: session.connected)


@pytest.mark.long
@pytest.mark.parametrize("session_timeout_ms", [SILENCE_TIMEOUT_MS])
@bounded
async def test_a_frozen_server_is_noticed_under_a_stream_of_calls(zookeeper: ZookeeperServer, opened: Opener) -> None:
    """Sent calls without answers are no sign of life."""
    session = await opened()
    with frozen(zookeeper), trio.fail_after(SILENCE_TIMEOUT_MS / 1000):
        while session.connected:
            with trio.move_on_after(0.05):
                await session.tail()
    await until(lambda: session.connected)


def compute_for(seconds: float) -> None:
    """Keep the event loop from running."""
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        sum(range(1_000))


@pytest.mark.long
@bounded
@pytest.mark.parametrize("session_timeout_ms", [BUSY_TIMEOUT_MS])
async def test_a_busy_process_does_not_take_its_server_for_silent(opened: Opener) -> None:
    """A program that computes for longer than the session timeout keeps its connection, and then reads on."""
    session = await opened()
    first = await session.append(b"before")
    reply = session._link.start(get("/zookeeper"))
    compute_for(1.5 * BUSY_TIMEOUT_MS / 1000)
    await reply.wait()
    assert session.connected
    assert await session.append(b"after") == first + 1
    assert session.connections == 1


@pytest.mark.long
@bounded
async def test_a_session_outlives_connections_that_are_taken_and_ignored(
    zookeeper: ZookeeperServer, cluster: str
) -> None:
    """ZooKeeper ignores some connections while it starts: there is time for two more tries."""
    async with (
        proxies(zookeeper.hosts) as (proxy,),
        session_with(ZookeeperBackend(proxy.address, cluster, session_timeout_ms=SILENCE_TIMEOUT_MS)) as session,
    ):
        identity = identity_of(session)
        proxy.ignoring = 2
        await proxy.interrupt()
        await until(lambda: is_down(session))
        await append_until_known(session, 0, [])
        assert identity_of(session) == identity
        assert proxy.ignoring == 0


@pytest.mark.long
@bounded
async def test_servers_that_refuse_are_not_hammered(zookeeper: ZookeeperServer, cluster: str) -> None:
    """The pause between tries grows by at least a fifth each time, whatever the jitter."""
    async with (
        proxies(zookeeper.hosts) as (proxy,),
        session_with(ZookeeperBackend(proxy.address, cluster, session_timeout_ms=SESSION_TIMEOUT_MS)) as session,
    ):
        proxy.refusing = True
        started = trio.current_time()
        await proxy.interrupt()
        await until(lambda: proxy.refused >= 8)
        assert trio.current_time() - started > sum(RECONNECT_FIRST_S * 0.6 * 1.2**number for number in range(7))
        proxy.refusing = False
        await until(lambda: session.connected)


@bounded
async def test_an_answer_that_is_missing_among_others_breaks_the_connection(
    zookeeper: ZookeeperServer, cluster: str
) -> None:
    """The append is unknown although it was stored; the session continues, and so do all other calls."""
    async with (
        proxies(zookeeper.hosts) as (proxy,),
        session_with(ZookeeperBackend(proxy.address, cluster, session_timeout_ms=SESSION_TIMEOUT_MS)) as session,
    ):
        identity = identity_of(session)
        proxy.plan.append(MISSING)
        unknown: list[int] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(append_until_known, session, 0, unknown)
            await until(lambda: not proxy.plan)
            assert await session.tail() >= 0  # its answer arrives where the lost one was expected
        assert unknown == [0]
        assert await everything(session) == [0, 0]
        assert identity_of(session) == identity


@pytest.mark.parametrize("where", [BEFORE, DURING, AFTER])
@bounded
async def test_an_origin_whose_answer_is_lost_can_be_read(zookeeper: ZookeeperServer, cluster: str, where: str) -> None:
    """A starting peer reads the first origin of a log, and the one that replaces it."""
    async with (
        proxies(zookeeper.hosts) as (proxy,),
        session_with(ZookeeperBackend(proxy.address, cluster, session_timeout_ms=SESSION_TIMEOUT_MS)) as session,
        session_with(ZookeeperBackend(zookeeper.hosts, cluster, session_timeout_ms=SESSION_TIMEOUT_MS)) as starting,
    ):
        proxy.watched = POINTERS
        for position in range(2):
            await session.append(b"record")
            proxy.plan.append(where)
            data = b"the replica after record %d" % position
            assert await session.store_origin(position, data, expected_version=position - 1)
            assert proxy.cuts == position + 1
            found = await starting.origin()
            assert found is not None and (found.position, found.data) == (position, data)


@pytest.mark.long
@bounded
async def test_a_server_killed_amid_appends_comes_back_to_the_same_session(
    zookeeper: ZookeeperServer, opened: Opener
) -> None:
    """Acknowledged records survive, readers at the tail continue, pulses stay."""
    session, reader = await opened(), await opened()
    await session.set_pulse("a", b"")
    identity = identity_of(session)
    known, numbers = Appended(), list[int]()
    enough = trio.Event()

    async def write() -> None:
        while not enough.is_set():
            known.add(await append_until_known(session, len(known.positions), []))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow, reader, numbers)
        async with trio.open_nursery() as writing:
            writing.start_soon(write)
            await known.reach(50)
            with killed(zookeeper):
                await until(lambda: is_down(session) and is_down(reader))
            await known.reach(len(known.positions) + 100)
            enough.set()
        await until(lambda: len(numbers) >= len(known.positions))
        nursery.cancel_scope.cancel()
    assert numbers == list(range(len(known.positions)))
    assert known.positions == sorted(set(known.positions))
    assert identity_of(session) == identity
    assert await session.pulses() == {"a": b""}


@pytest.mark.long
@bounded
async def test_a_reader_that_waits_while_the_server_restarts_is_woken(
    zookeeper: ZookeeperServer, opened: Opener
) -> None:
    """The watch ends with the connection; no record that is written meanwhile is missed."""
    reader, writer = await opened(), await opened()
    got: list[int] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: follow(reader, got, last=0))
        await under_way(reader)
        with killed(zookeeper):
            await until(lambda: is_down(reader) and is_down(writer))
        await append_until_known(writer, 0, [])
    assert got == [0]


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
        await under_way(session)
        await under_way(other)
        await expire(zookeeper, identity_of(session))
    assert ended == ["read"]
    assert not session.connected
    with pytest.raises(SessionLost):
        await session.append(b"zombie")
    assert await other.tail() == -1


@bounded
async def test_what_a_connection_does_not_take_at_once_arrives_whole_and_in_order(
    zookeeper: ZookeeperServer, opened: Opener
) -> None:
    """A caller never waits until its request is written, although the server is stopped meanwhile."""
    session = await opened()
    link, directory = session._link, session._layout.segment(0)
    records = [bytes([number]) * 400_000 for number in range(24)]
    with frozen(zookeeper):
        replies = [link.start(append(f"{directory}/e-", data)) for data in records]
        assert link.client._connection._behind
    assert [(await reply.wait())[0] for reply in replies] == [
        f"{directory}/e-{number:010d}" for number in range(len(records))
    ]
    found = [link.start(get(session._layout.record(number))) for number in range(len(records))]
    assert [(await reply.wait())[0] for reply in found] == records


@bounded
async def test_a_client_whose_session_expired_never_connects_again(zookeeper: ZookeeperServer) -> None:
    """kazoo would open a new session, in which calls would be carried out."""
    client = SessionClient(zookeeper.hosts, session_timeout_ms=SESSION_TIMEOUT_MS)
    states: list[str] = []
    client.add_listener(states.append)
    await trio.to_thread.run_sync(client.start)
    await expire(zookeeper, client.client_id)
    try:
        assert await trio.to_thread.run_sync(client._connection.connection_stopped.wait, TEST_TIMEOUT_S / 2)
        assert states[-1] == "LOST"
    finally:
        await trio.to_thread.run_sync(client.finish)


@bounded
async def test_no_call_gets_into_a_new_session_while_one_expires(zookeeper: ZookeeperServer, opened: Opener) -> None:
    """An append at any moment of the expiry is refused or was made in the old session."""
    session, other = await opened(), await opened()
    known, unknown = Appended(), list[int]()

    async def write() -> None:
        with pytest.raises(SessionLost):
            while True:
                known.add(await append_until_known(session, len(known.positions), unknown))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        await known.reach(20)
        await expire(zookeeper, identity_of(session))
    await session.aclose()  # ends kazoo's threads; their pending requests are sent
    # All known records, in order. In addition, appends that broke, and the one that the end interrupted.
    landed = await everything(other)
    assert landed == sorted(landed)
    extra = Counter(landed) - Counter(range(len(known.positions)))
    assert extra <= Counter([*unknown, len(known.positions)])
    assert set(landed) >= set(range(len(known.positions)))


@pytest.mark.long
@pytest.mark.parametrize("segment_records", [SEGMENT_RECORDS, 40])
@bounded
async def test_readers_never_stall_or_differ_while_connections_break_and_the_log_is_trimmed(
    opened: Opener, segment_records: int
) -> None:
    """Readers see the same records through broken connections and trims at many points of the log.

    There are three readers; two of them append. The log has one segment, or many.
    """
    sessions = [await opened() for _ in range(3)]
    seen: dict[int, Record] = {}
    positions = [0, 0, 0]
    known = Appended()

    async def read(number: int) -> None:
        while True:
            found = await sessions[number].read(positions[number])
            if isinstance(found, Record):
                assert seen.setdefault(found.position, found) == found
                positions[number] = found.position + 1
            else:
                assert found.origin >= positions[number]
                positions[number] = found.origin + 1

    async def write(session: ZookeeperSession) -> None:
        while len(known.positions) < RECORDS:
            known.add(await append_until_known(session, len(known.positions), []))

    async def trim(session: ZookeeperSession, plan: list[tuple[int, int]]) -> None:
        for count, behind in plan:
            await known.reach(count)
            found, written = await session.origin(), sorted(known.positions)[:-5]
            version = found.version if found else -1
            if await session.store_origin(written[-1], b"o", expected_version=version):
                await session.trim(written[-1 - behind])
            await session.rotate()

    async def disturb(plan: list[tuple[int, int]]) -> None:
        for count, number in plan:
            await known.reach(count)
            break_connection(sessions[number])

    chance = random.Random(7)
    async with trio.open_nursery() as readers:
        for number in range(3):
            readers.start_soon(read, number)
        async with trio.open_nursery() as others:
            others.start_soon(write, sessions[0])
            others.start_soon(write, sessions[1])
            others.start_soon(trim, sessions[2], points(chance, apart=30, kinds=10))
            others.start_soon(disturb, points(chance, apart=25, kinds=3))
        tail = await sessions[0].tail()
        await until(lambda: min(positions) > tail)
        readers.cancel_scope.cancel()
    origin = await sessions[0].origin()
    assert origin is not None and all(position in seen for position in known.positions if position > origin.position)
    assert (tail >= segment_start(1)) == (segment_records == 40)


def points(chance: random.Random, *, apart: int, kinds: int) -> list[tuple[int, int]]:
    """Return counts of records, up to twice ``apart`` from each other, and a kind of fault at each."""
    counts = accumulate(chance.randint(10, 2 * apart - 10) for _ in range(RECORDS))
    return [(count, chance.randrange(kinds)) for count in counts if 20 <= count <= RECORDS]


@bounded
async def test_a_hole_in_the_log_is_a_clear_error(backend: ZookeeperBackend, opened: Opener) -> None:
    """A record that was deleted by hand must not make readers wait for ever."""
    session = await opened()
    for number in range(5):
        await session.append(b"%d" % number)
    with intruder(backend.hosts) as other:
        other.delete(f"/onyxq/{backend.cluster}/log/0/e-0000000002")
    reader = await opened()
    await reader.read(0)
    await reader.read(1)
    with pytest.raises(Corrupt, match="record 2"):
        await reader.read(2)


@bounded
async def test_chunks_of_a_crashed_writer_go_with_the_next_origin(backend: ZookeeperBackend, opened: Opener) -> None:
    """Only the present origin's chunks and the pointer remain."""
    session = await opened()
    directory = f"/onyxq/{backend.cluster}/origin"
    with intruder(backend.hosts) as other:
        other.create(f"{directory}/3-crashed-0", b"half")
        assert await session.store_origin(5, b"five", expected_version=-1)
        assert await session.store_origin(9, bytes(1_200_000), expected_version=0)
        names = other.get_children(directory)
    assert sorted(name.split("-")[0] for name in names) == ["9", "9", "9", "pointer"]


@bounded
async def test_a_damaged_chunk_is_a_clear_error(backend: ZookeeperBackend, opened: Opener) -> None:
    """The checksum is over the whole origin."""
    session = await opened()
    assert await session.store_origin(5, b"five", expected_version=-1)
    directory = f"/onyxq/{backend.cluster}/origin"
    with intruder(backend.hosts) as other:
        chunk = next(name for name in other.get_children(directory) if name.startswith("5-"))
        other.set(f"{directory}/{chunk}", b"fivf")
    with pytest.raises(Corrupt, match="checksum"):
        await session.origin()


@bounded
async def test_a_log_whose_origin_is_damaged_can_be_destroyed(backend: ZookeeperBackend, opened: Opener) -> None:
    """Nothing else removes such a log, so ``cluster recover`` and ``cluster destroy`` must be able to."""
    session = await opened()
    for number in range(5):
        await session.append(b"%d" % number)
    assert await session.store_origin(3, b"three", expected_version=-1)
    assert await session.trim(1) == 2
    directory = f"/onyxq/{backend.cluster}/origin"
    with intruder(backend.hosts) as other:
        (chunk,) = (name for name in other.get_children(directory) if name.startswith("3-"))
        other.delete(f"{directory}/{chunk}")
    with pytest.raises(Corrupt, match="missing"):
        await session.origin()
    await session.aclose()
    await backend.destroy()
    session = await opened()
    assert (await session.origin(), await session.tail()) == (None, START)


@pytest.mark.long
@bounded
async def test_an_ensemble_whose_leader_dies_goes_on_in_the_same_session(
    ensemble: ZookeeperServer, cluster: str
) -> None:
    """Writes pause for an election; nothing acknowledged is lost or out of order."""
    backend = ZookeeperBackend(ensemble.hosts, cluster, session_timeout_ms=SESSION_TIMEOUT_MS)
    async with session_with(backend) as session:
        identity = identity_of(session)
        for number in range(100):
            await append_until_known(session, number, [])
        leader = -1
        while leader < 0:
            leader = await trio.to_thread.run_sync(ensemble.leader)
        ensemble.kill(leader)
        for number in range(100, 200):
            await append_until_known(session, number, [])
        numbers: list[int] = []
        await follow(session, numbers, last=199)
        assert numbers == list(range(200))
        assert identity_of(session) == identity


@bounded
async def test_bytes_that_look_like_a_segments_end_are_a_record_like_any_other(opened: Opener) -> None:
    """Only a record that was written together with the next segment ends a segment."""
    writer, reader = await opened(), await opened()
    for data in (b"0", END, b"2"):
        await writer.append(data)
    for session in (writer, reader):
        found = [await session.read(position) for position in range(3)]
        assert [record.data for record in found if isinstance(record, Record)] == [b"0", END, b"2"]
