"""``onyxq cluster recover`` without a ZooKeeper: the log of one process, and refusals."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import evolve

from onyxq.client import AsyncClient
from onyxq.core.log.digest import chained
from onyxq.core.log.interface import Record
from onyxq.errors import BadRequest, Conflict, LogDamaged, NotFound
from onyxq.history.archive import groups, parts
from onyxq.history.explain import from_store, merged
from onyxq.history.parquet.records import covered
from onyxq.interfaces.cli.main import run
from onyxq.interfaces.local_cluster import LOCAL, LocalCluster
from onyxq.log.embedded_groups import SECTOR_BYTES
from onyxq.store.interface import Batch
from onyxq.store.lmdb_store import LmdbStore


class Line:
    """Runs the command and reads what it prints."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def shown(self, *arguments: str) -> Any:
        """Return the document that it prints."""
        assert run(["cluster", "recover", *arguments, "--json"]) == 0
        return json.loads(self._capsys.readouterr().out)

    def text(self, *arguments: str) -> str:
        """Return its text output."""
        assert run(["cluster", "recover", *arguments]) == 0
        return self._capsys.readouterr().out

    def refused(self, *arguments: str, code: int) -> str:
        """Return its message when it ends with ``code``."""
        assert run(["cluster", "recover", *arguments]) == code
        return self._capsys.readouterr().err


@pytest.fixture
def line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Line:
    """The command, without settings from outside."""
    monkeypatch.delenv("ONYXQ_ZOOKEEPER", raising=False)
    return Line(capsys)


def on_cluster(data: Path, use: Callable[[AsyncClient], Any], *, peers: int = 1, **settings: Any) -> Any:
    """Return the result of ``use`` with a client of an embedded cluster in a directory."""

    async def body() -> Any:
        config = evolve(LOCAL, partitions=4, **settings)
        async with LocalCluster(peers=peers, data=str(data), config=config) as cluster:
            async with AsyncClient(cluster.addresses) as client:
                return await use(client)

    return trio.run(body)


async def work(client: AsyncClient) -> tuple[bytes, bytes, int]:
    """Complete one task and claim another; return their ids and the higher token."""
    first, second = await client.enqueue_many("work", [b"one", b"two"])
    claims = {}
    while len(claims) < 2:
        claims |= {claim.id: claim for claim in await client.claim(["work"], max=2, lease_ms=600_000, wait_ms=5_000)}
    await client.complete([claims[first]], b"result")
    return first, second, max(claim.token for claim in claims.values())


async def work_off(client: AsyncClient, first: bytes, second: bytes) -> int:
    """Claim the claimed task again; return its token."""
    (claim,) = await client.claim(["work"], max=2, wait_ms=10_000)
    assert claim.id == second
    await client.complete([claim])
    assert (await client.get(first)).state == "completed"
    return claim.token


async def explained(client: AsyncClient, task: bytes) -> list[str]:
    """Return the story of a task from its store, once its partition has a leader."""
    await client.get(task)
    known = await client.call("task_history", {"id": task})
    return [one.words for one in merged(from_store(task, known))]


@pytest.mark.parametrize("peers", [1, 2])
def test_a_lost_embedded_log_is_begun_anew(line: Line, tmp_path: Path, peers: int) -> None:
    """This is the same command, with the directory of ``onyxq dev``: tasks and completions stay, tokens rise."""
    data = tmp_path / "dev"
    first, second, token = on_cluster(data, work, peers=peers)
    shutil.rmtree(data / "log")
    text = line.text("main", "--data", str(data))
    assert (
        str(data / "node-0") in text
        and "the log of this process (no --zookeeper) is empty" in text
        and "Nothing was changed" in text
    )
    done = line.shown("main", "--data", str(data), "--yes")
    assert len(done["found"]) == peers and done["missing"] == []
    said = on_cluster(data, functools.partial(explained, task=second), peers=peers)
    assert f"the claim under token {token} became void" in said[-1], said
    use = functools.partial(work_off, first=first, second=second)
    assert on_cluster(data, use, peers=peers) > done["done"]["position"] > token
    said = line.refused("main", "--data", str(data), "--yes", code=Conflict.exit_code)
    assert "intact" in said and "Nothing was changed" in said


def test_a_damaged_embedded_log_is_begun_anew(line: Line, tmp_path: Path) -> None:
    """Its node keeps a copy, so no backup is needed: the error names the command, and what was acknowledged is kept."""
    data = tmp_path / "dev"
    first, second, token = on_cluster(data, work)
    (file,) = (data / "log").glob("*.records")
    image = bytearray(file.read_bytes())
    image[SECTOR_BYTES + 100] ^= 1
    file.write_bytes(image)
    said = line.refused("main", "--data", str(data), code=LogDamaged.exit_code)
    assert str(data / "log") in said and "onyxq cluster recover" in said
    (data / "log").rename(data / "log.damaged")
    (data / "log").mkdir()
    done = line.shown("main", "--data", str(data), "--yes")
    use = functools.partial(work_off, first=first, second=second)
    assert on_cluster(data, use) > done["done"]["position"] > token


def test_archives_have_the_records_that_only_nodes_had(line: Line, tmp_path: Path) -> None:
    """Records after the last collection are lost with the log; nodes archive their copies before they drop them."""
    data, kept, table = tmp_path / "dev", tmp_path / "kept", tmp_path / "table"
    use = functools.partial(on_cluster, data, archive=str(kept), record_archive=str(table))

    async def collected(client: AsyncClient) -> int:
        return int((await client.call("gc", {}))["position"])

    position = use(collected)
    _, second, token = use(work)
    assert token > position and [one.last for one in covered(table)] == [position]
    shutil.rmtree(data / "log")
    newest = line.shown("main", "--data", str(data), "--yes")["position"]
    use(functools.partial(explained, task=second))
    assert [(one.after, one.last) for one in parts([kept])] == [(-1, position), (position, newest)]
    assert [(one.first, one.last) for one in covered(table)] == [(0, newest)]
    whole = groups(parts([kept]))[-1]
    assert [one.position for one in whole.records] == list(range(newest + 1))
    last = use(collected)
    assert parts([kept])[-1].last == covered(table)[-1].last == last


def test_a_node_of_a_cluster_on_zookeeper_gets_no_log_of_its_own(line: Line, tmp_path: Path) -> None:
    """Without --zookeeper nothing is created; only an empty ``log`` shows that there was one."""
    data = tmp_path / "dev"
    on_cluster(data, work, peers=1)
    node = data / "node-0"
    before = sorted(node.iterdir())
    said = line.refused("main", "--data", str(node), "--yes", code=BadRequest.exit_code)
    assert f"zookeeper: {node} has no log beside its data" in said and str(node / "log") in said
    assert sorted(node.iterdir()) == before
    (node / "log").mkdir()
    assert line.shown("main", "--data", str(node), "--yes")["done"]["position"] > 0


def test_an_older_embedded_log_is_replaced(line: Line, tmp_path: Path) -> None:
    """This is the state after a file system was restored."""
    data, older = tmp_path / "dev", tmp_path / "older"
    on_cluster(data, work)
    shutil.copytree(data / "log", older)
    first, second, token = on_cluster(data, work)
    shutil.rmtree(data / "log")
    older.rename(data / "log")
    done = line.shown("main", "--data", str(data), "--yes")
    assert done["log"]["state"] == "older" and done["done"]["position"] > token

    async def use(client: AsyncClient) -> set[str]:
        return {(await client.get(first)).state, (await client.get(second)).state}

    assert on_cluster(data, use) == {"completed", "ready"}


def test_what_is_not_a_nodes_directory_is_named(line: Line, tmp_path: Path) -> None:
    """A missing one is named too; nothing is created there."""
    hosts = ("--zookeeper", "127.0.0.1:1")
    for place in (tmp_path, tmp_path / "absent"):
        said = line.refused("main", *hosts, "--data", str(place), code=NotFound.exit_code)
        assert f"{place} is not the data directory of a node" in said
    assert not (tmp_path / "absent").exists() and not any(tmp_path.iterdir())
    assert "--data DIR" in line.refused("main", *hosts, code=BadRequest.exit_code)
    assert "without --zookeeper, exactly one --data is expected, not 2" in line.refused(
        "main", "--data", "a", "--data", "b", code=BadRequest.exit_code
    )


async def read_on(directory: Path, position: int, data: bytes) -> None:
    """Let a node read one more record."""
    store = LmdbStore.open(directory)
    digest = chained(store.log_digest(), position, 1, data)
    await store.write(Batch(records=(Record(position, 1, data),), log_position=position, log_digest=digest))
    await store.aclose()


def test_directories_that_contradict_each_other_are_named(line: Line, tmp_path: Path) -> None:
    """The nodes have read different records at the same position; nothing is changed."""
    data = tmp_path / "dev"
    on_cluster(data, work, peers=2)
    shutil.rmtree(data / "log")
    for number in (0, 1):
        trio.run(read_on, data / f"node-{number}", 1 << 20, b"record %d" % number)
    said = line.refused("main", "--data", str(data), "--yes", code=Conflict.exit_code)
    assert f"{data / 'node-0'} and {data / 'node-1'} contradict each other" in said
    assert not (data / "log").exists()


def test_another_clusters_name_is_refused(line: Line, tmp_path: Path) -> None:
    """The name and the directory's cluster are reported."""
    data = tmp_path / "dev"
    on_cluster(data, work)
    said = line.refused("other", "--data", str(data), "--yes", code=Conflict.exit_code)
    assert "belong to cluster 'main', not 'other'" in said
