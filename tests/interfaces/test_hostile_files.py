"""Files of history made by an attacker: right checksums, and wrong contents in any place.

`replay`, `replica show` and `restore` either work or name the error; a refused restore leaves
nothing.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import msgpack
import pytest
from attrs import evolve
from pyrsistent import pmap

from onyxq.core import snapshot
from onyxq.core.facts import TASK, Row, key_of, pack_task, seal
from onyxq.core.ids import make_id
from onyxq.core.replica import EMPTY
from onyxq.errors import BadRequest, Corrupt, NotFound, OlderThanCluster, OnyxqError
from onyxq.history import dump
from onyxq.history.backup import file as backup
from onyxq.history.file_format import END, RECORDS, ROWS, SNAPSHOT, HistoryFileWriter, Kind, read_blocks
from onyxq.history.recovery import findings
from onyxq.history.recovery.findings import Found
from onyxq.interfaces.cli.main import run
from tests.entries.generated import generated_world
from tests.entries.world import World
from tests.interfaces.history_files import content, file_of

Block = tuple[bytes, Any]

JUNK: tuple[Any, ...] = (
    None,
    True,
    -1,
    1 << 63,
    (1 << 64) - 1,
    1.5,
    "",
    "x",
    b"",
    b"x" * 20,
    [],
    {},
    [[]],
    {"a": 1},
    [1, 2, 3],
)
REFUSED = (BadRequest.exit_code, Corrupt.exit_code)
BOMBS = {
    "many bytes": (b"\xdd\x7f\xff\xff\xff", b"\x00", 1 << 28),
    "empty lists": (b"\xdd\x03\x00\x00\x00", b"\x90", 48 << 20),
    "nested": (b"", b"\x91", 1 << 20),
}
"""Name -> first bytes, a byte, and how often it follows."""


@cache
def bomb(name: str) -> bytes:
    """Return one of them, packed."""
    first, byte, times = BOMBS[name]
    return zlib.compress(first + byte * times, 9)


def write_dump(path: Path, world: World, first: int, last: int) -> None:
    """Write a dump of some records and the replica before them."""
    origin = world.replicas[first] if first else None
    dump.write(path, dump.Dump("main", origin, world.records[first:last], "c1"))


def write_backup(path: Path, world: World, first: int, last: int) -> None:
    """Write a backup with a row of each of two partitions."""
    origin = world.replicas[first]
    assert origin.cluster is not None and origin.partitions
    packed = snapshot.pack(origin)
    with HistoryFileWriter(path, backup.KIND, cluster="main", cluster_id="c1", origin=packed) as writer:
        for partition in sorted(origin.partitions)[:2]:
            key = key_of(TASK, make_id(1, partition, 1, 0), bytes(0))
            writer.add_rows(partition, [Row(key, seal(key, pack_task({"queue": "q"}, [b"x"])))])
        writer.add_all(world.records[first:last])


def write_export(path: Path, world: World, first: int, last: int) -> None:
    """Write the export of a node's reading."""
    start = world.replicas[first] if first else EMPTY
    found = Found("d", "n1", "c1", last - 1, b"digest", {0: 1}, start, tuple(world.records[first:last]))
    findings.export(found, path)


WRITE: dict[Kind, Callable[[Path, World, int, int], None]] = {
    dump.KIND: write_dump,
    backup.KIND: write_backup,
    findings.KIND: write_export,
}
READ: dict[Kind, Callable[[Path], Any]] = {
    dump.KIND: lambda path: list(dump.read(path).records),
    backup.KIND: backup.read,
    findings.KIND: findings.read_export,
}


@pytest.fixture(scope="module")
def world() -> World:
    """A log with every kind of entry."""
    return generated_world(seed=21, records=160, check=False)


@pytest.fixture(scope="module")
def files(world: World, tmp_path_factory: pytest.TempPathFactory) -> dict[Kind, list[Block]]:
    """Return the blocks of a valid dump and a valid backup, without the digests at their ends."""
    path = tmp_path_factory.mktemp("sound") / "file"
    out: dict[Kind, list[Block]] = {}
    for kind in (dump.KIND, backup.KIND):
        WRITE[kind](path, world, 100, 160)
        found = [(block.kind, content(block)) for block in read_blocks(path, kind)]
        out[kind] = [*found[:-1], (END, {**found[-1][1], "digest": None})]
    return out


def spoiled_somewhere(blocks: list[Block], seed: int) -> list[Block]:
    """Return the blocks of a file with a random change in one of them."""
    random, out = Random(seed), list(blocks)
    place = random.randrange(len(out))
    out[place] = spoiled(random, out[place])
    return out


def written(path: Path, blocks: list[Block]) -> str:
    """Write a file of these blocks with right checksums."""
    path.write_bytes(file_of(blocks))
    return str(path)


def changed(random: Random, value: Any) -> Any:
    """Return the value with one random change: another type, missing, repeated, or out of range."""
    if isinstance(value, (list, tuple)) and value and random.random() < 0.9:
        items, place = list(value), random.randrange(len(value))
        items[place : place + 1] = random.choice(
            ([], [random.choice(JUNK), items[place]], *([changed(random, items[place])] for _ in range(10)))
        )
        return items
    if isinstance(value, dict) and value and random.random() < 0.9:
        name = random.choice(list(value))
        inner = value[name]
        rest = {key: item for key, item in value.items() if key != name}
        return random.choice((rest, {**rest, 0: inner}, *({**rest, name: changed(random, inner)} for _ in range(10))))
    if type(value) is int and random.random() < 0.5:
        return value + random.choice((1, -1, 1 << 20, 1 << 40))
    return random.choice(JUNK)


def spoiled(random: Random, block: Block) -> Block:
    """Return a block with a random change, packed as before."""
    kind, value = block
    if kind == SNAPSHOT:
        plain = msgpack.unpackb(zlib.decompress(value[8:]), strict_map_key=False)
        return kind, snapshot.sealed(zlib.compress(msgpack.packb(changed(random, plain))))
    found = changed(random, value)
    return kind, zlib.compress(msgpack.packb(found)) if isinstance(found, bytes) else found


def test_the_files_are_sound_before_they_are_changed(files: dict[Kind, list[Block]], tmp_path: Path) -> None:
    """So later refusals are due to the change alone."""
    path = written(tmp_path / "dump", files[dump.KIND])
    assert run(["replica", "show", "--file", path]) == 0
    path = written(tmp_path / "backup", files[backup.KIND])
    assert run(["cluster", "restore", path, "--data", str(tmp_path / "data")]) == 0


@pytest.mark.long
@pytest.mark.parametrize("seed", range(60))
def test_a_dump_that_is_wrong_anywhere_is_replayed_or_refused(
    files: dict[Kind, list[Block]], seed: int, tmp_path: Path
) -> None:
    """Only the program's own errors are raised, which become exit codes."""
    path = written(tmp_path / "dump", spoiled_somewhere(files[dump.KIND], seed))
    assert run(["log", "replay", path]) in (0, 1, *REFUSED)
    assert run(["replica", "show", "--file", path]) in (0, *REFUSED)


@pytest.mark.parametrize("seed", range(30))
def test_a_backup_that_is_wrong_anywhere_is_restored_or_leaves_nothing(
    files: dict[Kind, list[Block]], seed: int, tmp_path: Path
) -> None:
    """A refusal comes before a store or a log is created."""
    path = written(tmp_path / "backup", spoiled_somewhere(files[backup.KIND], seed))
    data = tmp_path / "data"
    code = run(["cluster", "restore", path, "--data", str(data)])
    assert code == 0 or (code in REFUSED and not data.exists())


@pytest.mark.long
@pytest.mark.parametrize("what", BOMBS)
@pytest.mark.parametrize("block", [SNAPSHOT, RECORDS, ROWS])
def test_a_bomb_is_refused(
    files: dict[Kind, list[Block]], what: str, block: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has a few kilobytes that unpack to far more, to millions of values, or to endless nesting."""
    kind = backup.KIND if block == ROWS else dump.KIND
    body = snapshot.sealed(bomb(what)) if block == SNAPSHOT else bomb(what)
    blocks = [(found, body if found == block else sound) for found, sound in files[kind]]
    path = written(tmp_path / "file", blocks)
    asked = ["cluster", "restore", path, "--data", str(tmp_path / "data")] if block == ROWS else ["log", "replay", path]
    assert run(asked) == Corrupt.exit_code
    assert "block" in capsys.readouterr().err and not (tmp_path / "data").exists()


def test_a_backup_of_a_newer_cluster_leaves_nothing(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is refused before a log or a store is created, also if only its records enable something unknown."""
    origin = world.replicas[100]
    newer = evolve(origin, enabled=origin.enabled.set("of_the_future", 1))
    file, data = tmp_path / "backup", tmp_path / "data"
    write_backup(file, World(replicas=[newer], records=[]), 0, 0)
    assert run(["cluster", "restore", str(file), "--data", str(data)]) == OlderThanCluster.exit_code
    assert "of_the_future" in capsys.readouterr().err and not data.exists()


def test_a_backup_with_a_strange_node_leaves_nothing(world: World, tmp_path: Path) -> None:
    """The id of a node would be the name of a directory."""
    origin = world.replicas[100]
    placed = {number: evolve(one, members=("../../x",)) for number, one in origin.partitions.items()}
    file, data = tmp_path / "backup", tmp_path / "data"
    write_backup(file, World(replicas=[evolve(origin, partitions=pmap(placed))], records=[]), 0, 0)
    assert run(["cluster", "restore", str(file), "--data", str(data)]) == Corrupt.exit_code
    assert not data.exists()


# --- bytes that are changed, missing, or of another kind ------------------------------------------


@pytest.fixture(scope="module")
def small(world: World, tmp_path_factory: pytest.TempPathFactory) -> dict[Kind, bytes]:
    """Return small files of each kind, of a few hundred bytes."""
    path = tmp_path_factory.mktemp("small") / "file"
    out: dict[Kind, bytes] = {}
    for kind, write in WRITE.items():
        first = next(place for place, one in enumerate(world.replicas) if kind != backup.KIND or one.partitions)
        write(path, world, first, first + 3)
        out[kind] = path.read_bytes()
    return out


def refusals(path: Path, kind: Kind, changed: Iterator[bytes]) -> Iterator[OnyxqError]:
    """Return the errors of reading such files to their end; fail if one can be read."""
    for data in changed:
        path.write_bytes(data)
        with pytest.raises(OnyxqError, match="history-file") as caught:
            READ[kind](path)
        yield caught.value


@pytest.mark.long
@pytest.mark.parametrize("kind", WRITE, ids=lambda kind: kind.name)
def test_every_flipped_byte_is_refused(small: dict[Kind, bytes], kind: Kind, tmp_path: Path) -> None:
    """The error names the file, and the block unless the magic number is wrong."""
    data, random = small[kind], Random(1)
    flipped = (data[:at] + bytes([data[at] ^ 1 << random.randrange(8)]) + data[at + 1 :] for at in range(len(data)))
    for at, error in enumerate(refusals(tmp_path / "history-file", kind, flipped)):
        assert isinstance(error, BadRequest) if at < 8 else isinstance(error, Corrupt) and "block " in error.message


@pytest.mark.long
@pytest.mark.parametrize("kind", WRITE, ids=lambda kind: kind.name)
def test_every_cut_and_every_addition_is_refused(small: dict[Kind, bytes], kind: Kind, tmp_path: Path) -> None:
    """This includes a cut between two blocks, as on a full disk, and bytes after the end."""
    data = small[kind]
    cut = [data[:size] for size in range(8, len(data))]
    for error in refusals(tmp_path / "history-file", kind, iter([*cut, data + b"x", data + data])):
        assert isinstance(error, Corrupt) and "block " in error.message


@pytest.mark.parametrize("kind", WRITE, ids=lambda kind: kind.name)
def test_another_kind_of_file_is_refused_by_name(small: dict[Kind, bytes], kind: Kind, tmp_path: Path) -> None:
    """All kinds share one format."""
    for other in WRITE:
        if other != kind:
            (error,) = refusals(tmp_path / "history-file", kind, iter([small[other]]))
            assert isinstance(error, BadRequest) and f"is not a {kind.what}: it holds a {other.name}" in error.message


def test_blocks_of_another_file_are_refused(world: World, small: dict[Kind, bytes], tmp_path: Path) -> None:
    """Each block is valid alone; the digest at the end belongs to the others."""
    mixed = []
    for number, first in enumerate((40, 60)):
        write_dump(tmp_path / str(number), world, first, first + 3)
        mixed.append(list(read_blocks(tmp_path / str(number), dump.KIND)))
    blocks = [(block.kind, content(block)) for block in (*mixed[0][:-1], mixed[1][-1])]
    (error,) = refusals(tmp_path / "history-file", dump.KIND, iter([file_of(blocks)]))
    assert "not the end of this file" in str(error)


@pytest.mark.parametrize("place", ["dump", "archive", "backup", "export", "tasks"])
def test_a_fifo_is_refused_instead_of_waited_for(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Opening it would block until another process writes to it."""
    task = make_id(1, 0, 1, 0).hex()
    name, asked = {
        "dump": ("fifo", ["log", "replay", f"{tmp_path}/fifo"]),
        "archive": (f"{0:019d}-{9:019d}-n1.onyxqlog", ["log", "replay", str(tmp_path)]),
        "backup": ("fifo", ["cluster", "restore", f"{tmp_path}/fifo", "--data", f"{tmp_path}/data"]),
        "export": ("fifo", ["cluster", "recover", "main", "--zookeeper", "127.0.0.1:1", "--from", f"{tmp_path}/fifo"]),
        "tasks": (
            f"tasks/queue=q/day=1970-01-01/{0:05d}-{0:015d}-{9:015d}-{0:016x}.parquet",
            ["task", "get", task, "--archive", str(tmp_path)],
        ),
    }[place]
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(tmp_path / name)
    code = Corrupt.exit_code if place == "tasks" else NotFound.exit_code
    assert run(asked) == code
    assert "not a regular file" in capsys.readouterr().err
