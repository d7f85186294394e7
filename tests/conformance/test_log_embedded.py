"""Properties of the embedded log only: one process, one disk, durable across restarts."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

import lmdb
import pytest
import trio

from onyxq.core.log.interface import Record, SessionLost, Trimmed
from onyxq.errors import Conflict, Corrupt, LogDamaged, LogUnavailable
from onyxq.log.embedded import EmbeddedBackend
from onyxq.store.integrity.lmdb_check import DATA

pytestmark = pytest.mark.anyio

TURNS = 1_000
"""Rounds of the event loop while a commit waits."""


@pytest.fixture
def anyio_backend() -> str:
    """Logs run in trio."""
    return "trio"


async def test_records_origin_and_positions_survive_a_restart(tmp_path: Path) -> None:
    """Pulses do not survive, because their sessions ended."""
    backend = EmbeddedBackend.open(tmp_path)
    session = await backend.session()
    for number in range(20):
        await session.append(b"%d" % number)
    assert await session.store_origin(9, b"o", expected_version=-1)
    await session.trim(4)
    await session.set_pulse("a", b"")
    await backend.aclose()

    backend = EmbeddedBackend.open(tmp_path)
    session = await backend.session()
    found = await session.origin()
    assert found is not None and (found.position, found.data, found.trimmed) == (9, b"o", 4)
    assert await session.read(4) == Trimmed(9)
    for number in range(5, 20):
        record = await session.read(number)
        assert isinstance(record, Record) and record.data == b"%d" % number
    assert await session.append(b"next") == 20
    assert await session.pulses() == {}
    await backend.aclose()


async def test_a_log_of_another_format_is_refused_by_name(tmp_path: Path) -> None:
    """Nothing in it is changed; an emptied log still has a format."""
    backend = EmbeddedBackend.open(tmp_path)
    await backend.destroy()
    await backend.aclose()
    with lmdb.open(str(tmp_path), max_dbs=2) as env, env.begin(write=True) as transaction:
        assert transaction.replace(b"format", b"2", db=env.open_db(b"meta", transaction)) == b"1"
    with pytest.raises(LogUnavailable, match="format b'2', this version reads b'1'"):
        EmbeddedBackend.open(tmp_path)


async def test_closing_the_backend_ends_its_sessions(tmp_path: Path) -> None:
    """Waiting sessions end too; afterwards no session can be opened."""
    backend = EmbeddedBackend.open(tmp_path)
    session = await backend.session()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(session.wait_lost)
        await backend.aclose()
    with pytest.raises(SessionLost):
        await session.append(b"x")
    with pytest.raises(LogUnavailable):
        await backend.session()


def test_a_second_opening_in_the_same_process_is_refused(tmp_path: Path) -> None:
    """It is refused until the first one is closed."""
    backend = EmbeddedBackend.open(tmp_path)
    with pytest.raises(Conflict, match="in use by process"):
        EmbeddedBackend.open(tmp_path)
    backend.close()
    EmbeddedBackend.open(tmp_path).close()


def test_another_process_is_refused_by_name_of_the_owner(tmp_path: Path) -> None:
    """The message names the process that has it open; a killed owner leaves no lock."""
    code = (
        "import sys; from onyxq.log.embedded import EmbeddedBackend; EmbeddedBackend.open(sys.argv[1]);"
        "print('open', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as owner:
        assert owner.stdout is not None and owner.stdout.readline() == b"open\n"
        with pytest.raises(Conflict, match=f"process {owner.pid}"):
            EmbeddedBackend.open(tmp_path)
        owner.kill()
        owner.wait()
    EmbeddedBackend.open(tmp_path).close()


async def test_a_flipped_bit_in_a_record_is_a_clear_error(tmp_path: Path) -> None:
    """A damaged record is never returned."""
    backend = EmbeddedBackend.open(tmp_path)
    session = await backend.session()
    await session.append(b"precious")
    await backend.aclose()
    with lmdb.open(str(tmp_path), max_dbs=2) as environment, environment.begin(write=True) as transaction:
        records = environment.open_db(b"records", txn=transaction)
        value = bytearray(transaction.get(bytes(8), db=records) or b"")
        value[-1] ^= 1
        transaction.put(bytes(8), bytes(value), db=records)
    backend = EmbeddedBackend.open(tmp_path)
    session = await backend.session()
    with pytest.raises(Corrupt, match="record 0"):
        await session.read(0)
    await backend.aclose()


HOLDER = """
import sys, lmdb
with lmdb.open(sys.argv[1], max_dbs=2) as environment, environment.begin(write=True):
    print("held", flush=True)
    sys.stdin.read()
"""
"""A program that blocks writes to the log until its input ends."""


def swap_leaves(path: Path) -> None:
    """Turn all leaf pages into branch pages."""
    data = bytearray(path.read_bytes())
    for page in range(2 * 4096, len(data), 4096):
        if data[page + 10 : page + 12] == b"\2\0":
            data[page + 10] = 1
    with path.open("r+b") as file:
        file.write(data)


async def test_damage_met_while_the_log_is_open_is_told_and_never_trusted(tmp_path: Path) -> None:
    """Reads and appends fail, and the next start says what to do; the file is not moved."""
    backend = EmbeddedBackend.open(tmp_path)
    session = await backend.session()
    for number in range(300):
        await session.append(b"%d" % number)
    backend._recent.clear()
    swap_leaves(tmp_path / DATA)
    with pytest.raises(LogDamaged, match="is damaged"):
        await session.read(7)
    with pytest.raises(LogDamaged, match="is damaged"):
        await session.append(b"more")
    await backend.aclose()
    before = (tmp_path / DATA).read_bytes()
    with pytest.raises(LogDamaged, match="is damaged") as told:
        EmbeddedBackend.open(tmp_path)
    assert "backup" in told.value.advice
    assert (tmp_path / DATA).read_bytes() == before


async def test_a_damaged_log_is_told_at_the_start(tmp_path: Path) -> None:
    """LMDB, which would read outside of the file, does not open it."""
    backend = EmbeddedBackend.open(tmp_path)
    session = await backend.session()
    await session.append(b"one")
    await backend.aclose()
    swap_leaves(tmp_path / DATA)
    for _ in range(2):
        with pytest.raises(LogDamaged, match="is damaged"):
            EmbeddedBackend.open(tmp_path)


async def test_the_event_loop_runs_while_records_are_written(tmp_path: Path) -> None:
    """A slow commit does not block other tasks. Here another process blocks the commit."""
    backend = EmbeddedBackend.open(tmp_path)
    session = await backend.session()
    appended = trio.Event()

    async def append() -> None:
        await session.append(bytes(400_000))
        appended.set()

    async with trio.open_nursery() as nursery:
        command = [sys.executable, "-c", HOLDER, str(tmp_path)]
        holder = await nursery.start(partial(trio.run_process, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        assert holder.stdin is not None and holder.stdout is not None
        assert (await holder.stdout.receive_some()).startswith(b"held")
        nursery.start_soon(append)
        for _ in range(TURNS):
            await trio.lowlevel.checkpoint()
        assert not appended.is_set()
        await holder.stdin.aclose()
        await appended.wait()
    assert await session.tail() == 0
    await backend.aclose()
