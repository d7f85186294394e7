"""The running code of a cancelled task is stopped: in the loop, a thread, or a process; on a live cluster."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from onyxq import App, AsyncClient
from onyxq.errors import Conflict
from onyxq.interfaces.cli.main import run
from onyxq.interfaces.local_cluster import LocalCluster
from onyxq.worker import TaskCancelled, Worker, blocking_context, context
from tests.interfaces.live_world import running
from tests.interfaces.worker_tasks import app as processes
from tests.interfaces.worker_world import a_call, until

PATIENCE_S = 60
LEASE_MS = 1_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """One node for all tests of this module."""
    with running(http=True) as cluster:
        yield cluster


def cancelled_at_work(
    cluster: LocalCluster, worker: Worker, call: bytes, queue: str, *, began: Callable[[], bool]
) -> dict[str, Any]:
    """Let a worker start a task, cancel it, and wait until the worker holds nothing; return the task's only claim."""
    claims: list[Any] = []

    async def main() -> None:
        with anyio.fail_after(PATIENCE_S):
            async with AsyncClient(cluster.addresses) as client, anyio.create_task_group() as group:
                group.start_soon(worker.serve, client)
                task_id = await client.enqueue(queue, call)
                await until(began)
                with pytest.raises(Conflict, match="is claimed"):
                    await client.cancel(task_id)
                await client.cancel(task_id, claimed=True)
                await until(lambda: worker.held == 0)
                worker.stop()
                task = await client.get(task_id)
                assert task.state == "cancelled"
                claims.extend(task.claims)

    anyio.run(main, backend="trio")
    assert (worker.finished, worker.failed) == (0, 0)
    (claim,) = claims
    return {"outcome": claim.outcome}


def test_an_async_function_is_cancelled(cluster: LocalCluster) -> None:
    """It is cancelled where it waits, as usual in its event loop."""
    app, said = App(), []

    @app.task(name="wait", queue="loop")
    async def wait() -> None:
        said.append("began")
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            said.append("cancelled")
            raise

    worker = app.worker(lease_ms=LEASE_MS)
    claim = cancelled_at_work(cluster, worker, a_call("wait"), "loop", began=lambda: bool(said))
    assert said == ["began", "cancelled"]
    assert claim["outcome"] == "cancelled"


def test_a_function_in_a_thread_finds_out(cluster: LocalCluster) -> None:
    """Its context shows it."""
    app, began, ended = App(), threading.Event(), threading.Event()

    @app.task(name="wait", queue="thread")
    def wait() -> None:
        ctx = blocking_context()
        began.set()
        try:
            ctx.sleep(PATIENCE_S)
        except TaskCancelled:
            assert ctx.cancelled
            ended.set()
            raise

    worker = app.worker(lease_ms=LEASE_MS)
    cancelled_at_work(cluster, worker, a_call("wait"), "thread", began=began.is_set)
    assert ended.is_set()


def test_a_process_is_interrupted(cluster: LocalCluster, tmp_path: Path) -> None:
    """It is interrupted at any line."""
    path = tmp_path / "said"
    worker = processes.worker(lease_ms=LEASE_MS)

    def began() -> bool:
        return path.exists() and path.read_text().isdigit()

    cancelled_at_work(cluster, worker, a_call("wait", str(path)), "p", began=began)
    assert path.read_text() == "cancelled"


def test_who_logs_need_not_wait_for_the_next_renewal(cluster: LocalCluster) -> None:
    """The refusal of an update is enough, long before a third of the lease is over."""
    app, said = App(), []

    @app.task(name="count", queue="log")
    async def count() -> None:
        said.append("began")
        while True:
            await context().log("still here")

    worker = app.worker(lease_ms=10 * PATIENCE_S * 1_000)
    cancelled_at_work(cluster, worker, a_call("count"), "log", began=lambda: bool(said))
    assert said == ["began"]


def test_claimed_tasks_are_cancelled_over_http_and_from_the_shell(
    cluster: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """This is so only on request: otherwise 409 and exit code 4."""
    with httpx.Client(base_url=f"http://{cluster.http_addresses[0]}", timeout=20) as web:
        for way in ("http", "shell"):
            (task_id,) = web.post("/v1/tasks", json={"tasks": [{"queue": way}]}).json()["ids"]
            asked = {"queues": [way], "wait_ms": 20_000}
            ((claim,),) = web.post("/v1/claims", json=asked).json().values()
            assert claim["task"]["id"] == task_id
            assert web.delete(f"/v1/tasks/{task_id}").status_code == 409
            cancel = ["task", "cancel", task_id, "--connect", cluster.addresses[0]]
            assert run(cancel) == 4
            if way == "http":
                assert web.delete(f"/v1/tasks/{task_id}?claimed=true").status_code == 204
            else:
                assert run([*cancel, "--claimed"]) == 0
            assert web.get(f"/v1/tasks/{task_id}").json()["state"] == "cancelled"
            mine = {"claims": [{"id": task_id, "token": claim["token"]}]}
            (said,) = web.post("/v1/claims/renew", json=mine).json()["results"]
            assert (said["ok"], said["code"]) == (False, "stale_token")
            assert web.delete(f"/v1/tasks/{task_id}?claimed=perhaps").status_code == 400
