"""The progress of a job: each batch counts once whatever process dies, and the figures outlive the job."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import trio

from onyxq.jobs.progress import INPUTS_MAX, POINTS_MAX, BatchReport, Progress, reported, shown_of, unpacked
from onyxq.node.jobs.job_series import KEPT_S, JobSeries
from onyxq.spark import progress as of_spark
from onyxq.system.metrics import OTHER, Metrics
from tests.jobs.driving_world import Stage, staged, submit

BYTES_MAX = 8 << 10


def report(batch: int, rows: int = 10, **more: object) -> BatchReport:
    """Return the report of a batch that read some rows of one input, one second after the one before."""
    said = {"batch": batch, "at_ms": 1_000 * batch, "duration_ms": 400, "rows": rows, "inputs": {"in": rows}}
    return reported({**said, **more})


def after(*reports: BatchReport) -> Progress:
    """Return the progress after batches."""
    progress = Progress()
    for one in reports:
        progress.add(one)
    return progress


def test_a_batch_that_is_repeated_counts_once() -> None:
    """This holds for a driver that continues from what the log has, too."""
    progress = unpacked(after(report(0), report(1, late={"w": 2})).pack(BYTES_MAX))
    assert not progress.add(report(1, late={"w": 2}))
    assert progress.add(report(2, late={"w": 3}, dropped=4))
    assert (progress.rows, progress.inputs["in"].rows, progress.late_rows) == (30, 30, 7)
    assert progress.missed_batches == 0


def test_a_batch_that_was_never_reported_is_told() -> None:
    """The first batch of all may have any number: the job may continue another one's offsets."""
    progress = after(report(7), report(8), report(11))
    assert (progress.missed_batches, progress.rows) == (2, 30)


def test_the_watermark_of_a_job_never_goes_back() -> None:
    """A batch without rows has none."""
    progress = after(report(0, watermark_ms=9), report(1), report(2, watermark_ms=5))
    assert progress.shown()["watermark_ms"] == 9


def test_a_curve_covers_all_batches_with_a_bounded_number_of_points() -> None:
    """No row is lost from it, and the rate of several batches is that of their time."""
    count = 5 * POINTS_MAX + 3
    progress = after(*(report(number, lags={"in": number}) for number in range(count)))
    points = progress.shown()["batches"]
    assert POINTS_MAX / 2 <= len(points) <= POINTS_MAX
    assert sum(one["rows"] for one in points) == 10 * count
    assert (points[0]["at_ms"], points[-1]["batch"], points[-1]["lag"]) == (0, count - 1, count - 1)
    assert {one["rows_per_s"] for one in points[:-1]} == {10.0}


def test_points_have_the_late_rows_the_watermarks_age_and_the_state() -> None:
    """A host reports all late segments so far; a point has those of its own batches."""
    first = report(0, at_ms=10_000, watermark_ms=4_000, late={"w": 2}, state_bytes=512, unread={"in": 3})
    progress = after(first, report(1, at_ms=12_000, late={"w": 5}, dropped=1, state_bytes=256, unread={"in": 2}))
    names = ("late", "watermark_age_ms", "state_bytes", "lag_files")
    assert [tuple(one[name] for name in names) for one in progress.shown()["batches"]] == [
        (2, 6_400, 512, 3),
        (4, 8_400, 256, 2),
    ]
    progress._merge()
    assert [tuple(one[name] for name in names) for one in progress.shown()["batches"]] == [(6, 8_400, 256, 2)]
    assert progress.shown()["inputs"] == {"in": {"rows": 20, "lag": None, "lag_files": 2}}
    progress.finish()
    assert (progress.lag_files, progress.lag) == (0, None)


def test_points_of_a_job_without_times_and_state_have_no_such_figures() -> None:
    """The page of the job then has no such curves; points that were recorded without the figures can be read."""
    (point,) = after(report(0)).shown()["batches"]
    assert {point[name] for name in ("late", "watermark_age_ms", "state_bytes", "lag_files")} == {None}
    older = msgspec.msgpack.encode({"points": [[0, 1_000, 400, 10, None]]})
    assert unpacked(older).points == after(report(0, at_ms=1_000)).points


def test_the_logs_copy_is_never_too_large() -> None:
    """Points are merged, then inputs are left out; the sums stay."""
    many = {f"{'input' * 20}-{number}": 3 for number in range(2 * INPUTS_MAX)}
    progress = after(*(report(number, 1 << 40, at_ms=1_800_000_000_000 + number) for number in range(POINTS_MAX)))
    progress.add(report(POINTS_MAX, inputs=many, late=many, lags=many))
    assert len(progress.inputs) == INPUTS_MAX
    packed = progress.pack(BYTES_MAX)
    assert len(packed) <= BYTES_MAX and unpacked(packed).rows == progress.rows
    assert len(unpacked(progress.pack(BYTES_MAX, curves=False)).points) == 0
    assert len(progress.points) > POINTS_MAX // 2


def test_a_job_without_batches_has_no_figures() -> None:
    """It may have counts of queues already."""
    progress = Progress()
    progress.set_lag("in", 4)
    assert progress.shown() == {"inputs": {"in": {"rows": 0, "lag": 4, "lag_files": None}}, "batches": []}
    assert shown_of(b"") is None
    assert shown_of(after(report(1)).pack(BYTES_MAX, curves=False)) is not None


@pytest.mark.parametrize("said", [None, [], {}, {"batch": "1"}, {"batch": 1, "rows_per_s": float("nan")}])
def test_a_report_that_is_none_is_refused(said: object) -> None:
    """The driver continues without it."""
    with pytest.raises(msgspec.ValidationError):
        reported(said)


def test_series_of_an_ended_job_go_away() -> None:
    """They stay for some time, so that each scrape sees the last values."""
    metrics = Metrics()
    series = JobSeries(metrics)
    ended, running = after(report(0, lags={"in": 5}, unread={"in": 6})), after(report(0, watermark_ms=2_500))
    series.keep("one", ended, 100.0)
    series.show({"two": running}, 100.0 + KEPT_S - 1)
    assert 'onyxq_job_rows_total{spark_job="one",input="in"} 10' in metrics.text()
    assert 'onyxq_job_lag_rows{spark_job="one",input="in"} 5' in metrics.text()
    assert 'onyxq_job_lag_files{spark_job="one",input="in"} 6' in metrics.text()
    assert 'onyxq_job_watermark_timestamp_seconds{spark_job="two"} 2.5' in metrics.text()
    series.show({"two": running}, 100.0 + KEPT_S)
    assert 'spark_job="one"' not in metrics.text() and 'spark_job="two"' in metrics.text()


def test_the_number_of_series_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Users name jobs and inputs; beyond the bound they are counted together."""
    monkeypatch.setattr("onyxq.system.metrics.SERIES_MAX", 3)
    metrics = Metrics()
    JobSeries(metrics).show({f"job-{number}": after(report(0)) for number in range(9)}, 0.0)
    assert metrics.text().count("onyxq_job_rows_total{") == 4
    assert f'onyxq_job_rows_total{{spark_job="{OTHER}",input="in"}} 60' in metrics.text()


# --- at drivers ---------------------------------------------------------------------------------


async def progress_at(stage: Stage, batch: int) -> dict[str, Any]:
    """Return what clients see of the job's progress once it has reached a batch."""
    found: dict[str, Any] = {}
    with trio.fail_after(60):
        while found.get("batch") != batch:
            await trio.sleep(0.5)
            found = (await stage.client.job("j"))["progress"] or {}
    return found


@staged()
async def test_the_figures_of_a_job_are_known_after_its_end(stage: Stage) -> None:
    """The log has them, also once its driver is gone and a collection has taken the job."""
    await submit(stage)
    await stage.ready()
    for batch, rows in enumerate((800, 12, 0)):
        stage.say("progress", progress={"batch": batch, "rows": rows, "inputs": {"in": rows}, "late": {"w": 518}})
    driver = stage.driver()
    stage.say("completed")
    assert (await stage.ended()).state == "completed"
    await stage.world.stop_node(driver)
    for collected in (False, True):
        if collected:
            await stage.client.gc()
            await stage.until(lambda: "j" not in stage.world.audit.replica.jobs, "the job is collected")
        found = (await stage.client.job("j"))["progress"]
        assert (found["rows_total"], found["late"], len(found["batches"])) == (812, 518, 3)
        assert found["inputs"] == {"in": {"rows": 812, "lag": 0, "lag_files": None}}


@staged()
async def test_the_figures_of_a_job_that_was_killed_are_kept(stage: Stage) -> None:
    """Its driver records them when it learns of the end."""
    await submit(stage)
    await stage.ready()
    stage.say("progress", progress={"batch": 0, "rows": 7})
    await progress_at(stage, 0)
    await stage.client.kill_job("j")
    await stage.until(lambda: bool(stage.job().progress), "its progress is recorded")
    assert (await stage.client.job("j"))["progress"]["rows_total"] == 7


@staged()
async def test_a_row_is_counted_once_whatever_process_dies(stage: Stage) -> None:
    """A host repeats the last batch after a kill; another driver continues from what the log has."""

    async def total(batch: int) -> int:
        found = await progress_at(stage, batch)
        assert found["missed_batches"] == 0
        return int(found["rows_total"])

    await submit(stage)
    await stage.ready()
    first = stage.link()
    stage.say("progress", progress={"batch": 0, "rows": 5})
    stage.say("progress", progress={"batch": 1, "rows": 3})
    assert await total(1) == 8
    first.die()
    await stage.until(lambda: stage.link() is not first and bool(stage.link().told("start")), "it starts again")
    stage.say("progress", progress={"batch": 1, "rows": 3})
    stage.say("progress", progress={"batch": 2, "rows": 2})
    assert await total(2) == 10
    await stage.until(lambda: unpacked(stage.job().progress).rows == 10, "its progress is recorded")
    version = stage.job().version
    await stage.world.crash_node(stage.driver())
    await stage.until(lambda: stage.job().version > version and stage.job().ready, "another one drives it")
    stage.say("progress", progress={"batch": 2, "rows": 2})
    stage.say("progress", progress={"batch": 3, "rows": 90})
    assert await total(3) == 100


@staged()
async def test_each_node_answers_with_the_progress(stage: Stage) -> None:
    """Any node asks the driver for it; a report that cannot be read is left out."""
    await submit(stage)
    await stage.ready()
    stage.say("progress", progress={"batch": 3, "rows": 12, "rows_per_s": 1.5, "odd": float("nan"), "deep": [1]})
    stage.say("progress", progress={"batch": 4, "rows": 12, "rows_per_s": float("nan")})
    await progress_at(stage, 3)
    for node in stage.world.nodes:
        assert node.running is not None and node.running.service is not None
        told = (await node.running.service.call("job.get", {"id": "j"}))["progress"]
        assert (told["state"], told["host"], told["batch"], told["rows_per_s"]) == ("running", "up", 3, 1.5)
        assert "odd" not in told and "deep" not in told
    driver = stage.driver().running
    assert driver is not None and driver.service is not None
    text = (await driver.service.call("metrics", {}))["text"]
    assert "\nonyxq_spark_host_up 1\n" in text and 'onyxq_jobs_driven{state="running"} 1' in text


def test_a_report_counts_rows_of_an_input_whose_place_is_a_number() -> None:
    """That is so for the format ``rate``, whose place is a number of seconds."""
    source = {"startOffset": 1, "endOffset": 2, "latestOffset": 2, "numInputRows": 20}
    said = {"batchId": 1, "timestamp": "2027-01-15T08:00:00.000Z", "sources": [source], "numInputRows": 20}
    assert of_spark.report(said, [of_spark.Use("ticks")])["inputs"] == {"ticks": 20}
