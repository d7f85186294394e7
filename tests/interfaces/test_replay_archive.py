"""Replay of a log archive file by file: the same as in one go, and inconsistencies are named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from attrs import evolve

from onyxq.core import snapshot
from onyxq.errors import NotFound
from onyxq.history.dump import Dump
from onyxq.history.replay import checked
from onyxq.interfaces.cli.main import run
from onyxq.spark.analysis.replays import pieces, replayed, summed
from tests.entries.generated import generated_world
from tests.entries.world import World
from tests.interfaces.history_files import archived

CUTS = (-1, 80, 150, 299)


@pytest.fixture(scope="module")
def world() -> World:
    """A log with every kind of entry, without a hole between its positions."""
    return generated_world(seed=33, records=300, check=False)


def whole(world: World, directory: Path) -> Path:
    """An archive in three files."""
    for after, last in zip(CUTS, CUTS[1:], strict=False):
        archived(world, directory, after, last, origin=world.replicas[after + 1] if after >= 0 else None)
    return directory


def test_the_files_together_are_the_log(world: World, tmp_path: Path) -> None:
    """Counts are the same as in one go, and the files fit together."""
    some = pieces(whole(world, tmp_path))
    found = summed(some, map(replayed, some))
    *_, report = checked(Dump("main", None, world.records))
    assert (found.records, found.entries, found.verdicts) == (300, report.entries, report.verdicts)
    assert (found.seams, found.alone, found.violations) == (2, 0, report.violations)


def test_an_origin_that_stepping_does_not_lead_to_is_named(world: World, tmp_path: Path) -> None:
    """With both digests."""
    archived(world, tmp_path, -1, 80, origin=None)
    archived(world, tmp_path, 80, 150, origin=evolve(world.replicas[81], clock_ms=world.replicas[81].clock_ms + 1))
    some = pieces(tmp_path)
    found = summed(some, map(replayed, some))
    (wrong,) = [text for text in found.violations if "starts from" in text]
    assert wrong.startswith("at 80: ") and snapshot.digest(world.replicas[81]) in wrong


def test_a_file_without_an_origin_is_counted_apart(world: World, tmp_path: Path) -> None:
    """It can only continue another file."""
    archived(world, tmp_path, -1, 80, origin=None)
    archived(world, tmp_path, 80, 150, origin=None)
    some = pieces(tmp_path)
    found = summed(some, map(replayed, some))
    assert (found.files, found.alone, found.records, found.seams) == (2, 1, 81, 0)


def test_a_damaged_file_is_a_violation(world: World, tmp_path: Path) -> None:
    """It is named; the others are replayed."""
    whole(world, tmp_path)
    path = sorted(tmp_path.iterdir())[1]
    path.write_bytes(path.read_bytes()[:-20])
    some = pieces(tmp_path)
    found = summed(some, map(replayed, some))
    assert found.records == 81 + 149 and any(path.name in text for text in found.violations)


def test_the_command_takes_a_directory(world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The fields are those of a single dump if they apply."""
    code = run(["log", "replay", str(whole(world, tmp_path)), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert code == (1 if found["violations"] else 0)
    assert (found["files"], found["records"], found["seams_compared"]) == (3, 300, 2)
    assert sum(one["count"] for one in found["verdicts"] if one["entry"] != "(record)") == found["entries"]
    assert run(["log", "replay", str(tmp_path), "--until", "7"]) == 2
    assert run(["log", "replay", str(next(tmp_path.iterdir())), "--spark", "local[1]"]) == 2


def test_a_directory_without_records_is_refused(tmp_path: Path) -> None:
    """Nothing was replayed, so nothing is claimed."""
    with pytest.raises(NotFound):
        pieces(tmp_path)
