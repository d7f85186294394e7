"""A node: a data directory, its store, and all work that outlives a single peer.

The node serves facts and clients while the process lives. Its peer (see `onyxq.node.membership`) is one
membership in the ring, and passes each step of the log to `Node.advance`. While it has no peer, because the
session was lost, the node continues under the last replica and epoch.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import trio
from attrs import evolve

from log_entries import release_claims
from onyxq import __version__
from onyxq.core import facts
from onyxq.core.entry import APPLIED
from onyxq.core.errors import BadRequest, Corrupt, Forbidden, LogUnavailable, LogWentBack
from onyxq.core.ids import Run
from onyxq.core.log.clock import LogClock, Measured
from onyxq.core.log.interface import START, LogSession, Record, records_after
from onyxq.core.log.record import encode_entry
from onyxq.core.placement import holders
from onyxq.core.replica import EMPTY, Replica
from onyxq.core.ring import clock_error_ms, clock_is_shared
from onyxq.core.step import Outcome, Step
from onyxq.history.claim_rows import HistoryWriter, history_rows, reopened_runs, returned_runs
from onyxq.leader.cohort.copy_pace import Pacer
from onyxq.leader.cohort.member import Cohort
from onyxq.leader.cohort.replication import OwnCopy, Sender
from onyxq.leader.cohort.row_deletion import RowDeletion
from onyxq.leader.cohort.row_repair import Repair
from onyxq.leader.cohort.unflushed_writes import UnflushedWrites
from onyxq.leader.expiry import Expiry
from onyxq.leader.grants.due_queue import DueQueue
from onyxq.leader.grants.granter import Granter
from onyxq.leader.leader import PartitionLeader
from onyxq.leader.operations import Operations
from onyxq.leader.state.leader_state import LeaderState
from onyxq.leader.state.states import State
from onyxq.log.outbox import Outbox
from onyxq.node.links import Link
from onyxq.node.liveness import Probing
from onyxq.node.moved_copies import MovedAway
from onyxq.node.recent_records import RecentRecords
from onyxq.node.store_admission import Admission
from onyxq.node.world import NodeSettings, RecordKeeper, World
from onyxq.operations.table.enqueue import Enqueue, Enqueued
from onyxq.store.interface import Piece, Written
from onyxq.system import failures
from onyxq.system.metrics import Metrics
from onyxq.system.procedures import Procedures, Wait
from onyxq.system.signal import Signal
from onyxq.wire.protocol import Hello

STALLED_S = 1.0
"""Age of a waiting record after which the log counts as not writable, in seconds."""
VERDICT_TIMEOUT_S = 4.0
SETTLE_TIMEOUT_S = 1.0
SYNC_PARALLEL = 4
TAKEOVERS_PARALLEL = 16
RECENT_STEPS = 10_000
"""Number of log records whose outcomes are kept in memory, for display."""

log = logging.getLogger(__name__)


class Stepped(NamedTuple):
    """The outcome of a record, for display; holds no replica."""

    position: int
    at_ms: int
    peer: str
    problem: str
    outcomes: tuple[Outcome, ...]


class Node:
    """One node: its store, its background work, and the partitions that it leads."""

    went_back: LogWentBack | None = None
    """Why no peer of this node can join: the log is not the one that the node has read."""
    peer_id = ""
    """The peer of this node that is in the ring, or empty."""
    outbox: Outbox | None = None
    session: LogSession | None = None
    """The peer's session with the log, while it has one."""
    log_end = START
    """Position of the last record that the log was last seen to have."""
    enqueue: Callable[[Enqueue], Awaitable[Enqueued]] | None = None
    """The method by which clients enqueue, for tasks that the node itself creates."""
    ask: Callable[[str, dict[str, Any]], Awaitable[Any]] | None = None
    """Calls a client method, for claims that the node itself maintains."""

    def __init__(self, world: World, settings: NodeSettings) -> None:
        self.node_id = settings.node_id
        self.cluster_name = settings.cluster_name
        self.entries = settings.entries
        """The entries that this program knows, extensions included."""
        self.job_functions = settings.job_functions
        """Whether jobs may bring functions as bytes, which Spark's processes load."""
        self.credential = settings.credential
        """The secret that the node shows to other nodes; None in a cluster without credentials."""
        self.store = store = world.store
        self.clock, self.random = world.clock, world.random
        self.offload = world.offload
        """Calls a slow function outside the event loop (in simulations: on it)."""
        self._nursery = nursery = world.nursery
        self._network = world.network
        self.replica: Replica = EMPTY
        self.log_clock = LogClock()
        self.epochs = store.epochs()
        self.admission = Admission(store, node_id=self.node_id, epochs=self.epochs, start_soon=nursery.start_soon)
        self.admitted = self.admission.admitted
        self.leaders: dict[int, PartitionLeader] = {}
        self.metrics = Metrics(version=__version__)
        self.recent: deque[Stepped] = deque(maxlen=RECENT_STEPS)
        self.archivers: list[RecordKeeper] = []
        """Archives for records of the log."""
        self.duty_runners: dict[type, Callable[[Any], Awaitable[None]]] = {}
        """Duty kind -> function that runs it, for components that only some nodes have."""
        self.records = RecentRecords()
        """The newest records as they are stored."""
        self.addresses: dict[str, str] = {}
        """Node id -> its last known address."""
        self._links: dict[str, Link] = {}
        self.senders: dict[str, Sender] = {}
        """Node id -> sender, for nodes that were written to."""
        self._limits: dict[tuple[str, bool], trio.CapacityLimiter] = {}
        self.procedures = Procedures()
        """Runs what clients and other nodes ask for, each until it waits, in the turn in which it arrived."""
        self._placement, self._moved = Signal(), Signal()
        self.history = HistoryWriter(store, self._stored)
        self.unflushed_writes = UnflushedWrites(store, stored=self._stored, start_soon=nursery.start_soon)
        self.pacer = Pacer(settings.sync_bytes_per_s)
        """Limits the rows that this node, as a leader, exchanges to bring copies up to date."""
        self.taking = Pacer(settings.sync_bytes_per_s)
        """Limits the rows that other leaders send to bring this node up to date."""
        self.purging = settings.purging
        """How old tasks are purged."""
        self.cohort = Cohort(self)
        self.leader_state = LeaderState(lambda problem: log.error("a bug in the leader: %s", problem))
        self.granter = Granter(self)
        self.due_queue = DueQueue(
            store, wall_ms=self.wall_ms, offer=self.granter.add_due, offer_soon=self.granter.add_ahead
        )
        self.operations = Operations(self)
        own = self.clock.own
        self.expiry = Expiry(
            self, self.operations.completions, log_time_now_ms=lambda: self.log_clock.now_ms(own.monotonic_ns())
        )
        self.repair = Repair(self)
        self.probing = Probing(self)
        self.row_deletion = RowDeletion(self, lambda rows: self.metrics.purged_rows.add(n=rows))

    async def run(self) -> None:
        """Run the background work until cancelled."""
        self.store.condition.on_return(self._look_again)
        for background in (self.granter, self.operations, self.due_queue, self.expiry):
            self.procedures.start(background.run())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.store.run)
            nursery.start_soon(self.procedures.run)
            nursery.start_soon(self.operations.purger.run)  # a task, because it writes files
            nursery.start_soon(self.history.run)
            nursery.start_soon(MovedAway(self).run)
            nursery.start_soon(self._yield_in_trouble, nursery)
            nursery.start_soon(self.probing.run)
            nursery.start_soon(self.repair.run)
            nursery.start_soon(self.row_deletion.run)

    def start_soon(self, function: Callable[..., Any], *args: Any) -> None:
        """Run a function in the node's nursery."""
        self._nursery.start_soon(function, *args)

    # --- the log moves on

    def advance(self, before: Replica, step: Step, record: Record) -> None:
        """Take over the replica after a step of the log, and keep the record."""
        self.replica = after = step.replica
        self.admission.note(self.replica)
        self._note_log_time()
        self.expiry.note(step.outcomes, after.log_time_ms)
        if before.partitions is not after.partitions:
            self.row_deletion.note(before, after)
        self.granter.moved(before, after)
        if step.outcomes:
            self._note_history(before, step, record)
        else:
            self.history.add(after, (), record=record)
        if self.outbox is not None and step.peer == self.outbox.peer and not step.problem:
            self.outbox.applied(step.number, after.position, step.outcomes)
        self.recent.append(Stepped(after.position, step.ctime_ms, step.peer, step.problem, step.outcomes))
        if before.partitions is not after.partitions or before.peers is not after.peers:
            self.reconcile()
        if before.transactions is not after.transactions or before.remembered is not after.remembered:
            self.operations.transaction_parts.note(before, step)
        if step.peer == self.peer_id and self.peer_id in after.ring.members and not step.problem:
            said_ms = after.clock_ms + after.peers[self.peer_id].clock_skew_ms
            off_ms, shared = clock_error_ms(after, self.peer_id), clock_is_shared(after, self.peer_id)
            if self.clock.judged(said_ms=said_ms, off_ms=off_ms, shared=shared):
                for number in self.granter.led():  # A ready task may now seem to be due later.
                    self.granter.restart_windows(number)
        self._moved.fire()

    def replace(self, replica: Replica, snapshot: bytes) -> None:
        """Take over a replica that was read from the origin, and keep its bytes."""
        before, self.replica = self.replica, replica
        self.admission.note(self.replica)
        self.log_clock.begin(replica.position, replica.log_time_ms, self.clock.own.monotonic_ns())
        self.row_deletion.note(EMPTY, replica)
        self.granter.moved(before, replica)
        self.records.clear()
        self.history.keep(replica.position, snapshot)
        self.history.add(replica, ())
        if self.outbox is not None:
            self.outbox.skipped(replica.outbox.get(self.outbox.peer, 0), replica.position)
        self.reconcile()
        self.operations.transaction_parts.look()
        self.expiry.look()
        for number in self.granter.led():
            self.granter.restart_windows(number)
        self._moved.fire()

    @property
    def log_lag(self) -> int:
        """Number of records that are known to be in the log and are not applied yet."""
        return records_after(self.replica.position, self.log_end)

    @property
    def is_known(self) -> bool:
        """Return whether other nodes may rely on the copies in this store, as far as this node has read the log."""
        return self.admission.is_known(self.replica)

    def _note_log_time(self) -> None:
        self.log_clock.read(self.replica.position, self.replica.log_time_ms, self.clock.own.monotonic_ns())

    def measured(self) -> Measured:
        """Return the log time that a record written now carries."""
        return self.log_clock.measured(self.clock.own.monotonic_ns())

    def log_quiet_ms(self) -> int:
        """Return the time since this node read a record."""
        return self.log_clock.quiet_ms(self.clock.own.monotonic_ns())

    async def moved(self, timeout_s: float = math.inf) -> None:
        """Wait for the next step of the log, up to ``timeout_s``."""
        await self._moved.wait(timeout_s)

    async def changed(self, replica: Replica) -> None:
        """Wait until the partitions are placed otherwise than in ``replica``."""
        while self.replica.partitions is replica.partitions:
            await self._placement.wait()

    def reconcile(self) -> None:
        """Start and stop leading partitions as the replica requires."""
        replica = self.replica
        for peer in replica.peers.values():
            self.addresses[peer.node] = peer.address
        for number, leader in sorted(self.leaders.items()):
            placed = replica.partitions.get(number)
            if placed is None or (placed.leader, placed.epoch) != (leader.peer, leader.epoch):
                self._stop_leading(number)
        if self.peer_id in replica.ring.members:
            for number, placed in sorted(replica.partitions.items()):
                if placed.leader == self.peer_id and number not in self.leaders:
                    self._start_leading(number, placed.epoch)
        self._placement.fire()

    def _start_leading(self, number: int, epoch: int) -> None:
        leader = PartitionLeader(self, partition=number, epoch=epoch, peer=self.peer_id)
        self.leaders[number] = leader
        self._nursery.start_soon(leader.run)

    def _stop_leading(self, number: int) -> None:
        leader = self.leaders.pop(number)
        leader.deposed = True
        leader.scope.cancel()
        self.granter.drop(number)
        self.due_queue.drop(number)

    async def _yield_in_trouble(self, nursery: trio.Nursery) -> None:
        while True:
            await trio.sleep(1.0)
            for leader in list(self.leaders.values()):
                if leader.in_trouble():
                    nursery.start_soon(leader.yield_if_in_trouble)

    @contextmanager
    def storing_found(self, leader: PartitionLeader, rows: Sequence[facts.Row]) -> Iterator[None]:
        """Have tasks with keys written again before they are granted, and completions before they count."""
        with self.operations.keyed_rows.storing(rows), self.operations.completions.storing(leader, rows):
            yield

    def became_ready(self, leader: PartitionLeader) -> None:
        """Serve claims once everything that the log held before is in the store."""
        self.operations.transaction_parts.lead(leader)
        self._nursery.start_soon(self._serve_claims, leader)

    def became_backed(self, leader: PartitionLeader) -> None:
        """Offer tasks that wait for completions in the partition: these now survive a change of leader."""
        self.granter.backed(leader)
        self.operations.backed(leader)

    async def _serve_claims(self, leader: PartitionLeader) -> None:
        await self.history.reached(self.replica.position)
        if self.leaders.get(leader.partition) is leader:
            self.granter.lead(leader)
            self.due_queue.lead(leader.partition)
            self.expiry.look()

    def _note_history(self, before: Replica, step: Step, record: Record) -> None:
        after = step.replica
        back, opened = returned_runs(before, after, step.outcomes), reopened_runs(step.outcomes)
        rows = history_rows(after, step.outcomes, back, self._holds)
        # Clients may end claims once a leader is ready, which is before it grants.
        led = {number for number, leader in self.leaders.items() if leader.ready} if back or opened else set()
        returned = [(run, said) for partition, run, said in back if partition in led]
        # Another node may have read of them first. If its rows came here, these tasks could not be granted yet.
        requeued = [run for partition, run in opened if partition in led]
        if not returned and not requeued:
            self.history.add(after, rows, record=record, claims=True)
            return
        runs = [run for run, _ in returned]
        self.leader_state.begin(State.RETURNING, runs)
        for run, said in returned:
            self.granter.metrics.returned(run, said)

        def stored() -> None:
            self.granter.offer([*self.leader_state.end(State.RETURNING, runs), *requeued])

        self.history.add(after, rows, stored, record=record)

    def _holds(self, partition: int) -> bool:
        placed = self.replica.partitions.get(partition)
        return placed is not None and self.node_id in holders(placed)

    def _stored(self, written: Written) -> None:
        self.pieces_added(written.pieces)

    # --- what leaders, cohorts and granting ask of their node

    def wall_ms(self) -> int:
        """Return the time for everything that is stored, in ms; see `RingClock`."""
        return self.clock.wall_ms()

    def cluster_ms(self) -> int:
        """Return the time of `Replica.clock_ms`, advanced by the time since the last record."""
        peer = self.replica.peers.get(self.peer_id)
        now_ms = self.clock.own.wall_ms() - peer.clock_skew_ms if peer is not None else 0
        return max(self.replica.clock_ms, now_ms)

    async def settled(self) -> None:
        """Wait until decided claims and acknowledged rows can be read from the store.

        The wait ends after `SETTLE_TIMEOUT_S`, so a store that cannot write delays callers by about a second.
        """
        until = trio.current_time() + SETTLE_TIMEOUT_S
        if await self.history.settled(SETTLE_TIMEOUT_S):
            await self.unflushed_writes.flushed(max(0.0, until - trio.current_time()))

    async def recorded(self) -> None:
        """Wait until everything in the log so far is in the store."""
        await self.history.reached(self.replica.position)

    def pieces_added(self, pieces: Sequence[Piece]) -> None:
        """Note new pieces in the store."""
        if pieces:
            now_ms = self.wall_ms()
            self.granter.add(piece for piece in pieces if piece.due_ms <= now_ms)
            self.due_queue.add(piece for piece in pieces if piece.due_ms > now_ms)

    def live_candidates(self, partition: int) -> int:
        """Return the number of nodes that could lead the partition now."""
        placed = self.replica.partitions[partition]
        nodes = self.replica.nodes
        return sum(1 for node in holders(placed) if node in nodes and nodes[node].peer)

    def sync_limit(self, node: str, *, takeover: bool = False) -> trio.CapacityLimiter:
        """Return the limiter of partitions that are copied to a node, or taken over with its help, at the same time."""
        most = TAKEOVERS_PARALLEL if takeover else SYNC_PARALLEL
        return self._limits.setdefault((node, takeover), trio.CapacityLimiter(most))

    def synced(self, direction: str, rows: int, size: int) -> None:
        """Count a page of rows that was ``sent`` to, or ``taken`` from, another node to make copies equal."""
        self.metrics.sync_rows.add(direction, n=rows)
        self.metrics.sync_bytes.add(direction, n=size)

    @property
    def quiet(self) -> bool:
        """Whether this node has read the log and is neither serving clients nor making copies."""
        return self.outbox is not None and self.pacer.quiet and self.taking.quiet

    def transfers_here(self) -> dict[int, list[dict[str, Any]]]:
        """Return the running transfers of partitions led here: partition -> holders that lack rows, with progress."""
        found = ((number, leader.transfers()) for number, leader in sorted(self.leaders.items()))
        return {number: transfers for number, transfers in found if transfers}

    def told_here(self) -> dict[int, dict[str, Any]]:
        """Return reports for people about partitions led here that have any.

        A report has the transfers under way, and the reason why finished tasks wait to be purged.
        """
        transfers, waits = self.transfers_here(), self.operations.purger.waits
        return {
            number: {"transfers": transfers.get(number, []), "purge_waits": waits.get(number)}
            for number in sorted(transfers.keys() | waits.keys())
        }

    def sender(self, node: str) -> Sender:
        """Return the sender of writes to a node (this one included)."""
        sender = self.senders.get(node)
        if sender is None:
            if node == self.node_id:
                sender = OwnCopy(self, node)
            else:
                sender = Sender(self, node, missed=self.probing.missed)
                self._nursery.start_soon(sender.run)
            self.senders[node] = sender
        return sender

    async def call(self, node: str, method: str, args: dict[str, Any], *, timeout_s: float) -> Any:
        """Call a method of another node; raises `Unavailable`."""
        link = self._links.get(node)
        if link is None:
            link = self._links[node] = Link(
                node=node,
                network=self._network,
                nursery=self._nursery,
                hello=lambda: evolve(self.hello(), credential=self.credential),
                address=lambda: self.addresses.get(node, ""),
            )
        return await link.call(method, args, timeout_s=timeout_s)

    def hello(self) -> Hello:
        """Return what this node announces about itself."""
        cluster = self.replica.cluster
        return Hello(
            cluster=self.cluster_name,
            cluster_id=cluster.id if cluster else None,
            role="peer",
            node=self.node_id,
            peer=self.peer_id,
        )

    def welcome(self, theirs: Hello) -> Hello:
        """Return this node's answer to the hello ``theirs``.

        Raises `BadRequest` for an unknown role, and `Forbidden` for a peer that does not send its node and the
        cluster's id. A peer may call the cohort's methods, so it must know the cluster's id, not just its name.
        """
        if theirs.role not in ("client", "peer"):
            raise BadRequest(f"there is no role {theirs.role[:100]!r}", field="role")
        if theirs.role == "peer" and not (theirs.cluster_id and theirs.node):
            raise Forbidden("a peer must name the cluster's id and its node")
        return self.hello()

    # --- entries

    def outbox_now(self) -> Outbox:
        """Return the outbox of the member peer; raises `LogUnavailable`."""
        outbox = self.outbox
        if self.went_back is not None:
            raise LogUnavailable(self.went_back.message, hint=self.went_back.advice)
        if outbox is None or outbox.closed or self.peer_id not in self.replica.ring.members:
            raise LogUnavailable("this node has no peer in the ring now")
        if not self.log_connected or outbox.stalled_s() > STALLED_S:
            raise LogUnavailable("the log cannot be reached from this node now")
        return outbox

    @property
    def log_connected(self) -> bool:
        """Whether the log can be reached now, as far as is known."""
        return self.session is not None and self.session.connected

    def can_submit(self) -> bool:
        """Return whether entries can be appended now, as far as is known."""
        try:
            self.outbox_now()
        except LogUnavailable:
            return False
        return True

    def encode(self, args: Any) -> bytes:
        """Return an entry's bytes in the highest enabled version; raises `NotEnabled`, `TooLarge`."""
        replica = self.replica
        return encode_entry(args, self.entries, replica.enabled if replica.cluster else None)

    async def verdicts(self, entries: Sequence[Any]) -> tuple[int, Sequence[str]]:
        """Submit entries, and return their position and verdicts; raises `LogUnavailable`."""
        position, verdicts, _ = await self.stepped(entries)
        return position, verdicts

    async def stepped(self, entries: Sequence[Any]) -> tuple[int, Sequence[str], Replica]:
        """Submit entries; return position, verdicts, and the replica right after their record.

        Raises `LogUnavailable`.
        """
        outbox = self.outbox_now()
        done = Wait()
        found: list[tuple[int, Sequence[str] | None, Replica]] = []

        def heard(position: int, verdicts: Sequence[str] | None) -> None:
            found.append((position, verdicts, self.replica))
            done.end()

        outbox.submit(entries, heard)
        await done.wait(VERDICT_TIMEOUT_S)
        position, verdicts, replica = found[0] if found else (-1, None, self.replica)
        if verdicts is None:
            raise LogUnavailable("the log did not answer in time; the entry may still take effect")
        if APPLIED not in verdicts:
            failures.refused()
        return position, verdicts, replica

    async def propose(self, entry: Any) -> str:
        """Submit an entry that the replica asks for, once, and return its verdict."""
        if self.outbox_now().holds(entry):
            replica = self.replica
            with trio.move_on_after(VERDICT_TIMEOUT_S):
                await self.changed(replica)
            return "on its way"
        _, verdicts = await self.verdicts([entry])
        return verdicts[0]

    def submit_lazily(self, entry: Any) -> None:
        """Submit an entry without waiting for it.

        A lost one is owed again at expiry checks.
        """
        outbox = self.outbox
        if outbox is not None and not outbox.closed:
            try:
                outbox.submit([entry], lazy=True)
            except LogUnavailable:
                log.debug("a release waits until the log can be written")

    def give_back(self, partition: int, token: int, runs: Sequence[Run]) -> None:
        """Release claims whose claimer no longer waits."""
        leader = self.leaders.get(partition)
        if leader is not None:
            release = release_claims.Release(token, facts.RELEASED, 0, 0, "", tuple(runs))
            self.submit_lazily(release_claims.Args(partition, leader.epoch, (release,)))

    def _look_again(self) -> None:
        """Look for ready tasks again: a write that was refused may have reached the disk."""
        for number in self.granter.led():
            self.granter.restart_windows(number)
            self.due_queue.lead(number)

    def corrupt(self, partition: int, error: Corrupt) -> None:
        """Log a damaged row.

        Its repair is under way.
        """
        log.error("partition %d: %s", partition, error.message)

    def reads_index(self, partition: int) -> bool:
        """Return whether a leader of the partition on this node reads its index."""
        leader = self.leaders.get(partition)
        return leader is not None and leader.reads_index

    async def give_up(self, partition: int) -> None:
        """Have another node lead the partition, or this one again."""
        if (leader := self.leaders.get(partition)) is not None:
            await leader.give_up()

    def repaired(self, partition: int) -> None:
        """Look again for tasks that were skipped, because rows of a partition are readable again."""
        self.granter.restart_windows(partition)

    def count_event(self, queue: str, event: str, count: int) -> None:
        """Count an event of tasks in the metrics."""
        self.metrics.tasks.add(queue, event, n=count)
