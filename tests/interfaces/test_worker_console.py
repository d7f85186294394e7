"""What a worker says: its banner, one line for each task, short tracebacks, and what it waits for at the end."""

from __future__ import annotations

import asyncio
import functools
import io
import json
import logging
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
import trio

from onyxq import OF_QUEUE, App, __version__
from onyxq.client import AsyncClient, Claim
from onyxq.interfaces.cli.logs import TerminalHandler, TerminalLines, TextLines
from onyxq.interfaces.cli.output import Output
from onyxq.interfaces.cli.processes.worker import banner, schedules
from onyxq.wire.server import Request
from onyxq.wire.tcp import TcpNetwork
from onyxq.worker import Worker, console
from onyxq.worker import process as worker_process
from onyxq.worker.console import Policy
from simulation.world.network import SimulatedNetwork
from tests.interfaces.fake_service import FakeCluster, FakePeer, client_of, play, played
from tests.interfaces.worker_world import a_call, until, with_worker

ROOT = Path(__file__).resolve().parents[2]
SHOP = """
    from onyxq import App, blocking_context

    app = App()

    @app.task(queue="q", name="send", retries=2, backoff_ms=60_000)
    def send(to):
        if to == "nobody":
            raise ValueError("550 no such host")
        return to

    @app.task(queue="q", name="wait")
    def wait():
        open("waits", "w").close()
        blocking_context().sleep(60)
"""


def lines_of(app: App, *calls: bytes, caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the lines about the tasks of a worker, formatted as text."""

    async def scenario(cluster: FakeCluster, network: SimulatedNetwork) -> None:
        worker = app.worker()

        async def body(client: AsyncClient, peer: FakePeer) -> None:
            peer.intercept = settings_of_queues
            for done, call in enumerate(calls, 1):
                await client.enqueue("q", call, retries=2 if b"own" in call else OF_QUEUE)
                await until(functools.partial(lambda done: len(cluster.outcomes) == done and not worker.held, done))
            worker.stop()

        await with_worker(cluster, network, worker, body)

    with caplog.at_level(logging.INFO, "onyxq.worker"):
        play(scenario)
    records = [record for record in caplog.records if record.name == console.__name__]
    for record in records:
        record.exc_text = None  # caplog has formatted it in its own way
    return [TextLines("%(levelname)s %(message)s").format(record) for record in records]


def settings_of_queues(request: Request) -> bool:
    """Answer that every queue has three retries and a back-off of a minute."""
    if request.method != "queue.get":
        return False
    request.reply({"settings": {"retries": 3, "backoff_ms": 60_000}})
    return True


def test_each_task_is_one_line_with_function_outcome_and_duration(caplog: pytest.LogCaptureFixture) -> None:
    """A failed attempt also has what follows, and a traceback that starts in the user's code."""
    app = App()

    @app.task(queue="q", name="good")
    async def good() -> None:
        await anyio.sleep(2)

    @app.task(queue="q", name="bad")
    async def bad(own: bool = False) -> None:
        raise ValueError("boom")

    found = lines_of(app, a_call("good"), a_call("bad"), a_call("bad", own=True), caplog=caplog)
    assert found[0] == "INFO good completed in 2 s"
    first, *trace = found[1].splitlines()
    assert first == "WARNING bad failed in 0 ms, retry 1 of 3 in 30 s to 1 min"
    assert trace[0] == "  Traceback (most recent call last):"
    assert trace[1].endswith("in bad")
    assert trace[-1] == "  ValueError: boom"
    assert found[2].startswith("WARNING bad failed in 0 ms, retry 1 of 2 in 30 s to 1 min\n")


def test_a_task_that_the_worker_does_not_know_is_given_back(caplog: pytest.LogCaptureFixture) -> None:
    """The line names the task that was probably meant. Tasks that are postponed stay claimed at the fake cluster."""
    app = App()
    app.task(queue="q", name="send")(lambda: None)

    async def scenario(cluster: FakeCluster, network: SimulatedNetwork) -> None:
        worker = app.worker()

        async def body(client: AsyncClient, peer: FakePeer) -> None:
            await client.enqueue("q", a_call("sned"))
            await until(lambda: bool(caplog.records))
            worker.stop()

        await with_worker(cluster, network, worker, body)

    play(scenario)
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("sned given back in 0 ms, due again in 5 s: ") and "; did you mean send? It knows: " in said


def test_an_unreadable_setting_only_makes_the_line_shorter(caplog: pytest.LogCaptureFixture) -> None:
    """A worker whose credential cannot read the queue still says that the task is tried again."""
    app = App()

    @app.task(queue="q", name="bad")
    async def bad() -> None:
        raise ValueError("boom")

    async def scenario(cluster: FakeCluster, network: SimulatedNetwork) -> None:
        worker = app.worker()

        async def body(client: AsyncClient, peer: FakePeer) -> None:
            await client.enqueue("q", a_call("bad"))
            await until(lambda: len(cluster.outcomes) == 1 and not worker.held)
            worker.stop()

        await with_worker(cluster, network, worker, body)

    play(scenario)
    assert "bad failed in 0 ms, retry 1" in [record.message for record in caplog.records]


@pytest.mark.parametrize(
    ("policy", "failed", "pause_ms", "text"),
    [
        (Policy(5, 1_000), 2, None, "retry 2 of 5 in 1 s to 2 s"),
        (Policy(5, 1_000), 2, 1_200, "retry 2 of 5 in 1.2 s"),
        (Policy(5, 1_000), 6, None, "no retry left"),
        (Policy(0, 1_000), 1, None, "no retry left"),
        (Policy(None, 1_000), 30, None, "retry 30 in 30 min to 1 h"),
        (Policy(), 3, None, "retry 3"),
        (Policy(5, 1_000), 8, None, "retried, unless this was attempt 6 since it was requeued"),
    ],
)
def test_what_follows_a_failed_attempt_is_told(policy: Policy, failed: int, pause_ms: int | None, text: str) -> None:
    """The leader chooses the pause between half of the back-off and all of it, unless the worker did."""
    assert policy.next_attempt(failed, pause_ms) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.004, "4 ms"), (0.12, "0.12 s"), (1.5, "1.5 s"), (59.96, "1 min"), (200, "3 min 20 s"), (7_500, "2 h 5 min")],
)
def test_durations_are_short(seconds: float, text: str) -> None:
    """They have the unit that fits."""
    assert console.duration(seconds) == text


def test_a_traceback_ends_where_it_failed_however_deep() -> None:
    """The frames that are left out are the first ones."""

    def fall(depth: int) -> None:
        if not depth:
            raise ValueError("boom")
        fall(depth - 1)

    with pytest.raises(ValueError) as caught:
        fall(50)
    trace = console.trimmed(caught.value.__traceback__)
    lines = [trace.tb_lineno] if trace else []
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
        lines.append(trace.tb_lineno)
    assert len(lines) == console.FRAMES_MAX
    assert trace is not None and trace.tb_lineno == fall.__code__.co_firstlineno + 2


@pytest.mark.parametrize("run", [trio.run, asyncio.run])
def test_a_traceback_begins_in_the_users_code(run: Callable[[Any], None]) -> None:
    """The frames of the event loop before it are left out."""

    async def fall() -> None:
        raise ValueError("boom")

    with pytest.raises(ValueError) as caught:
        run(fall if run is trio.run else fall())
    outer = caught.value.__traceback__
    assert outer is not None and outer.tb_next is not None
    assert outer.tb_next.tb_frame.f_code is not fall.__code__
    trace = console.trimmed(outer.tb_next)
    assert trace is not None and trace.tb_frame.f_code is fall.__code__


@played
async def test_a_worker_names_its_cluster_once_a_peer_knows_it(
    client: AsyncClient, peer: FakePeer, caplog: pytest.LogCaptureFixture
) -> None:
    """A peer that starts answers before it has read the name from the log."""
    names = [None, None, "main"]

    def of_a_starting_peer(request: Request) -> bool:
        if request.method == "cluster":
            request.reply({"name": names.pop(0)})
        return request.method == "cluster"

    peer.intercept = of_a_starting_peer
    with caplog.at_level(logging.INFO, "onyxq.worker"):
        worker = Worker(_never, queues=["q"])
        async with anyio.create_task_group() as group:
            group.start_soon(worker_process._watch, client, worker, "a:1")
            await until(lambda: bool(caplog.records))
            group.cancel_scope.cancel()
    assert [record.getMessage() for record in caplog.records] == ["connected to cluster main at a:1"]
    assert names == []


async def _never(claim: Claim) -> None:
    await anyio.sleep_forever()


@played
async def test_a_lost_cluster_is_told_once_and_so_is_its_return(
    cluster: FakeCluster, network: SimulatedNetwork, caplog: pytest.LogCaptureFixture
) -> None:
    """Also one that was never there. Failed claims have the same cause, and are not logged beside it."""

    def named(request: Request) -> bool:
        if request.method == "cluster":
            request.reply({"name": "main"})
        return request.method in ("cluster", "claim")

    async def peer() -> FakePeer:
        made = await cluster.start(network.host("a"), "a:1")
        made.intercept = named
        return made

    def connected() -> int:
        return sum(record.getMessage() == "connected to cluster main at a:1" for record in caplog.records)

    worker = Worker(_never, queues=["q"])
    with caplog.at_level(logging.INFO, "onyxq.worker"):
        async with client_of(network) as client, anyio.create_task_group() as group:
            group.start_soon(worker_process._watch, client, worker, "a:1")
            group.start_soon(worker.serve, client)
            await anyio.sleep(100)
            first = await peer()
            await until(lambda: connected() == 1)
            first.stop()
            network.cut("a")
            cluster.peers.remove(first)
            await anyio.sleep(100)
            await peer()
            await until(lambda: connected() == 2)
            worker.stop()
            group.cancel_scope.cancel()
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 4
    assert all("; trying again. Is a peer running?" in one for one in (said[0], said[2]))
    assert said[2].startswith("the cluster is lost: ")


def test_a_stop_says_what_it_waits_for() -> None:
    """The oldest tasks are named."""
    assert console.stopping([], 30) == "stopping: no task is running"
    some = console.stopping([("send", 12.3), ("index", 0.4)], 30)
    assert some.startswith("stopping: waiting up to 30 s for 2 tasks: send (12 s), index (0.4 s). ")
    assert "and 3 more" in console.stopping([("send", 1.0)] * 8, 30)
    late = console.stopping([], 30, reported=1)
    assert late.startswith("stopping: waiting up to 30 s until the outcome of 1 task is stored. Ctrl-C again ")
    both = console.stopping([("send", 12.3)], 30, reported=2)
    assert "for 1 task: send (12 s), and until the outcomes of 2 tasks are stored. " in both
    now = "stopping now: giving back 2 tasks, waiting a few seconds until the outcome of 1 task is stored. "
    assert console.stopping_now(2, 1).startswith(now)


def test_a_banner_warns_of_queues_without_functions() -> None:
    """A slip in ``--queues`` would otherwise show only as silence."""
    app = App("a:1")

    @app.task(queue="mail", name="send")
    async def send() -> None:
        """A task."""

    @app.task(queue="books", name="index")
    async def index() -> None:
        """Another one."""

    lines = banner("shop:app", app, app.worker(["mial"], name="w1"), slots="2-16")
    assert lines[0].endswith(" worker w1")
    assert [line.split(maxsplit=1) for line in lines[1:6]] == [
        ["application", "shop:app"],
        ["functions", "index, send"],
        ["queues", "mial"],
        ["slots", "2-16"],
        ["cluster", "a:1"],
    ]
    assert "no function of shop:app uses the queue mial; did you mean mail?" in lines
    assert "tasks in the queue books are left to other workers (--queues)" in lines


def test_a_banner_lists_the_schedules() -> None:
    """A misread cron field shows at once in the next time."""
    app = App("a:1")
    for name, schedule, zone in (("report", "* * * * *", "UTC"), ("close", "0 18 * * 5", "Europe/Berlin")):
        app.periodic(schedule, name=name, zone=zone)(app.task(name=name)(lambda: None))
    assert schedules(app, 1_900_000_000_000) == [
        "  schedules    report: * * * * *, next 2030-03-17 17:47:00 UTC",
        "               close: 0 18 * * 5, next 2030-03-22 18:00:00 Europe/Berlin",
    ]
    assert any("report: * * * * *" in line for line in banner("shop:app", app, app.worker(), slots="1"))


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_lines_on_a_terminal_are_short_and_coloured() -> None:
    """Text of strangers cannot move the cursor."""
    record = logging.LogRecord("onyxq.worker", logging.WARNING, "", 1, "claim\x1b[2J failed", (), None)
    record.task_mark = " [ab q #1]"
    for colours, style in (({}, "\x1b[33m"), ({"NO_COLOR": "1"}, "")):
        stderr = _Terminal()
        handler = TerminalHandler(Output(as_json=False, environment=colours, stderr=stderr))
        handler.setFormatter(TerminalLines())
        handler.emit(record)
        said = stderr.getvalue()
        assert said.startswith(style) and "warning: claim\\x1b[2J failed [ab q #1]" in said


def started(directory: Path, address: str, *options: str) -> subprocess.Popen[str]:
    """Start ``onyxq worker start`` in a directory with a shop."""
    directory.joinpath("shop.py").write_text(textwrap.dedent(SHOP), "utf-8")
    command = [sys.executable, "-m", "onyxq", "worker", "start", "shop:app", "--connect", address, *options]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    return subprocess.Popen(command, env=environment, cwd=directory, stderr=subprocess.PIPE, text=True)


def said_by_a_worker(directory: Path, *options: str) -> str:
    """Return what a worker prints that completes a task, fails one, and is stopped twice while it runs a third."""
    said: list[str] = []

    async def main() -> None:
        async with anyio.create_task_group() as group:
            cluster = FakeCluster(group)
            peer = await cluster.start(TcpNetwork(), "127.0.0.1:0")
            async with AsyncClient(peer.address) as client:
                await client.enqueue_many("q", [a_call("send", "ann"), a_call("send", "nobody")], retries=2)
                await client.enqueue("q", a_call("wait"))
                with await anyio.to_thread.run_sync(started, directory, peer.address, *options) as process:
                    await until(directory.joinpath("waits").exists)
                    await until(lambda: len(cluster.outcomes) == 2)
                    process.send_signal(signal.SIGINT)
                    assert process.stderr is not None
                    while "stopping" not in "".join(said[-1:]):
                        said.append(await anyio.to_thread.run_sync(process.stderr.readline))
                        assert said[-1], "".join(said)
                    process.send_signal(signal.SIGINT)
                    said.append((await anyio.to_thread.run_sync(process.communicate))[1])
                    assert process.returncode == 0
                assert set(cluster.tokens) == set(cluster.outcomes)
            group.cancel_scope.cancel()

    anyio.run(main, backend="trio")
    return "".join(said)


def test_a_worker_tells_its_life(tmp_path: Path) -> None:
    """It prints a banner, a line for each task, and what a signal makes it wait for."""
    said = said_by_a_worker(tmp_path)
    assert f"OnyxQ {__version__} worker " in said.splitlines()[0]
    for part in ("  queues       q\n", "send completed in ", "send failed in ", ", retry 1 of 2", "in send\n"):
        assert part in said
    assert "stopping: waiting up to 30 s for 1 task: wait (" in said
    assert "stopping now: giving back 1 task. Ctrl-C again ends this process" in said
    assert "stopped: 1 task completed, 1 failed attempt\n" in said


def test_a_third_signal_ends_a_worker_at_once(tmp_path: Path) -> None:
    """The cluster is gone, so nothing else would end it soon. Each line says what is waited for."""
    said: list[str] = []

    async def main() -> None:
        async with anyio.create_task_group() as group:
            cluster = FakeCluster(group)
            peer = await cluster.start(TcpNetwork(), "127.0.0.1:0")
            peer.intercept = lambda request: request.method == "complete"
            async with AsyncClient(peer.address) as client:
                await client.enqueue("q", a_call("send", "ann"))
                with await anyio.to_thread.run_sync(started, tmp_path, peer.address) as process:
                    await until(lambda: bool(peer.methods("complete")))
                    assert process.stderr is not None
                    for begin in ("stopping: ", "stopping now: ", "ended at once: "):
                        process.send_signal(signal.SIGINT)
                        while begin not in "".join(said[-1:]):
                            said.append(await anyio.to_thread.run_sync(process.stderr.readline))
                            assert said[-1], "".join(said)
                    assert await anyio.to_thread.run_sync(process.wait) == 128 + signal.SIGINT
            group.cancel_scope.cancel()

    anyio.run(main, backend="trio")
    assert all("the outcome of 1 task is stored" in one for one in said[-3:-1])
    assert said[-1].endswith("ended at once: 1 task will run again when its lease ends\n")


def test_the_time_for_running_tasks_is_an_option(tmp_path: Path) -> None:
    """The banner says how long a stop may take. A wrong time is a usage error that names the option."""
    with started(tmp_path, "127.0.0.1:1", "--drain", "5m") as process:
        assert process.stderr is not None
        lines = [process.stderr.readline() for _ in range(7)]
        process.kill()
    assert lines[6] == "Ctrl-C stops after the running tasks, which may take 5 min\n"
    with started(tmp_path, "127.0.0.1:1", "--drain", "long") as process:
        assert "not 'long'" in (said := process.communicate()[1]) and "drain" in said
        assert process.returncode == 2


def test_functions_in_other_modules_are_imported(tmp_path: Path) -> None:
    """A module that does not exist is a usage error that names it."""
    tmp_path.joinpath("more.py").write_text(
        "from shop import app\n\n@app.task(name='more')\ndef more(): ...\n", "utf-8"
    )
    with started(tmp_path, "127.0.0.1:1", "--import", "more") as process:
        assert process.stderr is not None
        lines = [process.stderr.readline() for _ in range(3)]
        process.kill()
    assert lines[2] == "  functions    more, send, wait\n"
    with started(tmp_path, "127.0.0.1:1", "--import", "nothing") as process:
        assert "error: import: there is no module 'nothing'" in process.communicate()[1]
        assert process.returncode == 2


def test_a_quiet_worker_prints_warnings_only(tmp_path: Path) -> None:
    """Failures and signals are still shown."""
    said = said_by_a_worker(tmp_path, "--quiet", "--log-format", "json")
    records = [json.loads(line) for line in said.splitlines()]
    assert {record["level"] for record in records} == {"warning"}
    failed = next(record for record in records if record.get("outcome") == "failed")
    assert (failed["task_name"], failed["task_attempt"]) == ("send", 1)
    assert failed["duration_ms"] >= 0 and "550 no such host" in failed["error"]
