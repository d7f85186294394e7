"""The command line against a cluster: one ``onyxq dev`` for all tests of this module."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from onyxq import Client
from onyxq.interfaces.cli.main import run as run_command
from tests.interfaces.live_world import Line

STOP_SECONDS_MAX = 60
LOOK_EVERY_S = 0.05
PATIENCE = "20s"
"""Longest wait of a claim for an existing task."""
ONYXQ = [sys.executable, "-m", "onyxq"]
FREE = ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]


@contextmanager
def started(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run a program that ends with the block, even if that fails."""
    with subprocess.Popen([*ONYXQ, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def announced(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Return the ready document of a program."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        pytest.fail(process.communicate()[1])
    document: dict[str, Any] = json.loads(line)
    return document


def stop(process: subprocess.Popen[str]) -> None:
    """Have a program stop in good order."""
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=STOP_SECONDS_MAX)
    assert process.returncode == 0, said


@pytest.fixture(scope="module")
def dev() -> Iterator[str]:
    """Run a cluster of one peer; return the address that it printed."""
    with started("dev", "--json", *FREE) as process:
        yield announced(process)["peers"][0]["listen"]
        stop(process)


@pytest.fixture
def line(dev: str, capsys: pytest.CaptureFixture[str]) -> Line:
    """Commands against the cluster of this module."""
    return Line(dev, capsys)


def test_a_task_goes_from_enqueue_to_completion(line: Line, queue: str) -> None:
    """Enqueue, claim, complete, get: each prints what the next one needs."""
    task = line.json("task", "enqueue", queue, "--data", '{"to": "a"}', "--priority", "5")["id"]
    claimed = line.json("task", "claim", queue, "--lease", "30s", "--wait", PATIENCE, "--worker", "w1")["claims"]
    assert [one["task"]["id"] for one in claimed] == [task]
    assert claimed[0]["task"]["data"] == {"to": "a"}
    assert line.code("task", "complete", task, "--token", str(claimed[0]["token"]), "--result", '"sent"') == 0
    found = line.json("task", "get", task)
    assert (found["state"], found["priority"], found["result"]) == ("completed", 5, "sent")
    assert [(one["worker"], one["token"]) for one in found["claims"]] == [("w1", claimed[0]["token"])]


def test_more_copies_than_the_cluster_keeps_are_refused(line: Line, queue: str) -> None:
    """The error names the option, and nothing is stored."""
    assert line.code("task", "enqueue", queue, "--data", "1", "--copies", "2") == 2
    assert line.said.err.startswith("error: copies: ") and "keeps 1 copy" in line.said.err
    assert line.json("task", "list", "--queue", queue) == {"tasks": [], "after": None}


def test_the_bytes_of_a_file_come_back_as_they_were(line: Line, queue: str, tmp_path: Path) -> None:
    """``--file`` enqueues bytes, which JSON shows as base64."""
    (tmp_path / "data").write_bytes(b"\x00\xff{}")
    task = line.json("task", "enqueue", queue, "--file", str(tmp_path / "data"))["id"]
    assert line.json("task", "get", task)["data_base64"] == "AP97fQ=="


def test_a_delayed_task_is_scheduled(line: Line, queue: str) -> None:
    """``--delay`` makes a task due later; it cannot be claimed now but can be cancelled, also twice."""
    task = line.json("task", "enqueue", queue, "--data", "1", "--delay", "1h")["id"]
    assert line.json("task", "get", task)["state"] == "scheduled"
    assert line.json("task", "claim", queue)["claims"] == []
    for _ in range(2):
        assert line.code("task", "cancel", task) == 0
        assert line.json("task", "get", task)["state"] == "cancelled"


def test_a_stale_token_exits_with_4(line: Line, queue: str) -> None:
    """Completing under a token that is not the claim's is a conflict."""
    task = line.json("task", "enqueue", queue)["id"]
    token = line.json("task", "claim", queue, "--wait", PATIENCE)["claims"][0]["token"]
    assert line.code("task", "complete", task, "--token", str(token - 1)) == 4
    assert "hint:" in line.said.err
    assert line.code("task", "renew", task, "--token", str(token), "--lease", "1m") == 0
    assert line.code("task", "complete", task, "--token", str(token)) == 0


def test_a_renewal_without_a_lease_gets_that_of_the_queue(line: Line, queue: str) -> None:
    """As a claim does; a shorter one would end before a caller who knows the queue renews it again."""
    assert line.code("queue", "set", queue, "lease_ms=1h") == 0
    task = line.json("task", "enqueue", queue)["id"]
    token = line.json("task", "claim", queue, "--wait", PATIENCE)["claims"][0]["token"]
    assert line.code("task", "renew", task, "--token", str(token)) == 0
    assert line.code("log", "tail", "--json") == 0
    records = [json.loads(text) for text in line.said.out.splitlines()]
    renewals = [entry for record in records for entry in record["entries"] if entry["entry"] == "renew_claims"]
    assert "3600000" in json.dumps(renewals[-1])
    assert line.code("task", "complete", task, "--token", str(token)) == 0


def test_a_failed_task_is_due_again(line: Line, queue: str) -> None:
    """``task fail`` counts the attempt and schedules the next."""
    task = line.json("task", "enqueue", queue)["id"]
    token = line.json("task", "claim", queue, "--wait", PATIENCE)["claims"][0]["token"]
    assert line.code("task", "fail", task, "--token", str(token), "--error", "no", "--retry-in", "1h") == 0
    found = line.json("task", "get", task)
    assert (found["state"], found["attempts"]) == ("scheduled", 1)


def test_what_is_not_there_exits_with_3(line: Line) -> None:
    """Unknown tasks, queues, partitions and positions are `not found`."""
    assert line.code("task", "get", "00" * 20) == 3
    assert line.code("queue", "show", "nobody-uses-it") == 3
    assert line.code("partition", "show", "65000") == 3
    assert line.code("log", "show", str(1 << 40)) == 3


def test_lists_page_up_to_the_limit(line: Line, queue: str) -> None:
    """``task list`` stops at its limit and shows how to continue."""
    made = [line.json("task", "enqueue", queue, "--data", str(number))["id"] for number in range(3)]
    first = line.json("task", "list", "--queue", queue, "--limit", "2")
    rest = line.json("task", "list", "--queue", queue, "--after", first["after"])
    listed = [task["id"] for task in first["tasks"] + rest["tasks"]]
    assert listed == sorted(made, reverse=True)
    assert line.json("task", "count", "--queue", queue)["counts"][queue]["total"] == 3


@pytest.mark.parametrize(
    "typed",
    [
        "task list",
        "task count",
        "queue list",
        "cluster show",
        "peer list",
        "ring show",
        "partition list",
        "partition show 0",
    ],
)
def test_views_print_a_table_and_a_document(line: Line, queue: str, typed: str) -> None:
    """Every view has both forms and is not empty."""
    line.json("task", "enqueue", queue)
    assert line.code(*typed.split()) == 0
    assert line.said.out.strip()
    assert line.json(*typed.split())


def test_a_queue_is_shown_with_its_depth(line: Line, queue: str) -> None:
    """``queue show`` names the queue and counts its tasks."""
    line.json("task", "enqueue", queue)
    assert line.json("queue", "show", queue)["depth"]["total"] == 1
    assert line.json("queue", "show", queue)["oldest_ready_ms"] < 60_000
    assert line.code("queue", "show", queue) == 0
    assert queue in line.said.out


def test_a_record_is_shown_with_its_entries(line: Line, queue: str) -> None:
    """``log show`` prints the entries of a record that granted a claim, and their verdicts."""
    line.json("task", "enqueue", queue)
    token = line.json("task", "claim", queue, "--wait", PATIENCE)["claims"][0]["token"]
    record = line.json("log", "show", str(token))
    assert ("grant_claims", "applied") in [(entry["entry"], entry["verdict"]) for entry in record["entries"]]
    assert line.code("log", "show", str(token)) == 0
    assert "grant_claims" in line.said.out


def test_the_log_can_be_collected(line: Line) -> None:
    """``log gc`` returns once the log is trimmed; trimmed records are no longer shown."""
    done = line.json("log", "gc")
    assert done["position"] > 0
    assert done["origin_bytes"] > 0


def test_the_log_is_followed_as_json_lines(dev: str, line: Line, queue: str) -> None:
    """``log tail --follow --json`` prints a line per record, from the position asked for."""
    start = line.json("cluster", "show")["position"] + 1
    line.json("task", "enqueue", queue)
    line.json("task", "claim", queue, "--wait", PATIENCE)
    with started("log", "tail", "--follow", "--from", str(start), "--json", "--connect", dev) as tail:
        assert tail.stdout is not None
        entries: list[str] = []
        while "grant_claims" not in entries:
            record = json.loads(tail.stdout.readline())
            assert record["position"] >= start
            entries += [entry["entry"] for entry in record["entries"]]
        tail.send_signal(signal.SIGINT)
        tail.communicate(timeout=STOP_SECONDS_MAX)
        assert tail.returncode == 130


APP = """
from onyxq import App

app = App("127.0.0.1:1")


@app.task(queue={queue!r})
def add(a: int, b: int) -> int:
    return a + b
"""


def test_a_worker_runs_the_tasks_of_an_application(dev: str, line: Line, queue: str, tmp_path: Path) -> None:
    """``worker start`` finds the application in its directory, works where ``--connect`` says, and stops on request."""
    (tmp_path / "sums.py").write_text(APP.format(queue=queue))
    call = json.dumps({"task": "add", "args": [2], "kwargs": {"b": 3}})
    task = line.json("task", "enqueue", queue, "--data", call)["id"]
    command = [*ONYXQ, "worker", "start", "sums:app", "--connect", dev]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as worker:
        while line.json("task", "get", task)["state"] != "completed":
            assert worker.poll() is None
        worker.send_signal(signal.SIGTERM)
        _, said = worker.communicate(timeout=STOP_SECONDS_MAX)
        assert worker.returncode == 0, said
    assert line.json("task", "get", task)["result"] == 5


def test_a_missing_application_exits_with_2(line: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing module, a module without an App, and an App without functions are reported as such."""
    assert line.code("worker", "start", "no_such_module_here:app") == 2
    assert line.code("worker", "start", "json:loads") == 2
    assert "onyxq.App" in line.said.err
    (tmp_path / "no_functions.py").write_text("from onyxq import App\n\napp = App()\n")
    monkeypatch.chdir(tmp_path)
    assert line.code("worker", "start", "no_functions:app") == 2
    assert "error: app: no_functions:app has no tasks\n" in line.said.err and "--import MODULE" in line.said.err


@pytest.mark.long
def test_a_peer_says_ready_and_leaves_when_told(tmp_path: Path) -> None:
    """``peer start`` prints one ready line; SIGTERM ends it with 0, and the next run has its data."""
    nodes = set()
    for _ in range(2):
        with started("peer", "start", "--data", str(tmp_path / "data"), *FREE) as process:
            assert process.stdout is not None
            said = process.stdout.readline().split()
            if not said:
                pytest.fail(process.communicate()[1])
            assert said[0] == "ready"
            told = dict(word.split("=", 1) for word in said[1:])
            assert set(told) == {"peer", "node", "listen", "http"}
            nodes.add(told["node"])
            process.send_signal(signal.SIGTERM)
            rest, errors = process.communicate(timeout=STOP_SECONDS_MAX)
            assert process.returncode == 0, errors
            assert rest == ""
    assert len(nodes) == 1


def test_a_peer_without_zookeeper_keeps_one_copy(tmp_path: Path) -> None:
    """No other peer can join its log, so no copy is missing."""
    with started("peer", "start", "--json", "--data", str(tmp_path / "data"), *FREE) as process:
        with Client(announced(process)["listen"]) as client:
            until = time.monotonic() + STOP_SECONDS_MAX
            while (about := client.call("cluster", {}))["not_ready"] or about["under_replicated"]:
                assert time.monotonic() < until, about
                time.sleep(LOOK_EVERY_S)
        assert about["settings"]["replicas"] == 1
        stop(process)


@pytest.mark.long
def test_a_directory_of_dev_becomes_that_of_a_peer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its log is moved beside the data of its only node, which then has the tasks.

    A peer in the directory of a cluster, or a cluster in that of a peer, would have no leader for any task.
    """
    root = tmp_path / "dev"
    with started("dev", "--json", *FREE, "--data", str(root)) as process:
        with Client(announced(process)["peers"][0]["listen"]) as client:
            (task,) = client.enqueue_many("mail", [b"x"])
        stop(process)
    node = root / "node-0"
    assert run_command(["peer", "start", *FREE, "--data", str(root)]) == 2
    said = capsys.readouterr().err
    assert f"error: data: {root} is not the directory of one peer" in said and f"move {root}/log into" in said
    (root / "node-1").mkdir()
    shutil.copy(node / "data.mdb", root / "node-1")
    assert run_command(["peer", "start", *FREE, "--data", str(root)]) == 2
    assert "move" not in capsys.readouterr().err  # one of two nodes would be no majority
    shutil.rmtree(root / "node-1")
    (root / "log").rename(node / "log")
    assert run_command(["dev", *FREE, "--data", str(node)]) == 2
    assert f"onyxq peer start --data {node}" in capsys.readouterr().err
    with started("peer", "start", "--json", "--data", str(node), *FREE) as process:
        with Client(announced(process)["listen"]) as client:
            (claim,) = client.claim(["mail"], wait_ms=20_000)
            assert claim.id == task
        stop(process)


def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    """The second signal ends the drain."""
    with started("dev", *FREE, "--data", str(tmp_path)) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline().startswith("ready ")
        os.kill(process.pid, signal.SIGSTOP)  # so that both signals wait for it together
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        os.kill(process.pid, signal.SIGCONT)
        process.communicate(timeout=STOP_SECONDS_MAX)
        assert process.returncode in (128 + signal.SIGTERM, 128 + signal.SIGINT)
