"""The faults that tests can request from the simulated log, under simulated time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio

from onyxq.core.log.interface import AppendUnknown, Record, SessionLost
from onyxq.errors import LogUnavailable
from simulation.world.clock import EPOCH_MS, SimulatedClock, mock_clock
from simulation.world.log import MemoryBackend

Scenario = Callable[[MemoryBackend], Awaitable[None]]


def simulate(scenario: Scenario) -> None:
    """Run a scenario on a new log with a clock that jumps; a deadlock fails."""

    async def run() -> None:
        with trio.fail_after(3_600):
            await scenario(MemoryBackend(SimulatedClock()))

    trio.run(run, clock=mock_clock())


async def data_of(backend: MemoryBackend) -> list[bytes]:
    """Return the contents of the log."""
    return [backend.records[position].data for position in range(backend.following)]


@pytest.mark.parametrize("landed", [0, 1, 2])
def test_a_broken_append_is_unknown_and_landed_as_often_as_asked(landed: int) -> None:
    """The appender does not know the outcome; the next append works."""

    async def scenario(backend: MemoryBackend) -> None:
        session = await backend.session()
        backend.break_append(session, landed=landed)
        with pytest.raises(AppendUnknown):
            await session.append(b"a")
        assert await session.append(b"b") == landed
        assert await data_of(backend) == [b"a"] * landed + [b"b"]

    simulate(scenario)


def test_a_late_append_lands_when_the_session_reconnects() -> None:
    """It behaves like a request that waited in the client while the connection was down."""

    async def scenario(backend: MemoryBackend) -> None:
        session, other = await backend.session(), await backend.session()
        backend.break_append(session, landed=1, late=True)
        with pytest.raises(AppendUnknown):
            await session.append(b"late")
        backend.disconnect(session)
        await other.append(b"between")
        backend.reconnect(session)
        assert await data_of(backend) == [b"between", b"late"]

    simulate(scenario)


@pytest.mark.parametrize(("broken_after_s", "landed"), [(0.2, 0), (0.8, 1)])
def test_an_append_in_flight_breaks_with_the_connection(broken_after_s: float, landed: int) -> None:
    """If the request is lost, nothing was written; if the answer is lost, it was. A restored link changes nothing."""

    async def scenario(backend: MemoryBackend) -> None:
        backend.append_delay_s = lambda: 1.0
        session = await backend.session()
        async with trio.open_nursery() as nursery:

            async def append() -> None:
                with pytest.raises(AppendUnknown):
                    await session.append(b"x")

            nursery.start_soon(append)
            await trio.sleep(broken_after_s)
            backend.disconnect(session)
            backend.reconnect(session)
        assert backend.following == landed

    simulate(scenario)


def test_a_disconnected_reader_waits_and_goes_on() -> None:
    """A disconnected session is not lost."""

    async def scenario(backend: MemoryBackend) -> None:
        reader, writer = await backend.session(), await backend.session()
        backend.disconnect(reader)
        await writer.append(b"x")
        with trio.move_on_after(60) as waiting:
            await reader.read(0)
        assert waiting.cancelled_caught and not reader.connected
        backend.reconnect(reader)
        found = await reader.read(0)
        assert isinstance(found, Record) and found.data == b"x"

    simulate(scenario)


def test_an_expired_session_loses_its_pulse_and_cannot_come_back() -> None:
    """Reconnecting it has no effect."""

    async def scenario(backend: MemoryBackend) -> None:
        session, other = await backend.session(), await backend.session()
        await session.set_pulse("a", b"")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(other.wait_pulse_gone, "a")
            nursery.start_soon(session.wait_lost)
            await trio.sleep(1)
            backend.disconnect(session)
            assert await other.pulses() == {"a": b""}
            backend.expire(session)
        backend.reconnect(session)
        with pytest.raises(SessionLost):
            await session.append(b"x")

    simulate(scenario)


def test_no_session_is_to_be_had_while_the_log_is_down() -> None:
    """The node tries again later."""

    async def scenario(backend: MemoryBackend) -> None:
        backend.available = False
        with pytest.raises(LogUnavailable):
            await backend.session()

    simulate(scenario)


def test_records_bear_the_logs_clock_and_reach_slow_readers_late() -> None:
    """A jump of the log's clock shows in the next record; a late reader does not wait for each record."""

    async def scenario(backend: MemoryBackend) -> None:
        clock = SimulatedClock()
        backend.clock = clock
        backend.read_delay_s = lambda: 2.0
        session = await backend.session()
        await session.append(b"a")
        clock.jump(60_000)
        await session.append(b"b")
        first, second = await session.read(0), await session.read(1)
        assert isinstance(first, Record) and isinstance(second, Record)
        assert (first.ctime_ms, second.ctime_ms) == (EPOCH_MS, EPOCH_MS + 60_000)
        assert trio.current_time() == 2.0

    simulate(scenario)


def test_a_drifting_clock_gains_time() -> None:
    """50,000 parts per million are three seconds in a minute."""

    async def scenario(backend: MemoryBackend) -> None:
        clock = SimulatedClock(offset_ms=10, drift_ppm=50_000)
        await trio.sleep(60)
        assert clock.wall_ms() == EPOCH_MS + 10 + 63_000

    simulate(scenario)
