"""A replay on real Spark, from the request to its outputs."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from onyxq import Client
from onyxq.jobs.model import Input, Job, Output, Reduce, Trigger, Window
from tests.interfaces.live_world import running

pytestmark = pytest.mark.long

JOB_S_MAX = 400


def test_a_completed_job_is_replayed_from_one_of_its_batches(java: None, tmp_path: Path) -> None:
    """Each batch read one file. The replay reads the files of the later two, and counts in empty windows."""
    (tmp_path / "in").mkdir()
    for number in range(3):
        file = tmp_path / "in" / f"{number}.txt"
        file.write_text(f"line of {number}\n" * 10**number)
        os.utime(file, (1_000 + number, 1_000 + number))
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
    with running(slots=2) as cluster, Client(cluster.addresses[0]) as client:
        client.submit_job(job)
        assert client.wait_job("lines", JOB_S_MAX * 1_000).error == ""
        again = client.replay_job("lines", from_batch=1, outputs={"counts": "again"})
        assert client.wait_job(again, JOB_S_MAX * 1_000).error == ""
        found = {queue: [json.loads(task.data)["value"] for task in client.list_all(queue)]
                 for queue in ("counts", "again")}  # fmt: skip
    assert found == {"counts": [111], "again": [110]}
