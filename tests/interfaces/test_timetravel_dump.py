"""Dump files: what goes in comes out, little memory is needed, and damage is named, never believed."""

from __future__ import annotations

import tracemalloc
import zlib
from collections.abc import Iterator
from pathlib import Path
from random import Random

import msgpack
import pytest

from onyxq.core import snapshot
from onyxq.core.log.interface import Record
from onyxq.core.replica import EMPTY
from onyxq.errors import BadRequest, Corrupt, NotFound, OnyxqError
from onyxq.history import blocks, dump, log_file
from onyxq.history.dump import Dump, DumpWriter, read, write
from onyxq.history.replay import checked, replay, replica_at, steps
from tests.entries.generated import generated_world
from tests.entries.world import World


@pytest.fixture(scope="module")
def world() -> World:
    """A log with every kind of entry."""
    return generated_world(seed=21, records=300, check=False)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where a dump goes."""
    return tmp_path / "a.onyxqlog"


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of many blocks, with few records."""
    monkeypatch.setattr(log_file, "RECORDS_BYTES", 4_000)
    monkeypatch.setattr(log_file, "ORIGIN_PART_BYTES", 100)


def middle(world: World) -> Dump:
    """A dump that starts at an origin."""
    return Dump("main", world.replicas[100], world.records, "c1")


def test_a_dump_from_the_beginning_comes_back(world: World, file: Path) -> None:
    """Every record with its position, time and bytes; more than once."""
    assert write(file, Dump("main", None, world.records, "c1")) == len(world.records)
    found = read(file)
    assert (found.cluster, found.cluster_id, found.origin, found.start) == ("main", "c1", None, EMPTY)
    assert list(found.records) == world.records
    assert list(found.records) == world.records


@pytest.mark.usefixtures("small_blocks")
def test_a_dump_from_an_origin_comes_back(world: World, file: Path) -> None:
    """With the records behind the origin; those before it are left out."""
    write(file, middle(world))
    found = read(file)
    assert found.origin == world.replicas[100]
    assert list(found.records) == world.records[100:]


def test_an_empty_log_can_be_dumped(file: Path) -> None:
    """No origin, no records."""
    write(file, Dump("main", None, ()))
    assert list(read(file).records) == []


@pytest.mark.usefixtures("small_blocks")
def test_any_flipped_bit_is_noticed(world: World, file: Path) -> None:
    """Reading to the end raises, naming the file; where a block is at fault also its number."""
    write(file, middle(world))
    data = file.read_bytes()
    random = Random(1)
    for place in {*range(60), *(random.randrange(len(data)) for _ in range(150)), len(data) - 1}:
        broken = bytearray(data)
        broken[place] ^= 1 << random.randrange(8)
        file.write_bytes(broken)
        with pytest.raises(OnyxqError, match=r"a\.onyxqlog") as caught:
            list(read(file).records)
        assert place < 8 or (isinstance(caught.value, Corrupt) and "block " in caught.value.message)


@pytest.mark.usefixtures("small_blocks")
def test_any_cut_is_noticed(world: World, file: Path) -> None:
    """Also one between two blocks, as a full disk leaves it."""
    write(file, middle(world))
    data = file.read_bytes()
    for size in (*range(8, 60), *range(60, len(data), 97), len(data) - 1):
        file.write_bytes(data[:size])
        with pytest.raises(Corrupt, match="block "):
            list(read(file).records)


@pytest.mark.usefixtures("small_blocks")
def test_the_blocks_before_a_damaged_one_can_be_read(world: World, file: Path) -> None:
    """What comes before it is whole, and the error says which block it is."""
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
    """Each is sound, but not where it stands."""
    write(file, Dump("main", None, world.records))
    blocks = split(file.read_bytes())
    blocks[2], blocks[3] = blocks[3], blocks[2]
    file.write_bytes(dump.MAGIC + b"".join(blocks))
    with pytest.raises(Corrupt, match="block 2 is damaged"):
        list(read(file).records)


def split(data: bytes) -> list[bytes]:
    """The blocks of a file."""
    out, place = [], len(dump.MAGIC)
    while place < len(data):
        size = blocks._HEAD.size + int(blocks._HEAD.unpack_from(data, place)[1])
        out.append(data[place : place + size])
        place += size
    return out


def sealed(number: int, kind: bytes, body: bytes) -> bytes:
    """A block whose checksum fits, whatever is in it."""
    return blocks._HEAD.pack(kind, len(body), blocks._checksum(number, kind, body)) + body


HEADER = {"format": 1, "cluster": "main", "cluster_id": "c1", "origin": None}
NONSENSE = {
    "no header": [(b"E", msgpack.packb({"records": 0, "last": -1}))],
    "header is a list": [(b"H", msgpack.packb([1]))],
    "header is no msgpack": [(b"H", b"\xc1")],
    "origin is none": [(b"H", msgpack.packb(HEADER)), (b"O", b"nonsense")],
    "origin is missing": [(b"H", msgpack.packb({**HEADER, "origin": 7})), (b"E", msgpack.packb({"records": 0}))],
    "records are no zlib": [(b"H", msgpack.packb(HEADER)), (b"R", b"nonsense")],
    "records are none": [(b"H", msgpack.packb(HEADER)), (b"R", zlib.compress(msgpack.packb([1, 2])))],
    "records go backwards": [
        (b"H", msgpack.packb(HEADER)),
        (b"R", zlib.compress(msgpack.packb([(2, 0, b""), (1, 0, b"")]))),
    ],
    "count is wrong": [(b"H", msgpack.packb(HEADER)), (b"E", msgpack.packb({"records": 3, "last": 3}))],
    "unknown block": [(b"H", msgpack.packb(HEADER)), (b"X", b"")],
    "a bomb of a length": [(b"H", msgpack.packb(HEADER)), (b"R", b"")],
}


@pytest.mark.parametrize("what", NONSENSE)
def test_sound_blocks_of_nonsense_are_refused(what: str, file: Path) -> None:
    """By a clear error, never by another exception."""
    data = dump.MAGIC + b"".join(sealed(number, *block) for number, block in enumerate(NONSENSE[what]))
    if what == "a bomb of a length":
        data = data[:-9] + blocks._HEAD.pack(b"R", 0xFFFFFFFF, 0)
    file.write_bytes(data)
    with pytest.raises(Corrupt, match="block "):
        list(read(file).records)


def test_another_file_is_refused(tmp_path: Path, file: Path) -> None:
    """One that is no dump, one of a newer format, one that is not there, a directory."""
    file.write_bytes(b"hello")
    with pytest.raises(BadRequest, match="no dump"):
        read(file)
    file.write_bytes(dump.MAGIC + sealed(0, b"H", msgpack.packb({**HEADER, "format": 2})))
    with pytest.raises(BadRequest, match="format 2"):
        read(file)
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(NotFound):
            read(path)


def test_a_dump_that_is_interrupted_leaves_the_old_one(world: World, file: Path) -> None:
    """The name stands for a complete file, before and after."""
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


def test_a_long_dump_needs_little_memory(file: Path) -> None:
    """40 MB of records through a few blocks."""
    random = Random(3)
    payload = random.randbytes(2_000)
    tracemalloc.start()
    try:
        with DumpWriter(file, cluster="main") as writer:
            for position in range(20_000):
                writer.add(Record(position, position, payload))
        assert sum(1 for _ in read(file).records) == 20_000
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


# --- replays ---------------------------------------------------------------------------


def test_a_replay_takes_the_steps_that_peers_took(world: World, file: Path) -> None:
    """From the beginning and from an origin: the same replicas and verdicts."""
    write(file, Dump("main", None, world.records))
    assert list(replay(read(file))) == world.steps
    write(file, middle(world))
    assert list(replay(read(file))) == world.steps[100:]


def test_a_replay_stops_where_it_is_told(world: World) -> None:
    """Behind the record of that position."""
    found = list(replay(Dump("main", None, world.records), until=41))
    assert [done.replica.position for done in found] == list(range(42))


@pytest.mark.parametrize("position", [0, 7, 100, 250])
def test_the_replica_of_any_position_can_be_had(world: World, position: int) -> None:
    """Equal in value and digest to the one that was there."""
    found = replica_at(Dump("main", None, world.records), position)
    assert found == world.replicas[position + 1]
    assert snapshot.digest(found) == snapshot.digest(world.replicas[position + 1])


def test_a_position_before_the_origin_cannot(world: World) -> None:
    """The error says where the dump starts; the origin's own position can be had."""
    found = middle(world)
    assert replica_at(found, 99) == world.replicas[100]
    with pytest.raises(NotFound, match="origin of position 99, behind 98"):
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
    """Equal ones have one digest, however they came about; each record gives another."""
    digests = [snapshot.digest(replica) for replica in world.replicas]
    assert len(set(digests)) == len(digests)
    assert snapshot.digest(snapshot.unpack(snapshot.pack(world.now))) == digests[-1]
    (*_, last) = steps(EMPTY, world.records)
    assert snapshot.digest(last.replica) == digests[-1]
