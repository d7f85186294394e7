"""Properties of the embedded log only: one process, one disk, durable across restarts."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import msgpack
import pytest
import trio
import trio.testing

from onyxq.core.log.interface import AppendUnknown, Record, SessionLost, Trimmed
from onyxq.errors import Conflict, LogDamaged, LogUnavailable
from onyxq.log import embedded_file
from onyxq.log.embedded import EmbeddedBackend
from onyxq.log.embedded_groups import STATE, pack_group

pytestmark = pytest.mark.anyio

TURNS = 1_000
"""Rounds of the event loop while a flush waits."""
CLOSED_S = 10.0
"""Longest time that the writer thread needs to end."""


@pytest.fixture
def anyio_backend() -> str:
    """Logs run in trio."""
    return "trio"


async def test_an_opened_log_makes_the_names_of_its_files_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that made the last file may have died before it did so, and the file gets more records."""
    await EmbeddedBackend.open(tmp_path).aclose()
    flushed: list[int] = []
    fsync = os.fsync

    def noting(handle: int) -> None:
        flushed.append(os.fstat(handle).st_ino)
        fsync(handle)

    monkeypatch.setattr(os, "fsync", noting)
    await EmbeddedBackend.open(tmp_path).aclose()
    assert tmp_path.stat().st_ino in flushed


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
    """Nothing in it is changed."""
    EmbeddedBackend.open(tmp_path).close()
    (file,) = tmp_path.glob("*.records")
    other = pack_group(1, 0, STATE, msgpack.packb([2, "unknown"]))
    file.write_bytes(other + file.read_bytes()[len(other) :])
    with pytest.raises(LogUnavailable, match="format 2, this version reads 1"):
        EmbeddedBackend.open(tmp_path)
    assert file.read_bytes().startswith(other)


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


def test_closing_writes_what_waits_and_ends(tmp_path: Path) -> None:
    """The writer takes the waiting records and the end together."""
    backend = EmbeddedBackend.open(tmp_path)
    free = threading.Event()

    async def append_and_leave() -> None:
        session = await backend.session()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: backend.submit(work=free.wait))
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(session.append, b"x")
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()

    trio.run(append_and_leave)
    assert backend._begin_close()
    free.set()
    backend._writer.join(CLOSED_S)
    assert not backend._writer.is_alive()
    backend._finish_close()
    backend = EmbeddedBackend.open(tmp_path)
    assert backend.following == 1
    backend.close()


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


async def test_damage_met_while_the_log_is_open_is_told_and_never_trusted(tmp_path: Path) -> None:
    """Reads fail, and the next start says what to do; the file stays as it is."""
    backend = EmbeddedBackend.open(tmp_path)
    session = await backend.session()
    for number in range(300):
        await session.append(b"%d" % number)
    backend._recent.clear()
    file = tmp_path / "1.records"
    place = backend.file._files[0].groups[7]
    with file.open("r+b") as stream:
        stream.seek(place.offset + 12)
        stream.write(b"damaged")
    with pytest.raises(LogDamaged, match="record 7 does not match its checksum") as told:
        for position in range(300):
            await session.read(position)
    await backend.aclose()
    before = file.read_bytes()
    for _ in range(2):
        with pytest.raises(LogDamaged, match="record 7 does not match its checksum") as told:
            EmbeddedBackend.open(tmp_path)
        assert "backup" in told.value.advice
    assert file.read_bytes() == before


async def test_a_missing_file_is_told_at_the_start(tmp_path: Path) -> None:
    """A gap between files is never read over."""
    backend = EmbeddedBackend.open(tmp_path)
    session = await backend.session()
    for _ in range(20):
        await session.append(bytes(500_000))
    await backend.aclose()
    assert len(list(tmp_path.glob("*.records"))) > 2
    (tmp_path / "2.records").unlink()
    with pytest.raises(LogDamaged, match="2.records is missing"):
        EmbeddedBackend.open(tmp_path)


@pytest.mark.parametrize("data", [b"", b"damaged", None])
async def test_a_damaged_or_missing_origin_is_refused_by_name(tmp_path: Path, data: bytes | None) -> None:
    """No reader starts from it."""
    backend = EmbeddedBackend.open(tmp_path)
    session = await backend.session()
    await session.append(b"x")
    assert await session.store_origin(0, b"snapshot", expected_version=-1)
    (file,) = tmp_path.glob("origin-*")
    if data is None:
        file.unlink()
    else:
        file.write_bytes(data)
    with pytest.raises(LogDamaged, match="the origin at 0 does not match its checksum"):
        await session.origin()
    await backend.aclose()


async def test_files_are_deleted_once_all_their_records_are_trimmed(tmp_path: Path) -> None:
    """The log continues after that, and after a restart, which deletes what a crash has left."""
    backend = EmbeddedBackend.open(tmp_path)
    session = await backend.session()
    for number in range(20):
        await session.append(b"%d" % number + bytes(500_000))
    names = {path.name for path in tmp_path.glob("*.records")}
    first = (tmp_path / "1.records").read_bytes()
    assert await session.store_origin(15, b"o", expected_version=-1)
    assert await session.trim(15) == 16
    left = {path.name for path in tmp_path.glob("*.records")}
    assert left < names and "1.records" not in left
    await backend.aclose()
    (tmp_path / "1.records").write_bytes(first)
    (tmp_path / "origin-1.new").write_bytes(b"half")

    backend = EmbeddedBackend.open(tmp_path)
    assert {path.name for path in tmp_path.glob("*.*")} == left
    session = await backend.session()
    assert await session.read(15) == Trimmed(15)
    for number in range(16, 20):
        found = await session.read(number)
        assert isinstance(found, Record) and found.data.startswith(b"%d" % number)
    assert await session.append(b"next") == 20
    await backend.aclose()


@pytest.mark.parametrize("name", ["pwrite", "fdatasync"])
async def test_a_failed_write_is_unknown_and_the_log_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The next write first removes what the failed one may have left."""
    backend = EmbeddedBackend.open(tmp_path)
    session = await backend.session()
    assert await session.append(b"first") == 0
    call, left = getattr(os, name), 2

    def failing(*args: object) -> object:
        nonlocal left
        left -= 1
        if left >= 0:
            raise OSError(errno.EIO, "failed")
        return call(*args)

    monkeypatch.setattr(os, name, failing)
    unknown = 0

    async def append() -> None:
        nonlocal unknown
        with pytest.raises(AppendUnknown, match="failed"):
            await session.append(b"unknown")
        unknown += 1

    for _ in range(2):
        await append()
        assert not session.connected
    assert await session.append(b"second") == 1 and session.connected
    await backend.aclose()
    backend = EmbeddedBackend.open(tmp_path)
    session = await backend.session()
    found = [await session.read(position) for position in range(2)]
    assert [one.data for one in found if isinstance(one, Record)] == [b"first", b"second"]
    assert (unknown, await session.tail()) == (2, 1)
    await backend.aclose()


async def test_a_full_disk_refuses_records_until_there_is_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Space is taken by whole files. Small records, too, wait for the next file once a large one did."""
    backend = EmbeddedBackend.open(tmp_path)
    session = await backend.session()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(embedded_file, "write_durably", full)
        written = 0
        with pytest.raises(AppendUnknown, match="No space left"):
            while True:
                await session.append(bytes(500_000))
                written += 1
        with pytest.raises(AppendUnknown, match="No space left"):
            await session.append(b"small")
    assert written > 2
    assert await session.append(b"small") == written
    await backend.aclose()
    backend = EmbeddedBackend.open(tmp_path)
    assert backend.following == written + 1
    backend.close()


async def test_the_event_loop_runs_while_records_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow flush does not block other tasks."""
    backend = EmbeddedBackend.open(tmp_path)
    session = await backend.session()
    appended, may_end, flush = trio.Event(), threading.Event(), os.fdatasync

    def slow(handle: int) -> None:
        may_end.wait()
        flush(handle)

    async def append() -> None:
        await session.append(bytes(400_000))
        appended.set()

    monkeypatch.setattr(os, "fdatasync", slow)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(append)
        for _ in range(TURNS):
            await trio.lowlevel.checkpoint()
        assert not appended.is_set()
        may_end.set()
        await appended.wait()
    assert await session.tail() == 0
    await backend.aclose()
