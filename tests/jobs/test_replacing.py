"""Jobs that are replaced through the operation: one entry, whatever the log has between the check and the entry."""

from __future__ import annotations

import pytest
import trio
from attrs import evolve

from log_entries import gc
from onyxq.errors import BadRequest, Conflict, JobConflict, OnyxqError
from onyxq.jobs.encoding import encode
from onyxq.jobs.model import Job
from onyxq.node.node import Node
from onyxq.operations.jobs import entry_of, replacing
from tests.jobs.driving_world import STEADY, Stage, job_of, on_stage, staged, submit

SLOW = evolve(STEADY, append_delay_ms=(400, 400))


def node_of(stage: Stage) -> Node:
    """Return the first node."""
    running = stage.world.nodes[0].running
    assert running is not None and running.node is not None
    return running.node


async def replace(stage: Stage, job: Job) -> str:
    """Submit a job that replaces the one that it resumes."""
    return await stage.client.submit_job(job, importable=False, replace=True)


async def replace_here(stage: Stage, job: Job) -> None:
    """Do the same at the first node, whose entries reach the log in their order."""
    running = stage.world.nodes[0].running
    assert running is not None and running.service is not None
    await running.service.call("job.submit", {"body": encode(job), "replace": True})


@staged(spark=(0,))
async def test_a_job_is_replaced_once_and_says_by_which(stage: Stage) -> None:
    """The same request again gets the same answer; another one is refused. The reason outlives a log collection."""
    await submit(stage, job_of("old"))
    await stage.ready("old")
    assert [await replace(stage, job_of("new", resume="old")) for _ in range(2)] == ["new"] * 2
    await stage.ready("new")
    for _ in range(2):
        found = await stage.client.job("old")
        assert (found["state"], found["why"], found["error"]) == ("killed", "replaced by job new", "")
        with pytest.raises(Conflict, match=r"old, which has ended already \(killed, replaced by job new\)") as caught:
            await replace(stage, job_of("other", resume="old"))
        assert caught.value.field == "resume"
        await node_of(stage).verdicts([gc.Args()])
    assert "old" not in stage.world.audit.replica.jobs
    assert await replace(stage, job_of("new", resume="old")) == "new"
    await submit(stage, job_of("other", resume="old"))


def test_the_earlier_job_runs_on_if_the_new_one_is_refused_after_the_check() -> None:
    """Another job takes the id of the new one in between."""

    async def play(stage: Stage) -> None:
        await submit(stage, job_of("old"))
        await stage.ready("old")
        node, other = node_of(stage), entry_of(job_of("new"), keep_ms=1_000)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.verdicts, [other])
            await stage.until(lambda: node.outbox_now().holds(other), "it is on its way")
            with pytest.raises(JobConflict, match="there is another job new"):
                await replace_here(stage, job_of("new", resume="old"))
        assert stage.job("old").state == "running"

    on_stage(play, spark=(0,), options=SLOW)


def test_of_two_requests_at_once_one_replaces_the_job() -> None:
    """Both are checked while it runs. The other request changes nothing."""

    async def play(stage: Stage) -> None:
        await submit(stage, job_of("old"))
        await stage.ready("old")
        refused: list[OnyxqError] = []

        async def ask(name: str) -> None:
            try:
                await replace(stage, job_of(name, resume="old"))
            except Conflict as error:
                refused.append(error)

        async with trio.open_nursery() as nursery:
            for name in ("one", "two"):
                nursery.start_soon(ask, name)
        assert len(stage.world.audit.replica.jobs) == 2 and stage.job("old").state == "killed"
        assert [one.field for one in refused] == ["resume"]

    on_stage(play, spark=(0,), options=SLOW)


def test_a_request_that_is_repeated_while_the_first_is_on_its_way_is_harmless() -> None:
    """A client does so that waits no longer for the answer. Both get the same one."""

    async def play(stage: Stage) -> None:
        await submit(stage, job_of("old"))
        await stage.ready("old")
        node, new = node_of(stage), job_of("new", resume="old")
        entry = replacing(entry_of(new, keep_ms=7 * 86_400_000), "old", node.replica.jobs["old"])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.verdicts, [entry])
            await stage.until(lambda: node.outbox_now().holds(entry), "it is on its way")
            assert await replace(stage, new) == "new"
        assert (stage.job("old").state, stage.job("new").state) == ("killed", "running")

    on_stage(play, spark=(0,), options=SLOW)


def test_a_job_that_the_log_has_just_forgotten_replaces_nothing_before_it_is_compared() -> None:
    """The peer still knows the job, so it takes the request for a repeat. The next request compares the two jobs."""

    async def play(stage: Stage) -> None:
        await submit(stage, job_of("old"))
        await stage.ready("old")
        node, new = node_of(stage), job_of("new", resume="old")
        await stage.client.submit_job(new, importable=False, keep_ms=0)
        await stage.client.kill_job("new")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.verdicts, [gc.Args()])
            await stage.until(lambda: node.outbox_now().holds(gc.Args()), "it is on its way")
            with pytest.raises(Conflict, match="not compared with") as caught:
                await replace_here(stage, new)
        assert caught.value.field == "resume" and stage.job("old").state == "running"
        assert await replace(stage, new) == "new"
        assert (stage.job("old").state, stage.job("new").state) == ("killed", "running")

    on_stage(play, spark=(0,), options=SLOW)


@staged(spark=(0,))
async def test_a_job_that_runs_beside_the_other_cannot_replace_it_afterwards(stage: Stage) -> None:
    """It was submitted without ``replace``, and has begun at an earlier batch."""
    await submit(stage, job_of("old"))
    await submit(stage, job_of("new", resume="old"))
    with pytest.raises(Conflict, match="submitted before, without replacing it") as caught:
        await replace(stage, job_of("new", resume="old"))
    assert caught.value.field == "resume" and "onyxq job kill old" in caught.value.advice
    assert [stage.job(name).state for name in ("old", "new")] == ["running"] * 2


@staged(spark=(0,))
async def test_a_request_that_names_no_job_to_replace_is_refused(stage: Stage) -> None:
    """Also if the job was submitted before, without ``replace``."""
    await submit(stage, job_of("j"))
    for name in ("j", "k"):
        with pytest.raises(BadRequest, match="replace is for a job that resumes another"):
            await replace(stage, job_of(name))
    with pytest.raises(BadRequest, match="resume names no job that is known"):
        await replace(stage, job_of("k", resume="nobody"))
    assert list(stage.world.audit.replica.jobs) == ["j"]
