"""A small world for tests of entries: a list of records, and peers that read it at their own pace.

Everything goes through bytes, as in a real log: peers encode what they owe, `World.append`
steps it, checks the invariants and keeps the replica of every position.
"""

from __future__ import annotations

from typing import Any

from attrs import define, field
from pyrsistent import PMap

from log_entries import create_cluster, leave_cluster, prepare_join_cluster
from log_entries.registry import ENTRIES, VERSIONS
from onyxq.core import ring
from onyxq.core.invariants.replica import violations
from onyxq.core.log.clock import Measured
from onyxq.core.log.interface import Record
from onyxq.core.log.record import encode_entry, encode_record
from onyxq.core.replica import EMPTY, Replica
from onyxq.core.step import Step, owed, step

CLUSTER_ID = "c1"
START_MS = 1_700_000_000_000
TICK_MS = 10


def creation(*, partitions: int = 4, enabled: PMap[str, int] = VERSIONS) -> create_cluster.Args:
    """Arguments that create the tests' cluster."""
    return create_cluster.Args("main", CLUSTER_ID, partitions, 3, 6_000, 60_000, 5_000, enabled)


def joining(
    peer: str, node: str = "", zone: str = "z1", *, previous: str = "", store: str = ""
) -> prepare_join_cluster.Args:
    """Arguments with which a peer asks to join; its node is named after it unless given."""
    node = node or f"node-{peer}"
    return prepare_join_cluster.Args(peer, node, f"{peer}:7400", f"{peer}:7480", zone, 4, (), VERSIONS, previous, store)


@define
class World:
    """The log and the replica at each of its positions."""

    replicas: list[Replica] = field(factory=lambda: [EMPTY])
    """``replicas[n]``: after n records."""
    steps: list[Step] = field(factory=list)
    records: list[Record] = field(factory=list)
    check: bool = True
    """Whether invariants are checked after every record."""
    now_ms: int = START_MS
    read_ms: int = START_MS
    """When the last record landed, and everybody read it."""

    @property
    def now(self) -> Replica:
        """The replica at the end of the log."""
        return self.replicas[-1]

    def append(self, data: bytes) -> Step:
        """Append bytes as the next record."""
        self.now_ms += TICK_MS
        record = Record(len(self.records), self.now_ms, data)
        done = step(self.now, record, ENTRIES)
        self.read_ms = self.now_ms
        self.records.append(record)
        self.steps.append(done)
        self.replicas.append(done.replica)
        if self.check:
            assert violations(done.replica) == []
        return done

    def submit(
        self, peer: str, *entries: Any, number: int = 0, cluster_id: str = CLUSTER_ID, clock_ahead_ms: int = 0
    ) -> Step:
        """Append a record of ``peer`` under its next outbox number (or another one)."""
        number = number or self.now.outbox.get(peer, 0) + 1
        now_ms = self.now_ms + TICK_MS
        measured = Measured(self.now.position, now_ms - self.read_ms)
        packed = [encode_entry(entry, ENTRIES) for entry in entries]
        return self.append(encode_record(cluster_id, peer, number, now_ms + clock_ahead_ms, packed, measured=measured))

    def verdicts(self, peer: str, *entries: Any) -> list[str]:
        """Append a record and give its entries' verdicts."""
        return [outcome.verdict for outcome in self.submit(peer, *entries).outcomes]

    def settle(self, *peers: str) -> None:
        """Let ``peers`` append what they owe until they owe nothing."""
        for _ in range(1000):
            debts = [(peer, args) for peer in peers for args in owed(self.now, peer, ENTRIES)]
            if not debts:
                return
            self.submit(*debts[0])
        raise AssertionError(f"still owed: {debts}")

    def join(self, *peers: str) -> None:
        """Let peers join one after the other, each of its own node."""
        for peer in peers:
            self.submit(peer, joining(peer))
            self.settle(*sorted(self.now.peers))


def created(*peers: str, partitions: int = 4) -> World:
    """A world with a cluster, in which ``peers`` have joined."""
    world = World()
    world.submit("founder", creation(partitions=partitions))
    world.join(*peers)
    return world


@define
class Sim:
    """A simulated peer: it knows the log up to ``read``, and which dead peers it has reported."""

    id: str
    node: str
    read: int = 0
    alive: bool = True
    sent: int = 0
    """Outbox number of its last record."""
    pending: list[tuple[int, Any]] = field(factory=list)
    """(records in the log when it was appended, arguments) of what it has not read back yet."""

    def replica(self, world: World) -> Replica:
        """What it knows."""
        return world.replicas[self.read]

    def advance(self, world: World, count: int) -> None:
        """Read up to ``count`` records."""
        self.read = min(self.read + count, len(world.records))
        self.pending = [(place, args) for place, args in self.pending if place > self.read]

    def append(self, world: World, args: Any) -> None:
        """Append one entry unless it is under way."""
        if any(args == other for _, other in self.pending):
            return
        self.sent += 1
        world.submit(self.id, args, number=self.sent)
        self.pending.append((len(world.records), args))

    def act(self, world: World, pulses: frozenset[str]) -> None:
        """Append what it owes, and reports of the watched peers that have no pulse."""
        known = self.replica(world)
        for args in owed(known, self.id, ENTRIES):
            self.append(world, args)
        for other in ring.watches(known, self.id):
            if other not in pulses:
                self.append(world, leave_cluster.Args(other, "its pulse is absent"))


@define
class Ensemble:
    """Nodes that start and crash around one log; what a test drives."""

    world: World
    sims: list[Sim] = field(factory=list)

    def pulses(self) -> frozenset[str]:
        """Peers whose session lives."""
        return frozenset(sim.id for sim in self.sims if sim.alive)

    def living(self) -> list[Sim]:
        """Peers that run, oldest first."""
        return [sim for sim in self.sims if sim.alive]

    def start(self, node: str) -> Sim:
        """A new peer of the node, which asks to join; an older one of the node is dead by then."""
        for sim in self.sims:
            if sim.node == node:
                sim.alive = False
        sim = Sim(f"p{len(self.sims):03}", node)
        self.sims.append(sim)
        sim.append(self.world, joining(sim.id, node, previous=ring.latest_peer(self.world.now, node)))
        return sim

    def stop(self, sim: Sim) -> None:
        """The peer announces that it leaves, and ends."""
        sim.append(self.world, leave_cluster.Args(sim.id, "stopped"))
        sim.alive = False

    def drain(self) -> None:
        """No more faults: everybody reads all there is and acts, until nothing is appended any more."""
        for _ in range(40 * (len(self.sims) + 1)):
            before = len(self.world.records)
            for sim in self.living():
                sim.advance(self.world, len(self.world.records))
                sim.act(self.world, self.pulses())
            if len(self.world.records) == before:
                return
        raise AssertionError("the ring does not come to rest")
