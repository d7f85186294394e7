"""A cluster of one node in the process that uses it: queues and the task store without a server."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import anyio
import pytest
from anyio.abc import ByteStream

import onyxq
from onyxq.client import StoredTask
from onyxq.errors import BadRequest, OnyxqError, StoreFull, StoreRefused, Unavailable
from onyxq.testing import Cluster
from onyxq.wire.memory import MemoryNetwork
from tests.interfaces.http_world import on_trio
from tests.tidy.rules import ROOT


def test_queues_and_the_task_store_are_there_again_when_it_is_opened_again(tmp_path: Path) -> None:
    """All acknowledged writes are kept, ids continue to rise, and the claim of a task is still valid."""
    path = tmp_path / "kept"
    with onyxq.open(path) as opened:
        task = opened.enqueue("mail", b"hello")
        (claim,) = opened.claim(["mail"], max=1)
        opened.complete([claim])
        store = opened.task_store(5)
        added = store.update(adds=[("g", "a"), ("g", "b", 9), ("h", "c")])
        held = store.claim("g", 600_000)
        assert held is not None and held.id > max(one.id for one in added)
    with onyxq.open(path) as again:
        assert again.get(task).state == "completed"
        store = again.task_store(6)
        assert store.groups() == ["g", "h"]
        assert {one.id for one in store.group("g", owned=True)} - {one.id for one in added} == {held.id}
        (new,) = store.update(adds=[("g", "d")])
        assert new.id > held.id and new == store.tasks([new.id])[0]
        with pytest.raises(StoreRefused) as refused:
            store.update(deletes=[held.id, 1], depends=[2], changes=[(added[2].id, "z", -5)])
        error = refused.value
        assert (error.owned, error.deletes, error.depends, error.changes) == ([held.id], [1], [2], [])


def test_one_that_was_closed_can_be_opened_again(tmp_path: Path) -> None:
    """Its node then has another address."""
    opened = onyxq.open(tmp_path / "kept", timeout_ms="5s")
    task = opened.enqueue("mail", b"hello")
    opened.close()
    with opened:
        assert opened.get(task).data == b"hello"


def test_threads_share_it(tmp_path: Path) -> None:
    """Each task is claimed by one of them."""
    taken: list[StoredTask | None] = []
    with onyxq.open(str(tmp_path)) as opened:
        opened.task_store().update(adds=[("g", str(number)) for number in range(20)])

        def take() -> None:
            store = opened.task_store()
            taken.extend(store.claim("g", 600_000) for _ in range(6))

        threads = [threading.Thread(target=take) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = [one.data for one in taken if one]
    assert sorted(map(int, found)) == list(range(20)) and taken.count(None) == 4


def test_one_at_a_time_has_it_open(tmp_path: Path) -> None:
    """A second opener gets an error with the owner; after a close its own calls fail with a reason."""
    with onyxq.open(tmp_path) as opened:
        with pytest.raises(OnyxqError, match="in use"):
            onyxq.open(tmp_path)
        assert opened.task_store().groups() == []
    with pytest.raises(Unavailable, match="not open"):
        opened.enqueue("mail", b"x")


def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    """The errors are those of any client."""
    with onyxq.open(tmp_path) as opened:
        store = opened.task_store()
        with pytest.raises(BadRequest) as wrong:
            store.update(adds=[("g", "x" * 65_537)])
        assert wrong.value.field == "adds[0].data"
        with pytest.raises(StoreRefused, match="nothing is to be added"):
            store.update()
        with pytest.raises(StoreRefused, match="its group must have 1 to 200 characters"):
            store.update(adds=[("", "x")])
        store.set_limits(task_bytes_max=3, bytes_max=300)
        store.update(adds=[("g", "xyz")])
        with pytest.raises(BadRequest, match=r"adds\[0\].data has 4 bytes; a task may have 3"):
            store.update(adds=[("g", "four")])
        with pytest.raises(StoreFull, match="it would hold 392 bytes of 300"):
            store.update(adds=[("g", "x"), ("g", "y")])
        with pytest.raises(BadRequest, match="bytes_max must be at least task_bytes_max, 3"):
            store.set_limits(task_bytes_max=3, bytes_max=2)


def test_repeated_ids_make_no_answer_larger_than_the_store(tmp_path: Path) -> None:
    """Thousands of repetitions of a large task would be an answer of gigabytes."""
    with onyxq.open(tmp_path) as opened:
        store = opened.task_store()
        store.set_limits(task_bytes_max=3, bytes_max=300)
        (one,) = store.update(adds=[("g", "xyz")])
        assert store.tasks([one.id, 7, one.id]) == [one, None, one]
        with pytest.raises(BadRequest, match="more than 300 bytes together") as refused:
            store.tasks([one.id] * 3)
        assert refused.value.field == "ids"


def test_nothing_of_http_is_loaded_for_it(tmp_path: Path) -> None:
    """A node without HTTP, in any process, starts without the HTTP modules."""
    code = "import sys, onyxq; onyxq.open(sys.argv[1]).close(); print([m for m in sys.modules if m in sys.argv[2:]])"
    command = [
        sys.executable,
        "-c",
        code,
        str(tmp_path / "kept"),
        "starlette",
        "hypercorn",
        "jinja2",
        "onyxq.interfaces.http.app",
    ]
    found = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert found.stdout == "[]\n"


def test_the_task_store_of_a_cluster_under_test(onyxq_cluster: Cluster) -> None:
    """A lease ends by the cluster's clock, and a killed peer loses nothing."""
    one, other = (onyxq_cluster.client().task_store() for _ in range(2))
    assert one.client_id != other.client_id
    one.update(adds=[("g", "a")])
    held = one.claim("g", 5_000)
    assert held is not None and other.claim("g", 5_000) is None
    onyxq_cluster.kill_peer()
    onyxq_cluster.advance(20)
    again = other.claim("g", 5_000)
    assert again is not None and again.id > held.id and again.data == "a"
    with pytest.raises(StoreRefused):
        one.update(deletes=[held.id])


@on_trio
async def test_connections_in_memory_end_as_others_do() -> None:
    """Bytes arrive in order and in the requested pieces; the other side sees an end."""
    network, got = MemoryNetwork(), []

    async def echo(stream: ByteStream) -> None:
        got.append(await stream.receive(3))
        got.append(await stream.receive(100))
        await stream.send(b"back")

    async with anyio.create_task_group() as group:
        address = await group.start(network.serve, "memory:0", echo)
        stream = await network.connect(address, timeout_ms=1)
        await stream.send(b"hello")
        assert await stream.receive() == b"back" and got == [b"hel", b"lo"]
        with pytest.raises(anyio.EndOfStream):
            await stream.receive()
        await stream.aclose()
        group.cancel_scope.cancel()
    with pytest.raises(Unavailable, match="no server listens"):
        await network.connect(address, timeout_ms=1)
