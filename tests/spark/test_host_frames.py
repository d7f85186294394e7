"""A job with frame tasks whose host is killed during a batch: windows and rows are exact, in a queue and in files."""

from __future__ import annotations

import base64
import json
import os
import signal
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from log_entries import set_slots, submit_job
from onyxq import Function, Input, Job, Output, Reduce, Sql, Trigger, Window
from onyxq.core.entry import APPLIED
from onyxq.jobs.encoding import decode, digest, encode
from tests.interfaces.batches_world import JobsCluster, jobs_cluster
from tests.spark.host_world import PATIENCE_S, HostProcess, gone, host_process
from tests.spark.job_world import HERE, written

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("java")]

FILES, ROWS = 5, 40
"""Number of files (a batch reads one), and number of rows in each (one a minute)."""
HELD = 3 * ROWS + 7
"""The row at which the host is killed."""
MINUTES = """
select cast(window.start as string) as began, user, count(*) as n from orders group by window(at, '10 minutes'), user
"""


def orders_in(folder: Path) -> list[dict[str, Any]]:
    """Write all files, in the order of their times; return the rows."""
    folder.mkdir()
    rows = []
    for number in range(FILES * ROWS):
        at = f"2027-01-01T{number // 60:02d}:{number % 60:02d}:00Z"
        rows.append({"id": number, "user": f"u{number * number % 7}", "at": at})
    for part in range(FILES):
        file = folder / f"{part}.json"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows[part * ROWS : part * ROWS + ROWS]))
        os.utime(file, (1_000_000 + part, 1_000_000 + part))
    return rows


def watched(folder: Path) -> Job:
    """Return the job; its function holds a row of the fourth batch."""
    return Job(
        id="watched",
        workflow=[
            *(("orders", "minutes"), ("minutes", "files"), ("minutes", "queue")),
            *(("orders", "some"), ("some", "hold"), ("hold", "rows")),
        ],
        catalog=[
            Input(
                *("orders", None, "json", str(folder / "in"), {"maxFilesPerTrigger": "1"}),
                schema="id long, user string, at timestamp",
                time="at",
                watermark_ms=60_000,
            ),
            Sql("minutes", MINUTES),
            Sql("some", "select id, user from orders where user <> 'u0'"),
            Function("hold", f"{HERE}:hold_at", {"id": HELD, "folder": str(folder)}),
            Output("files", format="parquet", path=str(folder / "files")),
            Output("queue", queue="minutes"),
            Output("rows", queue="rows"),
        ],
        key_groups=2,
    )


def drive(host: HostProcess, cluster: JobsCluster, job: Job) -> None:
    """Order the job as it is in the log."""
    known = cluster.job(job.id)
    body, offsets = (base64.b64encode(data).decode() for data in (encode(job), known.offsets))
    more: dict[str, Any] = {"batch": known.batch, "offsets": offsets, "sealed": list(known.sealed)}
    host.order("start", job.id, known.version, body=body, slots=2, **more)


def submitted(cluster: JobsCluster, job: Job) -> None:
    """Let the log have the job, with one of the peers as its driver."""
    body = encode(job)
    cluster.append(*(set_slots.Args(peer, 8) for peer in sorted(cluster.replica.ring.members)))
    entry = submit_job.Args(job.id, body, digest(body), "balanced", 0, 1, 1, (), (), "", (), (), False, 60_000)
    assert cluster.append(entry) == [APPLIED]


def test_windows_and_rows_are_exact_although_the_host_is_killed_in_a_batch(tmp_path: Path) -> None:
    """The next driver continues from the committed batch and its state; the end of the inputs ends all windows."""
    job, rows = watched(tmp_path), orders_in(tmp_path / "in")
    assert rows[HELD]["user"] != "u0"
    with jobs_cluster(peers=2, partitions=4) as cluster:
        submitted(cluster, job)
        with host_process(tmp_path, connect=cluster.connect) as host:
            drive(host, cluster, job)
            deadline = time.monotonic() + 5 * PATIENCE_S
            while not (tmp_path / "held").exists():
                assert host.process.poll() is None and time.monotonic() < deadline
                time.sleep(0.05)
            family = host.family()
            for pid in [host.process.pid, *family]:
                with suppress(ProcessLookupError):  # children end with the host
                    os.kill(pid, signal.SIGKILL)
            assert gone(family, PATIENCE_S)
        (tmp_path / "go").touch()
        before = cluster.take_over(job.id)
        assert before.batch >= 1, "batches were committed before"
        with host_process(tmp_path, connect=cluster.connect) as host:
            drive(host, cluster, job)
            last = host.event("completed", "failed", job=job.id)
            assert last["event"] == "completed", last
        with cluster.client() as client:
            queued = [json.loads(task.data) for task in client.list_all("minutes")]
            some = Counter(json.loads(task.data)["id"] for task in client.list_all("rows"))
    assert some == Counter(row["id"] for row in rows if row["user"] != "u0")
    wanted = Counter((row["at"][:15].replace("T", " ") + "0:00", row["user"]) for row in rows)
    for found in (written(tmp_path / "files", "parquet"), queued):
        assert Counter((one["began"], one["user"]) for one in found) == Counter(wanted.keys())
        assert {(one["began"], one["user"]): one["n"] for one in found} == wanted


def test_rows_of_a_query_at_which_a_function_fails_are_dead_letters_and_go_again(tmp_path: Path) -> None:
    """The job that sends them runs without the query. Together both jobs have counted each row once."""
    rows, until = orders_in(tmp_path / "in"), tmp_path / "mended"
    job = Job(
        id="lettered",
        workflow=[
            *(("orders", "some"), ("some", "spoilt"), ("spoilt", "rows"), ("spoilt", "count"), ("count", "counts")),
            *(("orders", "broken"), ("broken", "lines")),
        ],
        catalog=[
            Input("orders", format="json", path=str(tmp_path / "in"), schema="id long, user string"),
            Sql("some", "select id, user from orders where user <> 'u0'"),
            Sql("broken", "select concat(user, if(id < 3, '\\n', '')) as value from orders"),
            Function("spoilt", f"{HERE}:spoilt", {"every": 5, "until": str(until)}),
            Reduce("count"),
            Output("rows", queue="rows"),
            Output("counts", queue="counts"),
            Output("lines", format="text", path=str(tmp_path / "lines")),
        ],
        windows=[Window("all", "count", aggregation="count")],
        triggers=[Trigger("all")],
        key_groups=2,
        dead_letters=True,
    )
    wanted = [row["id"] for row in rows if row["user"] != "u0"]
    with jobs_cluster(peers=1, partitions=4) as cluster, cluster.client() as client:
        submitted(cluster, job)
        with host_process(tmp_path, connect=cluster.connect) as host:
            drive(host, cluster, job)
            assert host.event("completed", "failed", job=job.id)["event"] == "completed"
            refused = client.job_letters("lettered", task="lines")["letters"]
            assert sorted(json.loads(one["segment"])["value"] for one in refused) == ["u0\n", "u1\n", "u4\n"]
            assert len(written(tmp_path / "lines", "text")) == len(rows) - 3
            letters = client.job_letters("lettered", task="spoilt", limit=1_000)["letters"]
            ways = Counter(json.loads(one["segment"])["id"] for one in letters)
            assert ways == {number: 2 for number in wanted if number % 5 == 0}, "one on each way"
            until.touch()
            again = client.requeue_job("lettered", task="spoilt")
            drive(host, cluster, decode(cluster.job(again["id"]).body))
            assert host.event("completed", "failed", job=again["id"])["event"] == "completed"
        assert sorted(json.loads(task.data)["id"] for task in client.list_all("rows")) == wanted
        counts = [json.loads(task.data)["value"] for task in client.list_all("counts")]
        assert (len(counts), sum(counts)) == (2, len(wanted))
