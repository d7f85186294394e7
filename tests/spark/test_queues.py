"""Queues as source and sink of Spark: each input becomes one output, whatever dies or is repeated or replaced."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from onyxq.client import Client
from tests.interfaces.batches_world import JobsCluster, jobs_cluster
from tests.spark.queue_world import Pipe, drained, filled, state_counts

pytestmark = pytest.mark.long


_names = count(1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[JobsCluster]:
    """One node for all tests of this module."""
    with jobs_cluster(peers=1, partitions=8) as found:
        yield found


@pytest.fixture(scope="module")
def pair() -> Iterator[JobsCluster]:
    """Two nodes, so that a job can be given another driver."""
    with jobs_cluster(peers=2, partitions=8) as found:
        yield found


def pipe(spark: Any, cluster: JobsCluster, folder: Path, between: Callable[[Any], None] | None = None) -> Pipe:
    """A query between two queues of its own."""
    name = f"q{next(_names)}"
    return Pipe(spark, cluster, cluster.start_job(), folder / "checkpoint", name, f"{name}-out", between=between)


def once(folder: Path, doing: Callable[[], None]) -> Callable[[Any], None]:
    """Do something at the first call by an executor."""
    mark = str(folder / "done once")

    def between(batch: Any) -> None:
        try:
            os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        doing()

    return between


# --- jobs ---------------------------------------------------------------------------------------


def test_each_task_becomes_one(spark: Any, cluster: JobsCluster, client: Client, tmp_path: Path) -> None:
    """It has as few runs as before; the input is completed with the batch, and the log has the job's progress."""
    one = pipe(spark, cluster, tmp_path)
    wanted = filled(client, one.source, 3_500)
    said = one.run(max_rows=2_000)
    assert [progress["numInputRows"] for progress in said if progress["numInputRows"]] == [2_000, 1_500]
    found, runs = drained(client, one.target)
    assert found == wanted and runs < 20
    assert state_counts(client, one.source, ("total", "completed")) == [3_500, 3_500]
    job = cluster.job(one.job.id)
    assert job.batch == 1 and b'"n": 2' in job.offsets and b'"claims": []' in job.offsets


def test_a_batch_that_spark_repeats_counts_once(
    spark: Any, cluster: JobsCluster, client: Client, tmp_path: Path
) -> None:
    """Its tasks are completed and read again; the next batch follows."""
    one = pipe(spark, cluster, tmp_path)
    wanted = filled(client, one.source, 1_200)
    one.run()
    last = one.uncommitted()
    wanted += filled(client, one.source, 300, start=1_200)
    one.run()
    assert drained(client, one.target)[0] == wanted
    assert cluster.job(one.job.id).batch == last + 1
    assert state_counts(client, one.source, ("completed",)) == [1_500]


def test_of_two_queues_one_may_have_nothing_new(
    spark: Any, cluster: JobsCluster, client: Client, tmp_path: Path
) -> None:
    """Its offsets in Spark were completed with an earlier batch."""
    one = pipe(spark, cluster, tmp_path)
    one.second = f"{one.source}-second"
    wanted = filled(client, one.source, 300) + filled(client, one.second, 200)
    one.run()
    for name in (one.second, one.source):
        wanted += filled(client, name, 100, start=1_000)
        one.run()
    assert drained(client, one.target)[0] == wanted
    for name, total in ((one.source, 400), (one.second, 300)):
        assert state_counts(client, name, ("total", "completed")) == [total, total]


def test_a_commit_that_raises_after_it_took_effect_counts(
    spark: Any, cluster: JobsCluster, client: Client, tmp_path: Path
) -> None:
    """The query fails; after a restart it finds that the batch was committed."""
    mark = str(tmp_path / "raised")

    def raising() -> type:
        from onyxq.spark.plan.outputs import Outputs, Routed

        class Writer(Routed):
            def commit(self, messages: list[Any], batchId: int) -> None:
                super().commit(messages, batchId)
                if not os.path.exists(mark):
                    open(mark, "w").close()
                    raise OSError("the answer was lost")

        class Raising(Outputs):
            @classmethod
            def name(cls) -> str:
                return "onyxq-raising"

            def streamWriter(self, schema: Any, overwrite: bool) -> Writer:
                made = super().streamWriter(schema, overwrite)
                return Writer(made._folders, made._options)

        return Raising

    spark.dataSource.register(raising())
    one = pipe(spark, cluster, tmp_path)
    one.sink = "onyxq-raising"
    wanted = filled(client, one.source, 800)
    assert "the answer was lost" in one.fail()
    assert cluster.job(one.job.id).batch == 0
    one.run()
    assert drained(client, one.target)[0] == wanted
    assert cluster.job(one.job.id).batch == 0


def test_a_writer_that_is_killed_leaves_nothing_behind(
    spark: Any, cluster: JobsCluster, client: Client, tmp_path: Path
) -> None:
    """The batch is repeated, with other partitions too."""
    one = pipe(spark, cluster, tmp_path, between=once(tmp_path, lambda: os.kill(os.getpid(), signal.SIGKILL)))
    wanted = filled(client, one.source, 2_000)
    one.fail(slots=2, max_rows=2_000)
    assert state_counts(client, one.source, ("claimed",)) == [2_000]
    assert cluster.job(one.job.id).batch == -1 and drained(client, one.target)[0].total() == 0
    one.run(slots=4, max_rows=2_000)
    assert drained(client, one.target)[0] == wanted


def test_a_driver_that_was_replaced_commits_nothing(spark: Any, pair: JobsCluster, tmp_path: Path) -> None:
    """Its query fails; its successor continues from the log alone, and each task becomes one."""
    with pair.client() as client:
        one = pipe(spark, pair, tmp_path)
        wanted = filled(client, one.source, 500)
        one.run()
        assert drained(client, one.target)[0] == wanted
        zombie = one.start(forever=True, lease_ms=2_000)
        pair.take_over(one.job.id)
        more = filled(client, one.source, 700, start=500)
        with pytest.raises(Exception, match="Superseded|may not commit"):
            zombie.awaitTermination(120)
        assert drained(client, one.target)[0].total() == 0
        other = one.anew(tmp_path / "other")
        batches = 0
        while state_counts(client, one.source, ("total", "completed")) != [1_200, 1_200]:
            said = other.run()  # which finds nothing until the leases of the replaced driver expire
            batches += sum(progress["numInputRows"] > 0 for progress in said)
        assert drained(client, one.target)[0] == more
        assert pair.job(one.job.id).batch == batches


# --- programs of users ------------------------------------------------------------------------------


def test_a_stream_without_a_job_completes_what_it_has_done(
    spark: Any, cluster: JobsCluster, client: Client, tmp_path: Path
) -> None:
    """This includes the last batch; rows need only a payload."""
    from onyxq.spark.datasource import register

    register(spark)
    wanted = filled(client, "plain", 2_500)
    options = {"connect": cluster.connect, "queue": "plain", "max_rows": "1000"}
    frame = spark.readStream.format("onyxq").options(**options).load().selectExpr("upper(payload) payload", "lineage")
    writer = frame.writeStream.format("onyxq").options(connect=cluster.connect, queue="plain-out", priority="3")
    for _ in range(2):
        query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        assert query.awaitTermination(120)
    assert state_counts(client, "plain", ("total", "completed")) == [2_500, 2_500]
    claims = client.claim("plain-out", max=1)
    assert claims[0].priority == 3
    client.release(claims)
    assert drained(client, "plain-out")[0] == wanted


def test_a_frame_is_written_whole_and_once_under_a_name(spark: Any, cluster: JobsCluster, client: Client) -> None:
    """Columns have the attributes of tasks; a repeat under the same name changes nothing."""
    from onyxq.spark.datasource import register

    register(spark)
    frame = spark.range(5_000).selectExpr(
        "encode(cast(id as string), 'utf-8') payload",
        "if(id % 2 = 0, 'even', 'odd') queue",
        "cast(id % 3 as int) priority",
        "if(id < 10, concat('key', id % 2), null) ordering_key",
    )
    for _ in range(2):
        writer = frame.write.format("onyxq").options(connect=cluster.connect, queue="none", name="numbers")
        writer.mode("append").save()
    assert state_counts(client, "even", ("total",)) == [2_500] and state_counts(client, "odd", ("total",)) == [2_500]
    large = spark.range(80).selectExpr("concat(repeat('x', 100000), id) payload")
    large.write.format("onyxq").options(connect=cluster.connect, queue="large").mode("append").save()
    assert len(set(drained(client, "large")[0])) == 80
    task = next(one for one in client.list_all("even") if one.data == b"4")
    assert (task.priority, task.ordering_key) == (1, "key0")


def test_tasks_are_read_as_they_are(spark: Any, cluster: JobsCluster, client: Client) -> None:
    """They are of one state or all, in several partitions; no task is claimed."""
    from onyxq.spark.datasource import register

    register(spark)
    ids = client.enqueue_many("look", [b"%d" % number for number in range(700)], priority=2)
    client.complete(client.claim("look", max=100, wait_ms=5_000), b"done")
    options = {"connect": cluster.connect, "queue": "look", "partitions": "3"}
    everything = spark.read.format("onyxq").options(**options, state="all").load()
    rows = everything.collect()
    assert sorted(bytes(row.id) for row in rows) == sorted(map(bytes, ids))
    assert {row.priority for row in rows} == {2} and {bytes(row.result) for row in rows if row.result} == {b"done"}
    assert spark.read.format("onyxq").options(**options, state="completed").load().count() == 100
    assert state_counts(client, "look", ("ready", "claimed")) == [600, 0]


def test_what_cannot_be_written_is_said_before_anything_is(spark: Any, cluster: JobsCluster) -> None:
    """Wrong columns and options are named."""
    from onyxq.spark.datasource import register

    register(spark)
    frame = spark.range(3).selectExpr("cast(id as string) payload", "id other")
    for rows, options, said in (
        (frame, {"queue": "x"}, "column other says nothing"),
        (frame.select("other"), {"queue": "x"}, "column other"),
        (frame.selectExpr("other payload"), {"queue": "x"}, "column payload must be binary or string"),
        (frame.select("payload"), {}, "option queue is missing"),
        (frame.select("payload"), {"queue": "x", "priorty": "1"}, "is priority meant"),
    ):
        writer = rows.write.format("onyxq").options(connect=cluster.connect, **options).mode("append")
        with pytest.raises(Exception, match=said):
            writer.save()
