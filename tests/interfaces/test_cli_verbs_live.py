"""Commands for the day's work against a cluster: prefixes of ids, lists, wait, retry, call, purge, watch, top."""

from __future__ import annotations

import json
import re
import signal
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from onyxq.client import AsyncClient, Client
from tests.interfaces.live_world import running
from tests.interfaces.test_cli_live import Line, started

TASKS = """
from onyxq import App

app = App("127.0.0.1:9")

@app.task(queue="QUEUE", retries=0)
def add(a: int, b: int = 0) -> int:
    return a + b

@app.task(queue="QUEUE", retries=0)
def greet(name: str) -> str:
    return f"hello {name}"
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """A cluster of one peer; its address."""
    with running() as cluster:
        yield cluster.addresses[0]


@pytest.fixture
def line(cluster: str, capsys: pytest.CaptureFixture[str]) -> Line:
    """Commands against the cluster of this module."""
    return Line(cluster, capsys)


@pytest.fixture
def module(queue: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module with functions of the test's own."""
    name = f"tasks_{uuid.uuid4().hex[:8]}"
    (tmp_path / f"{name}.py").write_text(TASKS.replace("QUEUE", queue))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield name
    sys.modules.pop(name, None)


def enqueued(line: Line, queue: str, *options: str) -> str:
    """Enqueue a task and return its id."""
    found: str = line.json("task", "enqueue", queue, *options)["id"]
    return found


def failed(line: Line, queue: str) -> str:
    """Enqueue a task, let it fail for good, and return its id."""
    task = enqueued(line, queue, "--retries", "0")
    (claim,) = line.json("task", "claim", queue, "--wait", "20s")["claims"]
    assert line.code("task", "fail", task, "--token", str(claim["token"]), "--error", "no such host") == 0
    return task


def listed(line: Line, *options: str) -> list[str]:
    """Return the ids that a list prints."""
    return [one["id"] for one in line.json(*options)["tasks"]]


def test_an_id_is_found_by_its_first_digits(line: Line, queue: str) -> None:
    """A prefix that one task has names it, for commands that read and for those that change."""
    task = enqueued(line, queue, "--at", "2031-05-01T12:00:00")
    assert line.json("task", "get", task[:20])["id"] == task
    assert line.json("task", "cancel", task[:20]) == {"id": task, "ok": True}
    assert line.json("task", "explain", task[:20].upper())["id"] == task


def test_an_ambiguous_prefix_names_the_tasks(line: Line, queue: str) -> None:
    """Several matches are a conflict that names them; no match is not found."""
    tasks = [enqueued(line, queue, "--at", "2032-05-01T12:00:00") for _ in range(2)]
    assert line.code("task", "get", tasks[0][:12]) == 4
    assert all(one in line.said.err for one in tasks)
    assert line.code("task", "get", "ffff") == 3
    assert line.code("task", "get", "no-digits") == 2


def test_lists_begin_with_the_newest(line: Line, queue: str) -> None:
    """Pages continue towards older tasks; --oldest-first reverses the list."""
    tasks = sorted(enqueued(line, queue) for _ in range(5))
    assert listed(line, "task", "list", "--queue", queue) == tasks[::-1]
    assert listed(line, "task", "list", "--queue", queue, "--oldest-first") == tasks
    page = line.json("task", "list", "--queue", queue, "--limit", "2")
    rest = listed(line, "task", "list", "--queue", queue, "--after", page["after"])
    assert [one["id"] for one in page["tasks"]] + rest == tasks[::-1]
    assert line.code("task", "list", "--queue", queue, "--limit", "2") == 0
    assert f"There may be more. Add --after {page['after']} " in line.said.err
    assert line.code("task", "list", "--queue", queue) == 0 and line.said.err == ""
    assert listed(line, "task", "list", "--queue", queue, "--state", "ready") == tasks[::-1]
    line.json("task", "claim", queue, "--max", "5", "--wait", "20s")
    assert listed(line, "task", "list", "--queue", queue, "--state", "claimed") == tasks[::-1]


def test_an_empty_list_of_a_queue_that_does_not_exist_says_so(line: Line, queue: str) -> None:
    """The name may be wrong. The exit code is 0. A queue without such tasks has no note."""
    missing = f"there is no queue '{queue}'"
    for arguments in (["task", "list"], ["dead", "list"], ["task", "list", "--all"], ["task", "list", "--json"]):
        assert line.code(*arguments, "--queue", queue) == 0
        assert line.said.err.strip().partition(";")[0] == missing
    enqueued(line, queue)
    assert line.code("dead", "list", "--queue", queue) == 0
    assert line.said.err == ""


def test_a_misspelt_queue_is_answered_with_the_one_that_was_meant(line: Line) -> None:
    """A queue need not exist to be paused, or to have no tasks; so a slip succeeds, and must be noted."""
    enqueued(line, "deliveries")
    assert line.code("queue", "pause", "delivereis") == 0
    assert line.said.err == "the queue delivereis has no tasks yet; did you mean deliveries?\n"
    assert line.code("task", "list", "--queue", "delivery") == 0
    assert line.said.err == "there is no queue 'delivery'; did you mean deliveries?\n"


def test_dead_letters_begin_with_the_newest(line: Line, queue: str) -> None:
    """The last failure is at the top."""
    tasks = sorted(failed(line, queue) for _ in range(3))
    assert listed(line, "dead", "list", "--queue", queue) == tasks[::-1]
    assert listed(line, "task", "list", "--queue", queue, "--state", "failed") == tasks[::-1]


def test_a_failed_task_is_retried(line: Line, queue: str) -> None:
    """``task retry`` makes it ready again; a task that did not fail is a conflict."""
    task = failed(line, queue)
    assert line.json("task", "retry", task)["count"] == 1
    assert line.json("task", "get", task)["state"] == "ready"
    assert line.code("task", "retry", (other := enqueued(line, f"{queue}-other"))) == 4
    assert f"task {other} is not finished: only failed tasks can be retried" in line.said.err
    [claim] = line.json("task", "claim", queue, "--wait", "20s")["claims"]
    assert line.code("task", "complete", task, "--token", str(claim["token"])) == 0
    assert line.code("task", "retry", task) == line.code("dead", "discard", task) == 4
    assert (
        f"task {task} is completed since it was requeued: only failed tasks can be discarded\nhint: To run it again"
        in line.said.err
    )


def test_wait_tells_outcomes_by_its_exit_code(line: Line, queue: str) -> None:
    """0 if all completed, 1 if one failed, 6 if the time is over; each outcome is a line."""
    done = enqueued(line, queue)
    (claim,) = line.json("task", "claim", queue, "--wait", "20s")["claims"]
    assert line.code("task", "complete", done, "--token", str(claim["token"]), "--result", "[7]") == 0
    assert line.code("task", "wait", done) == 0
    assert line.said.out == f"{done} completed: [7]\n"
    no = failed(line, queue)
    assert line.code("task", "wait", done, no, "--json") == 1
    shown = [json.loads(one) for one in line.said.out.splitlines()]
    assert [(one["id"], one["state"], one["error"]) for one in shown] == [
        (done, "completed", None),
        (no, "failed", "no such host"),
    ]
    assert line.code("task", "wait", enqueued(line, queue), "--timeout", "10ms") == 6


def test_a_wait_that_ends_too_early_says_what_the_task_waits_for(line: Line, queue: str) -> None:
    """It names the missing worker, the paused queue, or the next retry with its number and reason."""
    task = enqueued(line, queue)
    assert line.code("task", "wait", task, "--timeout", "10ms") == 6
    why = f"task {task} is ready after 10 ms: no worker (that has a free slot )?asks for queue {queue!r}"
    assert re.search(why, line.said.err)  # workers of other tests may have no free slot
    line.code("queue", "pause", queue)
    assert line.code("task", "wait", task, "--timeout", "10ms") == 6
    assert f"queue {queue!r} is paused" in line.said.err and f"onyxq queue resume {queue}" in line.said.err
    line.code("queue", "resume", queue)
    (claim,) = line.json("task", "claim", queue, "--wait", "20s")["claims"]
    assert line.code("task", "wait", task, "--timeout", "10ms") == 6
    assert "has run attempt 1 for" in line.said.err
    fail = ["task", "fail", task, "--token", str(claim["token"]), "--error", "ValueError: no", "--retry-in", "1h"]
    assert line.code(*fail) == 0
    assert line.code("task", "wait", task, "--timeout", "200ms") == 6
    assert re.search(r"attempt 1 failed: ValueError: no; retry 1 of 25 in \d+ min", line.said.err)
    assert re.search(r"is scheduled after 200 ms: retry 1 of 25 in \d+ min: ValueError: no", line.said.err)


def test_a_wait_names_the_worker_that_stopped_answering(line: Line, queue: str) -> None:
    """Its lease ends, and the attempt counts although it reported no failure."""
    task = enqueued(line, queue)
    line.json("task", "claim", queue, "--wait", "20s", "--lease", "1s", "--worker", "vm:7")
    assert line.code("task", "wait", task, "--timeout", "4s") == 6
    assert "attempt 1 failed: worker vm:7 stopped answering, and its lease ended" in line.said.err


@pytest.mark.parametrize(
    ("words", "call"),
    [
        (["add", "1", "b=2"], {"args": [1], "kwargs": {"b": 2}}),
        (["greet", "42"], {"args": ["42"], "kwargs": {}}),
        (["greet", "--data", '{"name": "ann"}'], {"args": [], "kwargs": {"name": "ann"}}),
    ],
    ids=["by place and by name", "a text that looks like a number", "as JSON"],
)
def test_a_call_is_enqueued(line: Line, queue: str, module: str, words: list[str], call: Any) -> None:
    """Words become the function's arguments; ``--connect`` takes precedence over the address in the program."""
    found = line.json("task", "call", f"{module}:{words[0]}", *words[1:])
    task = line.json("task", "get", found["id"])
    assert (task["queue"], task["data"]) == (queue, {"task": words[0], **call})


def test_a_call_that_fits_no_function_is_refused(line: Line, module: str) -> None:
    """Arguments are checked before anything is sent; a misspelt function or name of an argument is suggested."""
    assert line.code("task", "call", f"{module}:add", "x") == 2
    assert "argument 'a' must be int, not str" in line.said.err
    assert line.code("task", "call", f"{module}:gret", "x") == 2
    assert "did you mean greet?" in line.said.err
    assert line.code("task", "call", f"{module}:greet", "nane=ann") == 2
    assert "there is no argument 'nane'; did you mean name?" in line.said.err


def test_a_purge_cancels_what_is_not_finished(line: Line, queue: str) -> None:
    """Ready and later tasks are cancelled after --yes; claimed and finished ones, and other queues, stay."""
    claimed, other = enqueued(line, queue), enqueued(line, f"{queue}-other")
    line.json("task", "claim", queue, "--wait", "20s")
    ready, later = enqueued(line, queue), enqueued(line, queue, "--delay", "1h")
    assert line.code("queue", "purge", queue) == 2
    assert "2 tasks" in line.said.err and line.json("task", "get", ready)["state"] == "ready"
    assert line.json("queue", "purge", queue, "--yes") == {"queue": queue, "count": 2}
    states = [line.json("task", "get", one)["state"] for one in (ready, later, claimed, other)]
    assert states == ["cancelled", "cancelled", "claimed", "ready"]


@pytest.mark.long
@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_clients_purge_a_queue(kind: type, cluster: str, queue: str) -> None:
    """All requests that it takes; the claimed task stays."""
    with Client(cluster) as client:
        [claimed] = client.enqueue_many(queue, [b"claimed"])
        client.claim([queue], wait_ms=20_000)
        ids = client.enqueue_many(queue, [b""] * 10_010)
        if kind is Client:
            assert client.purge_queue(queue) == len(ids)
        else:
            assert anyio.run(_purged, cluster, queue) == len(ids)
        assert client.count(queue)[queue]["cancelled"] == len(ids)
        assert client.get(claimed).state == "claimed"


async def _purged(cluster: str, queue: str) -> int:
    async with AsyncClient(cluster) as client:
        return await client.purge_queue(queue)


def test_lists_show_when_and_how_often(line: Line, queue: str) -> None:
    """A task that failed for good in its second attempt, among the tasks and among the dead letters."""
    enqueued(line, queue, "--retries", "1", "--backoff", "10ms")
    for _ in range(2):
        [claim] = line.json("task", "claim", queue, "--wait", "20s")["claims"]
        line.json("task", "fail", claim["task"]["id"], "--token", str(claim["token"]), "--error", "no such host")
    for listed, columns in (
        (("task", "list"), "id queue state attempt created at duration data"),
        (("dead", "list"), "id queue attempt created finished error data"),
    ):
        assert line.code(*listed, "--queue", queue) == 0
        head, row = line.said.out.splitlines()
        assert head.split() == columns.split()
        assert "  2 of 2  " in row, row


def test_a_task_tells_the_whole_time_from_that_of_its_last_attempt(line: Line, queue: str) -> None:
    """The pauses between attempts are in the whole time only. A task with one attempt has one duration."""
    enqueued(line, queue, "--retries", "1", "--backoff", "10ms")
    for attempts in (1, 2):
        [claim] = line.json("task", "claim", queue, "--wait", "20s")["claims"]
        task, token = claim["task"]["id"], str(claim["token"])
        line.json("task", "fail", task, "--token", token, "--error", "no such host")
        assert line.code("task", "get", task) == 0
        durations = [one for one in line.said.out.splitlines() if one.startswith("duration ")]
        assert [one.endswith(" in the last attempt") for one in durations] == [True] * (attempts - 1)
    assert " from the first start to the end, " in durations[0]


def test_workers_are_listed(line: Line, queue: str) -> None:
    """A worker that holds a claim is shown with it."""
    enqueued(line, queue)
    line.json("task", "claim", queue, "--worker", f"me-{queue}", "--wait", "20s")
    workers = {one["worker"]: one["claimed"] for one in line.json("worker", "list")["workers"]}
    assert workers[f"me-{queue}"] == 1


def test_top_shows_queues_and_workers_once_where_there_is_no_terminal(line: Line, queue: str) -> None:
    """A pipe gets one look, for people or as JSON."""
    enqueued(line, queue)
    found = line.json("top")
    assert {"cluster", "queues", "workers", "events"} <= set(found)
    assert line.code("top") == 0
    assert "cluster main" in line.said.out


def test_a_watched_list_is_printed_again(line: Line, cluster: str, queue: str) -> None:
    """--watch prints it until Ctrl-C, as JSON one look a line, and exits with 0."""
    watch = ("task", "list", "--queue", queue, "--watch", "--every", "100ms", "--json", "--connect", cluster)
    with started(*watch) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["tasks"] == []
        task = enqueued(line, queue)
        looks = (json.loads(one)["tasks"] for one in process.stdout)
        assert next(found for found in looks if found)[0]["id"] == task
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=20)
        assert process.returncode == 0, said


def test_watch_and_all_exclude_each_other(line: Line) -> None:
    """A stream that is printed again and again is of no use."""
    assert line.code("task", "list", "--watch", "--all") == 2
