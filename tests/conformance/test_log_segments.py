"""A log that continues in the next segment, for each kind of log: here after ten records, normally after 2^30."""

from __future__ import annotations

import pytest
import trio

from onyxq.core.log.interface import SEQUENCE_BITS, START, LogBackend, LogSession, Record, Trimmed
from tests.conformance.log_world import Opener, bounded, under_way

pytestmark = pytest.mark.anyio

RECORDS = 10
"""Records after which a segment may be closed."""
SECOND = 1 << SEQUENCE_BITS
"""The first position of the second segment."""


@pytest.fixture
def segment_records() -> int:
    """Short segments."""
    return RECORDS


async def fill(session: LogSession, start: int, end: int) -> list[int]:
    """Append the numbers from ``start`` below ``end``; return their positions."""
    return [await session.append(b"%d" % number) for number in range(start, end)]


async def numbers(session: LogSession, position: int, count: int) -> list[int]:
    """Return the numbers of some records from a position on, as a reader sees them."""
    found: list[int] = []
    while len(found) < count:
        record = await session.read(position)
        assert isinstance(record, Record)
        assert record.position >= position
        found.append(int(record.data))
        position = record.position + 1
    return found


@bounded
async def test_a_segment_is_closed_only_when_it_has_had_its_records(opened: Opener) -> None:
    """It stays open however often a session tries to close it."""
    session = await opened()
    await fill(session, 0, RECORDS - 1)
    assert not await session.rotate()
    assert await session.append(b"x") == RECORDS - 1
    assert await session.rotate()
    assert not await session.rotate()
    assert await session.append(b"y") == SECOND


@bounded
async def test_a_reader_crosses_into_the_next_segment(opened: Opener) -> None:
    """This holds for an existing reader, one that waits at the end, and a later one; also when it goes back."""
    writer, reader, waiting = await opened(), await opened(), await opened()
    got: list[int] = []

    async def follow() -> None:
        got.extend(await numbers(waiting, 0, 30))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow)
        await fill(writer, 0, 12)
        assert await numbers(reader, 0, 3) == [0, 1, 2]
        assert await writer.rotate()
        assert await fill(writer, 12, 30) == list(range(SECOND, SECOND + 18))
    assert got == list(range(30))
    assert await numbers(reader, 3, 27) == list(range(3, 30))
    assert await numbers(await opened(), 0, 30) == list(range(30))
    assert await numbers(reader, 5, 10) == list(range(5, 15))


@bounded
async def test_a_waiting_reader_is_woken_by_the_first_record_of_a_segment(opened: Opener) -> None:
    """It waits at the end of one segment and gets the first record of the next."""
    writer, reader = await opened(), await opened()
    await fill(writer, 0, RECORDS)
    got: list[Record | Trimmed] = []

    async def read() -> None:
        got.append(await reader.read(RECORDS))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await under_way(reader)
        assert await writer.rotate()
        await under_way(reader)
        assert got == []
        await writer.append(b"first")
    assert isinstance(got[0], Record) and (got[0].position, got[0].data) == (SECOND, b"first")


@bounded
async def test_the_tail_is_that_of_the_present_segment(opened: Opener) -> None:
    """An empty segment has the tail of the segment before, so no caller waits for a record that may never come."""
    writer, other = await opened(), await opened()
    assert await other.tail() == START
    await fill(writer, 0, RECORDS + 3)
    await writer.rotate()
    for session in (writer, other, await opened()):
        assert await session.tail() == RECORDS + 2
    await writer.append(b"x")
    for session in (writer, other, await opened()):
        assert await session.tail() == SECOND


@bounded
async def test_writers_that_have_not_heard_of_the_new_segment_append_to_it_once(opened: Opener) -> None:
    """Segments are closed during their appends; all records are read once, in each writer's order."""
    writers = [await opened() for _ in range(4)]
    closer, reader = await opened(), await opened()
    written = [0, 0, 0, 0]
    enough = trio.Event()

    async def write(name: int) -> None:
        while not enough.is_set():
            await writers[name].append(b"%d" % (1_000_000 * name + written[name]))
            written[name] += 1

    async with trio.open_nursery() as nursery:
        for name in range(4):
            nursery.start_soon(write, name)
        closed = 0
        while closed < 3:
            closed += await closer.rotate()
            await closer.tail()
        enough.set()
    found = await numbers(reader, 0, sum(written))
    for name in range(4):
        mine = [number - 1_000_000 * name for number in found if number // 1_000_000 == name]
        assert mine == list(range(written[name]))
    assert await closer.tail() >= SECOND


@bounded
async def test_of_many_who_close_a_segment_at_once_one_does(opened: Opener) -> None:
    """No segment is skipped."""
    sessions = [await opened() for _ in range(4)]
    await fill(sessions[0], 0, RECORDS)

    async def close(session: LogSession) -> None:
        await session.rotate()

    async with trio.open_nursery() as nursery:
        for session in sessions:
            nursery.start_soon(close, session)
    assert [await session.append(b"x") for session in sessions] == list(range(SECOND, SECOND + 4))


@bounded
async def test_trimming_goes_over_the_end_of_a_segment(opened: Opener) -> None:
    """The whole first segment is deleted; late readers are sent to the origin, and new ones start there."""
    writer, slow = await opened(), await opened()
    await fill(writer, 0, 15)
    assert await numbers(slow, 0, 3) == [0, 1, 2]
    await writer.rotate()
    await fill(writer, 15, 35)
    assert await writer.store_origin(SECOND + 4, b"o", expected_version=-1)
    assert await writer.trim(9) == 10
    assert await writer.trim(SECOND + 2) >= 8
    assert await writer.trim(SECOND + 9) == 2
    position = 3
    while isinstance(found := await slow.read(position), Record):  # records that it had fetched before
        position = found.position + 1
    assert found == Trimmed(SECOND + 4)
    for reader in (slow, await opened()):
        assert await reader.read(14) == Trimmed(SECOND + 4)
        assert await reader.read(15) == Trimmed(SECOND + 4)
        assert await numbers(reader, SECOND + 5, 15) == list(range(20, 35))
    now = await slow.origin()
    assert now is not None and (now.position, now.trimmed) == (SECOND + 4, SECOND + 4)
    assert await (await opened()).append(b"x") == SECOND + 20


@bounded
async def test_a_writer_that_slept_through_a_whole_segment_appends_to_the_present_one(opened: Opener) -> None:
    """Its segment was closed, trimmed and deleted."""
    writer, sleeper = await opened(), await opened()
    await sleeper.append(b"0")
    for segment in range(2):
        await fill(writer, 1, 1 + RECORDS)
        assert await writer.rotate()
        await writer.append(b"x")
        found = await writer.origin()
        version = found.version if found else -1
        assert await writer.store_origin((segment + 1) * SECOND, b"o", expected_version=version)
        await writer.trim((segment + 1) * SECOND)
    assert await sleeper.append(b"late") == 2 * SECOND + 1
    assert await sleeper.tail() == 2 * SECOND + 1


@bounded
async def test_a_destroyed_log_of_two_segments_starts_anew(backend: LogBackend, opened: Opener) -> None:
    """It starts in the first segment."""
    session = await opened()
    await fill(session, 0, 12)
    await session.rotate()
    await fill(session, 12, 20)
    await session.aclose()
    await backend.destroy()
    session = await opened()
    assert (await session.tail(), await session.origin()) == (START, None)
    assert await session.append(b"x") == 0
