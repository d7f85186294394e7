"""The cluster that `simulation.search.facts` searches: nodes, a log and messages, moved in small steps.

Each method is one thing that can happen next, such as a crash, a read of a record, or the loss of a message.
"""

from __future__ import annotations

from functools import lru_cache, partial
from random import Random
from typing import Any

from attrs import define, field

from log_entries import leave_cluster, yield_partition
from onyxq.core.errors import OnyxqError, TimedOut, Unavailable
from onyxq.core.log.interface import Record
from onyxq.core.step import Step
from onyxq.leader.leader import PartitionLeader
from onyxq.system.procedures import Wait
from simulation.checkers import Broken, Course
from simulation.search.calm import calm
from simulation.search.cluster import Cluster, Options
from simulation.search.facts_node import FactsNode, Machine, SearchClock, SearchDisk, new_disk
from simulation.search.peer import ABSENT

FOREVER_MS = 3_600_000


@lru_cache
def founded(nodes: int, partitions: int, copies: int) -> Cluster:
    """Return a pure cluster of that many nodes at rest, with a number of copies of each partition."""
    cluster = Cluster(Options(partitions, copies, absent_after_ms=FOREVER_MS))
    for node in "abcdefg"[:nodes]:
        cluster.start(node)
        cluster.turn(node)
    calm(cluster)
    return cluster


@define(eq=False)
class Message:
    """A call of one node to another."""

    source: FactsNode
    target: str
    method: str
    args: dict[str, Any]
    over: Wait = field(factory=Wait)
    answer: Any = None
    error: OnyxqError | None = None
    begun: bool = False
    answered: bool = False


class Facts:
    """See the module's first paragraph; without ``copies``, every node holds every partition."""

    def __init__(self, clock: SearchClock, draw: Random, *, nodes: int, partitions: int, copies: int = 0) -> None:
        found = founded(nodes, partitions, copies or nodes)
        self.clock = clock
        self.draw = draw
        self.start_ms = found.log.now_ms
        self.course = Course(replica=found.log.now, records=list(found.log.records))
        self.found = found.log.now
        self.first = self.found.position + 1
        """Position of the first record that nodes read."""
        self.steps: list[tuple[Record, Step]] = []
        """The records from there on."""
        self.mail: list[Message] = []
        self.nodes: dict[str, FactsNode] = {}
        self.gone: set[str] = set()
        """Nodes that do not start again."""
        self.pulses: dict[str, str] = {peer: found.peers[peer].node for peer in found.pulses}
        """Peer whose session lives -> its node."""
        self.ghosts: list[tuple[str, bytes]] = []
        """Records of processes that died, with their peers: they may land until their sessions end."""
        self.generations = dict.fromkeys(found.latest, 1)
        self.broken: Broken | None = None
        for name, peer in found.latest.items():
            node = self._node(name, new_disk(found.log.now))
            self._resume(node)
            node.enter(peer.id, self.land, number=found.log.now.outbox.get(peer.id, 0))
            node.reconcile()

    # --- nodes

    def _node(self, name: str, disk: SearchDisk) -> FactsNode:
        machine = Machine(self.clock, self.start_ms)
        node = self.nodes[name] = FactsNode(name, disk, machine, random=self.draw.random, post=self.post)
        return node

    def living(self) -> list[FactsNode]:
        """Return the nodes whose process runs."""
        return [node for node in self.nodes.values() if node.alive]

    def crash(self, node: FactsNode, *, lands: bool) -> None:
        """The process dies; its session lives on, and a record on its way may still land."""
        if (sends := node.sends) is not None and sends.flying:
            self.ghosts.append((sends.peer, sends.record()))
        node.alive = False
        node.disk.crash(lands=lands)
        for message in self.mail:
            if message.target == node.node_id and message.begun and not message.answered:
                message.begun = False
        self.mail = [one for one in self.mail if one.source is not node]
        node.leave()
        node.procedures.end()

    def restart(self, node: FactsNode) -> None:
        """The process starts again from its disk."""
        name = node.node_id
        node.disk.pending = None
        self._resume(self._node(name, node.disk))

    def _resume(self, node: FactsNode) -> None:
        place = node.store.log_position() + 1 - self.first
        node.replica = self.steps[place - 1][1].replica if place else self.found
        node.place = place
        node._note_log_time()
        node.operations.transaction_parts.look()
        node.begin()

    # --- the log

    def land(self, data: bytes) -> int:
        """Write a record."""
        before = self.course.replica
        record = Record(before.position + 1, self.start_ms + int(self.clock.now_s * 1000), data)
        step = self.course.step(record)
        self.steps.append((record, step))
        return record.position

    def read(self, node: FactsNode) -> bool:
        """A node reads the next record."""
        if not self.behind(node):
            return False
        record, step = self.steps[node.place]
        node.place += 1
        member = node.peer_id in node.replica.ring.members
        node.advance(node.replica, step, record)
        refused = step.peer == node.peer_id and node.peer_id not in node.replica.peers
        if node.peer_id and (refused or (member and node.peer_id not in node.replica.ring.members)):
            self.pulses.pop(node.peer_id, None)
            node.leave()
        return True

    def behind(self, node: FactsNode) -> bool:
        """Return whether there is a record that a node has not read."""
        return node.place < len(self.steps)

    def rejoin(self, node: FactsNode) -> None:
        """A node without a session begins one, and asks to join."""
        name = node.node_id
        self.generations[name] += 1
        peer = f"{name}{self.generations[name]}"
        self.pulses[peer] = name
        node.join(peer, self.land)

    def expire(self, peer: str) -> None:
        """A session ends."""
        name = self.pulses.pop(peer)
        self.ghosts = [ghost for ghost in self.ghosts if ghost[0] != peer]
        node = self.nodes[name]
        if node.alive and node.peer_id == peer:
            node.leave()

    def react(self, node: FactsNode) -> None:
        """A member submits what it owes, and reports of members without a session."""
        outbox = node.sends
        if outbox is None:
            return
        owing, watched = node.reactions()
        gone = [leave_cluster.Args(peer, ABSENT) for peer in watched if peer not in self.pulses]
        for entry in (*owing, *gone):
            if not outbox.holds(entry):
                outbox.submit([entry])

    def give_up(self, node: FactsNode, leader: PartitionLeader) -> None:
        """A leader gives its partition up."""
        outbox = node.sends
        if outbox is not None and node.peer_id in node.replica.ring.members:
            outbox.submit([yield_partition.Args(leader.partition, leader.epoch)])

    def wait(self, seconds: float) -> None:
        """Time passes."""
        self.clock.now_s += seconds
        for node in self.living():
            node.procedures.lapse()

    # --- messages

    async def post(self, source: FactsNode, target: str, method: str, args: dict[str, Any], timeout_s: float) -> Any:
        """Call a method of another node; raises `Unavailable`, `TimedOut`."""
        message = Message(source, target, method, args)
        self.mail.append(message)
        if not await message.over.wait(timeout_s):
            if message in self.mail:
                self.mail.remove(message)
            raise TimedOut(f"node {target} did not answer in time")
        if message.error is not None:
            raise message.error
        return message.answer

    def deliver(self, message: Message) -> None:
        """A request arrives, or its answer."""
        target = self.nodes[message.target]
        if message.answered:
            self.mail.remove(message)
            message.over.end()
        elif not target.alive:
            self.lose(message)
        else:
            message.begun = True
            target.procedures.start(
                self._serve(target, message.method, message.args), partial(self._answered, message, target)
            )

    @staticmethod
    async def _serve(target: FactsNode, method: str, args: dict[str, Any]) -> Any:
        return await target.handlers[method](args)

    def _answered(self, message: Message, target: FactsNode, answer: Any, error: BaseException | None) -> None:
        if error is not None and not isinstance(error, OnyxqError):
            self.blame(error, target)
        elif target.alive and message in self.mail:
            message.answer, message.error, message.answered = answer, error, True

    def lose(self, message: Message) -> None:
        """A request or its answer is lost, and the sender notices."""
        self.mail.remove(message)
        message.error = Unavailable("the connection was lost")
        message.over.end()

    def blame(self, error: BaseException, node: FactsNode) -> None:
        """An error that no code should raise ended something, unless the process dies."""
        if node.alive and self.broken is None:
            self.broken = Broken(f"no errors: {type(error).__name__}: {error}")
            self.broken.__cause__ = error
