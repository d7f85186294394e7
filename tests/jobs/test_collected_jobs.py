"""A log collection may remove a job that has ended while something about it is under way."""

from __future__ import annotations

import pytest
import trio
from attrs import evolve

from log_entries import gc, kill_job, seal_input
from onyxq.errors import Conflict
from onyxq.operations.jobs import entry_of
from tests.jobs.driving_world import STEADY, Stage, job_of, on_stage, submit


def test_an_input_is_sealed_while_its_job_ends_and_is_removed() -> None:
    """The log refuses to seal an unknown input, and the same record removes the job. The error says that it ended."""

    async def play(stage: Stage) -> None:
        for name in "jk":
            await submit(stage, job_of(name))
            await stage.ready(name)
        running = stage.world.nodes[0].running
        assert running is not None and running.service is not None
        service, node = running.service, running.service.node
        refused: list[Conflict] = []

        async def seal() -> None:
            with pytest.raises(Conflict, match="job j has ended already: killed") as caught:
                await service.call("job.seal", {"id": "j", "input": "inn"})
            refused.append(caught.value)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.verdicts, [kill_job.Args("k")])  # while it is in flight, entries gather
            await stage.until(lambda: node.outbox_now().holds(kill_job.Args("k")), "a record is in flight")
            nursery.start_soon(seal)
            await stage.until(lambda: node.outbox_now().holds(seal_input.Args("j", "inn")), "the seal waits")
            await node.verdicts([kill_job.Args("j"), gc.Args()])
        assert [one.field for one in refused] == ["id"]
        assert "j" not in stage.world.audit.replica.jobs

    on_stage(play, spark=(0,), options=evolve(STEADY, append_delay_ms=(400, 400)))


@pytest.mark.parametrize("between", range(5))
def test_a_job_ends_and_is_removed_as_its_driver_begins(between: int) -> None:
    """A peer that reads late reads all of it at once, with some records in between. It stays and drives other jobs."""

    async def play(stage: Stage) -> None:
        late, other = stage.world.nodes[:2]
        peer, session, node = late.peer_id, late.log.session_now, other.inner
        assert session is not None and node is not None
        session.paused = True
        await node.verdicts([entry_of(job_of(), keep_ms=1_000)])
        assert stage.job().driver == peer
        for _ in range(between):
            await node.verdicts([kill_job.Args("none")])
        await node.verdicts([kill_job.Args("j"), gc.Args()])
        session.paused = False
        stage.world.backend.notify()
        await submit(stage, job_of("k"))
        await stage.ready("k")
        assert stage.job("k").driver == late.peer_id == peer

    on_stage(play, spark=(0,), options=evolve(STEADY, read_delay_ms=(0, 0)))
