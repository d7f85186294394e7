"""An archive in use: history survives log collections, and nothing is trimmed that is not archived."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from onyxq import Client, api
from onyxq.core.log.interface import Origin
from onyxq.history.archive import Archive, best, files, groups, parts
from onyxq.history.dump import read
from onyxq.history.replay import replay
from onyxq.node import record_archive
from tests.interfaces.timetravel_world import PATIENCE_S, Line, World, eventually, started


@pytest.mark.long
def test_history_outlives_collections(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Explanations, past replicas, single records and dumps reach back to the first record."""
    archive = tmp_path / "archive"
    with started(peers=2, partitions=4, archive=str(archive)) as (cluster, portal), Client(cluster.addresses) as client:
        world = World(cluster, portal, client)
        line = Line(world, capsys)
        task_id, (first, second) = world.story()
        before = world.settled()[0]
        world.collect()
        world.story()
        last = world.collect()
        later, _ = world.story()
        world.settled()
        kept = files(archive)
        assert kept[0][0] == 0 and kept[-1][1] == last
        assert len(kept) == 2 and kept[1][0] == kept[0][1] + 1

        found = line.json("task", "explain", task_id, "--archive", str(archive))
        story = [(one["entry"], one["token"]) for one in found["events"] if one["source"] == "log"]
        assert len(story) == 5 and {token for _, token in story} == {first, second} and found["log_from"] == 0
        assert line.json("task", "explain", later, "--archive", str(archive))["log_from"] == 0

        shown = line.json("replica", "show", "--at", str(before["position"]), "--archive", str(archive))
        assert shown["digest"] == before["digest"]
        line.text("replica", "show", "--at", str(before["position"]), code=3)
        granted = line.json("log", "show", str(first), "--archive", str(archive))
        assert [one["entry"] for one in granted["entries"]] == ["grant_claims"]
        lines = line.text("log", "tail", "--from", "0", "--json", "--archive", str(archive)).splitlines()
        positions = [json.loads(text)["position"] for text in lines]
        assert positions == list(range(len(positions))) and positions[-1] > last

        reported = world.settled()[0]
        done = line.json("log", "dump", str(tmp_path / "all"), "--archive", str(archive))
        assert (done["first"], done["origin"], done["records"]) == (0, None, done["last"] + 1)
        until = ["--until", str(reported["position"])]
        replayed = line.json("log", "replay", str(tmp_path / "all"), *until, connect=False)
        assert (replayed["position"], replayed["digest"]) == (reported["position"], reported["digest"])
        for _, _, path in kept:
            assert list(replay(read(path)))


def test_what_cannot_be_archived_is_not_trimmed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The collection waits until the directory can be written, and then continues."""
    monkeypatch.setattr(record_archive, "RETRY_PAUSE_S", 0.05)
    archive = tmp_path / "archive"
    with started(peers=1, partitions=4, archive=str(archive)) as (cluster, portal), Client(cluster.addresses) as client:
        archive.rmdir()
        archive.write_text("a file where the directory should be")
        world = World(cluster, portal, client)
        world.story()
        reports: list[Any] = []
        thread = threading.Thread(target=lambda: reports.append(api.gc(world.address)))
        thread.start()
        node = cluster.nodes[0].node
        assert node is not None
        eventually(lambda: node.replica.snapshot.position, lambda position: position >= 0)
        portal.call(node.records.clear)
        assert client.call("origin", {})["position"] == -1
        assert client.call("log.raw", {"from": 0})["records"][0][0] == 0
        assert reports == []
        archive.unlink()
        thread.join(PATIENCE_S)
        assert reports and client.call("origin", {})["position"] == reports[0].position
        assert client.call("log.raw", {"from": 0}) == {
            "position": client.call("cluster", {})["position"],
            "trimmed": reports[0].position,
        }
        assert files(archive)[-1][1] == reports[0].position


def test_a_collector_goes_on_where_the_archive_ends(tmp_path: Path) -> None:
    """A collector that died between archiving and trimming left a file: the next adds only newer records.

    Unfinished files of a dead process of the node are removed.
    """
    archive = tmp_path / "archive"
    with started(peers=1, partitions=4, archive=str(archive)) as (cluster, portal), Client(cluster.addresses) as client:
        world = World(cluster, portal, client)
        world.story()
        node = cluster.nodes[0].node
        assert node is not None and node.archivers
        first = client.call("cluster", {})["position"]
        portal.call(node.archivers[0].keep, None, first)
        begun = archive / f"{first + 1:019d}-{first + 9:019d}-{node.node_id}.onyxqlog.1.part"
        begun.write_bytes(b"half")
        portal.call(node.archivers[0].keep, None, first)
        assert [one[:2] for one in files(archive)] == [(0, first)]
        world.story()
        last = world.collect()
        assert [one[:2] for one in files(archive)] == [(0, first), (first + 1, last)]
        assert not begun.exists()
        whole = groups(parts([archive]))[-1]
        assert [one.position for one in whole.records] == list(range(last + 1))


def test_an_archive_that_starts_late_starts_at_the_origin(tmp_path: Path) -> None:
    """Its first file has the snapshot before it, and can be replayed alone."""
    with started(peers=1, partitions=4) as (cluster, portal), Client(cluster.addresses) as client:
        world = World(cluster, portal, client)
        world.story()
        before = world.collect()
        running = cluster.nodes[0]
        assert running.node is not None and running.service is not None
        archive = Archive(tmp_path, running.node.node_id)
        running.node.archivers.append(record_archive.Archiver(archive, running.node, running.service.log_view))
        world.story()
        last = world.collect()
        ((first, end, path),) = files(tmp_path)
        assert (first, end) == (before + 1, last)
        dump = read(path)
        assert dump.start.position == before
        assert [done.replica.position for done in replay(dump)] == list(range(before + 1, last + 1))


@pytest.mark.long
def test_a_file_does_not_start_at_an_origin_that_lies_before_its_first_record(tmp_path: Path) -> None:
    """A collector that died after it archived left the records between the two in another file."""
    with (
        started(peers=1, partitions=4, archive=str(tmp_path)) as (cluster, portal),
        Client(cluster.addresses) as client,
    ):
        world = World(cluster, portal, client)
        world.story()
        first = world.collect()
        world.story()
        died_at = client.call("cluster", {})["position"]
        node = cluster.nodes[0].node
        assert node is not None

        class BegunBefore(record_archive.Archiver):
            """Collect twice: the first collector dies after it has archived."""

            async def keep(self, old: Origin | None, upto: int) -> None:
                await super().keep(old, died_at)
                await super().keep(old, upto)

        service = cluster.nodes[0].service
        assert service is not None
        node.archivers[:] = [BegunBefore(Archive(tmp_path, node.node_id), node, service.log_view)]
        world.story()
        last = world.collect()
        pieces = parts([tmp_path])
        assert [(one.after, one.last) for one in pieces] == [(-1, first), (first, died_at), (died_at, last)]
        assert [one.start for one in pieces] == [-1, first, None]
        assert best(pieces[2:], last) is None, "alone it tells nothing of the past"
        found = best(pieces, last)
        assert found is not None
        assert [done.replica.position for done in replay(found)] == list(range(first + 1, last + 1))
