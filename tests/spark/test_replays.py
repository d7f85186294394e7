"""Jobs on real Spark that read again what another job has read, or could not process, or continue its work."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from onyxq import Client
from onyxq.errors import TimedOut
from onyxq.jobs.model import Function, Input, Job, Output, Reduce, Trigger, Window
from onyxq.spark.session import descendants
from tests.interfaces.live_world import running
from tests.spark.job_world import HERE

pytestmark = pytest.mark.long

JOB_S_MAX = 400
LOOK_MS = 200


@pytest.fixture(scope="module")
def client(java: None) -> Iterator[Client]:
    """A client of one peer that hosts Spark."""
    with running(slots=2) as cluster, Client(cluster.addresses[0]) as found:
        yield found


def host() -> int:
    """Return the process id of the peer's host."""
    commands = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in descendants(os.getpid())}
    return next(pid for pid, command in commands.items() if b"onyxq.spark.host\0" in command)


def read_in_order(folder: Path, *texts: str) -> None:
    """Write files, each older than the next."""
    folder.mkdir()
    for number, text in enumerate(texts):
        file = folder / f"{number}.txt"
        file.write_text(text)
        os.utime(file, (1_000 + number, 1_000 + number))


def test_a_completed_job_is_replayed_from_one_of_its_batches(client: Client, tmp_path: Path) -> None:
    """Each batch read one file. The replay reads the files of the later two, and counts in empty windows."""
    read_in_order(tmp_path / "in", *(f"line of {number}\n" * 10**number for number in range(3)))
    job = Job(
        id="lines",
        workflow=[("in", "count"), ("count", "counts")],
        catalog=[
            Input("in", format="text", path=str(tmp_path / "in"), options={"maxFilesPerTrigger": "1"}),
            Reduce("count"),
            Output("counts", queue="counts"),
        ],
        windows=[Window("all", "count", aggregation="count")],
        triggers=[Trigger("all")],
        key_groups=2,
    )
    client.submit_job(job)
    assert client.wait_job("lines", JOB_S_MAX * 1_000).error == ""
    again = client.replay_job("lines", from_batch=1, outputs={"counts": "again"})
    assert client.wait_job(again, JOB_S_MAX * 1_000).error == ""
    found = {queue: [json.loads(task.data)["value"] for task in client.list_all(queue)]
             for queue in ("counts", "again")}  # fmt: skip
    assert found == {"counts": [111], "again": [110]}


def visits(folder: Path, name: str, **more: Any) -> Job:
    """Return a job that counts visits by user, and gives each to another output; it runs until its input is sealed."""
    return Job(
        id=name,
        workflow=[("in", "count"), ("count", "counts"), ("in", "seen")],
        catalog=[
            Input("in", format="json", path=str(folder / "in"), schema="user string", bounded=False),
            Reduce("count"),
            Output("counts", queue=f"counts of {name}"),
            Output("seen", queue=f"seen by {name}"),
        ],
        windows=[Window("all", "count", key="user", aggregation="count")],
        triggers=[Trigger("all")],
        key_groups=2,
        checkpoint=str(folder / "checkpoints"),
        **more,
    )


def until(client: Client, job: str, condition: Callable[[], bool]) -> None:
    """Wait until something is so, while a job runs."""
    for _ in range(JOB_S_MAX * 1_000 // LOOK_MS):
        if condition():
            return
        with suppress(TimedOut):
            pytest.fail(f"{job} has ended: {client.wait_job(job, LOOK_MS)}")
    pytest.fail(f"{job} is {client.job(job)}")


def users(client: Client, queue: str) -> Counter[str]:
    """Count the tasks of a queue by user."""
    return Counter(json.loads(task.data)["user"] for task in client.list_all(queue))


def test_a_job_begins_from_a_savepoint_of_a_job_that_is_gone(client: Client, tmp_path: Path) -> None:
    """It counts the visits before the savepoint from its state, and reads each later one once.

    The first job went through more batches after the savepoint, was killed, and its checkpoint is gone.
    """
    parts = [["a", "b", "a"], ["b", "c"], ["c", "c", "a"]]

    def arrive(number: int) -> None:
        (tmp_path / "in").mkdir(exist_ok=True)
        part = tmp_path / f"{number}.part"
        part.write_text("".join(json.dumps({"user": user}) + "\n" for user in parts[number]))
        part.rename(tmp_path / "in" / f"{number}.json")

    arrive(0)
    client.submit_job(visits(tmp_path, "first"))
    until(client, "first", lambda: users(client, "seen by first").total() == 3)
    saved = client.savepoint_job("first", "before", JOB_S_MAX * 1_000)
    assert saved["state"] == "complete" and saved["size_bytes"] > 0
    arrive(1)
    until(client, "first", lambda: users(client, "seen by first").total() == 5)
    assert client.job("first")["batch"] > saved["batch"]
    client.kill_job("first")
    (tmp_path / "checkpoints" / "first").rename(tmp_path / "aside")  # its query may still be stopping
    client.submit_job(visits(tmp_path, "second", resume="savepoint:before"))
    arrive(2)
    until(client, "second", lambda: users(client, "seen by second").total() == 5)
    client.seal_job("second", "in")
    assert client.wait_job("second", JOB_S_MAX * 1_000).error == ""
    assert users(client, "seen by second") == Counter(parts[1] + parts[2])
    counts = [json.loads(task.data) for task in client.list_all("counts of second")]
    assert {one["key"]: one["value"] for one in counts} == Counter(parts[0] + parts[1] + parts[2]) and len(counts) == 3
    client.delete_savepoint("before")
    assert client.savepoints() == []


def test_dead_letters_of_functions_windows_and_outputs_go_again(client: Client, tmp_path: Path) -> None:
    """The host is killed at the commit of the first batch, and each letter exists once.

    The next job processes what was mended meanwhile, and keeps what was not.
    """
    first = [{"at": 1}, {"at": 25, "fail": True}, {"at": 26}]
    read_in_order(tmp_path / "in", "\n".join(map(json.dumps, first)), json.dumps({"at": 2}))
    job = Job(
        id="letters",
        workflow=[("in", "f"), ("f", "lines"), ("f", "sums"), ("sums", "counts")],
        catalog=[
            Input("in", format="json", path=str(tmp_path / "in"), schema="at bigint, fail boolean",
                  options={"maxFilesPerTrigger": "1"}),
            Function("f", f"{HERE}:unless_mended", {"flag": str(tmp_path / "mended")}),
            Reduce("sums"),
            Output("lines", format="text", path=str(tmp_path / "lines")),
            Output("counts", queue="window-counts"),
        ],
        windows=[Window("w", "sums", "fixed", range_ms=10, time="at", aggregation="count")],
        triggers=[Trigger("w")],
        key_groups=2,
        dead_letters=True,
    )  # fmt: skip
    client.submit_job(job)
    while client.job("letters")["batch"] is None:
        with suppress(TimedOut):
            client.wait_job("letters", 100)
    os.kill(host(), signal.SIGKILL)
    assert client.wait_job("letters", JOB_S_MAX * 1_000).error == ""
    # Lines of text are strings, and the function ran once for the output and once for the window.
    counts = client.job_letters("letters", count=True)["counts"]
    assert [(one["task"], one["error"], one["count"]) for one in counts] == [
        ("f", "ValueError", 2), ("lines", "BadRequest", 3), ("sums", "Late", 1),
    ]  # fmt: skip
    (late,) = client.job_letters("letters", task="sums")["letters"]
    assert (late["time_ms"], late["watermark_ms"], json.loads(late["segment"])["at"]) == (2, 26, 2)

    (tmp_path / "mended").touch()
    again = client.requeue_job("letters", task="f")
    assert client.wait_job(again["id"], JOB_S_MAX * 1_000).error == ""
    assert again["count"] == 2 and client.requeue_job("letters", task="f")["id"] is None
    found = [json.loads(task.data) for task in client.list_all("window-counts")]
    assert sorted((one["start_ms"], one["value"]) for one in found) == [(0, 1), (20, 1), (20, 1)]
    (refused,) = client.job_letters(again["id"])["letters"]
    assert (refused["task"], refused["attempt"], json.loads(refused["segment"])["at"]) == ("lines", 2, 25)
