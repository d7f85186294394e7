"""A cluster under test, seen from inside the simulation: peers, clients, workers, time.

`onyxq.testing.core` adds faults and draining; `onyxq.testing.cluster` has the forms that tests use.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import trio

from onyxq.client import Client
from onyxq.core.cron import NEVER_MS
from onyxq.core.duties import Extended, duties
from onyxq.core.errors import BadRequest
from onyxq.core.limits import TIMERS_QUEUE
from onyxq.operations.table.task import State
from onyxq.system.durations import Seconds, as_seconds
from onyxq.system.extensions import installed
from onyxq.testing.asyncio_host import AsyncioHost
from onyxq.testing.clients import AwaitedClient, BlockingClient, Losses, Machine
from onyxq.testing.found_tasks import FoundTask
from onyxq.testing.loop import BlockingThread, Loop
from onyxq.testing.workers import Plan, Run, RunningWorker, current_worker
from onyxq.worker import Worker
from onyxq.worker.app import App
from simulation.world.clock import EPOCH_MS
from simulation.world.world import Options, SimulatedNode, World

BACKENDS = ("asyncio", "trio")
LEAP_MARGIN_S = 1.0
"""Distance that a jump of time keeps from the next known event, in simulated seconds."""
LAST_ANSWERS_S = 0.2
"""Time after which no message is under way between idle peers, in simulated seconds."""
LEAP_LEAST_S = 5.0
"""Shortest wait that is jumped over, in simulated seconds."""


class Base:
    """A cluster inside the simulation; call `start` before anything else."""

    def __init__(self, loop: Loop, *, seed: int, peers: int, backend: str) -> None:
        if backend not in BACKENDS:
            raise BadRequest(f"{backend!r} is not one of {', '.join(BACKENDS)}", field="backend")
        if not 1 <= peers <= 9:
            raise BadRequest(f"{peers} peers; 1 to 9", field="peers")
        self.loop = loop
        self.seed = seed
        self.peers_at_first = peers
        self.backend = backend
        self.runs: list[Run] = []
        self.plans: list[Plan] = []
        self.workers: list[RunningWorker] = []
        self.apps: list[App] = []
        self._clients_before: list[Client | None] = []
        """The own clients of ``apps``, which they have again after the test."""
        self.losses = Losses()
        self.log_frozen = False
        self.test_task: trio.lowlevel.Task | None = None
        """The task of an async test."""
        self.machines: list[Machine] = []

    async def start(self, nursery: trio.Nursery) -> None:
        """Start all peers and wait until they serve."""
        self.nursery = nursery
        options = Options(
            nodes=self.peers_at_first,
            partitions=4,
            replicas=min(3, self.peers_at_first),
            clock_offset_ms=0,
            entries=installed(),
        )
        self.world = World(seed=self.seed, options=options, nursery=nursery)
        self.loop.starting = self._thread_starts
        self.host = AsyncioHost(nursery)
        nursery.start_soon(self.host.run)
        await self.world.serve()
        self.eye = self.machine("eye")

    def finish(self) -> None:
        """Prepare for the end of the test: from now on a peer that ends is not an error."""
        self.world.end()
        for app, client in zip(self.apps, self._clients_before, strict=True):
            app._client = client

    # --- clients and code of the user

    def machine(self, kind: str) -> Machine:
        """Return a new machine for a client or worker."""
        losses = Losses() if kind == "eye" else self.losses
        name = f"{kind}-{len(self.machines)}"
        machine = Machine(self.world, self.nursery, losses, name=name, serves=self.serves)
        self.machines.append(machine)
        return machine

    def awaited_client(self, machine: Machine) -> AwaitedClient:
        return AwaitedClient(machine, self.elsewhere)

    async def elsewhere(self, function: Callable[[], Awaitable[Any]]) -> Any:
        """Run a function in the simulation; called from the user's async code."""
        return await (self.host.elsewhere(function) if self.backend == "asyncio" else function())

    async def in_backend(self, make: Callable[[], Any]) -> Any:
        return await (self.host.call(make) if self.backend == "asyncio" else make())

    def use(self, app: App) -> App:
        """Connect an application's own client, which enqueues its tasks, to this cluster."""
        if app not in self.apps:
            self.apps.append(app)
            self._clients_before.append(app._client)
            app._client = None
        if app._client is None:  # the test may have closed it
            app._client = BlockingClient(self.machine("client"), self.loop.call)
        return app

    # --- workers

    async def start_worker(self, source: App | Worker | None, settings: dict[str, Any]) -> RunningWorker:
        """Start a worker; by default of the only application in use."""
        if source is None:
            if len(self.apps) != 1:
                raise BadRequest(f"{len(self.apps)} applications are in use: say whose worker", field="app")
            source = self.apps[0]
        if isinstance(source, App):
            self.use(source)
        worker = RunningWorker(f"worker-{len(self.workers) + 1}", source, settings, self.machine("worker"), around=self)
        self.workers.append(worker)
        self.nursery.start_soon(worker.run)
        return worker

    async def stop_worker(self, worker: RunningWorker) -> None:
        """Stop a worker: it finishes running tasks, gives the others back, and ends."""
        worker.stopping = True
        worker.worker.stop()
        await worker.ended.wait()

    async def stop_workers_of(self, worker: RunningWorker) -> None:
        """Stop a worker and those that replaced it."""
        for one in self.working():
            if one.source is worker.source:
                await self.stop_worker(one)

    def working(self) -> list[RunningWorker]:
        """Return the workers that are alive and not stopping."""
        return [worker for worker in self.workers if worker.alive and not worker.stopping]

    def serves(self, queue: str) -> bool:
        """Return whether a running worker serves a queue."""
        return any(queue in worker.queues for worker in self.working())

    def kill(self, worker: RunningWorker) -> None:
        """Kill a worker now and start another one in its place."""
        worker.alive = False
        self.world.network.part([worker.machine.name], self.peer_names(), lasting=True)
        self.world.network.cut(worker.machine.name)
        worker.scope.cancel()
        self.loop.end_threads(worker.threads)
        if isinstance(worker.source, App) and not worker.stopping:
            self.nursery.start_soon(self.start_worker, worker.source, worker.settings)

    def _thread_starts(self, thread: BlockingThread) -> None:
        worker = current_worker.get(None)
        if worker is not None:
            worker.threads.append(thread)

    # --- looking

    def node(self, name: str | None, *, running: bool = True) -> SimulatedNode:
        """Return a peer's machine; by default that of the peer that leads most partitions."""
        for node in self.world.nodes:
            if node.name == name:
                if running and node.running is None:
                    raise AssertionError(f"peer {name} does not run")
                return node
        if name is not None:
            raise BadRequest(f"no peer {name!r}; there are {', '.join(self.peer_names())}", field="peer")
        leaders = [placed.leader for placed in self.world.audit.replica.partitions.values()]
        found = [node for node in self.world.nodes if node.running is not None]
        if not found:
            raise AssertionError("no peer runs")
        return max(found, key=lambda node: leaders.count(node.peer_id))

    def peer_names(self) -> list[str]:
        """Return the names of the peers' machines."""
        return [node.name for node in self.world.nodes]

    def now_s(self) -> float:
        """Return the simulated seconds since the cluster started."""
        return self.loop.clock.current_time()

    def now_ms(self) -> int:
        """Return the cluster's wall clock in milliseconds since the epoch."""
        return EPOCH_MS + round(self.now_s() * 1000)

    async def tasks(self, queue: str | None = None, state: State | None = None) -> list[FoundTask]:
        """Return the stored tasks in id order, of one queue and state if given."""
        client = await self.eye.client()
        found: list[FoundTask] = []
        after: bytes | None = None
        while True:
            page = await client.list(queue, state=state, after=after, limit=500)
            found += [FoundTask.of(task) for task in page.tasks]
            after = page.after
            if after is None:
                return found

    def served(self) -> bool:
        """Return whether every partition has a running leader: only then can the cluster report all tasks."""
        peers = {node.peer_id for node in self.world.nodes if node.running is not None}
        placed = self.world.audit.replica.partitions.values()
        return all(one.ready and one.leader in peers for one in placed)

    async def counts(self) -> dict[str, dict[str, int]]:
        """Return the number of tasks by queue and state: ``{queue: {state: number}}``."""
        return await (await self.eye.client()).count()

    async def counts_to_do(self) -> dict[str, dict[str, int]]:
        """Return the counts of all queues but that of timers and callbacks, which the peers of a test never make."""
        return {queue: states for queue, states in (await self.counts()).items() if queue != TIMERS_QUEUE}

    # --- time

    async def sleep(self, seconds: Seconds) -> None:
        """Let this many simulated seconds pass."""
        await trio.sleep(as_seconds(seconds, "seconds"))

    def quiet(self) -> bool:
        """Return whether the cluster only waits: no claim, no fault, every partition is served."""
        return (
            not self.log_frozen
            and not self.parted
            and not self.world.audit.replica.claims
            and not (self.backend == "trio" and self.test_task is not None and self.test_task.child_nurseries)
            and not any(worker.held or not worker.worker.set_up for worker in self.working())
            and not self.extensions_work()
            and not any(machine.calls for machine in self.machines)
            and all(node.running is not None for node in self.world.nodes)
            and self.world.serving()
        )

    @property
    def parted(self) -> bool:
        """Whether a living machine is cut off."""
        return any(not cut.lasting for cut in self.world.network.cuts)

    def extensions_work(self) -> bool:
        """Return whether a peer has a duty of an extension, which may take simulated time."""
        replica, entries = self.world.audit.replica, self.world.options.entries
        found = (duty for peer in replica.ring.members for duty in duties(replica, peer, entries))
        return bool(entries.doing) and any(isinstance(duty, Extended) for duty in found)

    async def advance(self, seconds: Seconds) -> None:
        """Let this many simulated seconds pass: leases expire, delayed tasks become due."""
        seconds = as_seconds(seconds, "seconds")
        if seconds < 0:
            raise BadRequest("time does not go backwards", field="seconds")
        end_s = trio.current_time() + seconds
        while end_s - trio.current_time() > LEAP_LEAST_S:
            due_s = await self.next_due_s() if self.quiet() else None
            periodic_s = max(self.next_periodic_s(), trio.current_time() + LAST_ANSWERS_S)
            await self.pass_to(min(periodic_s, end_s if due_s is None else due_s, end_s))
        await trio.sleep_until(end_s)

    async def pass_to(self, to_s: float) -> None:
        """Let time pass up to ``to_s`` or the next possible event; jump while the cluster only waits."""
        if self.quiet():
            await trio.sleep(min(LAST_ANSWERS_S, max(0.0, to_s - trio.current_time())))
        if self.quiet():
            by_s = min(to_s, self.host.next_timer()) - LEAP_MARGIN_S - trio.current_time()
            if by_s > 0:
                self.loop.clock.jump(by_s)
            await trio.sleep_until(min(to_s, trio.current_time() + LEAP_MARGIN_S))
        else:
            await trio.sleep_until(min(to_s, trio.current_time() + LEAP_LEAST_S))

    def next_periodic_s(self) -> float:
        """Return the second at which a periodic task is due next; infinite if there is none."""
        found = self.world.audit.replica.periodic.values()
        next_ms = min((one.next_ms for one in found if not one.paused and one.next_ms < NEVER_MS), default=None)
        return float("inf") if next_ms is None else (next_ms - EPOCH_MS) / 1000

    async def next_due_s(self) -> float | None:
        """Return the second at which the next scheduled task is due; None if none is scheduled."""
        count = sum(states.get("scheduled", 0) for states in (await self.counts_to_do()).values())
        if not count:
            return None
        found = [task for task in await self.tasks(state="scheduled") if task.queue != TIMERS_QUEUE]
        if len(found) < count:
            return trio.current_time()  # one has just become due
        return (min(task.due_ms for task in found) - EPOCH_MS) / 1000
