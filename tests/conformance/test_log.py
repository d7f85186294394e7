"""The contract of every log: ZooKeeper, embedded, simulated."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from onyxq.core.entry import RECORD_BYTES_MAX
from onyxq.core.log.interface import START, LogBackend, LogSession, Origin, Record, SessionLost, Trimmed
from onyxq.errors import TooLarge
from onyxq.system.clock import SystemClock
from tests.conformance.log_world import Opener, bounded, under_way, until

pytestmark = pytest.mark.anyio


async def record_at(session: LogSession, position: int) -> Record:
    """Return the record at a position, which must not be trimmed."""
    found = await session.read(position)
    assert isinstance(found, Record)
    return found


async def append_many(session: LogSession, count: int) -> None:
    """Append records ``0`` to ``count - 1``, many at a time, in any order."""
    numbers = iter(range(count))

    async def append_some() -> None:
        for number in numbers:
            await session.append(b"%d" % number)

    async with trio.open_nursery() as nursery:
        for _ in range(200):
            nursery.start_soon(append_some)


# --- append and read ----------------------------------------------------------------


@pytest.mark.long
@bounded
async def test_append_gives_consecutive_positions_from_zero(opened: Opener) -> None:
    """A fresh log starts at 0 and leaves no gaps."""
    session = await opened()
    assert [await session.append(b"x") for _ in range(5)] == [0, 1, 2, 3, 4]


@bounded
async def test_a_record_reads_back_as_written_with_its_time(opened: Opener) -> None:
    """Bytes, position and ctime come back, in the writing session and in another."""
    before = SystemClock().wall_ms()
    writer, reader = await opened(), await opened()
    await writer.append(b"")
    await writer.append(bytes(range(256)))
    for session in (writer, reader):
        records = [await record_at(session, 0), await record_at(session, 1)]
        assert [(record.position, record.data) for record in records] == [(0, b""), (1, bytes(range(256)))]
        assert all(before - 5_000 <= record.ctime_ms <= SystemClock().wall_ms() + 5_000 for record in records)


@bounded
async def test_both_sessions_see_one_time_per_record(opened: Opener) -> None:
    """The writer, which need not fetch its own record, sees the same ctime as other sessions."""
    writer, reader = await opened(), await opened()
    for position in range(10):
        await writer.append(b"x")
        assert await writer.read(position) == await reader.read(position)


@bounded
async def test_a_waiting_read_wakes_for_every_record_of_another_session(opened: Opener) -> None:
    """At the tail every single record wakes the reader, not only the first."""
    writer, reader = await opened(), await opened()
    async with trio.open_nursery() as nursery:
        for position in range(30):
            got: list[Record] = []
            waiting = trio.Event()

            async def read(position: int = position, got: list[Record] = got, waiting: trio.Event = waiting) -> None:
                waiting.set()
                got.append(await record_at(reader, position))

            nursery.start_soon(read)
            await waiting.wait()
            await writer.append(b"%d" % position)
            while not got:
                await trio.sleep(0.001)
            assert got[0].data == b"%d" % position


@bounded
async def test_a_session_reads_its_own_records_between_others(opened: Opener) -> None:
    """Own records, which need no fetch, keep their place among those of others."""
    one, other = await opened(), await opened()
    for number in range(20):
        await (one if number % 3 else other).append(b"%d" % number)
        assert (await record_at(one, number)).data == b"%d" % number


@bounded
async def test_concurrent_appenders_are_put_in_one_order(opened: Opener) -> None:
    """All readers see the same sequence; each appender's records are in the order in which it made them."""
    writers = [await opened() for _ in range(4)]
    readers = [await opened(), writers[0]]
    seen: list[list[Record]] = [[], []]

    async def write(name: int) -> None:
        for number in range(50):
            await writers[name].append(b"%d-%d" % (name, number))

    async def read(session: LogSession, records: list[Record]) -> None:
        for position in range(200):
            records.append(await record_at(session, position))

    async with trio.open_nursery() as nursery:
        for session, records in zip(readers, seen, strict=True):
            nursery.start_soon(read, session, records)
        for name in range(4):
            nursery.start_soon(write, name)
    assert seen[0] == seen[1]
    for name in range(4):
        mine = [record.data for record in seen[0] if record.data.startswith(b"%d-" % name)]
        assert mine == [b"%d-%d" % (name, number) for number in range(50)]


@pytest.mark.long
@bounded
async def test_a_reader_that_is_behind_reads_five_thousand_records_in_order(opened: Opener) -> None:
    """Order is kept over many refills of the window, and up to the tail."""
    await append_many(await opened(), 5_000)
    reader = await opened()
    records = [await record_at(reader, position) for position in range(5_000)]
    assert [record.position for record in records] == list(range(5_000))
    assert sorted(int(record.data) for record in records) == list(range(5_000))
    assert all(record.ctime_ms > 0 for record in records)


@bounded
async def test_a_reader_may_go_back_and_ahead(opened: Opener) -> None:
    """Positions may be read in any order."""
    session = await opened()
    for number in range(100):
        await session.append(b"%d" % number)
    for position in (99, 0, 1, 50, 3, 99):
        assert (await record_at(session, position)).data == b"%d" % position


@bounded
async def test_a_cancelled_read_loses_nothing(opened: Opener) -> None:
    """A read that is cancelled at the tail and repeated returns the record."""
    writer, reader = await opened(), await opened()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reader.read, 0)
        await under_way(reader)
        nursery.cancel_scope.cancel()
    await writer.append(b"late")
    assert (await record_at(reader, 0)).data == b"late"


@bounded
async def test_a_record_at_the_limit_fits_and_one_above_is_refused(opened: Opener) -> None:
    """512 KiB is the limit; a refused record is not stored."""
    session = await opened()
    with pytest.raises(TooLarge):
        await session.append(bytes(RECORD_BYTES_MAX + 1))
    assert await session.append(bytes(RECORD_BYTES_MAX)) == 0
    assert len((await record_at(session, 0)).data) == RECORD_BYTES_MAX


@bounded
async def test_the_tail_is_the_last_record_also_after_trimming(opened: Opener) -> None:
    """A reader past the tail has seen all records that existed at the call."""
    writer, other = await opened(), await opened()
    assert await other.tail() == START
    for _ in range(20):
        await writer.append(b"x")
    assert await other.tail() == 19
    assert await writer.store_origin(9, b"o", expected_version=-1)
    await writer.trim(9)
    assert await other.tail() == 19
    await writer.append(b"x")
    assert await other.tail() == 20


# --- pulses ---------------------------------------------------------------------------


@bounded
async def test_a_pulse_is_there_until_its_session_closes(opened: Opener) -> None:
    """All sessions see which peers are alive, and their data."""
    mine, other = await opened(), await opened()
    await mine.set_pulse("a", b"1")
    await other.set_pulse("b", b"2")
    assert await other.pulses() == {"a": b"1", "b": b"2"}
    await mine.aclose()
    assert await other.pulses() == {"b": b"2"}


@bounded
async def test_setting_a_pulse_again_replaces_its_data(opened: Opener) -> None:
    """This holds if another session of the peer had set it."""
    mine, other = await opened(), await opened()
    await mine.set_pulse("a", b"1")
    await mine.set_pulse("a", b"2")
    assert await other.pulses() == {"a": b"2"}
    await other.set_pulse("a", b"3")
    await mine.aclose()
    assert await other.pulses() == {"a": b"3"}


@bounded
async def test_waiting_for_an_absent_pulse_returns_at_once(opened: Opener) -> None:
    """A watcher that comes too late still learns of it."""
    session = await opened()
    await session.wait_pulse_gone("nobody")


@bounded
async def test_waiting_for_a_pulse_returns_when_its_session_closes(opened: Opener) -> None:
    """All watchers are woken; changed data does not count as an absence."""
    mine, other = await opened(), await opened()
    await mine.set_pulse("a", b"1")
    gone: list[str] = []

    async def wait(name: str) -> None:
        await other.wait_pulse_gone("a")
        gone.append(name)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait, "first")
        nursery.start_soon(wait, "second")
        await under_way(other)
        await mine.set_pulse("a", b"2")
        assert await other.pulses() == {"a": b"2"}  # by now the session knows of the change
        await under_way(other)
        assert gone == []
        await mine.aclose()
    assert sorted(gone) == ["first", "second"]


# --- origin and trim --------------------------------------------------------------------


@bounded
async def test_there_is_no_origin_at_first(opened: Opener) -> None:
    """There is nothing to trim either."""
    session = await opened()
    await session.append(b"x")
    assert await session.origin() is None
    assert await session.trim(0) == 0
    assert (await record_at(session, 0)).data == b"x"


@bounded
async def test_an_origin_of_three_mebibytes_reads_back(opened: Opener) -> None:
    """It is larger than any record, and not a multiple of any size."""
    one, other = await opened(), await opened()
    data = bytes(range(256)) * 12_288 + b"end"
    assert await one.store_origin(7, data, expected_version=-1)
    found = await other.origin()
    assert isinstance(found, Origin)
    assert (found.position, found.data == data, found.trimmed) == (7, True, START)


@bounded
async def test_an_origin_is_replaced_only_if_it_is_the_one_expected(opened: Opener) -> None:
    """The loser of a race changes nothing."""
    one, other = await opened(), await opened()
    assert await one.store_origin(1, b"first", expected_version=-1)
    assert not await other.store_origin(2, b"other", expected_version=-1)
    found = await other.origin()
    assert found is not None and found.data == b"first"
    assert await other.store_origin(2, b"second", expected_version=found.version)
    assert not await one.store_origin(3, b"third", expected_version=found.version)
    assert (now := await one.origin()) is not None
    assert (now.position, now.data) == (2, b"second")


@bounded
async def test_an_origin_never_moves_back(opened: Opener) -> None:
    """Records before it may already be deleted."""
    session = await opened()
    assert await session.store_origin(5, b"five", expected_version=-1)
    found = await session.origin()
    assert found is not None
    assert not await session.store_origin(5, b"again", expected_version=found.version)
    assert not await session.store_origin(4, b"four", expected_version=found.version)


@bounded
async def test_one_of_several_who_store_an_origin_at_once_wins(opened: Opener) -> None:
    """The origin is complete, and that of the winner."""
    sessions = [await opened() for _ in range(3)]
    won: list[int] = []

    async def store(number: int) -> None:
        if await sessions[number].store_origin(10 + number, b"%d" % number * 600_000, expected_version=-1):
            won.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(store, number)
    assert len(won) == 1
    found = await sessions[0].origin()
    assert found is not None
    assert found.position == 10 + won[0] and found.data == b"%d" % won[0] * 600_000


@bounded
async def test_a_trimmed_record_reads_as_trimmed_and_the_rest_as_before(opened: Opener) -> None:
    """A reader that is too late is sent to the origin, and continues from there."""
    writer = await opened()
    await append_many(writer, 30)
    assert await writer.store_origin(19, b"o", expected_version=-1)
    assert await writer.trim(9) == 10
    reader = await opened()
    assert await reader.read(0) == Trimmed(19)
    assert await reader.read(9) == Trimmed(19)
    for position in range(10, 30):
        assert (await record_at(reader, position)).position == position
    found = await reader.origin()
    assert found is not None and found.trimmed == 9


@bounded
async def test_trimming_stops_at_the_origin(opened: Opener) -> None:
    """Records that no snapshot covers are never deleted."""
    session = await opened()
    await append_many(session, 10)
    assert await session.store_origin(4, b"o", expected_version=-1)
    assert await session.trim(9) == 5
    assert (await record_at(session, 5)).position == 5


@bounded
async def test_trimming_resumes_where_it_stopped(opened: Opener) -> None:
    """Progress is stored with the origin, for the next collector, also across a new origin."""
    one, other = await opened(), await opened()
    await append_many(one, 40)
    assert await one.store_origin(29, b"o", expected_version=-1)
    assert await one.trim(9) == 10
    assert await other.trim(19) == 10
    found = await other.origin()
    assert found is not None
    assert await other.store_origin(34, b"p", expected_version=found.version)
    now = await one.origin()
    assert now is not None and (now.position, now.trimmed) == (34, 19)
    assert await one.trim(100) == 15
    now = await one.origin()
    assert now is not None and (now.position, now.trimmed) == (34, 34)
    assert await one.trim(100) == 0


@bounded
async def test_trimming_does_not_outdate_the_origin(opened: Opener) -> None:
    """A session that read the origin before records were trimmed may still replace it."""
    session = await opened()
    await append_many(session, 10)
    assert await session.store_origin(4, b"o", expected_version=-1)
    found = await session.origin()
    assert found is not None
    await session.trim(4)
    assert await session.store_origin(9, b"p", expected_version=found.version)


@pytest.mark.long
@bounded
async def test_a_reader_at_the_tail_is_not_led_astray_by_trimming(opened: Opener) -> None:
    """Deletions do not end the read; the next record does."""
    writer, reader = await opened(), await opened()
    await append_many(writer, 2_500)
    for position in range(2_500):
        await reader.read(position)
    assert await writer.store_origin(2_400, b"o", expected_version=-1)
    got: list[Record] = []

    async def read() -> None:
        for position in range(2_500, 2_510):
            got.append(await record_at(reader, position))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        assert await writer.trim(2_400) == 2_401
        for _ in range(10):
            await writer.append(b"x")
        await until(lambda: len(got) == 10)


@bounded
async def test_a_reader_overtaken_by_trimming_is_told(opened: Opener) -> None:
    """It gets the error although it had prefetched some of the deleted records."""
    writer, reader = await opened(), await opened()
    await append_many(writer, 1_000)
    await reader.read(0)
    assert await writer.store_origin(999, b"o", expected_version=-1)
    await writer.trim(999)
    position = 1
    while isinstance(found := await reader.read(position), Record):
        position += 1
    assert found == Trimmed(999)


# --- the end ------------------------------------------------------------------------------


@bounded
async def test_a_closed_session_is_lost_to_every_call(opened: Opener) -> None:
    """No call of the session succeeds any more."""
    session = await opened()
    await session.append(b"x")
    states = [session.connected]
    await session.aclose()
    assert [*states, session.connected] == [True, False]
    await session.wait_lost()
    calls: list[Callable[[], Awaitable[Any]]] = [
        lambda: session.append(b"x"),
        lambda: session.read(0),
        session.tail,
        lambda: session.set_pulse("a", b""),
        session.pulses,
        lambda: session.wait_pulse_gone("a"),
        session.origin,
        lambda: session.store_origin(0, b"", expected_version=-1),
        lambda: session.trim(0),
    ]
    for call in calls:
        with pytest.raises(SessionLost):
            await call()


@bounded
async def test_closing_a_session_ends_what_waits_in_it(opened: Opener) -> None:
    """Readers and watchers do not wait for ever."""
    session, other = await opened(), await opened()
    await other.set_pulse("a", b"")
    ended: list[str] = []

    async def wait(name: str, call: Callable[[], Awaitable[Any]]) -> None:
        with pytest.raises(SessionLost):
            await call()
        ended.append(name)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait, "read", lambda: session.read(0))
        nursery.start_soon(wait, "pulse", lambda: session.wait_pulse_gone("a"))
        nursery.start_soon(session.wait_lost)
        await under_way(session)
        await session.aclose()
    assert sorted(ended) == ["pulse", "read"]


@bounded
async def test_a_destroyed_log_starts_anew(backend: LogBackend, opened: Opener) -> None:
    """Records, origin and pulses are deleted."""
    session = await opened()
    await append_many(session, 20)
    assert await session.store_origin(9, b"o", expected_version=-1)
    await session.trim(4)
    await session.aclose()
    await backend.destroy()
    session = await opened()
    assert await session.tail() == START
    assert await session.origin() is None
    assert await session.append(b"new") == 0
    assert (await record_at(session, 0)).data == b"new"
