"""Records of the log as a table: complete, each once, with the verdicts of peers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from pyarrow import dataset

from onyxq import Client
from onyxq.core.diff import plain
from onyxq.core.log.interface import Origin
from onyxq.core.log.record import decode_record
from onyxq.core.replica import EMPTY
from onyxq.errors import BadRequest, Conflict, NotFound
from onyxq.history.archive import Part
from onyxq.history.dump import Dump, write
from onyxq.history.parquet import records
from onyxq.history.parquet.records import RecordTable, RecordWriter, Written, covered, write_records
from onyxq.history.parquet.schema import RECORDS
from onyxq.history.replay import steps
from onyxq.history.tables.columns import ENTRIES
from onyxq.history.tables.selection import Selection
from onyxq.history.tables.sources import Sources
from tests.entries.generated import generated_world
from tests.entries.world import World as Generated
from tests.interfaces.history_files import archived
from tests.interfaces.timetravel_world import Line, World, started

DAY_MS = 86_400_000


@pytest.fixture(scope="module")
def world() -> Generated:
    """A log with every kind of entry, without a hole between its positions."""
    return generated_world(seed=33, records=300, check=False)


def whole(world: Generated) -> Part:
    """The log from its beginning."""
    return Part(-1, None, Dump("main", None, world.records))


def behind(world: Generated, origin: int, last: int | None = None) -> Part:
    """Return the log after a snapshot."""
    end = None if last is None else last + 1
    return Part(origin, last, Dump("main", world.replicas[origin + 1], world.records[origin + 1 : end]))


def written(pieces: list[Part], directory: Path, until: int | None = None) -> Written:
    """Write all of it."""
    done = list(write_records(pieces, directory, until=until))
    return done[-1]


def table(directory: Path) -> list[dict[str, Any]]:
    """All rows, in the order of the log."""
    found = dataset.dataset(directory / RECORDS, partitioning="hive").to_table().to_pylist()
    return sorted(found, key=lambda row: (row["position"], row["index"] or 0))


def expected(world: Generated, after: int = -1) -> list[tuple[Any, ...]]:
    """Return the rows from stepping the log."""
    rows: list[tuple[Any, ...]] = []
    for done in steps(EMPTY, world.records):
        position = done.replica.position
        rows += [(position, one.name, json.dumps(plain(one.args)), one.verdict) for one in done.outcomes]
        rows += [(position, None, None, done.problem)] if done.problem else []
    return [row for row in rows if row[0] > after]


def told(directory: Path) -> list[tuple[Any, ...]]:
    """Return the rows of a directory."""
    return [
        (row["position"], row["entry"], row["args"] and json.dumps(json.loads(row["args"])), row["verdict"])
        for row in table(directory)
    ]


def test_every_entry_is_a_row_with_its_verdict(world: Generated, tmp_path: Path) -> None:
    """This includes entries that changed nothing."""
    done = written([whole(world)], tmp_path)
    assert (done.records, done.first, done.last) == (300, 0, 299)
    assert told(tmp_path) == expected(world)
    assert len({row["verdict"] for row in table(tmp_path)}) > 5


def test_what_is_there_is_not_written_again(world: Generated, tmp_path: Path) -> None:
    """It is written in parts, each from the end of the last one, from any snapshot before it."""
    assert written([whole(world)], tmp_path, until=100).last == 100
    assert written([whole(world)], tmp_path, until=100).records == 0
    pieces = [behind(world, -1, 80), behind(world, 80, 200), behind(world, 200)]
    done = written(pieces, tmp_path)
    assert (done.first, done.last, done.records) == (101, 299, 199)
    assert told(tmp_path) == expected(world)
    assert [(one.first, one.last) for one in covered(tmp_path)] == [(0, 299)]


def test_files_are_cut_by_day_and_by_size(world: Generated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of a file has its records."""
    monkeypatch.setattr(records, "ROWS_MAX", 40)
    later = [evolve(one, ctime_ms=one.ctime_ms + (2 * DAY_MS if one.position >= 150 else 0)) for one in world.records]
    assert written([Part(-1, None, Dump("main", None, later))], tmp_path).files > 4
    days = sorted(path.name for path in (tmp_path / RECORDS).iterdir())
    assert len(days) == 2
    for file in (tmp_path / RECORDS).rglob("*.parquet"):
        first, last = map(int, file.stem.split("-"))
        positions = {row["position"] for row in dataset.dataset(file).to_table().to_pylist()}
        assert positions == set(range(first, last + 1))


def test_records_of_another_cluster_do_not_count_as_written(world: Generated, tmp_path: Path) -> None:
    """A new cluster begins at the same positions. A restored one begins after them, and may continue the table."""
    written([whole(world)], tmp_path)
    table, mine = RecordTable(tmp_path, "n1"), world.now.cluster
    assert mine is not None
    other = evolve(mine, id="another")
    assert table.reached(None, mine) == 299 and table.reached(Origin(400, b"", 400, 0), other) == 400
    with pytest.raises(Conflict, match="records of another cluster at positions of this one"):
        table.reached(None, other)
    with pytest.raises(Conflict):
        written([Part(-1, None, Dump("main", None, world.records, "another"))], tmp_path)
    assert written([Part(-1, None, Dump("main", None, world.records, mine.id))], tmp_path).records == 0


def test_a_table_that_is_moved_away_meanwhile_holds_nothing(
    world: Generated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator moves another cluster's files away while a collector looks: it must not trim for their sake."""
    written([whole(world)], tmp_path)
    found = covered(tmp_path)
    monkeypatch.setattr(records, "covered", lambda directory: found)
    (tmp_path / RECORDS).rename(tmp_path / "away")
    with pytest.raises(NotFound, match="moved away"):
        RecordTable(tmp_path, "n1").reached(None, world.now.cluster)


def test_a_query_reads_a_dump_to_its_end_beside_an_archive(world: Generated, tmp_path: Path) -> None:
    """Each entry comes once, although the archive of the log starts later, within the records that have a table."""
    written([whole(world)], tmp_path / "table", until=50)
    archived(world, tmp_path / "log", 30, 80, origin=world.replicas[31])
    write(tmp_path / "dump", Dump("main", None, world.records))
    sources = Sources(records=(tmp_path / "table",), logs=(tmp_path / "log",), dumps=(tmp_path / "dump",))
    found: list[tuple[Any, ...]] = []
    for share in sources.shares(None, ENTRIES, Selection()):
        for rows in sources.read(None, ENTRIES, share, Selection()):
            found += zip(*(rows[name].to_pylist() for name in ("position", "index")), strict=True)
    assert len(found) == len(set(found)) == len(expected(world))
    assert {position for position, _ in found} == set(range(300))


def test_a_hole_in_history_stays_one(world: Generated, tmp_path: Path) -> None:
    """Both sides are written, and the hole once its records are found."""
    written([behind(world, -1, 80), behind(world, 150)], tmp_path)
    assert [(one.first, one.last) for one in covered(tmp_path)] == [(0, 80), (151, 299)]
    done = written([whole(world)], tmp_path)
    assert (done.first, done.last, done.records) == (81, 150, 70)
    assert told(tmp_path) == expected(world)


def test_an_interrupted_run_leaves_whole_files_alone(
    world: Generated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next run continues after them."""
    monkeypatch.setattr(records, "ROWS_MAX", 40)
    going = write_records([whole(world)], tmp_path)
    for done in going:
        if done.files == 3:
            break
    going.close()  # type: ignore[attr-defined]
    assert not list(tmp_path.rglob("*.part")) and len(list(tmp_path.rglob("*.parquet"))) == 2
    written([whole(world)], tmp_path)
    assert told(tmp_path) == expected(world)


def test_a_file_that_somebody_else_wrote_meanwhile_is_dropped(world: Generated, tmp_path: Path) -> None:
    """Of two writers, the later one leaves the records to the other.

    It removes files that its own dead process had begun, and not those that another one is writing.
    """
    slow = RecordWriter(tmp_path, EMPTY, owner="slow")
    slow.add_all(world.records[:100])
    (begun,) = tmp_path.rglob("*.part")
    written([whole(world)], tmp_path, until=149)
    RecordWriter(tmp_path, EMPTY, owner="other")
    assert begun.exists()
    slow.finish()
    assert not begun.exists() and told(tmp_path) == [row for row in expected(world) if row[0] < 150]
    begun.write_bytes(b"half")
    after = RecordWriter(tmp_path, EMPTY, owner="slow")
    assert not begun.exists()
    after.add_all(world.records)
    after.finish()
    assert told(tmp_path) == expected(world)


def test_a_directory_that_cannot_be_written_is_named(world: Generated, tmp_path: Path) -> None:
    """A file is in its place."""
    (tmp_path / RECORDS).write_bytes(b"")
    with pytest.raises(BadRequest, match="cannot be written"):
        written([whole(world)], tmp_path)


def test_the_log_of_a_cluster_is_archived_across_collections(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The collectors' files and the log together have all records."""
    kept, out = str(tmp_path / "kept"), tmp_path / "out"
    with started(peers=1, partitions=2, archive=kept) as (cluster, portal), Client(cluster.addresses) as client:
        world = World(cluster, portal, client)
        line = Line(world, capsys)
        world.story()
        position = world.collect()
        _, (first, _) = world.story()
        found = line.json("archive", "log", str(out), "--archive", kept)
        assert (found["first"], found["last"]) == (0, position)
        found = line.json("archive", "log", str(out), "--archive", kept, "--live")
        assert found["first"] == position + 1 and found["last"] > first
        rows = table(out)
        granted = [json.loads(row["args"]) for row in rows if row["entry"] == "grant_claims"]
        assert sum(run["count"] for one in granted for grant in one["grants"] for run in grant["runs"]) == 4
        missing = set(range(position + 1, found["last"] + 1)) - {row["position"] for row in rows}
        for place in missing:  # records that only let time pass have no row; the log has those after the collection
            ((_, _, data),) = client.call("log.raw", {"from": place})["records"][:1]
            content = decode_record(data)
            assert content is not None and not content.entries
