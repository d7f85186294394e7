"""Host processes: messages, the detection of their end with its reason, and their clean-up."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

from onyxq.errors import Incomplete
from onyxq.interfaces.cli.main import run
from onyxq.node.jobs import host_process
from onyxq.node.jobs.host_process import BoundedLog, end_leftover, launch
from onyxq.node.jobs.hosts import HostEnded, KeptHost, Plan

COMMAND = (sys.executable, str(Path(__file__).with_name("small_host.py")))
TEST_S_MAX = 60


def on_trio(test: Callable[[Path], Awaitable[None]]) -> Callable[[Path], None]:
    """Run an async test; one that waits for ever fails."""

    @functools.wraps(test)
    def run(tmp_path: Path) -> None:
        async def bounded() -> None:
            with trio.fail_after(TEST_S_MAX):
                await test(tmp_path)

        trio.run(bounded)

    return run


def plan_of(work: Path, **conf: str) -> Plan:
    """Return a plan of a host in a directory."""
    return Plan(connect="127.0.0.1:1", slots=3, work=str(work / "spark"), conf=conf)


def sleeper() -> subprocess.Popen[bytes]:
    """Run a process that does nothing until it is killed."""
    return subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True)


def is_running(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def children_of(pid: int) -> list[int]:
    """Return the children of a process."""
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def gone(pid: int) -> None:
    """Wait until a process has ended."""
    while is_running(pid):
        await trio.sleep(0.01)


@on_trio
async def test_orders_and_events_are_lines_of_json(tmp_path: Path) -> None:
    """A line that is not an event is ignored; the plan arrives unchanged."""
    async with launch(plan_of(tmp_path), command=COMMAND) as link:
        up = await link.receive()
        assert up is not None and (up["event"], up["slots"]) == ("up", 3)
        await link.send({"do": "start", "job": "j1", "version": 5})
        assert await link.receive() == {"event": "ready", "job": "j1", "version": 5}


@on_trio
async def test_a_host_and_its_children_end_with_the_context(tmp_path: Path) -> None:
    """The host ends when its stdin is closed, its children when the group is killed."""
    async with launch(plan_of(tmp_path), command=COMMAND) as link:
        up = await link.receive()
    assert up is not None
    await gone(up["child"])
    assert not (tmp_path / "spark/host.pid").exists()


@on_trio
async def test_what_hosts_keep_while_they_run_is_gone_with_them(tmp_path: Path) -> None:
    """Temporary files of this host are deleted, and those of an earlier one that was killed with its peer."""
    work = tmp_path / "spark"
    for name in ("local/blocks", "temporary/classes", "checkpoints/job"):
        (work / name).mkdir(parents=True)
    async with launch(plan_of(tmp_path), command=COMMAND) as link:
        assert await link.receive() is not None
        assert not (work / "local").exists()
        assert list((work / "temporary").iterdir()) == []
        await link.send({"do": "start", "job": "litter", "version": 1})
        assert await link.receive() is not None
        assert len(list((work / "temporary").iterdir())) == 1
    assert sorted(path.name for path in work.iterdir()) == ["checkpoints", "host.log"]


@pytest.mark.long
@on_trio
async def test_a_host_that_does_not_end_is_killed(tmp_path: Path) -> None:
    """It is killed when its time is over."""
    async with launch(plan_of(tmp_path, ends="no"), command=COMMAND) as link:
        up = await link.receive()
        pid = json.loads((tmp_path / "spark/host.pid").read_text())["pid"]
        assert is_running(pid)
    assert up is not None
    await gone(pid)
    await gone(up["child"])


@on_trio
async def test_the_death_of_a_host_is_noticed_while_its_children_hold_its_stdout(tmp_path: Path) -> None:
    """The report has the signal and the last output of the host; its children are killed."""
    async with launch(plan_of(tmp_path), command=COMMAND) as link:
        up = await link.receive()
        await link.send({"do": "start", "job": "die", "version": 1})
        assert await link.receive() is None
        assert link.why() == "the Spark host was killed by SIGKILL; it last said:\nout of luck"
        assert up is not None
        await gone(up["child"])
        with pytest.raises(HostEnded):
            await link.send({"do": "stop", "job": "die", "version": 1})
    assert "out of luck" in (tmp_path / "spark/host.log").read_text()


@pytest.mark.long
@on_trio
async def test_a_host_that_hangs_is_killed_with_all_it_started(tmp_path: Path) -> None:
    """Its process exists without any output: the job learns of it and starts on another host."""
    kept = KeptHost(plan_of(tmp_path), functools.partial(launch, command=COMMAND))
    kept.silent_s = 0.5
    async with trio.open_nursery() as nursery:
        nursery.start_soon(kept.run)
        run = await kept.begin(("freeze", 1))
        pid = json.loads((tmp_path / "spark/host.pid").read_text())["pid"]
        children = children_of(pid)
        await run.order("start")
        with pytest.raises(HostEnded, match="said nothing for 0.5 s, and was killed"):
            await run.event()
        for one in (pid, *children):
            await gone(one)
        await (await kept.begin(("j1", 2))).order("start")
        assert kept.starts == 2
        nursery.cancel_scope.cancel()


@on_trio
async def test_the_exit_of_a_host_is_told_with_its_code(tmp_path: Path) -> None:
    """A host without output on stderr is reported with its exit code only."""
    async with launch(plan_of(tmp_path), command=COMMAND) as link:
        await link.receive()
        await link.send({"do": "start", "job": "exit", "version": 1})
        assert await link.receive() is None
        assert link.why() == "the Spark host ended with code 3"


@on_trio
async def test_a_host_that_cannot_be_started_is_an_error_that_says_so(tmp_path: Path) -> None:
    """The program does not exist."""
    with pytest.raises(HostEnded, match="cannot be started"):
        async with launch(plan_of(tmp_path), command=("/nowhere/python",)):
            pytest.fail("it was started")


@on_trio
async def test_a_host_without_a_directory_is_an_error_that_says_so(tmp_path: Path) -> None:
    """There is a file in its place."""
    (tmp_path / "spark").write_text("in the way")
    with pytest.raises(HostEnded, match="no directory to work in"):
        async with launch(plan_of(tmp_path), command=COMMAND):
            pytest.fail("it was started")


@on_trio
async def test_a_host_that_a_killed_peer_left_behind_is_killed_before_the_next_one(tmp_path: Path) -> None:
    """It is recognised by its id and start time; another process with that id is not killed."""
    work = tmp_path / "spark"
    work.mkdir()
    with sleeper() as left, sleeper() as stranger:
        try:
            (work / "host.pid").write_text(json.dumps({"pid": stranger.pid, "started": "1"}))
            assert not end_leftover(work) and stranger.poll() is None
            host_process._note_process(work, left.pid)
            async with launch(plan_of(tmp_path), command=COMMAND) as link:
                assert left.wait() == -signal.SIGKILL
                assert await link.receive() is not None
        finally:
            os.kill(stranger.pid, signal.SIGKILL)
            left.kill()


def test_the_log_of_a_host_is_bounded(tmp_path: Path) -> None:
    """A new file is started before the limit is exceeded, and the previous one is kept."""
    path = tmp_path / "host.log"
    kept = BoundedLog(path, limit=1_000)
    for number in range(100):
        kept.write(f"line {number:3} {'x' * 40}\n".encode())
    kept.close()
    old = tmp_path / "host.log.1"
    assert path.stat().st_size <= 1_000 and old.stat().st_size <= 1_000
    assert sorted(one.name for one in tmp_path.iterdir()) == ["host.log", "host.log.1"]
    assert kept.tail[-1].startswith("line  99") and len(kept.tail) == host_process.TAIL_LINES
    assert (old.read_text() + path.read_text()).splitlines()[-1].startswith("line  99")


def test_a_log_goes_on_where_the_last_run_left_it(tmp_path: Path) -> None:
    """The output of an earlier host stays readable after a restart."""
    for text in (b"first\n", b"second\n"):
        kept = BoundedLog(tmp_path / "host.log")
        kept.write(text)
        kept.close()
    assert (tmp_path / "host.log").read_text() == "first\nsecond\n"


def test_a_missing_package_is_named_with_how_to_get_it() -> None:
    """Nothing is imported to find out."""
    with pytest.raises(Incomplete, match="no_such_package, not installed") as error:
        host_process.check_installed(("json", "no_such_package"))
    assert "pip install" in error.value.advice


def test_missing_java_is_named_with_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is searched for in JAVA_HOME and on PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(Incomplete, match="needs Java") as error:
        host_process.check_installed(("json",))
    assert "Install a Java runtime" in error.value.advice
    java = tmp_path / "bin/java"
    java.parent.mkdir()
    java.touch(mode=0o755)
    host_process.check_installed(("json",))


def test_a_peer_that_cannot_host_spark_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It reports what is missing, and exits with 1 before it has created anything."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    for command in (["peer", "start", "--data", str(tmp_path / "data")], ["dev"]):
        assert run([*command, "--spark", "--allow-local-code", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]) == 1
        assert "needs Java" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()
