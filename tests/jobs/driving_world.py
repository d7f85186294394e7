"""A simulated cluster whose peers host Spark in memory, and jobs for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from attrs import evolve, field, frozen

from log_entries import complete_job
from onyxq.client import AsyncClient
from onyxq.core.replica import Job as Known
from onyxq.jobs.model import Function, Input, Job, Output
from simulation.world.world import Options, SimulatedNode, World, simulate
from tests.jobs.fake_host import FakeHosts, FakeLink

SLOTS = 4
STEADY = Options(clock_offset_ms=0)


@frozen
class Stage:
    """The world, a client of it, and every node's hosts."""

    world: World
    client: AsyncClient
    hosts: dict[str, FakeHosts] = field(factory=dict)

    def job(self, name: str = "j") -> Known:
        """The job as the log has it."""
        return self.world.audit.replica.jobs[name]

    def node_of(self, peer: str) -> SimulatedNode:
        """The machine on which a peer runs."""
        return next(node for node in self.world.nodes if node.peer_id == peer)

    def driver(self, name: str = "j") -> SimulatedNode:
        """The machine whose peer drives the job."""
        return self.node_of(self.job(name).driver)

    def hosts_of(self, name: str = "j") -> FakeHosts:
        """The hosts of the job's driver."""
        return self.hosts[self.driver(name).name]

    def link(self, name: str = "j") -> FakeLink:
        """The host that was started last where the job is driven."""
        return self.hosts_of(name).last

    def say(self, event: str, name: str = "j", **details: Any) -> None:
        """The host at which the job runs says something of it, under its present version."""
        self.link(name).say(event, name, self.job(name).version, **details)

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        """See `World.until`."""
        await self.world.until(condition, what)

    async def ready(self, name: str = "j") -> None:
        """Return once the job's driver said that it runs."""

        def is_ready() -> bool:
            found = self.world.audit.replica.jobs.get(name)
            return found is not None and found.ready

        await self.until(is_ready, f"{name} is ready")

    async def ended(self, name: str = "j") -> Known:
        """Return once the job has ended."""
        await self.until(lambda: self.job(name).state in ("completed", "killed", "failed"), f"{name} has ended")
        return self.job(name)


def job_of(name: str = "j", **more: Any) -> Job:
    """A job that reads a queue and writes another one."""
    return Job(
        id=name,
        workflow=[("in", "work"), ("work", "out")],
        catalog=[Input("in", queue="a"), Function("work", fn="pkg:work"), Output("out", queue="b")],
        **more,
    )


async def submit(stage: Stage, job: Job | None = None, **more: Any) -> str:
    """Submit a job whose functions need not be there."""
    return await stage.client.submit_job(job or job_of(**more), importable=False)


def on_stage(
    play: Callable[[Stage], Awaitable[None]],
    *,
    seed: int = 1,
    spark: tuple[int, ...] = (0, 1, 2),
    options: Options = STEADY,
    slots: int = SLOTS,
    data: Path | None = None,
) -> None:
    """Run a play in a cluster in which the nodes of those numbers host Spark.

    ``data``: a real directory for what hosts keep; without, nothing of it is there.
    """

    async def workload(world: World) -> None:
        hosts = {node.name: FakeHosts() for node in world.nodes}
        for number, node in enumerate(world.nodes):
            node.launch_host = hosts[node.name].launch
            if data is not None:
                node.config = evolve(node.config, data=str(data / node.name))
            if number in spark:
                node.config = evolve(node.config, spark=True, slots=slots)
            world.start_node(node)
        await world.settle()
        async with world.client() as client:
            await play(Stage(world, client.client, hosts))

    simulate(workload, seed=seed, options=options, started=False)


def completion(stage: Stage, name: str, version: int) -> complete_job.Args:
    """What a driver appends that believes in a version."""
    return complete_job.Args(name, version)
