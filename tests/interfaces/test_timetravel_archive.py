"""Archive directories: parts of history are combined, for any writers and gaps."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from attrs import evolve
from trio.testing import MockClock

from onyxq.core.log.interface import Origin, Record
from onyxq.core.replica import Replica
from onyxq.errors import Conflict, NotFound
from onyxq.history.archive import Archive, Part, best, files, groups, parts
from onyxq.history.dump import Dump
from onyxq.history.replay import replica_at
from onyxq.node.log_view import LogView
from onyxq.node.node import Node
from onyxq.node.record_archive import Archiver
from tests.entries.generated import generated_world
from tests.entries.world import World
from tests.interfaces.history_files import archived


@pytest.fixture(scope="module")
def world() -> World:
    """A log with every kind of entry, without a hole between its positions."""
    return generated_world(seed=33, records=300, check=False)


def keep(world: World, directory: Path, after: int, last: int, *, node: str = "n1", origin: int | None = None) -> None:
    """Archive the records after ``after`` up to ``last``; ``origin``: position of the snapshot before."""
    archived(world, directory, after, last, node=node, origin=None if origin is None else at(world, origin))


def at(world: World, position: int) -> Replica:
    """Return the replica at a position of this world."""
    return world.replicas[position + 1]


def live(world: World, origin: int) -> Part:
    """Return what is left in the log after a snapshot."""
    return Part(origin, None, Dump("main", at(world, origin), world.records[origin + 1 :]))


def test_an_archive_knows_how_far_it_reaches(world: World, tmp_path: Path) -> None:
    """It is counted without gaps from its last start on; unfinished files do not count."""
    archive = Archive(tmp_path / "archive", "n1")
    assert archive.reached(None) == -1
    keep(world, archive.directory, -1, 50)
    keep(world, archive.directory, 50, 90, origin=50)
    assert archive.reached(None) == 90
    keep(world, archive.directory, 100, 120, origin=100)
    (archive.directory / "0000000000000000121-0000000000000000200-n1.onyxqlog.77.part").write_bytes(b"")
    assert archive.reached(None) == 120 and archive.reached(Origin(200, b"", 150, 0)) == 150


def test_records_of_another_cluster_do_not_count_as_archived(world: World, tmp_path: Path) -> None:
    """A new cluster begins at the same positions. A restored one begins after them, and may continue the directory."""
    keep(world, tmp_path, -1, 90)
    archive, mine = Archive(tmp_path, "n1"), world.now.cluster
    assert mine is not None and mine.id == "c1"
    other = evolve(mine, id="c2")
    assert archive.reached(None, mine) == 90 and archive.reached(Origin(200, b"", 150, 0), other) == 150
    with pytest.raises(Conflict, match="another cluster, c1, at positions of this one, c2"):
        archive.reached(None, other)
    with pytest.raises(Conflict):
        archive.writer(other, None, 200)
    (damaged,) = tmp_path.iterdir()
    damaged.write_bytes(b"")
    assert archive.reached(None, other) == 90, "nothing shows whose it is"


def test_a_collector_waits_until_the_files_of_another_cluster_are_gone(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing may be trimmed before, so the server log says what to do; then the collection continues."""
    keep(world, tmp_path, -1, 90)
    mine = world.now.cluster
    assert mine is not None

    async def offload(function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)

    async def pages(first: int, last: int) -> AsyncIterator[list[Record]]:
        yield world.records[first : last + 1]

    async def main() -> None:
        node = SimpleNamespace(offload=offload, replica=SimpleNamespace(cluster=evolve(mine, id="c2")))
        view = SimpleNamespace(pages=pages)
        archiver = Archiver(Archive(tmp_path, "n1"), cast(Node, node), cast(LogView, view))
        with trio.move_on_after(60) as waited:
            await archiver.keep(None, 50)
        assert waited.cancelled_caught and [one[:2] for one in files(tmp_path)] == [(0, 90)]
        assert "another cluster, c1" in caplog.text and "move the files of the other one away" in caplog.text
        files(tmp_path)[0][2].unlink()
        await archiver.keep(None, 50)
        assert [one[:2] for one in files(tmp_path)] == [(0, 50)]

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_a_file_that_is_moved_away_meanwhile_holds_nothing(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator moves another cluster's files away while a collector looks: it must not trim for their sake."""
    keep(world, tmp_path, -1, 90)
    archive, found = Archive(tmp_path, "n1"), files(tmp_path)
    monkeypatch.setattr("onyxq.history.archive.files", lambda directory: found)
    found[0][2].unlink()
    with pytest.raises(NotFound):
        archive.reached(None, world.now.cluster)


def test_history_goes_from_the_archive_into_the_log(world: World, tmp_path: Path) -> None:
    """Every replica since the beginning can be computed, although the log begins late."""
    keep(world, tmp_path, -1, 50)
    keep(world, tmp_path, 50, 120, origin=50)
    pieces = [live(world, 120), *parts([tmp_path])]
    for position in (0, 50, 51, 119, 120, 121, 299):
        found = best(pieces, position)
        assert found is not None and replica_at(found, position) == at(world, position)
    whole = groups(pieces)[-1]
    assert whole.origin is None
    assert list(whole.records) == world.records
    (one,) = groups(pieces)
    assert list(one.records) == world.records


def test_the_latest_start_is_taken(world: World, tmp_path: Path) -> None:
    """So going back a little does not step everything."""
    keep(world, tmp_path, -1, 50)
    keep(world, tmp_path, 50, 120, origin=50)
    found = best([live(world, 120), *parts([tmp_path])], 100)
    assert found is not None and found.start.position == 50


def test_repeats_are_read_once(world: World, tmp_path: Path) -> None:
    """A collector after a crash wrote existing records again."""
    keep(world, tmp_path, -1, 50)
    keep(world, tmp_path, -1, 80, node="n2")
    keep(world, tmp_path, 40, 120, origin=40)
    whole = groups([live(world, 110), *parts([tmp_path])])[-1]
    assert list(whole.records) == world.records


def test_archives_of_several_nodes_complete_each_other(world: World, tmp_path: Path) -> None:
    """Each collector archives what it trims itself."""
    keep(world, tmp_path / "a", -1, 50)
    keep(world, tmp_path / "b", 50, 90, node="n2", origin=50)
    keep(world, tmp_path / "a", 90, 130, origin=90)
    whole = groups([live(world, 130), *parts([tmp_path / "a", tmp_path / "b"])])[-1]
    assert list(whole.records) == world.records


def test_what_is_missing_is_not_made_up(world: World, tmp_path: Path) -> None:
    """After a gap, history starts again at the next snapshot; positions in the gap cannot be shown."""
    keep(world, tmp_path, -1, 50)
    keep(world, tmp_path, 90, 130, origin=90)
    pieces = [live(world, 130), *parts([tmp_path])]
    assert best(pieces, 70) is None
    found = best(pieces, 100)
    assert found is not None and replica_at(found, 100) == at(world, 100)
    first, second = groups(pieces)
    assert [record.position for record in first.records] == list(range(51))
    assert [record.position for record in second.records] == list(range(91, len(world.records)))
    whole = groups(pieces)[-1]
    assert whole.start.position == 90


def test_records_before_the_origin_of_their_file_continue_others(world: World, tmp_path: Path) -> None:
    """A trim that had stopped half way left records before the snapshot: they are kept too."""
    keep(world, tmp_path, -1, 50)
    keep(world, tmp_path, 50, 120, origin=80)
    pieces = [live(world, 120), *parts([tmp_path])]
    whole = groups(pieces)[-1]
    assert list(whole.records) == world.records
    found = best(pieces, 60)
    assert found is not None and replica_at(found, 60) == at(world, 60)


def test_an_empty_directory_is_named(tmp_path: Path) -> None:
    """A missing directory is named too."""
    for directory in (tmp_path, tmp_path / "none"):
        assert files(directory) == []
        with pytest.raises(NotFound, match="no archived records"):
            parts([directory])
