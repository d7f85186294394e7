"""A small world for tests of entries: a list of records, and peers that read it at their own pace.

All entries are encoded, as in a real log. Peers encode the entries that they owe. `World.append`
steps them, checks the invariants and keeps the replica of every position.
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
    """Return arguments that create the tests' cluster."""
    return create_cluster.Args("main", CLUSTER_ID, partitions, 3, 6_000, 60_000, 5_000, enabled)


def joining(
    peer: str, node: str = "", zone: str = "z1", *, previous: str = "", store: str = ""
) -> prepare_join_cluster.Args:
    """Return arguments with which a peer asks to join; by default its node is named after it."""
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
    """Time when the last record was appended and read by all."""

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
        """Append a record and return its entries' verdicts."""
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
    """Return a world with a cluster that ``peers`` have joined."""
    world = World()
    world.submit("founder", creation(partitions=partitions))
    world.join(*peers)
    return world


@define
class Sim:
    """A simulated peer: it has read the log up to ``read``, and remembers which dead peers it has reported."""

    id: str
    node: str
    read: int = 0
    alive: bool = True
    sent: int = 0
    """Outbox number of its last record."""
    pending: list[tuple[int, Any]] = field(factory=list)
    """(records in the log at the append, arguments) of entries that it has not read yet."""

    def replica(self, world: World) -> Replica:
        """Return the replica that it knows."""
        return world.replicas[self.read]

    def advance(self, world: World, count: int) -> None:
        """Read up to ``count`` records."""
        self.read = min(self.read + count, len(world.records))
        self.pending = [(place, args) for place, args in self.pending if place > self.read]

    def append(self, world: World, args: Any) -> None:
        """Append one entry unless it is in flight."""
        if any(args == other for _, other in self.pending):
            return
        self.sent += 1
        world.submit(self.id, args, number=self.sent)
        self.pending.append((len(world.records), args))

    def act(self, world: World, pulses: frozenset[str]) -> None:
        """Append the entries that it owes, and reports of watched peers without a pulse."""
        known = self.replica(world)
        for args in owed(known, self.id, ENTRIES):
            self.append(world, args)
        for other in ring.watches(known, self.id):
            if other not in pulses:
                self.append(world, leave_cluster.Args(other, "its pulse is absent"))


@define
class Ensemble:
    """Nodes that start and crash around one log; a test drives them."""

    world: World
    sims: list[Sim] = field(factory=list)

    def pulses(self) -> frozenset[str]:
        """Return the peers whose session is valid."""
        return frozenset(sim.id for sim in self.sims if sim.alive)

    def living(self) -> list[Sim]:
        """Return the running peers, oldest first."""
        return [sim for sim in self.sims if sim.alive]

    def start(self, node: str) -> Sim:
        """Start a peer of the node, which asks to join; an older peer of the node is dead by then."""
        for sim in self.sims:
            if sim.node == node:
                sim.alive = False
        sim = Sim(f"p{len(self.sims):03}", node)
        self.sims.append(sim)
        sim.append(self.world, joining(sim.id, node, previous=ring.latest_peer(self.world.now, node)))
        return sim

    def stop(self, sim: Sim) -> None:
        """Let the peer announce that it leaves, and end it."""
        sim.append(self.world, leave_cluster.Args(sim.id, "stopped"))
        sim.alive = False

    def drain(self) -> None:
        """Stop the faults: let all peers read and act until nothing more is appended."""
        for _ in range(40 * (len(self.sims) + 1)):
            before = len(self.world.records)
            for sim in self.living():
                sim.advance(self.world, len(self.world.records))
                sim.act(self.world, self.pulses())
            if len(self.world.records) == before:
                return
        raise AssertionError("the ring does not come to rest")
