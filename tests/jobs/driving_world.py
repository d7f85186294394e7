"""A simulated cluster whose peers host Spark in memory, and jobs for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

from attrs import evolve, field, frozen

from log_entries import complete_job
from onyxq.client import AsyncClient
from onyxq.core.replica import Job as Known
from onyxq.jobs.model import Function, Input, Job, Output
from simulation.world.world import Options, SimulatedNode, World, simulate
from tests.jobs.fake_host import FakeHosts, FakeLink
from tests.own_arguments import AsyncTest, Decorator, seen_by_pytest

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
        """Return the machine on which a peer runs."""
        return next(node for node in self.world.nodes if node.peer_id == peer)

    def driver(self, name: str = "j") -> SimulatedNode:
        """Return the machine whose peer drives the job."""
        return self.node_of(self.job(name).driver)

    def hosts_of(self, name: str = "j") -> FakeHosts:
        """The hosts of the job's driver."""
        return self.hosts[self.driver(name).name]

    def link(self, name: str = "j") -> FakeLink:
        """Return the host of the job's driver that was started last."""
        return self.hosts_of(name).last

    def say(self, event: str, name: str = "j", **details: Any) -> None:
        """Let the job's host report an event, under the job's present version."""
        self.link(name).say(event, name, self.job(name).version, **details)

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait as `World.until` does."""
        await self.world.until(condition, what)

    async def ready(self, name: str = "j") -> None:
        """Wait until the job's driver has reported that it runs."""

        def is_ready() -> bool:
            found = self.world.audit.replica.jobs.get(name)
            return found is not None and found.ready

        await self.until(is_ready, f"{name} is ready")

    async def ended(self, name: str = "j") -> Known:
        """Wait until the job has ended."""
        await self.until(lambda: self.job(name).state in ("completed", "killed", "failed"), f"{name} has ended")
        return self.job(name)


def job_of(name: str = "j", **more: Any) -> Job:
    """Return a job that reads one queue and writes another."""
    return Job(
        id=name,
        workflow=[("in", "work"), ("work", "out")],
        catalog=[Input("in", queue="a"), Function("work", fn="pkg:work"), Output("out", queue="b")],
        **more,
    )


async def submit(stage: Stage, job: Job | None = None, **more: Any) -> str:
    """Submit a job whose functions need not exist."""
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
    """Run a test in a cluster in which the nodes with these numbers host Spark.

    ``data``: a real directory for the files of hosts; without it they keep no files.
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


def staged(**how: Any) -> Decorator:
    """Return a decorator that runs an async test with its ``stage``, as `on_stage` does; pytest gives the rest."""

    def decorated(test: AsyncTest) -> Callable[..., None]:
        return seen_by_pytest(test, ("stage",), lambda **given: on_stage(partial(test, **given), **how))

    return decorated


def completion(stage: Stage, name: str, version: int) -> complete_job.Args:
    """Return the entry that a driver of a version appends when its job completes."""
    return complete_job.Args(name, version)
