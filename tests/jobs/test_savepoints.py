"""Savepoints of jobs: made while a job runs, listed, begun from, deleted, refused by name. The tests play the host."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable
from typing import Any

import msgpack
import pytest
import trio
from attrs import evolve

from log_entries import begin_savepoint, commit_batch, gc
from log_entries.begin_savepoint import savepoints
from onyxq.errors import BadRequest, Conflict, NotFound, Superseded, TimedOut
from onyxq.jobs.model import Input, Job, Output, Reduce, Trigger, Window
from tests.jobs.driving_world import Stage, on_stage, staged, submit

RECORD = msgpack.packb({"offsets": b"so far", "mark": "", "inputs": ["in", "<end>"], "sources": b""})


def counts(name: str, **more: Any) -> Job:
    """Return a job that reads files and has a window."""
    source = more.pop("source", Input("in", format="text", path="/data", bounded=False))
    return Job(
        id=name,
        workflow=[("in", "work"), ("work", "out")],
        catalog=[source, Reduce("work"), Output("out", queue="b")],
        windows=more.pop("windows", [Window("all", "work", aggregation="count")]),
        triggers=[Trigger("all")],
        **more,
    )


async def commit(stage: Stage, name: str, batch: int) -> None:
    """Commit a batch as the job's driver does."""
    node = stage.driver(name).running
    assert node is not None and node.node is not None
    args = commit_batch.Args(name, stage.job(name).version, batch, RECORD, ())
    assert (await node.node.verdicts([args]))[1] == ["applied"]


async def running(stage: Stage, name: str = "old", **more: Any) -> None:
    """Run a job until it has committed two batches."""
    await submit(stage, counts(name, **more))
    await stage.ready(name)
    for batch in range(2):
        await commit(stage, name, batch)


async def keep(stage: Stage, name: str, *, job: str = "old", **changes: Any) -> dict[str, Any]:
    """Report, as the host of the job, that the files of a savepoint are there; return what the host hears."""
    (one,) = [one for one in (await stage.client.all_savepoints())["savepoints"] if one["name"] == name]
    made = {
        "version": stage.job(job).version,
        "batch": stage.job(job).batch,
        "offsets": RECORD,
        "place": f"/saved/{name}",
    }
    await stage.client.keep_savepoint(**{"name": name, "position": one["position"], "size_bytes": 7, **made, **changes})
    return dict(one)


async def saved(stage: Stage, name: str = "before", job: str = "old") -> dict[str, Any]:
    """Make a savepoint from the command to its end."""
    found: list[dict[str, Any]] = []

    async def ask() -> None:
        found.append(await stage.client.savepoint_job(job, name))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await stage.until(lambda: name in savepoints(stage.world.audit.replica), f"savepoint {name} is begun")
        await keep(stage, name, job=job)
    return found[0]


async def refused(call: Callable[[], Awaitable[Any]], kind: type[Exception], field: str, said: str) -> None:
    """Check that a call is refused by name."""
    with pytest.raises(kind, match=said) as caught:
        await call()
    assert getattr(caught.value, "field", None) == field


@staged(spark=(0,))
async def test_a_job_begins_from_a_savepoint_after_the_other_has_continued_and_is_forgotten(stage: Stage) -> None:
    """The driver of the new job gets the savepoint's name and places; the old job was not stopped by it."""
    await running(stage)
    made = await saved(stage)
    assert (made["job"], made["batch"], made["state"], made["size_bytes"]) == ("old", 1, "complete", 7)
    assert stage.job("old").state == "running"
    await commit(stage, "old", 2)
    await stage.client.kill_job("old")
    node = stage.world.nodes[0].running
    assert node is not None and node.node is not None
    await node.node.verdicts([gc.Args()])
    assert "old" not in stage.world.audit.replica.jobs
    assert [one["name"] for one in await stage.client.savepoints("old")] == ["before"]
    new = counts("new", resume="savepoint:before")
    await submit(stage, new)
    await stage.ready("new")
    told = {"job": "savepoint:before", "state": "completed", "batch": 0}
    (start,) = [one for one in stage.link("new").told("start") if one["job"] == "new"]
    assert start["resumed"] == {**told, "offsets": base64.b64encode(RECORD).decode()} and start["batch"] == -1
    await refused(lambda: stage.client.delete_savepoint("before"), Conflict, "name", "job new has still to begin")
    await commit(stage, "new", 1)
    await stage.client.delete_savepoint("before")
    assert await stage.client.savepoints() == []
    await submit(stage, new)  # The same job again is the first one, also without its savepoint.
    await refused(lambda: stage.client.delete_savepoint("before"), NotFound, "name", "no savepoint 'before'")


def test_a_savepoint_is_refused_by_name_and_nothing_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bad and unknown names, names that are taken, one too many, and jobs that cannot have one."""
    monkeypatch.setattr(begin_savepoint, "SAVEPOINTS_MAX", 1)

    async def play(stage: Stage) -> None:
        client = stage.client
        await submit(stage, counts("old"))
        await stage.ready("old")
        await refused(lambda: client.savepoint_job("old", "s"), Conflict, "id", "has committed no batch yet")
        await refused(lambda: client.savepoint_job("nobody", "s"), NotFound, "id", "no job 'nobody'")
        await refused(lambda: client.savepoint_job("old", "a/b"), BadRequest, "name", "name must have")
        await submit(stage, counts("far", zones=("nowhere",)))
        await refused(lambda: client.savepoint_job("far", "s"), Conflict, "id", "no peer drives it")
        assert await client.savepoints() == []
        await commit(stage, "old", 0)
        await saved(stage, "s")
        await refused(lambda: client.savepoint_job("old", "s"), Conflict, "name", "savepoint s already: after batch 0")
        await refused(lambda: client.savepoint_job("old", "t"), BadRequest, "name", "there are 1 savepoints")
        await client.kill_job("old")
        await refused(lambda: client.savepoint_job("old", "t"), Conflict, "id", "has ended")
        assert [one["name"] for one in await client.savepoints()] == ["s"]

    on_stage(play, spark=(0,))


@staged(spark=(0,))
async def test_a_job_that_does_not_fit_a_savepoint_is_refused_and_not_stored(stage: Stage) -> None:
    """Its field is named. A queue whose tasks later batches have read is refused too."""
    await running(stage)
    await saved(stage)
    new = counts("new", resume="savepoint:before")
    other = [Window("all", "work", aggregation="sum")]

    def submitted(job: Job, **more: Any) -> Callable[[], Awaitable[Any]]:
        return lambda: stage.client.submit_job(job, importable=False, **more)

    wrong = evolve(new, windows=other)
    await refused(submitted(wrong), BadRequest, r"windows[0].aggregation", "is 'sum', but 'count' in job old")
    await refused(submitted(evolve(new, resume="savepoint:none")), BadRequest, "resume", "which does not exist")
    await refused(submitted(new, replace=True), BadRequest, "replace", "for a job that resumes another")
    with pytest.raises(TimedOut, match="not complete after 0 ms"):
        await stage.client.savepoint_job("old", "half", wait_ms=0)
    await refused(submitted(evolve(new, resume="savepoint:half")), BadRequest, "resume", "still being made")
    assert "new" not in stage.world.audit.replica.jobs
    queue = Input("in", queue="a")
    await running(stage, "queued", source=queue)
    await saved(stage, "of-queue", "queued")
    await commit(stage, "queued", 2)
    await stage.client.kill_job("queued")
    later = counts("later", resume="savepoint:of-queue", source=queue)
    await refused(submitted(later), BadRequest, "catalog[0].queue", "tasks that were read are completed")


@staged(spark=(0,))
async def test_a_queue_is_not_read_by_a_job_and_by_another_one_from_its_savepoint(stage: Stage) -> None:
    """Both would claim its tasks. If the first job ends without another batch, the other one may begin."""
    queue = Input("in", queue="a")
    await running(stage, source=queue)
    await saved(stage)
    new = counts("new", resume="savepoint:before", source=queue)
    said = "input 'in' would continue in it: job old is running, so both jobs would claim its tasks"
    await refused(lambda: stage.client.submit_job(new), BadRequest, "catalog[0].queue", said)
    assert "new" not in stage.world.audit.replica.jobs
    await stage.client.kill_job("old")
    await submit(stage, new)
    await stage.ready("new")
    assert stage.job("new").offsets == RECORD


@staged(spark=(0, 1, 2))
async def test_a_savepoint_survives_its_host_and_another_driver_and_ends_with_its_job(stage: Stage) -> None:
    """Until it is complete, the present driver of the job makes it. If the job ends first, there is none."""
    await running(stage)
    with pytest.raises(TimedOut):
        await stage.client.savepoint_job("old", "s", wait_ms=0)
    before = stage.job("old").version
    stage.link("old").die("out of memory")
    await stage.world.crash_node(stage.driver("old"))
    await stage.until(lambda: stage.job("old").version > before and stage.job("old").ready, "another peer drives it")
    with pytest.raises(Superseded):
        await keep(stage, "s", version=before)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.client.savepoint_job, "old", "s")  # The repeated command gets the same one.
        told = await keep(stage, "s")
    assert (told["state"], told["batch"]) == ("making", 1)

    async def kill() -> None:
        await stage.until(lambda: "t" in savepoints(stage.world.audit.replica), "it is begun")
        await stage.client.kill_job("old")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(kill)
        await refused(lambda: stage.client.savepoint_job("old", "t"), Conflict, "id", "ended before its savepoint")
    assert [one["name"] for one in await stage.client.savepoints()] == ["s"]


@staged(spark=(0,))
async def test_a_savepoint_that_cannot_be_made_frees_its_name_and_says_why(stage: Stage) -> None:
    """The command fails with the host's reason, and a repeated command succeeds."""
    await running(stage)

    async def fail() -> None:
        await stage.until(lambda: bool(savepoints(stage.world.audit.replica)), "it is begun")
        (one,) = (await stage.client.all_savepoints())["savepoints"]
        version = stage.job("old").version
        await stage.client.drop_savepoint(name="s", position=one["position"], version=version, why="the disk is full")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(fail)
        await refused(lambda: stage.client.savepoint_job("old", "s"), Conflict, "id", "not made: the disk is full")
    assert (await saved(stage, "s"))["state"] == "complete"


@staged(spark=(0,))
async def test_the_same_request_again_gets_the_savepoint_that_it_made(stage: Stage) -> None:
    """As when an answer was lost on its way; another request for the name is refused."""
    await running(stage)
    asked = {"id": "old", "name": "s", "request": "r1", "wait_ms": 0}
    begun = await stage.client.call("job.savepoint", asked)
    assert begun["state"] == "making"
    await keep(stage, "s")
    again = await stage.client.call("job.savepoint", asked)
    assert (again["state"], again["position"]) == ("complete", begun["position"])
    with pytest.raises(Conflict, match="there is a savepoint s already"):
        await stage.client.call("job.savepoint", {**asked, "request": "r2"})
