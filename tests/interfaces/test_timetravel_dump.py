"""Dump files: complete, small in memory, and damage is detected and named."""

from __future__ import annotations

import resource
import tracemalloc
import zlib
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from onyxq.core import snapshot
from onyxq.core.log.interface import Record
from onyxq.core.replica import EMPTY
from onyxq.errors import BadRequest, Corrupt, NotFound
from onyxq.history import file_format
from onyxq.history.dump import KIND, Dump, read, write
from onyxq.history.file_format import MAGIC, HistoryFileWriter, packed_block, read_blocks
from onyxq.history.replay import checked, replay, replica_at, steps
from tests.entries.generated import generated_world
from tests.entries.world import World
from tests.interfaces.history_files import file_of


@pytest.fixture(scope="module")
def world() -> World:
    """A log with every kind of entry."""
    return generated_world(seed=21, records=300, check=False)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The file of a dump."""
    return tmp_path / "a.onyxqlog"


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of many blocks, with few records."""
    monkeypatch.setattr(file_format, "RECORDS_BYTES", 4_000)
    monkeypatch.setattr(file_format, "SNAPSHOT_PART_BYTES", 100)


def middle(world: World) -> Dump:
    """A dump that starts at an origin."""
    return Dump("main", world.replicas[100], world.records, "c1")


def test_a_dump_from_the_beginning_comes_back(world: World, file: Path) -> None:
    """Every record has its position, time and bytes; it can be read repeatedly."""
    assert write(file, Dump("main", None, world.records, "c1")).records == len(world.records)
    found = read(file)
    assert (found.cluster, found.cluster_id, found.origin, found.start) == ("main", "c1", None, EMPTY)
    assert list(found.records) == world.records
    assert list(found.records) == world.records


@pytest.mark.usefixtures("small_blocks")
def test_a_dump_from_an_origin_comes_back(world: World, file: Path) -> None:
    """It has the records after the snapshot; earlier ones are left out."""
    write(file, middle(world))
    found = read(file)
    assert found.origin == world.replicas[100]
    assert list(found.records) == world.records[100:]


def test_an_empty_log_can_be_dumped(file: Path) -> None:
    """It has no snapshot and no records."""
    write(file, Dump("main", None, ()))
    assert list(read(file).records) == []


@pytest.mark.usefixtures("small_blocks")
def test_the_blocks_before_a_damaged_one_can_be_read(world: World, file: Path) -> None:
    """Earlier blocks are complete, and the error names the damaged one."""
    write(file, middle(world))
    data = bytearray(file.read_bytes())
    data[-200] ^= 1
    file.write_bytes(data)
    records: list[Record] = []
    with pytest.raises(Corrupt, match=r"block \d+ is damaged: it does not match its checksum"):
        records.extend(read(file).records)
    assert records == [] or records == world.records[100 : 100 + len(records)]
    some: list[Record] = []
    with pytest.raises(Corrupt):
        for record in read(file).records:
            some.append(record)
    assert len(some) > 50


@pytest.mark.usefixtures("small_blocks")
def test_blocks_that_change_places_are_noticed(world: World, file: Path) -> None:
    """Each is valid, but not in its place."""
    write(file, Dump("main", None, world.records))
    blocks = list(read_blocks(file, KIND))
    blocks[2], blocks[3] = blocks[3], blocks[2]
    data = (packed_block(block.number, block.kind, block.packing, block.body) for block in blocks)
    file.write_bytes(MAGIC + b"".join(data))
    with pytest.raises(Corrupt, match="block 2 is damaged"):
        list(read(file).records)


HEADER = {"format": 1, "holds": "dump", "cluster": "main", "cluster_id": "c1", "origin": None, "after": -1}
ENDED = {"records": 0, "rows": 0, "last": -1, "digest": None}
NONSENSE: dict[str, list[tuple[bytes, Any]]] = {
    "no header": [(b"E", ENDED)],
    "header is a list": [(b"H", [1])],
    "header is no msgpack": [(b"H", zlib.compress(b"\xc1"))],
    "header is empty": [(b"H", {"format": 1, "holds": "dump"})],
    "origin is none": [(b"H", HEADER), (b"S", b"nonsense")],
    "origin is missing": [(b"H", {**HEADER, "origin": 7}), (b"E", ENDED)],
    "records are no zlib": [(b"H", HEADER), (b"R", b"nonsense")],
    "records are none": [(b"H", HEADER), (b"R", [1, 2])],
    "records go backwards": [(b"H", HEADER), (b"R", [(2, 0, b""), (1, 0, b"")])],
    "records of before": [(b"H", {**HEADER, "after": 5}), (b"R", [(5, 0, b"")])],
    "count is wrong": [(b"H", HEADER), (b"E", {**ENDED, "records": 3})],
    "last is wrong": [(b"H", HEADER), (b"E", {**ENDED, "last": 3})],
    "digest is missing": [(b"H", HEADER), (b"E", {"records": 0, "rows": 0, "last": -1})],
    "end is none": [(b"H", HEADER), (b"E", 7)],
    "unknown block": [(b"H", HEADER), (b"X", {})],
    "a block of backups": [(b"H", HEADER), (b"P", [0, []])],
    "a bomb of a length": [(b"H", HEADER), (b"R", b"")],
}


@pytest.mark.parametrize("what", NONSENSE)
def test_sound_blocks_of_nonsense_are_refused(what: str, file: Path) -> None:
    """There is a clear error and no other exception."""
    data = file_of(NONSENSE[what])
    if what == "a bomb of a length":
        data = data[:-8] + b"\xff" * 4 + data[-4:]
    file.write_bytes(data)
    with pytest.raises(Corrupt, match="block "):
        list(read(file).records)


def test_another_file_is_refused(tmp_path: Path, file: Path) -> None:
    """Refused are a file of another kind, a newer format, a missing file, and a directory."""
    file.write_bytes(b"hello")
    with pytest.raises(BadRequest, match="is not a dump"):
        read(file)
    file.write_bytes(file_of([(b"H", {**HEADER, "format": 2})]))
    with pytest.raises(BadRequest, match="format 2"):
        read(file)
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(NotFound):
            read(path)


def test_a_dump_that_is_interrupted_leaves_the_old_one(world: World, file: Path) -> None:
    """The name is that of a complete file before and after."""
    write(file, Dump("main", None, world.records[:5]))

    def interrupted() -> Iterator[Record]:
        yield from world.records
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(file, Dump("main", None, interrupted()))
    assert list(read(file).records) == world.records[:5]
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """A directory that is not there."""
    with pytest.raises(BadRequest, match="cannot be written"):
        write(tmp_path / "none" / "a", Dump("main", None, ()))


def test_a_full_disk_is_named_and_leaves_the_old_dump(world: World, file: Path) -> None:
    """A limit for the size of files simulates it."""
    write(file, Dump("main", None, world.records[:5]))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        with pytest.raises(BadRequest, match=r"a\.onyxqlog cannot be written: File too large"):
            write(file, Dump("main", None, world.records))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(read(file).records) == world.records[:5]
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_a_long_dump_needs_little_memory(file: Path) -> None:
    """It has 40 MB of records and few blocks in memory."""
    random = Random(3)
    payload = random.randbytes(2_000)
    tracemalloc.start()
    try:
        with HistoryFileWriter(file, KIND, cluster="main") as writer:
            for position in range(20_000):
                writer.add(Record(position, position, payload))
        assert sum(1 for _ in read(file).records) == 20_000
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


# --- replays ---------------------------------------------------------------------------


def test_a_replay_takes_the_steps_that_peers_took(world: World, file: Path) -> None:
    """From the beginning and from a snapshot it gives the same replicas and verdicts."""
    write(file, Dump("main", None, world.records))
    assert list(replay(read(file))) == world.steps
    write(file, middle(world))
    assert list(replay(read(file))) == world.steps[100:]


def test_a_replay_stops_where_it_is_told(world: World) -> None:
    """It stops after the record of that position."""
    found = list(replay(Dump("main", None, world.records), until=41))
    assert [done.replica.position for done in found] == list(range(42))


@pytest.mark.parametrize("position", [0, 7, 100, 250])
def test_the_replica_of_any_position_can_be_had(world: World, position: int) -> None:
    """It equals the original in value and digest."""
    found = replica_at(Dump("main", None, world.records), position)
    assert found == world.replicas[position + 1]
    assert snapshot.digest(found) == snapshot.digest(world.replicas[position + 1])


def test_a_position_before_the_origin_cannot(world: World) -> None:
    """The error says where the dump starts; the snapshot's own position can be shown."""
    found = middle(world)
    assert replica_at(found, 99) == world.replicas[100]
    with pytest.raises(NotFound, match="start at position 99, after 98"):
        replica_at(found, 98)


def test_a_report_counts_what_was_met(world: World) -> None:
    """Records, entries, verdicts, records without effect, and checks of the invariants."""
    *_, report = checked(Dump("main", None, world.records), check_every=50)
    assert (report.first, report.records, report.replica) == (0, len(world.records), world.now)
    assert report.entries == sum(len(done.outcomes) for done in world.steps) == sum(report.verdicts.values())
    assert sum(report.problems.values()) == sum(1 for done in world.steps if done.problem) > 0
    assert report.checked >= len(world.records) // 50 and report.violations == []


def test_a_broken_invariant_is_reported(world: World) -> None:
    """With the position at which it was found."""
    broken = world.replicas[100]
    ring = broken.ring.__class__(members=broken.ring.members.set("ghost", None))
    *_, report = checked(Dump("main", broken.__class__(position=99, ring=ring), ()))
    assert report.checked == 1
    assert report.violations and all(text.startswith("at 99: ") for text in report.violations)


def test_digests_tell_replicas_apart(world: World) -> None:
    """Equal replicas have one digest, however they were made; each record gives another one."""
    digests = [snapshot.digest(replica) for replica in world.replicas]
    assert len(set(digests)) == len(digests)
    assert snapshot.digest(snapshot.unpack(snapshot.pack(world.now))) == digests[-1]
    (*_, last) = steps(EMPTY, world.records)
    assert snapshot.digest(last.replica) == digests[-1]
