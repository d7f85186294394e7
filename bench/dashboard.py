"""Measures the milliseconds of the dashboard's pages, with many queues and tasks.

One peer with an embedded log runs as a process. Pages are requested one after the other over one
connection. Run it from the project's root: ``python -m bench.dashboard --queues 10000 --tasks
1000000``.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from bench.common import cpu_seconds, emit, machine, percentiles, progress
from onyxq.client import Client
from onyxq.jobs.encoding import encode_map, from_map, to_map

FAILED_QUEUES = 20
"""Queues in which a task fails for good, so that there are dead letters."""
FAILED = 20
TIMERS, PERIODIC, JOBS = 5_000, 200, 200
"""Numbers of other things that have a list of their own."""
PAYLOAD = json.dumps({"to": "somebody@example.com", "text": "x" * 100}).encode()


def main() -> None:
    """Measure and print the JSON document."""
    options = _options()
    with _peer() as (pid, address, base):
        started = time.perf_counter()
        sample = _fill(address, queues=options.queues, tasks=options.tasks)
        progress(f"filled in {time.perf_counter() - started:.0f} s")
        with httpx.Client(base_url=base, timeout=60, trust_env=False) as http:
            pages = {path: _page(http, path, options.times, pid) for path in _paths(http, sample)}
    settings = {"queues": options.queues, "tasks": options.tasks, "times": options.times, "peers": 1}
    worst = max(pages, key=lambda path: pages[path]["p99_ms"])
    emit({"benchmark": "dashboard", "machine": machine(), "settings": settings, "worst": worst, "pages": pages})


def _options() -> argparse.Namespace:
    made = argparse.ArgumentParser(description="Milliseconds that the pages of the dashboard take.")
    made.add_argument("--queues", type=int, default=10_000)
    made.add_argument("--tasks", type=int, default=1_000_000, help="tasks in all queues together")
    made.add_argument("--times", type=int, default=10, help="requests of each page")
    return made.parse_args()


@contextmanager
def _peer() -> Iterator[tuple[int, str, str]]:
    """Start a peer; return its process, its address and the address of its pages."""
    data = tempfile.mkdtemp(prefix="onyxq-bench-")
    command = [sys.executable, "-m", "onyxq", "peer", "start", "--json", "--data", data]
    command += ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        yield process.pid, said["listen"], f"http://{said['http']}"
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(data)


def _fill(address: str, *, queues: int, tasks: int) -> str:
    """Enqueue, claim some tasks and fail some; return the id of a claimed task."""
    each = max(1, tasks // queues)
    with Client(address) as client:
        for number in range(queues):
            client.enqueue_many(f"queue-{number:05}", [PAYLOAD] * each, retries=0)
            if number % 1_000 == 999:
                progress(f"{number + 1} queues")
        _fill_others(client)
        claimed = ""
        for number in range(FAILED_QUEUES):
            claims = client.claim(f"queue-{number:05}", max=2 * FAILED, lease_ms=600_000, wait_ms=10_000)
            client.fail(claims[: len(claims) // 2], "it broke")
            claimed = claims[-1].id.hex()
    return claimed


def _fill_others(client: Client) -> None:
    """Set timers, periodic tasks that run every minute, and jobs that wait for a host of Spark."""
    progress("timers, periodic tasks and jobs")
    for number in range(TIMERS):
        client.set_timer(f"order-{number}", 3_600_000 + number, "http://127.0.0.1:9/remind", {"order": number})
    for number in range(PERIODIC):
        client.set_periodic(f"report-{number}", "reports", "every 1m" if number < 100 else "30 3 * * mon-fri")
    job = {"workflow": [["in", "out"]]}
    catalog = [{"type": "input", "name": "in", "queue": "queue-00001"}, {"type": "output", "name": "out", "queue": "b"}]
    for number in range(JOBS):
        body = encode_map(to_map(from_map({**job, "catalog": catalog, "id": f"job-{number}"})))
        client.call("job.submit", {"body": body})


def _paths(http: httpx.Client, sample: str) -> list[str]:
    """Return the paths of all pages, lists also from their middle, and the end of the log.

    The first request for the end of the log has to step through all of it.
    """
    last = http.get("/v1/cluster").json()["position"]
    return [
        "/",
        "/ui/queues",
        "/ui/queues?order=oldest&skip=5000",
        "/ui/queues?like=77",
        "/ui/queue?name=queue-00007",
        "/ui/tasks",
        "/ui/tasks?queue=queue-07777&state=ready",
        "/ui/tasks?state=claimed",
        "/ui/tasks?state=completed",
        f"/ui/tasks?after={sample}",
        f"/ui/tasks/{sample}",
        "/ui/tasks?state=failed",
        "/ui/tasks?state=failed&queue=queue-00007&where=broke",
        "/ui/tasks?where=nowhere",
        "/ui/workers",
        "/ui/timers",
        "/ui/timers?where=order-4321",
        "/ui/timers?state=fired",
        "/ui/periodic",
        "/ui/flows",
        "/ui/jobs",
        "/ui/job?id=job-7",
        "/ui/cluster",
        "/ui/settings",
        "/ui/rates",
        "/ui/log",
        f"/ui/log?at={last // 2}",
        f"/ui/log?at={last // 3}",
    ]


def _page(http: httpx.Client, path: str, times: int, pid: int) -> dict[str, Any]:
    """Return the time of the first request and of later ones, the peer's processor time, and the page's size."""
    progress(path)
    took = []
    size = 0
    started = time.perf_counter()
    http.get(path).raise_for_status()
    first_ms = round((time.perf_counter() - started) * 1000, 3)
    used_s = cpu_seconds([pid])
    for _ in range(times):
        started = time.perf_counter()
        answer = http.get(path)
        took.append(time.perf_counter() - started)
        answer.raise_for_status()
        size = len(answer.content)
    cpu_ms = round((cpu_seconds([pid]) - used_s) * 1000 / times, 1)
    return {"first_ms": first_ms, **percentiles(took), "cpu_ms": cpu_ms, "bytes": size}


if __name__ == "__main__":
    main()
