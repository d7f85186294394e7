"""A whole cluster in one thread: real nodes on a simulated log, network, disks and clocks.

Everything that the nodes do is the code that runs in production; only the five
interfaces to the world are simulated (design: simulation).  A seed decides every delay,
fault and scheduling order, so a failing run can be repeated.  Hours pass in seconds.

    def test_x():
        simulate(my_workload, seed=7)      # async def my_workload(world: World) -> None
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import trio
from attrs import define, field, frozen

from log_entries.registry import ENTRIES
from onyxq.client import AsyncClient
from onyxq.client.asynchronous import Sources
from onyxq.client.values import Task
from onyxq.core.entry import Entries
from onyxq.core.errors import NotFound, OnyxqError, causes
from onyxq.core.replica import Replica
from onyxq.interfaces.daemon import Platform, RunningNode
from onyxq.interfaces.peer_config import PeerConfig
from onyxq.leader.state.leader_state import LeaderState
from onyxq.node.jobs.host_process import launch
from onyxq.node.jobs.hosts import Launch
from onyxq.node.node import Node
from onyxq.store.memory import MemoryStore, MemoryTables
from onyxq.system.clock import WallClock
from onyxq.wire.network import Network
from simulation.probes import OF_WORLDS, Probes
from simulation.world.audit import Audit
from simulation.world.clients import RecordingClient
from simulation.world.clock import SimulatedClock, mock_clock
from simulation.world.disk import SimulatedDisk
from simulation.world.history import History
from simulation.world.log import MemoryBackend, MemorySession, NodeLog
from simulation.world.network import Host, SimulatedNetwork
from simulation.world.receiver import TRANSPORT, SimulatedReceiver
from simulation.world.scheduling import Rounds, Spinning, seeded_scheduling, sleeping_by_naps

SETTLE_S = 90.0
"""Simulated seconds in which a cluster without faults must serve everything again."""
COPIES_S = 150.0
"""Simulated seconds in which holders that serve must have become equal: two rounds of comparisons."""
RUN_S_MAX = 7_200.0
"""Simulated seconds after which a run counts as hung."""

LeaderState.strict = True  # In a simulation, a transition that must not happen ends the run.


@frozen
class Options:
    """How a world is made."""

    nodes: int = 3
    partitions: int = 8
    replicas: int = 3
    session_timeout_ms: int = 6_000
    absent_after_ms: int = 60_000
    yield_after_ms: int = 5_000
    gc_records: int = 20_000
    network_delay_ms: int = 1
    append_delay_ms: tuple[int, int] = (1, 4)
    read_delay_ms: tuple[int, int] = (0, 3)
    disk_delay_ms: tuple[int, int] = (0, 2)
    clock_offset_ms: int = 200
    """Clocks of nodes are off by up to this."""
    monotonic_ppm: int = 500
    """Monotonic clocks of nodes run too fast, right and too slow by this, in turn."""
    client_clock_ms: tuple[int, ...] = (0,)
    """How far clients' clocks are ahead; each client draws one."""
    entries: Entries = ENTRIES
    """What the program of every node knows; `SimulatedNode.entries` says otherwise for one."""
    purge_bucket_ms: int = 3_600_000
    purge_margin_ms: int = 600_000
    task_archive: str | None = None
    """A real directory, which all nodes share."""
    record_archive: str | None = None
    """Likewise, for the log's records."""
    callbacks: bool = False
    """Whether nodes make the callbacks of timers, to `World.receiver`."""
    timer_timeout_ms: int = 10_000
    zones: int = 0
    """Nodes are in this many zones in turn; 0: they name none."""


CONFIGURED = (
    "partitions replicas session_timeout_ms absent_after_ms yield_after_ms gc_records purge_bucket_ms purge_margin_ms "
    "task_archive record_archive timer_timeout_ms"
).split()
"""Options that are settings of each peer as well."""


@define(eq=False)
class SimulatedNode:
    """One machine: its disk, clock and connections outlive the processes that run on it."""

    name: str
    config: PeerConfig
    disk: SimulatedDisk
    clock: SimulatedClock
    log: NodeLog
    network: Host
    entries: Entries = ENTRIES
    """What the program that is installed on the machine knows."""
    launch_host: Launch = launch
    """How a node that hosts Spark starts it."""
    running: RunningNode | None = None
    scope: trio.CancelScope = field(factory=trio.CancelScope)
    ended: trio.Event = field(factory=trio.Event)
    killed: bool = False
    store: MemoryStore | None = None
    """Of the last process."""
    known_id: str = ""
    """The id in the data directory, as a process there once told; empty before the first."""
    error: OnyxqError | None = None
    """Why its last process ended, if it was not stopped."""
    astray: bool = False
    """It reads another log than the audit: its replica is not compared."""
    may_end: int = 0
    """While above 0 the process may end with an error that is for its operator: it is noted, not raised."""

    @property
    def address(self) -> str:
        """``HOST:PORT``."""
        return self.config.listen

    @property
    def inner(self) -> Node | None:
        """The node of the process that runs, once there is one."""
        return self.running.node if self.running is not None else None

    @property
    def replica(self) -> Replica | None:
        """The replica of the running node."""
        return self.inner.replica if self.inner is not None else None

    @property
    def peer_id(self) -> str:
        """The peer of the running node; empty if none runs."""
        return self.inner.peer_id if self.inner is not None else ""

    @property
    def node_id(self) -> str:
        """The id in the data directory, while a node runs; otherwise empty."""
        return self.inner.node_id if self.inner is not None else ""


class World:
    """See the module's first paragraph; made by `simulate`."""

    def __init__(self, *, seed: int, options: Options, nursery: trio.Nursery) -> None:
        self.seed = seed
        self.options = options
        self.random = random.Random(seed)
        self.log_clock = SimulatedClock()
        self.network = SimulatedNetwork(
            delay_ms=options.network_delay_ms,
            # Bytes in odd pieces cost many steps: some runs have them, most have not.
            generator=random.Random(self.random.getrandbits(64)) if seed % 8 == 7 else None,
        )
        self.probes = Probes(OF_WORLDS)
        self.nodes: list[SimulatedNode] = []
        self.receiver = SimulatedReceiver()
        self.begin_log()
        self.ended_s = 0.0
        """Simulated seconds that the run took."""
        self.episodes: list[tuple[float, str]] = []
        """When which fault began; for the eye."""
        self.nursery = nursery
        self._clients = 0
        for _ in range(options.nodes):
            self.add_node()

    def begin_log(self) -> None:
        """Give the cluster an empty log, and an audit and a history of it."""
        self.backend = MemoryBackend(
            clock=self.log_clock,
            append_delay_s=lambda: self._between(self.options.append_delay_ms),
            read_delay_s=lambda: self._between(self.options.read_delay_ms),
            probes=self.probes,
        )
        self.history = History()
        self.audit = Audit(
            self.backend,
            self.history,
            self._tables,
            self.options.entries,
            lambda: (node.clock.wall_ms() for node in self.nodes),
        )
        self.audit.callbacks_once.made = self.receiver.callbacks
        for node in self.nodes:
            node.log.backend = self.backend

    def _between(self, bounds_ms: tuple[int, int]) -> float:
        return self.random.uniform(*bounds_ms) / 1000

    # --- nodes

    def add_node(self) -> SimulatedNode:
        """Another machine; nothing runs on it yet."""
        options = self.options
        name = f"n{len(self.nodes)}"
        offset = options.clock_offset_ms
        node = SimulatedNode(
            name=name,
            config=PeerConfig(
                data=name,
                listen=f"{name}:7400",
                http=None,
                **{name: getattr(options, name) for name in CONFIGURED},
                zone=f"z{len(self.nodes) % options.zones}" if options.zones else "",
            ),
            disk=SimulatedDisk(delay_ms=lambda: self.random.randint(*options.disk_delay_ms)),
            clock=SimulatedClock(
                offset_ms=self.random.randint(-offset, offset),
                monotonic_ppm=(1 - len(self.nodes) % 3) * options.monotonic_ppm,
            ),
            log=NodeLog(self.backend),
            network=self.network.host(name),
            entries=options.entries,
        )
        self.nodes.append(node)
        return node

    def start_node(self, node: SimulatedNode) -> None:
        """Start a process on a machine where none runs."""
        assert node.running is None, f"{node.name} runs already"
        node.scope, node.ended, node.killed, node.error = trio.CancelScope(), trio.Event(), False, None
        node.running = RunningNode(
            node.config,
            node.log,
            platform=Platform(
                network=node.network,
                clock=node.clock,
                open_store=lambda _, clock: self._open_store(node, clock),
                offload=_in_place,
                launch_host=node.launch_host,
            ),
            seed=self.random.getrandbits(64),
            entries=node.entries,
            transports={TRANSPORT: self.receiver.deliver} if self.options.callbacks else None,
        )
        self.nursery.start_soon(self._run, node, node.running)

    def _open_store(self, node: SimulatedNode, clock: WallClock) -> MemoryStore:
        node.store = MemoryStore(node.disk, now_ms=clock.wall_ms)
        return node.store

    async def _run(self, node: SimulatedNode, running: RunningNode) -> None:
        try:
            with node.scope:
                await running.run()
        except BaseException as error:
            node.error = next((one for one in causes(error) if isinstance(one, OnyxqError)), None)
            if not node.killed and not (node.may_end and node.error is not None):
                raise
        finally:
            node.running = None
            node.ended.set()

    async def crash_node(self, node: SimulatedNode) -> None:
        """Kill the process now: unsynced writes and connections go, its pulse stays until the session times out."""
        assert node.running is not None, f"{node.name} does not run"
        node.killed = True
        node.disk.crash(keep_unsynced=self.random.random() < 0.5)
        self.network.cut(node.name)
        if node.log.session_now is not None:
            self._orphan(node.log.session_now)
        node.scope.cancel()
        await node.ended.wait()

    def _orphan(self, session: MemorySession) -> None:
        """The session's owner is gone; the log only notices when it times out."""
        ghost = MemorySession(self.backend)
        self.backend.sessions.append(ghost)
        for peer, (owner, data) in list(self.backend.pulse_owners.items()):
            if owner is session:
                self.backend.pulse_owners[peer] = (ghost, data)
        session.late.clear()
        session.reached = False
        session.breakages += 1
        self.nursery.start_soon(self._expire_later, ghost)

    async def _expire_later(self, session: MemorySession) -> None:
        await trio.sleep(self.options.session_timeout_ms / 1000)
        self.backend.expire(session)

    async def restart_node(self, node: SimulatedNode, *, after_s: float = 0.0) -> None:
        """Kill the process, wait, start another one on the same disk."""
        await self.crash_node(node)
        await trio.sleep(after_s)
        self.start_node(node)

    async def bring_back(self, node: SimulatedNode) -> None:
        """Start a process on a machine again and return when everything is served."""
        self.start_node(node)
        await self.settle()

    async def stop_node(self, node: SimulatedNode) -> None:
        """Have the process drain, leave and end, as on SIGTERM."""
        assert node.running is not None, f"{node.name} does not run"
        node.running.stop.set()
        await node.ended.wait()

    # --- faults of the log

    def expire_session(self, node: SimulatedNode) -> None:
        """The node's session ends, and the node hears of it."""
        if node.log.session_now is not None:
            self.backend.expire(node.log.session_now)

    def disconnect_log(self, node: SimulatedNode) -> None:
        """The node loses the log; after the session timeout its pulse goes, which it only hears when back."""
        node.log.reachable = False
        session = node.log.session_now
        if session is not None and session in self.backend.sessions:
            self.backend.disconnect(session)
            self.nursery.start_soon(self._time_out, session)

    async def _time_out(self, session: MemorySession) -> None:
        with trio.move_on_after(self.options.session_timeout_ms / 1000):
            while not session.reached:
                await self.backend.wait_changed()
            return
        for peer in [peer for peer, (owner, _) in self.backend.pulse_owners.items() if owner is session]:
            del self.backend.pulse_owners[peer]
        session.late.clear()
        self.backend.notify()

    def reconnect_log(self, node: SimulatedNode) -> None:
        """The node reaches the log again, and hears whether its session outlived the pause."""
        node.log.reachable = True
        session = node.log.session_now
        if session is None or session not in self.backend.sessions:
            return
        if node.peer_id and not any(owner is session for owner, _ in self.backend.pulse_owners.values()):
            self.backend.expire(session)
        else:
            self.backend.reconnect(session)

    def log_down(self) -> None:
        """Make the log unreachable for all; sessions pause with it."""
        self.backend.available = False
        for session in list(self.backend.sessions):
            self.backend.disconnect(session)

    def log_up(self, *, sessions_lost: bool = False) -> None:
        """The log is back, with or without the sessions it had."""
        self.backend.available = True
        for session in list(self.backend.sessions):
            if sessions_lost:
                self.backend.expire(session)
            else:
                self.backend.reconnect(session)

    # --- faults of the network

    def isolate(self, node: SimulatedNode, *, clients: bool = False) -> None:
        """Nothing gets through between a node and the others (and the clients)."""
        self.network.part([node.name], self._others(node, clients=clients))

    def half_open(self, node: SimulatedNode, *, deaf: bool, clients: bool = False) -> None:
        """Lose what the others (and the clients) send to a node if it is ``deaf``; otherwise what it sends to them."""
        others = self._others(node, clients=clients)
        self.network.part(*((others, [node.name]) if deaf else ([node.name], others)), one_way=True)

    def _others(self, node: SimulatedNode, *, clients: bool) -> list[str]:
        others = [other.name for other in self.nodes if other is not node]
        return others + [f"c{number}" for number in range(self._clients)] if clients else others

    # --- clients

    def client_maker(
        self, network: Network, *, nodes: Sequence[SimulatedNode] = (), ahead_ms: Sequence[int] = ()
    ) -> Callable[[], AsyncClient]:
        """Return what makes a client; its clock is ahead by one of ``ahead_ms``, which is drawn."""
        addresses = [node.address for node in nodes or self.nodes]
        self.random.shuffle(addresses)
        generator = random.Random(self.random.getrandbits(64))
        clock = SimulatedClock(offset_ms=self.random.choice(ahead_ms) if ahead_ms else 0)
        return partial(
            AsyncClient,
            addresses,
            network=network,
            sources=Sources(clock.wall_ms, lambda: generator.getrandbits(64)),
        )

    @asynccontextmanager
    async def client(self, *, nodes: Sequence[SimulatedNode] = ()) -> AsyncIterator[RecordingClient]:
        """Open a client on a machine of its own, which knows the addresses of ``nodes`` (default: all)."""
        name = f"c{self._clients}"
        self._clients += 1
        make = self.client_maker(self.network.host(name), nodes=nodes, ahead_ms=self.options.client_clock_ms)
        async with make() as client:
            yield RecordingClient(
                client,
                name=name,
                history=self.history,
                audit=self.audit,
                log_end=lambda: self.backend.following,
            )

    # --- waiting and judging

    async def serve(self) -> None:
        """Audit the log, start all nodes, and return when everything is served."""
        self.nursery.start_soon(self.audit.run, self.replicas)
        for node in self.nodes:
            self.start_node(node)
        await self.settle()

    async def judge(self) -> None:
        """Read everything back, compare the copies, and judge the whole run; raises `Broken`."""
        await self.read_back()
        await self.compare_copies()
        self.audit.finish()
        for name, replica in self.replicas():
            self.audit.replicas_equal.compare(name, replica, always=True)

    def end(self) -> None:
        """Prepare for the end: from now on a process that ends is not an error."""
        for node in self.nodes:
            node.killed = True

    async def until(self, condition: Callable[[], bool], what: str, *, within_s: float = SETTLE_S) -> None:
        """Return once ``condition`` holds; `AssertionError` if it does not in time."""
        with trio.move_on_after(within_s):
            while not condition():
                await trio.sleep(0.05)
            return
        raise AssertionError(f"not within {within_s} s: {what}")

    def serving(self) -> bool:
        """Whether every running node is in the ring, caught up, and every partition is ready and settled."""
        running = [node for node in self.nodes if node.running is not None]
        replica = self.audit.replica
        if not replica.partitions or replica.position != self.backend.last:
            return False
        members = set(replica.ring.members)
        mine = {node.peer_id for node in running}
        return members == mine and all(
            placed.ready and placed.members == placed.target for placed in replica.partitions.values()
        )

    async def settle(self, *, within_s: float = SETTLE_S) -> None:
        """Return once everything is served; `AssertionError` with the state if it is not in time."""
        with trio.move_on_after(within_s):
            while not self.serving():
                await trio.sleep(0.05)
            return
        raise AssertionError(f"not serving within {within_s} s: {self.describe()}")

    def describe(self) -> str:
        """The state in words, for failures."""
        replica = self.audit.replica
        partitions = {
            number: (placed.members, placed.target, placed.leader, placed.epoch, placed.ready)
            for number, placed in sorted(replica.partitions.items())
            if not placed.ready or placed.members != placed.target
        }
        nodes = {node.name: (node.node_id, node.peer_id) for node in self.nodes}
        return f"position {replica.position}, ring {replica.ring}, nodes {nodes}, partitions {partitions}"

    async def read_back(self) -> None:
        """Read every acknowledged task and update and hand them to the checkers."""
        await self.until(lambda: not self.audit.replica.transactions, "what was committed is visible")
        async with self.client() as reader:
            for task in await self._all_tasks(reader.client):
                self.audit.read_back(task)
                if task.id not in self.history.enqueued:
                    continue  # its enqueue was never acknowledged
                try:
                    updates = await reader.client.task_log(task.id) if task.id in self.history.updates else []
                except NotFound:
                    if task.id not in self.audit.purged:
                        raise
                    continue  # purged meanwhile
                self.audit.nothing_lost.read_back(task, updates)

    def pending(self) -> list[tuple[str, str]]:
        """Return the pending transactions on running nodes: node and transaction."""
        return [
            (node.name, name)
            for node in self.nodes
            if node.inner is not None
            for partition in range(self.options.partitions)
            for name in node.inner.store.pending_transactions(partition)
        ]

    async def compare_copies(self) -> None:
        """Give anti-entropy the time to make all holders that run, and have a leader, equal."""
        with trio.move_on_after(COPIES_S):
            while not self._equal_copies():
                await trio.sleep(1.0)

    def _equal_copies(self) -> bool:
        disks = self._disks()
        return self.audit.copies_equal.look(self.audit.replica, disks) and self.audit.purged.look(disks)

    def _tables(self) -> dict[str, MemoryTables]:
        """What is on every node's disk, by node id."""
        for node in self.nodes:
            node.known_id = node.node_id or node.known_id
        return {node.known_id: node.disk.tables for node in self.nodes if node.known_id}

    def _disks(self) -> dict[str, list[tuple[bytes, bytes]]]:
        running = [node for node in self.nodes if node.node_id and not node.disk.failing]
        return {node.node_id: list(node.disk.tables.rows.ascend(b"")) for node in running}

    async def _all_tasks(self, client: AsyncClient) -> list[Task]:
        tasks: list[Task] = []
        after: bytes | None = None
        while True:
            page = await client.list(after=after, limit=100)
            tasks += page.tasks
            after = page.after
            if after is None:
                return tasks

    def replicas(self) -> list[tuple[str, Replica]]:
        """Name and replica of every node that runs."""
        return [(node.name, node.replica) for node in self.nodes if node.replica is not None and not node.astray]


async def _in_place(function: Callable[..., Any], *args: Any) -> Any:
    """What goes to a thread in production: here threads would make time, and order, random."""
    await trio.lowlevel.checkpoint()
    return function(*args)


Script = Callable[[World], Awaitable[object]]
"""What happens in a world."""


def simulate(
    workload: Script,
    *,
    seed: int,
    options: Options | None = None,
    started: bool = True,
) -> World:
    """Run ``workload`` in a world of its own, then audit it; the world as it ended.

    ``started``: begin with all nodes serving.  After the workload everything that was
    acknowledged is read back.  Raises what the workload, a node or a checker raised, and
    `AssertionError` for a run that hangs.
    """

    async def main() -> World:
        with trio.fail_after(RUN_S_MAX):
            async with trio.open_nursery() as nursery:
                spinning = Spinning(nursery.cancel_scope.cancel)
                Rounds(spinning)
                world = World(seed=seed, options=options or Options(), nursery=nursery)
                if started:
                    await world.serve()
                else:
                    nursery.start_soon(world.audit.run, world.replicas)
                await workload(world)
                await world.judge()
                world.end()
                world.ended_s = trio.current_time()
                nursery.cancel_scope.cancel()
        assert not spinning.found, "tasks woke each other without end"
        return world

    with seeded_scheduling(seed), sleeping_by_naps():
        try:
            return trio.run(main, clock=mock_clock())
        except BaseException as error:
            error.add_note(f"simulation seed {seed}")
            raise
