"""Jobs from queues to queues and files on a host: every batch is committed once, whatever is repeated."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from log_entries import set_slots, submit_job
from onyxq.client import Client
from onyxq.core.entry import APPLIED
from onyxq.jobs.encoding import digest, encode
from onyxq.jobs.model import Function, Input, Job, Output
from tests.interfaces.batches_world import JobsCluster, jobs_cluster
from tests.spark.host_world import HostProcess, host_process
from tests.spark.job_world import HERE, written

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("java")]


@pytest.fixture(scope="module")
def cluster() -> Iterator[JobsCluster]:
    """Three nodes; the tests act as drivers of its jobs."""
    with jobs_cluster() as found:
        found.append(*(set_slots.Args(peer, 8) for peer in sorted(found.replica.ring.members)))
        yield found


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of hosts and their checkpoints."""
    return tmp_path_factory.mktemp("work")


@pytest.fixture(scope="module")
def host(java: None, cluster: JobsCluster, work: Path) -> Iterator[HostProcess]:
    """A host beside one of the peers."""
    with host_process(work, connect=cluster.connect) as found:
        found.event("up")
        yield found


def submitted(cluster: JobsCluster, name: str, folder: Path) -> tuple[Job, bytes]:
    """Submit a job: the numbers of a queue, and the one after each, to a queue and to files."""
    job = Job(
        id=name,
        workflow=[("in", "f"), ("f", "queue"), ("f", "files")],
        catalog=[
            Input("in", queue=f"{name}-in"),
            Function("f", f"{HERE}:more"),
            Output("queue", queue=f"{name}-out"),
            Output("files", format="json", path=str(folder / "files")),
        ],
    )
    body = encode(job)
    submission = submit_job.Args(name, body, digest(body), "balanced", 0, 1, 1, (), (), "", ("in",), (), False, 60_000)
    assert cluster.append(submission) == [APPLIED]
    return job, body


def drive(host: HostProcess, cluster: JobsCluster, name: str, body: bytes, *, sealed: tuple[str, ...] = ()) -> int:
    """Order the job as it is in the log; return its version."""
    known = cluster.job(name)
    host.order(
        "start",
        name,
        known.version,
        body=base64.b64encode(body).decode(),
        slots=1,
        batch=known.batch,
        offsets=base64.b64encode(known.offsets).decode(),
        sealed=list(sealed),
    )
    return known.version


def enqueue(client: Client, name: str, numbers: range) -> None:
    """Segments for a job."""
    client.enqueue_many(f"{name}-in", [b"%d" % number for number in numbers], format="json")


def image(numbers: range) -> list[int]:
    """Return the job's output for them."""
    return sorted(one for number in numbers for one in (number, number + 1))


def came_out(client: Client, name: str, folder: Path) -> tuple[list[Any], list[Any]]:
    """Return the contents of the queue and of the files."""
    queue = sorted(json.loads(task.data) for task in client.list_all(f"{name}-out"))
    return queue, sorted(written(folder / "files"))


def test_a_sealed_queue_is_worked_off_and_the_job_completed(
    host: HostProcess, cluster: JobsCluster, client: Client, tmp_path: Path
) -> None:
    """Each output is once in the queue and once in the files; the log has batch and offsets."""
    _, body = submitted(cluster, "whole", tmp_path)
    enqueue(client, "whole", range(700))
    version = drive(host, cluster, "whole", body)
    assert host.event("progress", "failed", job="whole")["event"] == "progress"
    enqueue(client, "whole", range(700, 900))
    host.order("seal", "whole", version, input="in")
    assert host.event("completed", "failed", job="whole")["event"] == "completed"
    assert came_out(client, "whole", tmp_path) == (image(range(900)), image(range(900)))
    assert client.count("whole-in")["whole-in"]["completed"] == 900
    assert cluster.job("whole").batch >= 1


def test_a_batch_that_the_log_has_and_spark_forgot_is_repeated_without_effect(
    host: HostProcess, cluster: JobsCluster, client: Client, tmp_path: Path, work: Path
) -> None:
    """Its tasks are read again although they are completed; then the job continues."""
    _, body = submitted(cluster, "again", tmp_path)
    enqueue(client, "again", range(300))
    version = drive(host, cluster, "again", body)
    assert host.event("progress", "failed", job="again")["event"] == "progress"
    host.order("stop", "again", version)
    host.event("stopped", job="again")
    last = cluster.job("again").batch
    for name in (str(last), f".{last}.crc"):
        (work / "checkpoints" / "again" / str(version) / "commits" / name).unlink()
    enqueue(client, "again", range(300, 500))
    drive(host, cluster, "again", body, sealed=("in",))
    found = host.event("completed", "failed", job="again")
    assert found["event"] == "completed", found
    assert came_out(client, "again", tmp_path) == (image(range(500)), image(range(500)))


def test_without_its_checkpoint_a_job_goes_on_from_the_log(
    host: HostProcess, cluster: JobsCluster, client: Client, tmp_path: Path, work: Path
) -> None:
    """It continues as on a new peer; files of the last batch that were not visible yet become so."""
    _, body = submitted(cluster, "afresh", tmp_path)
    enqueue(client, "afresh", range(300))
    version = drive(host, cluster, "afresh", body)
    assert host.event("progress", "failed", job="afresh")["event"] == "progress"
    host.order("stop", "afresh", version)
    host.event("stopped", job="afresh")
    first = cluster.job("afresh").batch
    shutil.rmtree(work / "checkpoints" / "afresh")
    enqueue(client, "afresh", range(300, 500))
    drive(host, cluster, "afresh", body, sealed=("in",))
    assert host.event("completed", "failed", job="afresh")["event"] == "completed"
    assert came_out(client, "afresh", tmp_path) == (image(range(500)), image(range(500)))
    assert cluster.job("afresh").batch > first


def test_a_driver_that_was_replaced_commits_nothing(
    host: HostProcess, cluster: JobsCluster, client: Client, tmp_path: Path
) -> None:
    """It commits neither tasks nor files; its successor gets its claimed tasks after their release."""
    _, body = submitted(cluster, "stale", tmp_path)
    drive(host, cluster, "stale", body)
    host.event("ready", job="stale")
    cluster.take_over("stale")
    enqueue(client, "stale", range(300))
    failed = host.event("failed", "progress", "completed", job="stale")
    assert (failed["event"], failed["code"]) == ("failed", "superseded")
    assert came_out(client, "stale", tmp_path) == ([], [])
    assert client.count("stale-in")["stale-in"]["completed"] == 0
