"""Backups of a live cluster: failures, refusals, and the restore of a cluster in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import trio

from onyxq import Client
from onyxq.client import AsyncClient
from onyxq.errors import BadRequest, Conflict, Corrupt, NotFound, OnyxqError, Unavailable
from onyxq.history.backup.capture import HOLD_MS, take
from onyxq.history.backup.file import KIND, read
from onyxq.history.file_format import END, HEADER, MAGIC, RECORDS, ROWS, SNAPSHOT, packed_block, read_blocks
from onyxq.interfaces.cli.main import run
from onyxq.interfaces.local_cluster import LocalCluster
from tests.interfaces.live_world import running

_names = count(1)
TASKS = 24


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Three nodes for all tests of this module."""
    with running(peers=3) as cluster:
        yield cluster


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    """A client of one of them."""
    with Client(cluster.addresses[1]) as client:
        yield client


@pytest.fixture
def queue(client: Client) -> str:
    """A queue that no other test uses, with tasks in many partitions."""
    name = f"q{next(_names)}"
    for _ in range(TASKS):
        client.enqueue(name, b"x")
    return name


@pytest.fixture(scope="module")
def sound(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return the bytes of a backup during which a task was claimed."""
    file = tmp_path_factory.mktemp("sound") / "backup"
    with Client(cluster.addresses[0]) as client:
        client.enqueue_many("sound", [b"x"] * 10)
        grant = Meddling(client, lambda _: client.claim(["sound"], wait_ms=10_000))
        assert take_with(grant, file)["records"] >= 1
    return file.read_bytes()


class Meddling:
    """Calls a client's methods, and another function before certain pages of rows."""

    def __init__(self, client: Client, before: Callable[[dict[str, Any]], Any], *, page: int = 0) -> None:
        self.hold: dict[str, Any] = {}
        self.pages = 0
        self._client = client
        self._before = before
        self._page = page

    def __call__(self, method: str, args: dict[str, Any]) -> Any:
        if method == "backup.hold":
            self.hold = args
        elif method == "backup.rows":
            if self.pages == self._page:
                self._before(args)
            self.pages += 1
        return self._client.call(method, args)


def take_with(call: Callable[[str, dict[str, Any]], Any], file: Path, *, hold_ms: int = HOLD_MS) -> dict[str, Any]:
    """Take a backup with a client that blocks."""

    async def asked(method: str, args: dict[str, Any]) -> Any:
        return await trio.to_thread.run_sync(call, method, args)

    async def body() -> dict[str, Any]:
        return await take(asked, str(file), hold_ms=hold_ms)

    return trio.run(body)


class Died(BaseException):
    """Simulates the death of a process, as far as possible."""


def transact(client: Client, queue: str) -> None:
    """Complete a task and enqueue another, in one transaction."""
    (claim,) = client.claim([queue], wait_ms=10_000)
    client.transact(complete=[claim], enqueue=[{"queue": queue, "data": b"next"}], timeout_ms=60_000)


def verdicts(client: Client, since: int) -> list[tuple[str, str]]:
    """Return entries of the log after a position, each with its verdict."""
    records = client.call("log", {"from": since, "limit": 1_000})["records"]
    return [(entry["entry"], entry["verdict"]) for record in records for entry in record["entries"]]


@pytest.mark.long
def test_transactions_go_on_after_a_backup_that_died(client: Client, queue: str, tmp_path: Path) -> None:
    """They wait until its hold expires; the backup leaves no file."""
    position = client.call("cluster", {})["position"]

    def die(*_: Any) -> None:
        raise Died

    meddling = Meddling(client, die)

    def call(method: str, args: dict[str, Any]) -> Any:
        if meddling.hold and not args.get("for_ms", 1):
            raise Died  # it could not end the hold either
        return meddling(method, args)

    with pytest.raises(Died):
        take_with(call, tmp_path / "backup", hold_ms=4_000)
    assert list(tmp_path.iterdir()) == []
    transact(client, queue)
    assert ("commit_transaction", "applied") in verdicts(client, position)
    assert take_with(client.call, tmp_path / "backup")["rows"] > TASKS
    assert (tmp_path / "backup").stat().st_mode & 0o777 == 0o600


def test_a_backup_that_dies_after_all_was_read_leaves_no_file(client: Client, tmp_path: Path) -> None:
    """It dies after the end of its hold, before it has reported success; an existing file of that name stays."""
    file = tmp_path / "backup"
    file.write_bytes(b"an older one")

    def call(method: str, args: dict[str, Any]) -> Any:
        answer = client.call(method, args)
        if method == "backup.hold" and not args["for_ms"]:
            raise Died
        return answer

    with pytest.raises(Died):
        take_with(call, file)
    assert file.read_bytes() == b"an older one" and list(tmp_path.iterdir()) == [file]


def test_who_commits_while_a_backup_reads_is_told_to_try_again(client: Client, queue: str, tmp_path: Path) -> None:
    """It has no effect, the claim stays valid, and the same transaction succeeds after the backup."""
    (claim,) = client.claim([queue], wait_ms=10_000)
    position = client.call("cluster", {})["position"]

    def commit(_: Any) -> None:
        with pytest.raises(OnyxqError) as refused:
            client.transact(complete=[claim], enqueue=[{"queue": queue, "data": b"n"}], name="n", timeout_ms=1_000)
        assert refused.value.code in ("unavailable", "timed_out")
        assert client.get(claim.id).state == "claimed"

    file = tmp_path / "backup"
    take_with(Meddling(client, commit), file)
    assert ("commit_transaction", "held: a backup of the cluster") in verdicts(client, position)
    client.transact(complete=[claim], enqueue=[{"queue": queue, "data": b"n"}], name="n")
    assert client.get(claim.id).state == "completed"


def test_a_backup_whose_hold_ended_too_early_fails(client: Client, queue: str, tmp_path: Path) -> None:
    """A transaction may be only partly in it; an existing file of that name stays."""
    file = tmp_path / "backup"
    file.write_bytes(b"an older one")

    def end(_: Any) -> None:
        client.call("backup.hold", {**meddling.hold, "for_ms": 0})
        transact(client, queue)

    meddling = Meddling(client, end, page=3)
    with pytest.raises(Unavailable, match="for long enough"):
        take_with(meddling, file)
    assert file.read_bytes() == b"an older one" and list(tmp_path.iterdir()) == [file]


def test_a_backup_whose_hold_ended_and_began_anew_fails(client: Client, queue: str, tmp_path: Path) -> None:
    """The hold is valid at the end, but a transaction may have become visible meanwhile."""

    def lapse(_: Any) -> None:
        hold = meddling.hold
        client.call("backup.hold", {**hold, "for_ms": 0})
        transact(client, queue)
        client.call("backup.hold", hold)

    meddling = Meddling(client, lapse, page=3)
    with pytest.raises(Unavailable, match="transactions changed data"):
        take_with(meddling, tmp_path / "backup")
    assert list(tmp_path.iterdir()) == []


def test_one_backup_at_a_time(client: Client, queue: str, tmp_path: Path) -> None:
    """The second is refused, and does not affect the first."""

    def another(_: Any) -> None:
        with pytest.raises(Conflict, match="held already"):
            take_with(client.call, tmp_path / "second")

    take_with(Meddling(client, another), tmp_path / "first")
    assert [path.name for path in tmp_path.iterdir()] == ["first"]


def test_a_partition_whose_reading_broke_off_is_read_again(client: Client, queue: str, tmp_path: Path) -> None:
    """This happens when its leader changes: no row is missing."""
    spoiled: list[bytes] = []

    def spoil(args: dict[str, Any]) -> None:
        if args["after"] or not spoiled:
            spoiled.append(args["after"])
            args["after"] = b"no place that anybody knows"

    file = tmp_path / "backup"
    take_with(Meddling(client, spoil, page=5), file)
    assert spoiled
    given = {row.key[3:23] for _, page in read(file).pages() for row in page}
    assert {task.id for task in client.list_all(queue)} <= given


@pytest.mark.parametrize("kind", [HEADER, SNAPSHOT, RECORDS, ROWS, END])
def test_a_damaged_file_is_refused_by_the_block(sound: bytes, kind: bytes, tmp_path: Path) -> None:
    """It is refused before anything is created."""
    file = tmp_path / "backup"
    file.write_bytes(sound)
    block = next(one for one in read_blocks(file, KIND) if one.kind == kind)
    place = sound.index(packed_block(block.number, kind, block.packing, block.body)) + 14
    file.write_bytes(sound[:place] + bytes([sound[place] ^ 1]) + sound[place + 1 :])
    with pytest.raises(Corrupt, match=f"block {block.number} is damaged"):
        read(file)
    data = tmp_path / "restored"
    assert run(["cluster", "restore", str(file), "--data", str(data)]) == Corrupt.exit_code
    assert not data.exists()


def test_what_is_no_whole_backup_is_refused(sound: bytes, tmp_path: Path) -> None:
    """Refused are a truncated one, one without a block, another kind of file, and a missing one."""
    file = tmp_path / "backup"
    file.write_bytes(sound)
    found = [packed_block(one.number, one.kind, one.packing, one.body) for one in read_blocks(file, KIND)]
    assert sound == MAGIC + b"".join(found)
    file.write_bytes(sound[: -len(found[-1])])
    with pytest.raises(Corrupt, match="the file ends there"):
        read(file)
    rows = next(one for one in found if one[:1] == ROWS)
    file.write_bytes(sound.replace(rows, b"", 1))
    with pytest.raises(Corrupt, match="damaged"):
        read(file)
    file.write_bytes(b"something else")
    with pytest.raises(BadRequest, match="not a backup of a cluster"):
        read(file)
    with pytest.raises(NotFound):
        read(tmp_path / "missing")


def test_a_directory_that_is_in_use_is_refused(
    sound: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing in it is touched."""
    file, data = tmp_path / "backup", tmp_path / "data"
    file.write_bytes(sound)
    data.mkdir()
    (data / "mine").touch()
    assert run(["cluster", "restore", str(file), "--data", str(data)]) == 2
    assert "not an empty directory" in capsys.readouterr().err
    assert [path.name for path in data.iterdir()] == ["mine"]


@pytest.mark.long
def test_a_cluster_in_one_process_comes_back(cluster: LocalCluster, client: Client, queue: str, tmp_path: Path) -> None:
    """It has the embedded log, as ``onyxq dev --data`` runs it."""
    file, data = tmp_path / "backup", tmp_path / "restored"
    (claim,) = client.claim([queue], wait_ms=10_000, lease_ms=600_000)
    assert run(["cluster", "backup", str(file), "--connect", cluster.addresses[2]]) == 0
    assert run(["cluster", "restore", str(file), "--data", str(data), "--name", "other"]) == 0

    async def look() -> None:
        async with LocalCluster(peers=3, data=str(data)) as again, AsyncClient(again.addresses) as restored:
            with trio.fail_after(60):
                assert (await restored.cluster())["name"] == "other"
                states: list[str] = []
                while len(states) < TASKS:  # partitions that move between two asked nodes are in neither's list
                    states = [task.state async for task in restored.list_all(queue)]
                assert sorted(states) == ["claimed"] + ["ready"] * (TASKS - 1)
                (new,) = await restored.claim([queue], wait_ms=30_000)
                assert new.token > claim.token and new.id != claim.id

    trio.run(look)
