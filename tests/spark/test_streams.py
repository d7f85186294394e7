"""A stream of a user's own: several queues, parsed payloads, the backlog, and rows that fail one by one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onyxq.client import Client
from onyxq.spark.datasource import register
from tests.interfaces.batches_world import JobsCluster, jobs_cluster
from tests.spark.queue_world import END_S, state_counts

pytestmark = pytest.mark.long

TASKS, BAD = 40, 3
"""Tasks of each of two queues, and those whose payloads do not fit."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[JobsCluster]:
    """One node."""
    with jobs_cluster(peers=1, partitions=8) as found:
        yield found


def test_a_row_fails_and_the_batch_continues(spark: Any, cluster: JobsCluster, tmp_path: Path) -> None:
    """Bad payloads and failed rows are dead letters with their errors; every other task is completed once."""
    register(spark)
    said = {"connect": cluster.connect}
    with cluster.client() as client:
        for name in ("in-a", "in-b"):
            client.enqueue_many(name, [json.dumps({"n": n}).encode() for n in range(TASKS)], format="json")
        client.enqueue_many("in-b", [b'{"n": "none"}'] * BAD)
        client.enqueue("other", b'{"n": 1}')

        def work(batch: Any, _: int) -> None:
            failed = batch.where("n % 10 = 0").selectExpr("task", "'divisible: ' || n error")
            failed.write.format("onyxq").options(**said, fail="dead_letter").mode("append").save()
            good = batch.where("n % 10 <> 0").selectExpr("task.queue || ' ' || n payload", "lineage")
            good.write.format("onyxq").options(**said, queue="out").mode("append").save()

        stream = spark.readStream.format("onyxq").options(
            **said, queue="in-*", schema="n bigint", bad_rows="dead_letter", max_rows=1_000
        )
        query = stream.load().writeStream.foreachBatch(work).trigger(availableNow=True)
        query = query.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        assert query.awaitTermination(END_S), "the query did not end in time"
        reported = [json.loads(one["sources"][0]["latestOffset"]) for one in query.recentProgress]
        assert any("ready" in one for one in reported), reported
        wanted = sorted(f"{name} {n}".encode() for name in ("in-a", "in-b") for n in range(TASKS) if n % 10)
        assert sorted(claims(client, "out")) == wanted
        failed = TASKS // 10
        assert state_counts(client, "in-a", ("completed", "failed", "total")) == [TASKS - failed, failed, TASKS]
        counts = state_counts(client, "in-b", ("completed", "failed", "total"))
        assert counts == [TASKS - failed, failed + BAD, TASKS + BAD]
        assert state_counts(client, "other", ("ready",)) == [1]
        errors = [one.error or "" for one in client.list("in-b", state="failed", limit=100).tasks]
        assert sum("n: must be an integer" in one for one in errors) == BAD
        assert sorted(one for one in errors if "divisible" in one) == [f"divisible: {n}" for n in range(0, TASKS, 10)]


def claims(client: Client, queue: str) -> list[bytes]:
    """Return the payloads of a queue's ready tasks."""
    return [one.data for one in client.list(queue, state="ready", limit=1_000).tasks]
