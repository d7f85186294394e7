"""Applications and workers: functions as tasks, renewals, stale claims, and the end of a worker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

import onyxq
from onyxq import App, api
from onyxq.client import AsyncClient
from onyxq.errors import BadRequest
from onyxq.wire.tcp import TcpNetwork
from onyxq.worker import current_claim, load_app
from simulation.world.network import SimulatedNetwork
from tests.interfaces.fake_service import FakeCluster, FakePeer, play
from tests.interfaces.worker_world import a_call, until, with_worker

BACKENDS = pytest.mark.parametrize("backend", ["trio", "asyncio"])
ROOT = Path(__file__).resolve().parents[2]


@BACKENDS
def test_functions_run_and_their_results_are_kept_as_json(backend: str) -> None:
    """Async functions run on the loop, others in a thread; None means no result."""

    async def scenario(cluster: FakeCluster, network: SimulatedNetwork) -> None:
        app = App()

        @app.task(queue="sums")
        async def add(a: int, b: int) -> int:
            return a + b

        @app.task(queue="sums")
        def double(a: int) -> dict[str, int]:
            return {"twice": 2 * a}

        @app.task(queue="sums")
        def nothing() -> None:
            return None

        worker = app.worker(concurrency=3)
        prefix = add.name.removesuffix("add")

        async def body(client: AsyncClient, peer: FakePeer) -> None:
            calls = [a_call(f"{prefix}add", 1, b=2), a_call(f"{prefix}double", 4), a_call(f"{prefix}nothing")]
            ids = await client.enqueue_many("sums", calls, format="json")
            await until(lambda: len(cluster.outcomes) == 3)
            assert [cluster.outcomes[task_id] for task_id in ids] == [b"3", b'{"twice":8}', None]
            worker.stop()

        await with_worker(cluster, network, worker, body)
        assert (worker.finished, worker.failed, worker.held) == (3, 0, 0)

    play(scenario, backend=backend)


@pytest.mark.parametrize(
    ("payload", "reason", "ends"),
    [
        (a_call("explode"), "ValueError: boom", "fail"),
        (a_call("explode", 1, 2, 3), "too many positional arguments", "fail"),
        (b"{not json", "not a call of a function (Expecting property name", "give_up"),
        (b"[]", "not a call of a function (it is not an object)", "give_up"),
        pytest.param(b"[" * 100_000, "not a call of a function (maximum recursion", "give_up", id="too deep"),
        (b'{"task": 5}', "not a call of a function (task is a name)", "give_up"),
        (b'{"to": "ann"}', "('task' is missing): enqueue with function.enqueue(...) or `onyxq task call`", "give_up"),
        (b'{"task": "explode", "timeout_s": -1}', "must be a number above 0", "give_up"),
    ],
)
def test_what_goes_wrong_is_the_error_of_the_attempt(payload: bytes, reason: str, ends: str) -> None:
    """The worker continues. Data that is not a call fails its task for good, because no retry can help."""

    async def scenario(cluster: FakeCluster, network: SimulatedNetwork) -> None:
        app = App()

        @app.task(queue="q", name="explode")
        async def explode() -> None:
            raise ValueError("boom")

        worker = app.worker()

        async def body(client: AsyncClient, peer: FakePeer) -> None:
            task_id = await client.enqueue("q", payload)
            await until(lambda: task_id in cluster.outcomes)
            assert reason in cluster.outcomes[task_id].message
            assert peer.methods("fail", "give_up") == [ends]
            worker.stop()

        await with_worker(cluster, network, worker, body)

    play(scenario)


def test_a_task_can_enqueue_and_see_its_claim() -> None:
    """This uses the worker's own connection."""

    async def scenario(cluster: FakeCluster, network: SimulatedNetwork) -> None:
        app = App("nowhere:1")

        @app.task(queue="q", name="first")
        async def first() -> int:
            await second.enqueue_async(5)
            return current_claim.get().token

        @app.task(queue="q", name="second")
        async def second(n: int) -> int:
            return n

        worker = app.worker()

        async def body(client: AsyncClient, peer: FakePeer) -> None:
            await client.enqueue("q", a_call("first"))
            await until(lambda: len(cluster.outcomes) == 2)
            assert sorted(cluster.outcomes.values()) == [b"1", b"5"]
            worker.stop()

        await with_worker(cluster, network, worker, body)

    play(scenario)


def test_arguments_are_checked_when_a_call_is_enqueued() -> None:
    """They are not first checked hours later in a worker."""
    app = App("nowhere:1")

    @app.task
    def send(to: str) -> None:
        """Send."""

    unchecked: Any = send
    for wrong in ({"too": "x"}, {"to": object()}, {}):
        with pytest.raises(BadRequest) as caught:
            unchecked.enqueue(**wrong)
        assert str(caught.value.field).startswith("args.to")
    send("called directly")


def test_two_tasks_cannot_have_one_name() -> None:
    """A worker would not know which one to call."""
    app = App()
    app.task(name="a")(print)
    with pytest.raises(BadRequest, match="two tasks"):
        app.task(name="a")(repr)


def test_plain_code_enqueues_through_the_application() -> None:
    """The payload names the function; options go with the task."""

    async def main() -> None:
        async with anyio.create_task_group() as group:
            cluster = FakeCluster(group)
            peer = await cluster.start(TcpNetwork(), "127.0.0.1:0")
            app = App(peer.address)

            @app.task(queue="mail", retries=5, name="send")
            def send(to: str, body: str) -> None:
                """Send."""

            try:
                await anyio.to_thread.run_sync(lambda: send.options(priority=3).enqueue("a", body="b"))
                await send.enqueue_async(to="c", body="d")
                report = await anyio.to_thread.run_sync(api.gc, peer.address)
                assert report == api.GcReport(7, 3, 100)
                async with AsyncClient(peer.address) as client:
                    claims = await client.claim("mail", max=5)
            finally:
                await anyio.to_thread.run_sync(app.close)
            found = {claim.data: (claim.priority, claim.retries, claim.format) for claim in claims}
            assert found == {
                b'{"task":"send","args":["a"],"kwargs":{"body":"b"}}': (3, 5, "json"),
                b'{"task":"send","args":[],"kwargs":{"to":"c","body":"d"}}': (0, 5, "json"),
            }
            group.cancel_scope.cancel()

    anyio.run(main, backend="trio")


@pytest.mark.parametrize("target", ["", "json", "json:", ":app", "no.such.module:app", "json:dumps", "json:nothing"])
def test_a_wrong_application_is_a_bad_request(target: str) -> None:
    """This is so for a missing object, and for an object that is not an App."""
    with pytest.raises(BadRequest) as caught:
        load_app(target)
    assert caught.value.field == "app"


def test_a_mistake_in_a_module_is_shown_with_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The option that does not exist, its place, and how a schedule is written."""
    module = "from onyxq import App\n\napp = App()\n\n\n@app.task(cron='0 4 * * *')\ndef report() -> None: ...\n"
    tmp_path.joinpath("wrong_option.py").write_text(module)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadRequest, match=r"^wrong_option\.py:6: cron: there is no option 'cron'") as caught:
        load_app("wrong_option:app")
    assert "@app.periodic" in caught.value.advice


def test_the_only_app_of_a_module_needs_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of a file instead of a module is answered with the module."""
    tmp_path.joinpath("only_app.py").write_text("from onyxq import App\n\nshop = App('127.0.0.1:9')\n")
    monkeypatch.chdir(tmp_path)
    assert load_app("only_app").address == "127.0.0.1:9"
    with pytest.raises(BadRequest, match="did you mean only_app:shop"):
        load_app("only_app.py:shop")
    with pytest.raises(BadRequest, match="did you mean shop") as caught:
        load_app("only_app:shob")
    assert caught.value.advice == "Write one of only_app:shop."


@pytest.mark.long
def test_sigterm_lets_a_worker_process_finish_its_task(tmp_path: Path) -> None:
    """The running task completes; then the process ends."""
    tmp_path.joinpath("shop.py").write_text(
        textwrap.dedent(
            """
            import sys, time
            from onyxq import App

            app = App(sys.argv[1])

            @app.task(queue="q", name="slow")
            def slow():
                print("started", flush=True)
                time.sleep(0.5)
                return "finished"

            if __name__ == "__main__":
                app.worker().run(backend=sys.argv[2])
            """
        )
    )

    def signalled(address: str, backend: str) -> int:
        command = [sys.executable, str(tmp_path / "shop.py"), address, backend]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"started\n"
            process.send_signal(signal.SIGTERM)
            return process.wait(20)

    async def main() -> None:
        async with anyio.create_task_group() as group:
            cluster = FakeCluster(group)
            peer = await cluster.start(TcpNetwork(), "127.0.0.1:0")
            async with AsyncClient(peer.address) as client:
                for backend in ("asyncio", "trio"):
                    task_id = await client.enqueue("q", a_call("slow"))
                    assert await anyio.to_thread.run_sync(signalled, peer.address, backend) == 0
                    assert cluster.outcomes[task_id] == b'"finished"'
            group.cancel_scope.cancel()

    anyio.run(main, backend="trio")


def test_the_package_offers_its_public_names() -> None:
    """They are loaded on use."""
    assert onyxq.App is App
    assert onyxq.AsyncClient is AsyncClient
    assert onyxq.api is api
    assert isinstance(onyxq.__version__, str)
    with pytest.raises(AttributeError):
        _ = onyxq.nothing


def test_importing_the_package_loads_next_to_nothing() -> None:
    """Clients and event loops are loaded only when they are needed."""
    code = "import sys, onyxq; print([name for name in ('anyio', 'trio', 'msgpack') if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert found.stdout == "[]\n"
