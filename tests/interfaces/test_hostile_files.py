"""Dumps and backups that somebody made to do harm: sound by their checksums, and wrong in any place.

`replay`, `replica show` and `restore` either work or name what is wrong; a refused restore leaves nothing.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import msgpack
import pytest

from onyxq.core import snapshot
from onyxq.core.facts import TASK, Row, key_of, pack_task, seal
from onyxq.core.ids import make_id
from onyxq.errors import BadRequest, Corrupt
from onyxq.history import dump
from onyxq.history.backup import file as backup
from onyxq.history.blocks import BlockFile, Kind, packed, read_blocks
from onyxq.interfaces.cli.main import run
from tests.entries.generated import generated_world

Block = tuple[bytes, bytes]

JUNK = (None, True, -1, 1 << 63, (1 << 64) - 1, 1.5, "", "x", b"", b"x" * 20, [], {}, [[]], {"a": 1}, [1, 2, 3])
REFUSED = (BadRequest.exit_code, Corrupt.exit_code)
BOMBS = {
    "many bytes": zlib.compress(b"\xdd\x7f\xff\xff\xff" + bytes(1 << 28), 9),
    "empty lists": zlib.compress(b"\xdd\x03\x00\x00\x00" + b"\x90" * (48 << 20), 9),
    "nested": zlib.compress(b"\x91" * (1 << 20), 9),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[Kind, list[Block]]:
    """The blocks of a dump and of a backup, both sound."""
    world = generated_world(seed=21, records=160, check=False)
    directory = tmp_path_factory.mktemp("sound")
    dump.write(directory / "dump", dump.Dump("main", world.replicas[100], world.records[101:], "c1"))
    origin = world.replicas[100]
    assert origin.cluster is not None and origin.partitions
    with backup.BackupWriter(directory / "backup", cluster="main", cluster_id="c1", origin=origin) as writer:
        for partition in sorted(origin.partitions)[:2]:
            key = key_of(TASK, make_id(1, partition, 1, 0), bytes(0))
            writer.add_rows(partition, [Row(key, seal(key, pack_task({"queue": "q"}, [b"x"])))])
        for record in world.records[101:]:
            writer.add(record)
    return {kind: list(read_blocks(directory / name, kind)) for kind, name in KINDS.items()}


KINDS = {dump.KIND: "dump", backup.KIND: "backup"}


def spoiled_somewhere(blocks: list[Block], seed: int) -> list[Block]:
    """The blocks of a file with one of them spoiled."""
    random, out = Random(seed), list(blocks)
    place = random.randrange(len(out))
    out[place] = spoiled(random, out[place])
    return out


def written(path: Path, kind: Kind, blocks: Sequence[Block]) -> str:
    """A file of these blocks, each under its right checksum."""
    with BlockFile(path, kind) as file:
        for block in blocks:
            file.add(*block)
    return str(path)


def changed(random: Random, value: Any) -> Any:
    """The value with one random place of it changed: of another type, missing, repeated, out of range."""
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
    """A block with a random change, packed as before."""
    kind, body = block
    if kind in b"HE":
        return kind, msgpack.packb(changed(random, msgpack.unpackb(body)))
    if kind == b"O":
        plain = msgpack.unpackb(zlib.decompress(body[8:]), strict_map_key=False)
        return kind, snapshot.sealed(zlib.compress(msgpack.packb(changed(random, plain))))
    return kind, packed(changed(random, msgpack.unpackb(zlib.decompress(body))))


def test_the_files_are_sound_before_they_are_changed(files: dict[Kind, list[Block]], tmp_path: Path) -> None:
    """So the refusals below are for the change alone."""
    path = written(tmp_path / "dump", dump.KIND, files[dump.KIND])
    assert run(["replica", "show", "--file", path]) == 0
    path = written(tmp_path / "backup", backup.KIND, files[backup.KIND])
    assert run(["cluster", "restore", path, "--data", str(tmp_path / "data")]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60))
def test_a_dump_that_is_wrong_anywhere_is_replayed_or_refused(
    files: dict[Kind, list[Block]], seed: int, tmp_path: Path
) -> None:
    """No other exception than the program's own errors, which become exit codes."""
    path = written(tmp_path / "dump", dump.KIND, spoiled_somewhere(files[dump.KIND], seed))
    assert run(["log", "replay", path]) in (0, 1, *REFUSED)
    assert run(["replica", "show", "--file", path]) in (0, *REFUSED)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30))
def test_a_backup_that_is_wrong_anywhere_is_restored_or_leaves_nothing(
    files: dict[Kind, list[Block]], seed: int, tmp_path: Path
) -> None:
    """What is refused is refused before a store or a log is made."""
    path = written(tmp_path / "backup", backup.KIND, spoiled_somewhere(files[backup.KIND], seed))
    data = tmp_path / "data"
    code = run(["cluster", "restore", path, "--data", str(data)])
    assert code == 0 or (code in REFUSED and not data.exists())


@pytest.mark.parametrize("what", BOMBS)
@pytest.mark.parametrize("block", [b"O", b"R", b"P"])
def test_a_bomb_is_refused(
    files: dict[Kind, list[Block]], what: str, block: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A few kilobytes that unpack to far more, or to millions of values, or nested without end."""
    kind = backup.KIND if block == b"P" else dump.KIND
    body = snapshot.sealed(BOMBS[what]) if block == b"O" else BOMBS[what]
    blocks = [(found, body if found == block else sound) for found, sound in files[kind]]
    path = written(tmp_path / "file", kind, blocks)
    asked = ["cluster", "restore", path, "--data", str(tmp_path / "data")] if block == b"P" else ["log", "replay", path]
    assert run(asked) == Corrupt.exit_code
    assert "block" in capsys.readouterr().err and not (tmp_path / "data").exists()
