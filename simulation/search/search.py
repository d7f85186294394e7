"""A seeded search through interleavings of the pure cluster.

A seed draws the size of the cluster, how likely each kind of move is, and every move. ``onyxq simulate --workload
explorer --seed 7`` plays one run; ``python -m simulation.search --seed 7`` cuts a run that breaks a property down to a
scenario file with the few actions that still break it.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import ClassVar, TypeVar

from attrs import define, field

from onyxq.core.claims import lapsed
from onyxq.core.ids import STRETCH_TASKS
from onyxq.core.replica import ClaimPiece, claimed_bits, majority, pieces_of
from simulation.checkers import Broken, Course
from simulation.probes import Probes
from simulation.search.cluster import TASKS, Action, Cluster, task
from simulation.search.extension import ADD, CLEAR
from simulation.search.peer import Peer
from simulation.search.plan import LEASES_MS, NAMES, QUEUES, Plan, plan_of
from simulation.search.run import finish, new_cluster, perform

OF_ALL = ("kill-all", "segment")
"""Moves of the whole cluster."""
OF_COLLECTORS = ("look", "store", "finish")
"""Moves of a peer that collects."""


@define(eq=False)
class Run:
    """One run: what was done and what came of it."""

    seed: int
    plan: Plan
    cluster: Cluster
    actions: list[Action] = field(factory=list)
    broken: Broken | None = None

    @property
    def probes(self) -> Probes:
        """How often each rare branch was reached."""
        return self.cluster.probes

    @property
    def course(self) -> Course:
        """The log, and the number of entries that changed something."""
        return self.cluster.log.course


AnySearch = TypeVar("AnySearch", bound="Search")


def of_peer(move: Callable[[AnySearch, Peer], None]) -> Callable[[AnySearch], None]:
    """Make a move with a living peer that is drawn; without one nothing happens."""

    def drawn(search: AnySearch) -> None:
        peer = search._peer()
        if peer is not None:
            move(search, peer)

    return drawn


def of_leader(move: Callable[[AnySearch, Peer, int], None]) -> Callable[[AnySearch], None]:
    """Make a move with a leader that is drawn, and one of its partitions; without one nothing happens."""

    def drawn(search: AnySearch) -> None:
        found = search._leader()
        if found is not None:
            move(search, *found)

    return drawn


class Search:
    """The search from one seed."""

    steps: ClassVar[int] = 3_000
    """Moves of a run."""

    def __init__(self, seed: int, plan: Plan | None = None) -> None:
        self.seed = seed
        self.plan = plan or plan_of(seed)
        self.draw = Random(f"moves {seed}")
        self.cluster = new_cluster(self.plan.options)
        self.made = Run(seed, self.plan, self.cluster)
        self.asleep = ""
        """A peer that is slow: others are drawn instead."""
        self._random = self.draw.random

    def run(self, steps: int | None = None) -> Run:
        """Make moves, then stop the faults; the run holds what broke. ``steps``: another number of moves."""
        made, moves = self.made, list(self.plan.odds)
        weights = list(self.plan.odds.values())
        try:
            for node, program in zip(self.plan.nodes, self.plan.programs, strict=True):
                self._do("install", node, program)
            for node in self.plan.nodes[: 1 + self._below(len(self.plan.nodes))]:
                self._do("start", node, node)
            for move in self.draw.choices(moves, weights, k=self.steps if steps is None else steps):
                self._move(move)
            finish(self.cluster)
        except Broken as broken:
            made.broken = broken
        return made

    # --- drawing

    def _below(self, limit: int) -> int:
        return int(self._random() * limit)

    def _do(self, *action: int | str) -> bool:
        self.made.actions.append(action)
        return perform(self.cluster, action)

    def _peer(self) -> Peer | None:
        living = self.cluster.living()
        if not living:
            return None
        peer = living[self._below(len(living))]
        return None if peer.id == self.asleep else peer

    def _move(self, move: str) -> None:
        """Make a move: the method of its name, or a word to a peer that is drawn, or to none."""
        special: Callable[[], None] | None = getattr(self, f"_{move.replace('-', '_')}", None)
        if special is not None:
            special()
        elif move in OF_ALL:
            self._do(move)
        else:
            peer = self._collector() if move in OF_COLLECTORS else self._peer()
            if peer is not None:
                self._do(move, peer.id)

    # --- moves that need more than a living peer

    @of_peer
    def _turn(self, peer: Peer) -> None:
        if self._random() < 0.5:
            self._do("turn", peer.id)
        else:
            self._do("turn", peer.id, 1 + self._below(12))

    @of_peer
    def _read(self, peer: Peer) -> None:
        self._do("read", peer.id, 1 + self._below(6))

    @of_peer
    def _alone(self, peer: Peer) -> None:
        self._do("alone", peer.id, 1 + self._below(20))

    def _sleep(self) -> None:
        peer = self._peer()
        self.asleep = peer.id if peer is not None else ""

    def _wake(self) -> None:
        self.asleep = ""

    def _start(self) -> None:
        node = self.plan.nodes[self._below(len(self.plan.nodes))]
        last = self.cluster.latest.get(node)
        if last is None or not last.alive:
            if last is not None and last.older and self._random() < 0.8:
                self._do("install", node, 2)
            self._do("start", node, self.cluster.next_id(node))

    def _of_any(self, word: str) -> None:
        """Something that happens to a session, of a living process or a dead one."""
        pulses = list(self.cluster.pulses)
        if pulses:
            self._do(word, pulses[self._below(len(pulses))])

    def _late(self) -> None:
        haunted = [peer for peer in self.cluster.pulses if self.cluster.peers[peer].ghosts]
        if haunted:
            self._do("late", haunted[self._below(len(haunted))])

    def _expire(self) -> None:
        dead = [peer for peer in self.cluster.pulses if not self.cluster.peers[peer].alive]
        if dead and self._random() < 0.8:
            self._do("expire", dead[self._below(len(dead))])
        else:
            self._of_any("expire")

    def _crash(self) -> None:
        self._of_any("crash")

    def _kill(self) -> None:
        self._of_any("kill")

    def _evict(self) -> None:
        peer, other = self._peer(), self._peer()
        if peer is not None and other is not None:
            self._do("evict", peer.id, other.id)

    @of_peer
    def _slots(self, peer: Peer) -> None:
        self._do("slots", peer.id, self._below(9))

    @of_peer
    def _drain(self, peer: Peer) -> None:
        node = self.plan.nodes[self._below(len(self.plan.nodes))]
        self._do("drain", peer.id, node, "yes" if self._random() < 0.3 else "no")

    def _garbage(self) -> None:
        self._do("garbage", self._below(1 << 14))

    def _collector(self) -> Peer | None:
        found = [peer for peer in self.cluster.living() if peer.captured is not None]
        return found[self._below(len(found))] if found else None

    def _race(self) -> None:
        """Another peer collects while one is collecting, before the first one has read of it."""
        first, second = self._collector(), self._peer()
        if first is None or second is None or first is second:
            return
        self._do("look", first.id)
        self._do("read", second.id)
        self._do("gc", second.id)
        for word in ("send", "flush", "read", "look", "store"):
            self._do(word, second.id)
        self._do("store", first.id)

    def _trim(self) -> None:
        peer = self._collector()
        if peer is not None:
            self._do("trim", peer.id, 1 + self._below(60))

    def _wait(self) -> None:
        self._do("wait", 1 + self._below(120))

    def _idle(self) -> None:
        self._do("wait", 1_000 + self._below(8_000) if self._random() < 0.8 else 200_000 + self._below(900_000))

    def _log_clock(self) -> None:
        if self._random() < 0.6:
            self._do("log-clock", self._below(9_000) - 4_500)
        else:
            self._do("log-clock", self._below(2_000_000) - 900_000)

    def _clock(self) -> None:
        self._do("clock", self.plan.nodes[self._below(len(self.plan.nodes))], self._below(60_000) - 30_000)

    def _install(self) -> None:
        node = self.plan.nodes[self._below(len(self.plan.nodes))]
        self._do("install", node, 2 if self._random() < 0.6 else self._below(3))

    @of_peer
    def _tally(self, peer: Peer) -> None:
        """A member has the extension count, now and then in a version that need not be enabled."""
        name, count = "xyz"[self._below(3)], 1 + self._below(10)
        if self._random() < 0.8:
            self._do("tally", peer.id, name, count)
        elif peer.program == 1:
            self._do("append", peer.id, ADD, name)
        else:
            self._do("append", peer.id, ADD, name, count)

    @of_peer
    def _raise(self, peer: Peer) -> None:
        """A peer asks for a version that not all peers need to know."""
        name, version = ((ADD, 1), (ADD, 2), (CLEAR, 1))[self._below(3)]
        self._do("append", peer.id, "raise_minimum", name, version)

    # --- leaders

    def _leader(self) -> tuple[Peer, int] | None:
        found = [peer for peer in self.cluster.living() if peer.id != self.asleep and peer.led()]
        if not found:
            return None
        peer = found[self._below(len(found))]
        led = peer.led()
        return peer, led[self._below(len(led))]

    @of_leader
    def _lead(self, peer: Peer, partition: int) -> None:
        known = peer.replica.partitions[partition]
        if self._random() < 0.1:
            word = ("ready", "settle", "give-up")[self._below(3)]
            self._do(word, peer.id, partition, 1 + self._below(2))
        elif self._random() < 0.1:
            self._do("settle", peer.id, partition)
        elif not known.ready:
            self._do("ready", peer.id, partition)
        elif known.members != known.target:
            self._do("settle", peer.id, partition)

    @of_leader
    def _give_up(self, peer: Peer, partition: int) -> None:
        self._do("give-up", peer.id, partition)

    @of_leader
    def _claims(self, peer: Peer, partition: int) -> None:
        """A leader that has just read changes some claims, and most often appends that at once."""
        if self._random() < 0.8:
            self._do("read", peer.id, 50)
        if not peer.alive or not peer.led() or partition not in peer.led():
            return
        if not peer.replica.partitions[partition].ready and self._random() < 0.97:
            if not self._do("ready", peer.id, partition) and self._random() < 0.95:
                return
        pieces = pieces_of(peer.replica, task(partition, 0).first)
        used = 0
        for _ in range(2 + self._below(14)):
            used = self._claim(peer, partition, pieces, used)
        if self._random() < 0.9 and self._do("send", peer.id):
            self._do("land", peer.id)

    def _claim(self, peer: Peer, partition: int, pieces: tuple[ClaimPiece, ...], used: int) -> int:
        """One claim entry, most often about tasks that this record does not speak of yet.

        ``used`` is the mask of those it speaks of; the new one is returned.
        """
        offset = self._below(TASKS)
        if used >> offset & 1 and self._random() < 0.98:
            return used
        piece = next((piece for piece in pieces if piece[0] <= offset < piece[0] + piece[1]), None)
        if piece is not None:
            self._change(peer, partition, piece, offset)
            return used | ((1 << piece[1]) - 1) << piece[0]
        taken = used | claimed_bits(pieces) if self._random() < 0.97 else used
        count, limit = 1, min(1 + self._below(6), TASKS - offset)
        while count < limit and not taken >> (offset + count) & 1:
            count += 1
        lease_ms = LEASES_MS[self._below(len(LEASES_MS))]
        if self._random() < 0.02:
            self._stale(peer, partition, offset, count)
        elif self._random() < 0.25:
            self._limited(peer, partition, offset, count, lease_ms)
        else:
            self._do("grant", peer.id, partition, offset, count, lease_ms)
        return used | ((1 << count) - 1) << offset

    def _limited(self, peer: Peer, partition: int, offset: int, count: int, lease_ms: int) -> None:
        """A grant of a queue with limits, or failed tasks are opened again."""
        if self._random() < 0.1:
            self._do("reopen", peer.id, partition, offset, count)
        else:
            queue = QUEUES[self._below(len(QUEUES))]
            self._do("grant-limited", peer.id, partition, offset, count, lease_ms, queue)

    def _stale(self, peer: Peer, partition: int, offset: int, count: int) -> None:
        """A grant at a past epoch, or by a peer that does not lead."""
        other = self._peer()
        if other is not None and self._random() < 0.4:
            self._do("grant", other.id, partition, offset, count, 1_500)
            if other is not peer and self._do("send", other.id):
                self._do("land", other.id)
        else:
            self._do("grant", peer.id, partition, offset, count, 1_500, 1 + self._below(2))

    def _change(self, peer: Peer, partition: int, piece: ClaimPiece, offset: int) -> None:
        """Renew or end a claim, or the part of it from ``offset`` on."""
        place, count = piece[0], piece[1]
        if self._random() < 0.3:
            place, count = offset, 1 + self._below(piece[0] + piece[1] - offset)
        drawn = self._random()
        if (drawn < 0.5 and lapsed(piece[4], peer.replica.log_time_ms)) or drawn < 0.03:
            self._do("expire-claim", peer.id, partition, place, count)
        elif drawn < 0.55:
            self._do("release", peer.id, partition, place, count, ("done", "back", "retry")[self._below(3)])
            if self._random() < 0.05:  # granted again in the same record; then its holder comes with the old token
                self._do("grant", peer.id, partition, place, count, 1_500)
                if self._random() < 0.5:
                    self._do("renew", peer.id, partition, place, count, 6_000)
                else:
                    self._do("expire-claim", peer.id, partition, place, count)
        else:
            self._do("renew", peer.id, partition, place, count, LEASES_MS[self._below(len(LEASES_MS))])

    # --- queues, transactions, periodic tasks

    @of_peer
    def _limit(self, peer: Peer) -> None:
        queue = QUEUES[self._below(len(QUEUES))]
        if self._random() < 0.4:
            self._do("pause", peer.id, queue, "yes" if self._random() < 0.4 else "no")
        else:
            concurrency = self._below(12) if self._random() < 0.7 else 0
            self._do("limit", peer.id, queue, concurrency, (0, 500, 4_000, 30_000)[self._below(4)])

    @of_leader
    def _purge(self, peer: Peer, partition: int) -> None:
        """A leader raises its watermark; most often its tasks stay below it, or nothing more would come of them."""
        free = not peer.replica.claims.get(partition)
        keep = "no" if self._random() < (0.5 if free else 0.05) else "yes"
        self._do("purge", peer.id, partition, 2 + self._below(40), keep, self._below(8) // 7)
        if self._random() < 0.3:
            self._do("grant", peer.id, partition, STRETCH_TASKS + self._below(TASKS), 1, 60)

    @of_peer
    def _transact(self, peer: Peer) -> None:
        """A peer that knows of claims commits a transaction over some of them, sometimes a wrong one."""
        if self._random() < 0.8:
            self._do("read", peer.id, 50)
        name = NAMES[self._below(len(NAMES))]
        ms = (0, 50, 5_000, 60_000)[self._below(4)]
        offset, count = self._below(TASKS), 1 + self._below(8)
        drawn = self._random()
        if drawn < 0.1:
            self._do("commit", peer.id, name, ms, offset, count, -1, 1)
        elif drawn < 0.3:
            self._do("commit", peer.id, name, ms, offset, count, self._below(TASKS))
        else:
            self._do("commit", peer.id, name, ms, offset, count)
        if self._random() < 0.8 and self._do("send", peer.id):
            self._do("land", peer.id)

    def _settle_part(self) -> None:
        """A leader settles its part of a transaction, at times as one of an epoch that has passed."""
        found = self._leader()
        if found is None or not found[0].replica.transactions:
            return
        peer, partition = found
        names = sorted(peer.replica.transactions)
        name = names[self._below(len(names))]
        if self._random() < 0.05:
            self._do("settle-part", peer.id, name, partition, 1)
        else:
            self._do("settle-part", peer.id, name, partition)

    @of_peer
    def _periodic(self, peer: Peer) -> None:
        name = ("daily", "hourly")[self._below(2)]
        drawn = self._random()
        if drawn < 0.2 or name not in peer.replica.periodic:
            self._do("periodic", peer.id, name, ("every-5s", "other")[self._below(2)])
        elif drawn < 0.85:
            self._do("fire", peer.id, name)
        else:
            self._do("rest", peer.id, name, ("yes", "no", "gone")[self._below(3)])

    @of_peer
    def _force(self, peer: Peer) -> None:
        drawn, nodes = self._below(self.plan.options.partitions), peer.replica.nodes
        lost = [
            number
            for number, found in sorted(peer.replica.partitions.items())
            if not majority(found.members, [node for node in found.members if node in nodes and nodes[node].peer])
        ]
        # Those that an operator would force, if there are any.
        self._do("force", peer.id, lost[drawn % len(lost)] if lost else drawn)
