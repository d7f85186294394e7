"""Functions in processes of their own: results, errors, contexts, and their stop."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from onyxq.client import AsyncClient
from onyxq.wire.server import Request
from onyxq.wire.tcp import TcpNetwork
from onyxq.worker import processes
from simulation.world.network import SimulatedNetwork
from tests.interfaces.fake_service import FakeCluster, FakePeer
from tests.interfaces.worker_tasks import app
from tests.interfaces.worker_world import a_call, play_in_real_time, until, with_worker

ROOT = Path(__file__).resolve().parents[2]
SHOP = """
    import os, signal
    from onyxq import App, blocking_context

    app = App()

    @app.task(queue="p", name="work", runs="process")
    def work():
        print(os.getpid(), flush=True)
        open("go").read()
        return blocking_context().attempt
"""

Body = Callable[[FakeCluster, AsyncClient, FakePeer, Any], Awaitable[None]]


def work(body: Body, *, backend: str = "trio", **settings: Any) -> None:
    """Run ``body`` beside a worker."""

    async def scenario(cluster: FakeCluster, network: SimulatedNetwork) -> None:
        worker = app.worker(concurrency=1, **settings)

        async def inside(client: AsyncClient, peer: FakePeer) -> None:
            await body(cluster, client, peer, worker)
            worker.stop()

        await with_worker(cluster, network, worker, inside)

    play_in_real_time(scenario, backend)


def gone(pid: int) -> bool:
    """Return whether a process has ended; a zombie has, too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_a_process_runs_one_task_after_the_other(backend: str) -> None:
    """An error affects only its task; a process that dies is replaced."""

    async def body(cluster: FakeCluster, client: AsyncClient, peer: FakePeer, worker: Any) -> None:
        calls = [a_call("pid", 1), a_call("fail"), a_call("pid", 2), a_call("die"), a_call("pid", 3)]
        ids = [await client.enqueue("p", call) for call in calls]
        await until(lambda: len(cluster.outcomes) == len(ids))
        first, failed, second, died, third = (cluster.outcomes[task_id] for task_id in ids)
        assert failed.message == "ValueError: boom"
        assert died.message == "ProcessEnded: the task's process ended with exit code 7"
        pids = [json.loads(one)[0] for one in (first, second, third)]
        assert pids[0] == pids[1] != pids[2]
        assert os.getpid() not in pids
        assert [json.loads(one)[1] for one in (first, second, third)] == [1, 2, 3]

    work(body, backend=backend)


def test_a_process_has_all_of_a_context() -> None:
    """Its requests are made by the worker: updates, transactions."""

    async def body(cluster: FakeCluster, client: AsyncClient, peer: FakePeer, worker: Any) -> None:
        sent: list[dict[str, Any]] = []

        def take(request: Request) -> bool:
            if request.method == "transact":
                sent.append(request.args)
                request.reply({"token": 5, "settled": True})
            return request.method == "transact"

        peer.intercept = take
        task_id = await client.enqueue("p", a_call("say"))
        await until(lambda: task_id in cluster.outcomes)
        assert json.loads(cluster.outcomes[task_id]) == [task_id.hex(), "say", "p", 1, 1, False, True]
        assert [json.loads(data) for *_, data in cluster.updates] == [
            {"progress": {"done": 1, "total": 2, "note": "half"}},
            {"page": 1},
        ]
        (args,) = sent
        assert args["update"] == [[task_id, 1, 2, b"raw"]]
        assert len(args["enqueue"]) == 1
        assert args["complete"] == []

    work(body)


def test_a_process_completes_its_task_without_a_result() -> None:
    """A transaction has no result unless the function gives one."""

    async def body(cluster: FakeCluster, client: AsyncClient, peer: FakePeer, worker: Any) -> None:
        sent: list[dict[str, Any]] = []

        def take(request: Request) -> bool:
            if request.method == "transact":
                sent.append(request.args)
                request.reply({"token": 5, "settled": True})
            return request.method == "transact"

        peer.intercept = take
        task_id = await client.enqueue("p", a_call("finish"))
        await until(lambda: worker.finished == 1)
        (args,) = sent
        assert args["complete"] == [[task_id, 1, 1, None]]
        assert len(args["enqueue"]) == 1

    work(body)


def test_a_process_is_told_that_its_claim_is_gone(tmp_path: Path) -> None:
    """It learns this at any line, and then serves the next task."""
    path = tmp_path / "said"

    async def body(cluster: FakeCluster, client: AsyncClient, peer: FakePeer, worker: Any) -> None:
        task_id = await client.enqueue("p", a_call("wait", str(path)))
        await until(lambda: path.exists() and path.read_text().isdigit())
        pid = int(path.read_text())
        cluster.steal(task_id)
        await until(lambda: worker.held == 0)
        assert path.read_text() == "cancelled"
        after = await client.enqueue("p", a_call("pid", 1))
        await until(lambda: after in cluster.outcomes)
        assert json.loads(cluster.outcomes[after])[0] == pid

    work(body, lease_ms=1_000)


def test_a_process_that_does_not_listen_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its task is released at the second signal. Signals to the whole group do not end it before."""
    path = tmp_path / "said"
    monkeypatch.setattr(processes, "KILL_S", 0.2)
    pids: list[int] = []

    async def body(cluster: FakeCluster, client: AsyncClient, peer: FakePeer, worker: Any) -> None:
        await client.enqueue("p", a_call("stuck", str(path)))
        await until(lambda: path.exists() and path.read_text().isdigit())
        pids.append(int(path.read_text()))
        os.kill(pids[0], signal.SIGTERM)
        os.kill(pids[0], signal.SIGINT)
        assert not gone(pids[0])
        worker.stop()
        worker.stop()
        await until(lambda: worker.held == 0)
        assert cluster.tokens == cluster.outcomes == {}

    work(body)
    assert gone(pids[0])


async def at_work(directory: Path, body: Callable[[subprocess.Popen[bytes], int], Awaitable[None]]) -> FakeCluster:
    """Let ``onyxq worker start`` start a task; then call ``body(worker, id of the task's process)``."""
    directory.joinpath("shop.py").write_text(textwrap.dedent(SHOP))
    os.mkfifo(directory / "go")
    command = [sys.executable, "-m", "onyxq", "worker", "start", "shop:app", "--connect"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{directory}"}
    async with anyio.create_task_group() as group:
        cluster = FakeCluster(group)
        peer = await cluster.start(TcpNetwork(), "127.0.0.1:0")
        async with AsyncClient(peer.address) as client:
            await client.enqueue("p", a_call("work"))
        start = functools.partial(
            subprocess.Popen, env=environment, cwd=directory, stdout=subprocess.PIPE, start_new_session=True
        )
        with await anyio.to_thread.run_sync(start, [*command, peer.address]) as worker:
            assert worker.stdout is not None
            pid = int(await anyio.to_thread.run_sync(worker.stdout.readline))
            await body(worker, pid)
        group.cancel_scope.cancel()
    return cluster


def test_a_signal_to_all_processes_lets_a_task_finish(tmp_path: Path) -> None:
    """The signal is for the worker, which waits for running tasks."""

    async def body(worker: subprocess.Popen[bytes], pid: int) -> None:
        os.killpg(worker.pid, signal.SIGTERM)
        await anyio.Path(tmp_path / "go").write_text("")
        assert await anyio.to_thread.run_sync(worker.wait, 20) == 0
        assert gone(pid)

    cluster = anyio.run(at_work, tmp_path, body, backend="trio")
    assert list(cluster.outcomes.values()) == [b"1"]


def test_the_processes_of_a_killed_worker_end(tmp_path: Path) -> None:
    """They end in any state, because another worker will get their tasks."""

    async def body(worker: subprocess.Popen[bytes], pid: int) -> None:
        worker.kill()
        await until(lambda: gone(pid))

    assert anyio.run(at_work, tmp_path, body, backend="trio").outcomes == {}
