"""The peers of the pure cluster: processes, sessions, reading, and records on their way (design: simulation).

One half of `simulation.search.cluster.Cluster`, whose first paragraph tells what it is for.
"""

from __future__ import annotations

from typing import Any

from attrs import define, field, fields, frozen

from log_entries import abort_join_cluster, create_cluster, drain_node, set_slots
from onyxq.core.cluster_settings import Settings
from simulation.probes import OF_SEARCHES, Probes
from simulation.search.extension import PROGRAMS, Add, AddOne, appended
from simulation.search.log import PureLog
from simulation.search.peer import Captured, Peer, joining, leave_of


@frozen
class Options:
    """What a pure cluster is made of. Times in ms."""

    partitions: int = 2
    replicas: int = 3
    absent_after_ms: int = 3_000
    zones: int = 1
    gc_records: int = 20_000


@define(eq=False)
class Members:
    """Peers around one log, and what can happen to them."""

    options: Options = field(factory=Options)
    log: PureLog = field(factory=PureLog)
    peers: dict[str, Peer] = field(factory=dict)
    """All that ever ran, by id."""
    latest: dict[str, Peer] = field(factory=dict)
    """The last peer of each node."""
    pulses: dict[str, None] = field(factory=dict)
    skews_ms: dict[str, int] = field(factory=dict)
    """How far each node's clock is ahead of true time."""
    probes: Probes = field(factory=lambda: Probes(OF_SEARCHES))
    generations: dict[str, int] = field(factory=dict)
    programs: dict[str, int] = field(factory=dict)
    """Which of `PROGRAMS` the next peer of a node runs; the oldest if it is not in here."""

    def living(self) -> list[Peer]:
        """The latest peers of all nodes whose process runs, in the order of their nodes' first start."""
        return [peer for peer in self.latest.values() if peer.alive]

    def _alive(self, peer_id: str) -> Peer | None:
        peer = self.peers.get(peer_id)
        return peer if peer is not None and peer.alive else None

    def _able(self, peer_id: str) -> Peer | None:
        """The peer if it runs and its session lives."""
        peer = self.peers.get(peer_id)
        return peer if peer is not None and peer.alive and peer.pulse else None

    def _member(self, peer_id: str) -> Peer | None:
        """The peer if it runs and knows itself a member."""
        peer = self.peers.get(peer_id)
        return peer if peer is not None and peer.alive and peer_id in peer.replica.ring.members else None

    def _wall_ms(self, peer: Peer) -> int:
        return self.log.now_ms + self.skews_ms.get(peer.node, 0)

    def _bytes(self, peer: Peer, number: int) -> bytes:
        return peer.bytes_of(number, self._wall_ms(peer), self.log.now_ms)

    # --- processes and sessions

    def start(self, node: str, peer_id: str = "") -> bool:
        """A new peer of a node whose last one is dead: it reads, and asks to join or founds the cluster.

        Its id is the node's name and a number, unless it is given."""
        last = self.latest.get(node)
        peer_id = peer_id or self.next_id(node)
        if (last is not None and last.alive) or peer_id in self.peers:
            return False
        self.generations[node] = self.generations.get(node, 0) + 1
        peer = Peer(peer_id, node, f"z{ord(node[0]) % self.options.zones}", self.programs.get(node, 0))
        self.peers[peer_id] = self.latest[node] = peer
        self._catch_up(peer)
        if peer.older:
            self.probes.reached("a process was older than the cluster")
            return True
        self.pulses[peer.id] = None
        if peer.replica.cluster is None:
            self._found(peer)
        else:
            peer.join()
        if last is not None and last.pulse:
            self.probes.reached("a node is back while its last peer's pulse lives")
        return True

    def next_id(self, node: str) -> str:
        """The id of the next peer of a node."""
        number = self.generations.get(node, 0) + 1
        return node if number == 1 else f"{node}{number}"

    def _catch_up(self, peer: Peer) -> None:
        """A new process starts from the origin, or from the log's start if it was not trimmed."""
        log = self.log
        if log.origin is not None:
            peer.read(log, 1)
        if peer.alone:
            peer.read(log, peer.alone)
        peer.place = max(peer.place, log.end)
        peer.replica = log.now
        peer.note_log_time(log)
        peer.jumped = False
        if peer.entries.unknown(log.now.enabled):
            peer.older = True
            peer.end()

    def install(self, node: str, program: int) -> bool:
        """A node's next peer runs another program: 0 without the extension, 1 with its first version, 2 with all."""
        if not 0 <= program < len(PROGRAMS):
            return False
        self.programs[node] = program
        return True

    def _found(self, peer: Peer) -> None:
        options = self.options
        settings = Settings(
            partitions=options.partitions,
            replicas=options.replicas,
            absent_after_ms=options.absent_after_ms,
            gc_records=options.gc_records,
        )
        peer.cluster_id = f"id-{peer.id}"
        named = {one.name: getattr(settings, one.name) for one in fields(Settings)}
        peer.submit(create_cluster.Args(name="main", id=peer.cluster_id, enabled=peer.entries.versions, **named))

    def crash(self, peer_id: str) -> bool:
        """The process dies; its session lives on, and what it had sent may still land."""
        peer = self._alive(peer_id)
        if peer is None:
            return False
        self._note_collector(peer.captured)
        ghosts = peer.ghosts + [self._bytes(peer, number) for number in peer.flying]
        peer.drop()
        peer.ghosts = ghosts
        peer.alive = False
        return True

    def _note_collector(self, captured: Captured | None) -> None:
        if captured is not None:
            if captured.stored and not captured.trimmed:
                self.probes.reached("a collector died before it had trimmed")
            elif not captured.stored:
                self.probes.reached("a collector died before it moved the pointer")

    def expire(self, peer_id: str) -> bool:
        """The session ends: the pulse goes, nothing that was sent lands any more, a process that lives stops."""
        peer = self.peers.get(peer_id)
        if peer is None or not peer.pulse:
            return False
        peer.pulse = False
        self.pulses.pop(peer_id, None)
        peer.drop()
        if peer.alive:
            self.probes.reached("a live peer lost its session")
            peer.alive = False
        return True

    def kill(self, peer_id: str) -> bool:
        """The process dies and its session with it."""
        self.crash(peer_id)
        return self.expire(peer_id)

    def kill_all(self) -> bool:
        """Every process dies, every session ends."""
        ring = self.log.now.ring
        if ring.prepared or ring.accepted or ring.queue:
            self.probes.reached("everybody died with joins in flight")
        killed = [self.kill(peer) for peer in list(self.pulses)]
        return any(killed)

    # --- reading and deciding

    def read(self, peer_id: str, count: int = 1_000_000) -> bool:
        """A peer reads up to ``count`` records, and does nothing about them yet."""
        peer = self._alive(peer_id)
        if peer is None or not peer.pulse:
            return False
        if not peer.read(self.log, count):
            return not peer.asked and peer.join()
        if peer.jumped:
            self.probes.reached("a trim under a reader")
        if not peer.alive:
            self.pulses.pop(peer_id, None)
            older = "a peer read that it is older than the cluster"
            self.probes.reached(older if peer.older else "a peer read of its own leave")
        elif not peer.asked:
            peer.join()
        return True

    def alone(self, peer_id: str, count: int) -> bool:
        """A peer steps the next records for itself; its replica must come out equal."""
        peer = self._alive(peer_id)
        if peer is None:
            return False
        peer.alone = max(peer.alone, count)
        return True

    def react(self, peer_id: str) -> bool:
        """A peer submits what it owes, and reports of those it watches that are gone."""
        peer = self._able(peer_id)
        if peer is None or not peer.asked:
            return False
        found = peer.react(self.pulses)
        if found and peer.jumped:
            self.probes.reached("an obligation right after a trim")
        peer.jumped = False
        return found

    def turn(self, peer_id: str, count: int = 1_000_000) -> bool:
        """Read, react, send and land in one go."""
        read = self.read(peer_id, count)
        self.react(peer_id)
        self.send(peer_id)
        return self.flush(peer_id) or read

    # --- the outbox

    def send(self, peer_id: str) -> bool:
        """What waits becomes a record on its way."""
        peer = self._able(peer_id)
        return peer is not None and peer.make()

    def beat(self, peer_id: str) -> bool:
        """A record goes out even if nothing waits, so that log time advances."""
        peer = self._able(peer_id)
        return peer is not None and peer.asked and peer.make(empty=True)

    def land(self, peer_id: str) -> bool:
        """The oldest record on its way lands, and its writer hears of it."""
        peer = self._able(peer_id)
        if peer is None or not peer.flying:
            return False
        number = peer.flying.pop(0)
        self.log.land(self._bytes(peer, number))
        peer.landed[number] = self.log.end
        return True

    def flush(self, peer_id: str) -> bool:
        """All records on their way land, in order."""
        landed = False
        while self.land(peer_id):
            landed = True
        return landed

    def land_twice(self, peer_id: str) -> bool:
        """The oldest record on its way lands twice."""
        peer = self._able(peer_id)
        if peer is None or not peer.flying:
            return False
        self.log.land(self._bytes(peer, peer.flying[0]))
        return self.land(peer_id)

    def doubt(self, peer_id: str) -> bool:
        """The oldest record on its way lands, but its writer does not hear of it and will send it again."""
        peer = self._able(peer_id)
        if peer is None or not peer.flying:
            return False
        self.log.land(self._bytes(peer, peer.flying[0]))
        return True

    def skip(self, peer_id: str) -> bool:
        """The second record on its way lands, the first does not: there is a gap."""
        peer = self._able(peer_id)
        if peer is None or len(peer.flying) < 2:
            return False
        self.log.land(self._bytes(peer, peer.flying[1]))
        return True

    def lose(self, peer_id: str) -> bool:
        """The connection breaks: the oldest record is sent again, and a copy of it may still land later."""
        peer = self._able(peer_id)
        if peer is None or not peer.flying:
            return False
        peer.ghosts.append(self._bytes(peer, peer.flying[0]))
        return True

    def late(self, peer_id: str) -> bool:
        """A copy that was thought lost lands."""
        peer = self.peers.get(peer_id)
        if peer is None or not peer.ghosts or not peer.pulse:
            return False
        done = self.log.land(peer.ghosts.pop(0))
        if not peer.alive:
            self.probes.reached("a repeat after a crash" if done.problem else "a record landed after its writer died")
        return True

    def garbage(self, size: int) -> bool:
        """Bytes that are no record."""
        self.log.land(bytes([size % 256]) * (size % 64))
        return True

    # --- what peers and operators ask for

    def _submit(self, peer: Peer | None, args: Any) -> bool:
        return peer is not None and peer.pulse and peer.asked and peer.submit(args)

    def ask(self, peer_id: str, other: str = "") -> bool:
        """A peer asks to join once more, or in the name of another one."""
        peer = self._able(peer_id)
        found = self.peers.get(other, peer)
        return peer is not None and found is not None and peer.submit(joining(found))

    def leave(self, peer_id: str) -> bool:
        """A peer asks to leave."""
        peer = self._able(peer_id)
        if peer is None or not peer.known:
            return False
        return self._submit(peer, leave_of(peer_id, "told to leave"))

    def evict(self, peer_id: str, other: str) -> bool:
        """A member reports another peer on an operator's word, whether it is dead or not."""
        return self._submit(self._member(peer_id), leave_of(other, "an operator said so"))

    def abort(self, peer_id: str) -> bool:
        """A joiner gives up."""
        peer = self._able(peer_id)
        if peer is None or not peer.known:
            return False
        return self._submit(peer, abort_join_cluster.Args(peer_id))

    def slots(self, peer_id: str, count: int) -> bool:
        """A peer offers another number of slots."""
        return self._submit(self._able(peer_id), set_slots.Args(peer_id, count))

    def drain(self, peer_id: str, node: str, permanent: str = "no") -> bool:
        """A member moves work away from a node, for good if ``permanent`` is ``yes``."""
        return self._submit(self._member(peer_id), drain_node.Args(node, permanent == "yes"))

    def append(self, peer_id: str, entry: str, *values: Any) -> bool:
        """A peer appends any entry by name, whether that makes sense or not."""
        peer = self._able(peer_id)
        args = appended(peer.entries, entry, list(values)) if peer is not None else None
        return peer is not None and args is not None and peer.submit(args, forced=True)

    def tally(self, peer_id: str, name: str, count: int) -> bool:
        """A member has the extension count; by one only, as long as not more is enabled."""
        peer = self._member(peer_id)
        if peer is None or peer.program == 0:
            return False
        return self._submit(peer, Add(name, count) if peer.program > 1 else AddOne(name))
