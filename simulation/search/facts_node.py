"""A real node whose world is moved step by step: its disk, its outbox, its messages and its clock (design: simulation).

Everything in it that decides about tasks is the code of `onyxq.leader`, run as procedures. Only takeovers, which are
tasks of trio, are done here in a few steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio
from attrs import define

from log_entries import prepare_join_cluster, ready_partition
from onyxq.core.errors import OnyxqError, StaleEpoch, StoreFailed
from onyxq.core.facts import Row
from onyxq.core.log.record import encode_record
from onyxq.core.replica import Replica, majority
from onyxq.core.ring import latest_peer, watches
from onyxq.core.step import owed
from onyxq.leader.cohort.replication import Sender
from onyxq.leader.leader import PartitionLeader
from onyxq.log.outbox import Outbox
from onyxq.node.node import Node
from onyxq.node.world import NodeSettings, World
from onyxq.store.interface import ADMITTED_META, Batch, Written
from onyxq.store.memory import MemoryStore, MemoryTables
from onyxq.system.clock import RingClock
from onyxq.system.procedures import Procedures, Wait, pause
from onyxq.system.signal import Signal

RETRY_S = 0.25
PULL_MAX_S = 0.2
"""Longest time from a promise until the rows of its node are merged, in seconds."""
NS = 1_000_000


class SearchClock(trio.abc.Clock):
    """The clock of everything: a search moves it, nothing waits for it."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def start_clock(self) -> None:
        """Start: nothing to do."""

    def current_time(self) -> float:
        """Return the time in seconds."""
        return self.now_s

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Return the time to a deadline, in seconds."""
        return max(0.0, deadline - self.now_s)


class Machine:
    """The clocks of a machine, whose wall clock is off by ``off_ms``."""

    def __init__(self, clock: SearchClock, start_ms: int, off_ms: int = 0) -> None:
        self._clock = clock
        self._start_ms = start_ms
        self.off_ms = off_ms

    def wall_ms(self) -> int:
        """Return the wall clock."""
        return self._start_ms + int(self._clock.now_s * 1000) + self.off_ms

    def monotonic_ns(self) -> int:
        """Return the monotonic clock."""
        return int(self._clock.now_s * 1000) * NS


@define(eq=False)
class Sync:
    """A transaction on its way to a disk."""

    apply: Callable[[], None]
    over: Wait
    refused: bool = False
    lands: bool = True
    """Whether its rows are on the disk in the end, even if it is refused."""


class SearchDisk:
    """A disk whose writes end when the search says so."""

    def __init__(self) -> None:
        self.tables = MemoryTables()
        self.pending: Sync | None = None
        self._run = 0

    def open(self) -> int:
        """Begin a run of a store."""
        self._run += 1
        return self._run

    async def sync(self, run: int, apply: Callable[[], None], size: int) -> None:
        """Apply once the search ends the write; see `onyxq.store.memory.Disk`."""
        if run != self._run:
            raise StoreFailed("the process that wrote this crashed")
        sync = self.pending = Sync(apply, Wait())
        await sync.over.wait()
        if sync.lands:
            apply()
        if sync.refused:
            raise StoreFailed("the disk refused a write")

    def end(self, *, refused: bool = False, lands: bool = True) -> None:
        """End the write under way."""
        sync, self.pending = self.pending, None
        assert sync is not None
        sync.refused, sync.lands = refused, lands
        sync.over.end()

    def crash(self, *, lands: bool) -> None:
        """The process dies; a write under way is on the disk if it ``lands``."""
        sync, self.pending = self.pending, None
        if sync is not None and lands:
            sync.apply()
        self._run += 1


class SearchStore(MemoryStore):
    """A store that begins a transaction when the search says so."""

    def __init__(self, disk: SearchDisk, now_ms: Callable[[], int]) -> None:
        super().__init__(disk, now_ms=now_ms)
        self.disk = disk
        self.asked = False
        self._runs = True
        self._commits = False

    def begin_soon(self) -> None:
        """Note that a transaction is due."""
        self.asked = True

    @property
    def free(self) -> bool:
        """Whether no transaction is under way."""
        return not self._commits

    async def commit(self) -> None:
        """Make one transaction."""
        self.asked, self._commits = False, True
        try:
            await self._commit()
        finally:
            self._commits = False


class SearchOutbox(Outbox):
    """An outbox that sends when the search says so; ``land`` writes a record into the log."""

    def __init__(self, node: FactsNode, peer: str, land: Callable[[bytes], int]) -> None:
        super().__init__(
            node.link,
            peer=peer,
            clock=node.clock.own,
            measure=node.measured,
            on_append=lambda _: None,
            encode=node.encode,
        )
        cluster = node.replica.cluster
        self.cluster_id = cluster.id if cluster else ""
        self._land = land
        self.flying = 0
        """Number of the record on its way; 0 without one."""
        self._sent = 0
        """Number of entries that were submitted up to that record, except lazy ones."""

    @property
    def due(self) -> bool:
        """Whether a record can be sent."""
        return not self.flying and bool(self._waiting or self._lazy or self._empty_wanted)

    def send(self) -> None:
        """Put what waits into a record on its way."""
        self.number += 1
        self._unread[self.number] = self._take()
        self._sent = self._added - len(self._waiting)
        self._flight_since = trio.current_time()
        self.flying = self.number

    def record(self) -> bytes:
        """Return the record on its way; if it was read back already, an empty one in its place."""
        entries = [entry for _, entry in self._unread.get(self.flying, ())]
        wall_ms, measured = self._clock.wall_ms(), self._measure()
        return encode_record(self.cluster_id, self.peer, self.flying, wall_ms, entries, measured=measured)

    def land(self, *, heard: bool) -> None:
        """Write the record on its way; unless that is ``heard``, it will be sent again."""
        if self.flying in self._unread:
            position = self._land(self.record())
            if not heard:
                return
            self._landed[self.flying] = position
        self.flying, self._flight_since, self.sent_at = 0, None, trio.current_time()
        self._done = self._sent
        self._flushed.fire()


class Connected:
    """A session that is connected while it lasts."""

    connected = True


class Soon:
    """Takes the place of a node's nursery: it starts procedures."""

    node: FactsNode

    def start_soon(self, function: Callable[..., Any], *args: Any) -> None:
        """Start a procedure."""
        self.node.procedures.start(function(*args))


class FactsNode(Node):
    """See the module's first paragraph; ``post`` calls a method of another node."""

    def __init__(
        self, name: str, disk: SearchDisk, machine: Machine, *, random: Callable[[], float], post: Callable[..., Any]
    ) -> None:
        soon = Soon()
        soon.node = self
        nothing: Any = None
        clock = RingClock(machine)
        self.link: Any = Connected()
        self.post = post
        self.place = 0
        """It has read the records at lower places."""
        self.alive = True
        self.progress = Signal()
        self.disk = disk
        self._reactions: tuple[Replica, str, list[Any], tuple[str, ...]] | None = None
        """What `reactions` found last, with its replica and peer."""
        self.facts = SearchStore(disk, clock.wall_ms)
        nursery: Any = soon
        super().__init__(
            World(store=self.facts, network=nothing, clock=clock, random=random, nursery=nursery),
            NodeSettings(node_id=name, cluster_name="main"),
        )
        self.handlers: dict[str, Callable[[dict[str, Any]], Any]] = {
            "cohort.write": self.cohort.write_received,
            "cohort.push": lambda a: self.cohort.push(a["partition"], a["epoch"], a["rows"]),
            "cohort.reach": lambda a: self.promise(a["partition"], a["epoch"]),
            "lead.outcomes": lambda a: self.operations.dependencies.outcomes(a["ids"], a["watcher"]),
            "lead.finished": lambda a: self.operations.dependencies.heard(a["ids"]),
        }

    def begin(self) -> None:
        """Run the background work."""
        self.store.condition.on_return(self._look_again)
        for background in (self.granter, self.operations, self.due_queue, self.expiry):
            self.procedures.start(background.run())

    # --- the log

    def enter(self, peer: str, land: Callable[[bytes], int], *, number: int = 0) -> SearchOutbox:
        """Begin a session for a peer that has sent ``number`` records."""
        self.session = self.link
        self.peer_id, self.outbox = peer, SearchOutbox(self, peer, land)
        self.outbox.number = number
        return self.outbox

    def join(self, peer: str, land: Callable[[bytes], int]) -> None:
        """Have a new peer ask to join."""
        self.enter(peer, land).submit(
            [
                prepare_join_cluster.Args(
                    peer,
                    self.node_id,
                    f"{peer}:7400",
                    f"{peer}:7480",
                    "",
                    4,
                    (),
                    self.entries.versions,
                    latest_peer(self.replica, self.node_id),
                    store="",
                )
            ]
        )

    def leave(self) -> None:
        """The session is over."""
        outbox, self.outbox, self.peer_id, self.session = self.outbox, None, "", None
        if outbox is not None:
            outbox.close()

    def reactions(self) -> tuple[list[Any], tuple[str, ...]]:
        """Return the entries that the peer owes, and the peers that it watches."""
        found = self._reactions
        if found is None or found[0] is not self.replica or found[1] != self.peer_id:
            replica, peer = self.replica, self.peer_id
            found = self._reactions = replica, peer, owed(replica, peer, self.entries), watches(replica, peer)
        return found[2], found[3]

    @property
    def sends(self) -> SearchOutbox | None:
        """The outbox."""
        outbox = self.outbox
        assert outbox is None or isinstance(outbox, SearchOutbox)
        return outbox

    @property
    def commit_due(self) -> bool:
        """Whether a transaction of the store can begin, and something asks for it."""
        history = self.history
        return self.facts.free and (self.facts.asked or history._hurry.is_set() or bool(history._after))

    def commit(self) -> None:
        """Begin a transaction of the store."""
        self.history._wake, self.history._hurry = trio.Event(), trio.Event()
        self.procedures.start(self.facts.commit())

    # --- other nodes

    def sender(self, node: str) -> Sender:
        """Return the sender of writes to a node; the search has it send."""
        if node != self.node_id and node not in self.senders:
            self.senders[node] = Sender(self, node, missed=lambda: None)
        return super().sender(node)

    async def call(self, node: str, method: str, args: dict[str, Any], *, timeout_s: float) -> Any:
        """Call a method of another node; raises `Unavailable`."""
        return await self.post(self, node, method, args, timeout_s)

    async def promise(self, partition: int, epoch: int) -> None:
        """Promise an epoch, as `Cohort.reach` does."""
        reached = self.epochs.get(partition, 0)
        if epoch < reached:
            raise StaleEpoch(f"partition {partition} has reached epoch {reached}, not {epoch}")
        self.epochs[partition] = epoch
        await self.cohort._keep_promise(partition, epoch)

    # --- leaders

    def _start_leading(self, number: int, epoch: int) -> None:
        leader = self.leaders[number] = self._new_leader(number, epoch)
        self.procedures.start(self._take_over(leader))

    def _new_leader(self, number: int, epoch: int) -> PartitionLeader:
        return PartitionLeader(self, partition=number, epoch=epoch, peer=self.peer_id)

    async def _take_over(self, leader: PartitionLeader) -> None:
        """Do what `PartitionLeader.run` does until the partition serves; the search has it follow the others."""
        number = leader.partition
        if leader.epoch < self.epochs.get(number, 0):
            leader.deposed = True
            return
        self.epochs[number] = leader.epoch
        await self._until_stored(Batch(epochs=((number, leader.epoch),)))
        leader._pending_shared.update(self.store.pending_transactions(number))
        leader._promised.set()
        await self._until_read(leader)
        while not leader.ready and not leader.deposed:
            placed = leader.placed
            if placed.epoch == leader.epoch and placed.ready:
                leader.ready = True
                self.became_ready(leader)
                leader._note_progress()
                return
            try:
                await self.verdicts([ready_partition.Args(number, leader.epoch)])
            except OnyxqError:
                await pause(RETRY_S)

    async def _until_read(self, leader: PartitionLeader) -> None:
        """Wait until a leader may serve, or is deposed."""
        while not (leader._has_read_majority() and majority(leader.placed.target, leader._reached)):
            await self.progress.wait()
            if leader.deposed:
                return

    async def _until_stored(self, batch: Batch) -> Written:
        while True:
            try:
                return await self.store.write(batch)
            except StoreFailed:
                await pause(RETRY_S)

    async def follow(self, leader: PartitionLeader, other: FactsNode) -> None:
        """Bring a holder up to date: it promises the epoch, its rows are merged here, and then it gets all rows."""
        number = leader.partition
        args = {"partition": number, "epoch": leader.epoch}
        leader._compare_now[other.node_id] = trio.Event()
        try:
            await self.call(other.node_id, "cohort.reach", args, timeout_s=2.0)
            self.sender(other.node_id).resume()
            leader._reached.add(other.node_id)
            self.progress.fire()
            await pause(PULL_MAX_S * self.random())
            if not leader.reads_index or leader.deposed:
                return
            rows = differing(other, self, number)
            if rows:
                await leader.keep(other.node_id, rows)
            await self._share_pending(leader, other.node_id)
            leader._merged.add(other.node_id)
            self.progress.fire()
            mine = [[row.key, row.value] for row in differing(self, other, number)]
            if mine:
                await self.call(other.node_id, "cohort.push", {**args, "rows": mine}, timeout_s=2.0)
            leader._compared(other.node_id)
        except StaleEpoch:
            leader.deposed = True
            self.progress.fire()
        except OnyxqError:
            leader._failing.add(other.node_id)

    async def _share_pending(self, leader: PartitionLeader, other: str) -> None:
        """Exchange no pending rows with another node, because this search makes no transactions."""

    def behind(self, leader: PartitionLeader) -> list[str]:
        """Return the holders that the leader has to compare with its own copy."""
        compare = leader._compare_now
        return [
            node
            for node in leader.holders()
            if node != self.node_id
            and (node not in leader.current or node not in compare or compare[node].is_set() or self.sender(node).down)
        ]


def new_disk(replica: Replica) -> SearchDisk:
    """Return the disk of a member that has promised the epochs of a replica, and has no tasks."""
    disk, alone = SearchDisk(), Procedures()
    store = SearchStore(disk, lambda: 0)
    epochs = tuple(sorted((number, placed.epoch) for number, placed in replica.partitions.items()))
    batch = Batch(epochs=epochs, meta=((ADMITTED_META, b""),), log_position=replica.position, log_digest=replica.digest)
    alone.start(store.write(batch))
    alone.start(store.commit())
    disk.end()
    while alone.turn():
        pass
    return disk


def differing(here: FactsNode, there: FactsNode, partition: int) -> list[Row]:
    """Return the rows of a partition on one disk that the other one lacks or has otherwise."""
    prefix, mine, theirs = partition.to_bytes(2, "big"), here.disk.tables.rows, there.disk.tables.rows
    if mine.equals(theirs):
        return []
    out = []
    for key, value in mine.ascend(prefix):
        if not key.startswith(prefix):
            break
        if theirs.get(key) != value:
            out.append(Row(key, value))
    return out
