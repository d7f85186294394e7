"""Jobs that resume others: some are refused at submission; a driver gets the place and state of the resumed job."""

from __future__ import annotations

import base64
from typing import Any

import msgpack
import pytest

from log_entries import commit_batch
from onyxq.errors import BadRequest
from onyxq.jobs.model import Input, Job, Output, Reduce, Sql, Trigger, Window
from tests.jobs.driving_world import Stage, on_stage, submit


def counts(name: str, **more: Any) -> Job:
    """Return a job with a window."""
    catalog = [Input("in", queue="a"), Reduce("work"), Output("out", queue="b")]
    windows = more.pop("windows", [Window("all", "work", aggregation="count")])
    return Job(
        id=name, workflow=[("in", "work"), ("work", "out")], catalog=catalog,
        windows=windows, triggers=[Trigger("all")], **more,
    )  # fmt: skip


async def commit(stage: Stage, name: str, batch: int, offsets: bytes) -> None:
    """Commit a batch as the job's driver does."""
    node = stage.driver(name).running
    assert node is not None and node.node is not None
    args = commit_batch.Args(name, stage.job(name).version, batch, offsets, ())
    assert (await node.node.verdicts([args]))[1] == ["applied"]


def test_a_job_replaces_another_and_continues_after_its_last_batch() -> None:
    """Its driver gets what the log knows of the end of the other, until the job has a batch of its own."""

    async def play(stage: Stage) -> None:
        await submit(stage, counts("old"))
        await stage.ready("old")
        await commit(stage, "old", 4, b"so far")
        await stage.client.submit_job(counts("new", resume="old"), replace=True)
        assert stage.job("old").state == "killed"
        await stage.ready("new")
        assert (stage.job("new").batch, stage.job("new").offsets) == (-1, b"")
        told = {"job": "old", "state": "killed", "batch": 4, "offsets": base64.b64encode(b"so far").decode()}
        assert [one["resumed"] for one in stage.link("new").told("start") if one["job"] == "new"] == [told]
        (forgotten,) = stage.link("new").told("forget")
        assert (forgotten["job"], forgotten["batch"]) == ("old", 4)
        assert forgotten["until_ms"] == stage.job("old").ended_ms + stage.job("old").keep_ms
        await stage.client.submit_job(counts("new", resume="old"), replace=True)
        await commit(stage, "new", 1, b"further")
        stage.link("new").die("out of memory")
        await stage.until(lambda: len(stage.link("new").told("start")) == 1, "another host starts it")
        assert [one["resumed"] for one in stage.link("new").told("start")] == [None]

    on_stage(play, spark=(0,))


def test_a_query_without_state_is_replaced_without_drop_state() -> None:
    """The record of its last batch has no source that ends all inputs: Spark's plan keeps no state."""

    def query(name: str, text: str, **more: Any) -> Job:
        catalog = [Input("in", queue="a", schema="n int"), Sql("large", text), Output("out", queue="b")]
        return Job(id=name, workflow=[("in", "large"), ("large", "out")], catalog=catalog, **more)

    async def play(stage: Stage) -> None:
        new = query("new", "select n from `in` where n > 7", resume="old")
        await submit(stage, query("old", "select n from `in` where n > 5"))
        await stage.ready("old")
        said = {"offsets": b"", "mark": "", "sources": None}
        await commit(stage, "old", 4, msgpack.packb({**said, "inputs": ["in", "<end>"]}))
        with pytest.raises(BadRequest, match="'large' keeps state inside Spark"):
            await stage.client.submit_job(new, replace=True)
        await commit(stage, "old", 5, msgpack.packb({**said, "inputs": ["in"]}))
        await stage.client.submit_job(new, replace=True)
        await stage.ready("new")
        assert stage.job("old").state == "killed"

    on_stage(play, spark=(0,))


def test_a_job_that_cannot_resume_another_is_refused_and_the_other_runs_on() -> None:
    """It does not fit, the log does not take it, the other still runs, has committed nothing, or is not known."""

    async def refused(stage: Stage, job: Job, field: str, said: str, *, replace: bool = True) -> None:
        with pytest.raises(BadRequest, match=said) as caught:
            await stage.client.submit_job(job, replace=replace)
        assert caught.value.field == field

    async def play(stage: Stage) -> None:
        await submit(stage, counts("old"))
        await stage.ready("old")
        await refused(stage, counts("new", resume="old"), "resume", "has committed no batch")
        await commit(stage, "old", 0, b"so far")
        other = [Window("all", "work", aggregation="sum")]
        await refused(stage, counts("new", resume="old", windows=other), r"windows[0].aggregation", "is 'sum'")
        plain = Job(
            id="new", resume="old", workflow=[("in", "out")], catalog=[Input("in", queue="a"), Output("out", queue="b")]
        )
        await refused(stage, plain, "windows", "have no window 'all'")
        await refused(stage, counts("new", resume="old"), "resume", "which is running", replace=False)
        await refused(stage, counts("new", resume="old", beside="nobody"), "beside", "names no job that is known")
        await refused(stage, counts("new", resume="nobody"), "resume", "names no job that is known")
        await refused(stage, counts("new"), "replace", "is for a job that resumes another")
        assert stage.job("old").state == "running"

    on_stage(play, spark=(0,))
