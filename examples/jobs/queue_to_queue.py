"""Queue to queue, exactly once although Spark is killed: the functions and classes of Python's library.

    python examples/jobs/queue_to_queue.py

The job::

    lines -> definitions -> functions    a task for each function that a line defines
                         -> classes      a task for each class; those of a file in their order

A batch claims tasks of ``lines``. Its results are visible only once a single log entry completes
these tasks. So the process that runs the job may be killed at any time, with ``kill -9``. Its peer
starts another process, which continues after the last committed batch. Nothing is lost and nothing
comes twice.

A queue does not end on its own. It is sealed once no more tasks will come, and then the job
completes.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from typing import Any

import running

from onyxq import Client, Condition, Function, Input, Job, Output, Predicate, api

PACKAGES = ("asyncio", "email", "json", "logging")
DEFINITION = re.compile(r"\s*(?:async )?(def|class) (\w+)")


def definitions(line: dict[str, Any]) -> dict[str, Any] | None:
    """Return the definition in a line; None, and so no segment, if it has none."""
    found = DEFINITION.match(line["text"])
    if found is None:
        return None
    return {"kind": found[1], "name": found[2], "file": line["file"], "line": line["line"]}


def is_of(definition: dict[str, Any], kind: str) -> bool:
    """Return a condition that is true for a ``def`` or a ``class``."""
    return bool(definition["kind"] == kind)


def queue_to_queue() -> Job:
    """Return the job, from one queue to two."""
    return Job(
        id="queue-to-queue",
        workflow=[("lines", "definitions"), ("definitions", "functions"), ("definitions", "classes")],
        catalog=[
            Input("lines", queue="lines", max_rows=2_000),
            Function("definitions", definitions),
            Output("functions", queue="functions"),
            Output("classes", queue="classes", ordering_key="file"),
        ],
        flow_conditions=[
            Condition("definitions", to=["functions"], when=Predicate(is_of, {"kind": "def"})),
            Condition("definitions", to=["classes"], when=Predicate(is_of, {"kind": "class"})),
        ],
    )


def lines_to_read() -> list[dict[str, Any]]:
    """Return the input: each line of some packages."""
    return [
        {"file": f"{package}/{file.name}", "line": number, "text": text}
        for package in PACKAGES
        for file in running.library(package)
        for number, text in enumerate(file.read_text("utf-8").splitlines(), start=1)
    ]


def kill_spark(job_id: str, cluster: running.Cluster) -> None:
    """Kill the job's process once a batch is committed."""
    deadline = time.monotonic() + running.JOB_S_MAX
    while (job := api.job(job_id, cluster.address))["batch"] is None:
        if job["state"] == "failed" or time.monotonic() > deadline:
            raise running.Failed(f"there is no batch: the job is {job['state']}: {job['error']}")
        time.sleep(0.1)
    os.kill(cluster.host(), signal.SIGKILL)
    print(f"job {job_id}: batch {job['batch']} is committed, Spark's process is killed")


def found_in(client: Client, queue: str) -> list[tuple[Any, ...]]:
    """Return the definitions that are in a queue."""
    return [_row(json.loads(task.data)) for task in client.list_all(queue)]


def _row(definition: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(definition[name] for name in ("kind", "name", "file", "line"))


def main() -> None:
    """Run the job while lines are enqueued and Spark is killed, and compare with the definitions found here."""
    lines = lines_to_read()
    half = len(lines) // 2
    job = queue_to_queue()
    with (
        running.folder() as folder,
        running.local_cluster(folder / "peer") as cluster,
        Client(cluster.address) as client,
    ):
        began = time.monotonic()
        client.enqueue_many("lines", [json.dumps(line).encode() for line in lines[:half]], format="json")
        api.submit(job, cluster.address)
        print(f"job {job.id}: submitted to {cluster.address}, where Spark is started for it")
        kill_spark(job.id, cluster)
        client.enqueue_many("lines", [json.dumps(line).encode() for line in lines[half:]], format="json")
        api.seal(job.id, "lines", cluster.address)
        running.completed(api.wait(job.id, cluster.address, timeout=running.JOB_S_MAX))
        print(f"job {job.id}: completed after {time.monotonic() - began:.1f} s, two starts of Spark included")
        functions, classes = found_in(client, "functions"), found_in(client, "classes")
        states = client.count("lines")["lines"]

    print(f"{len(lines):,} lines in the queue")
    wanted = [
        (match[1], match[2], line["file"], line["line"])
        for line in lines
        if (match := re.match(r"\s*(?:async )?(def|class) (\w+)", line["text"]))
    ]
    running.check("functions", functions, (one for one in wanted if one[0] == "def"))
    running.check("classes", classes, (one for one in wanted if one[0] == "class"))
    running.check_number("completed tasks of the input", states["completed"], len(lines))


if __name__ == "__main__":
    running.main(main)
