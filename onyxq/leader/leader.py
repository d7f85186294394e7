"""The leader of one partition under one epoch: takeover, quorum writes, settling.

In a takeover, a majority of the members durably promise the epoch. Their rows are merged into this node's store. Then
``ready_partition`` goes to the log and the partition serves. After that, the leader brings every holder up to date.
Once a majority of the target is up to date, ``settle_partition`` makes the target the members.

The leader belongs to the node, not to the peer. So it continues to take writes under its epoch while the log is
unavailable. It stops when any node of the cohort reports a newer epoch.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, Protocol

import trio

from log_entries import ready_partition, settle_partition, yield_partition
from onyxq.core.errors import NotLeader, OnyxqError, Purged, StaleEpoch, StoreFailed, TimedOut, Unavailable, Unknown
from onyxq.core.facts import Mark, Row
from onyxq.core.ids import TaskId
from onyxq.core.log.digest import trail_at
from onyxq.core.placement import holders
from onyxq.core.purged import NOTHING, Watermark
from onyxq.core.replica import Partition, Replica, majority
from onyxq.leader.cohort import pending_facts
from onyxq.leader.cohort.anti_entropy import Exchange, Transfer
from onyxq.leader.cohort.copy_pace import Pacer
from onyxq.leader.cohort.member import Host
from onyxq.leader.cohort.replication import Sender, Vote
from onyxq.leader.cohort.row_repair import RepairWait
from onyxq.store.interface import Batch
from onyxq.system import failures
from onyxq.system.procedures import now

WRITE_TIMEOUT_S = 4.0
EXTRA_ACKS_S = 1.0
"""Longest wait for more copies than a majority, in seconds."""
FEW_COPIES = "It stays stored. Repeat the same request once more nodes are up, or ask for fewer copies."
RETRY_PAUSE_S = 0.25
RETRY_PAUSE_MAX_S = 5.0
COMPARE_EVERY_S = 60.0
"""Pause between two comparisons with a holder that is up to date, in seconds."""
REACH_TIMEOUT_S = 2.0
EXCHANGE_TIMEOUT_S = 10.0
TARGET_PATIENCE_S = 1.0
YIELD_PAUSE_MAX_S = 60.0


class LeaderHost(Host, Protocol):
    """What a leader needs of its node."""

    node_id: str
    replica: Replica

    pacer: Pacer
    """Limits the speed at which other nodes are brought up to date."""

    def synced(self, direction: str, rows: int, size: int) -> None:
        """Count a page of rows that was ``sent`` to another node, or ``taken`` from it, to make copies equal."""
        ...

    def sync_limit(self, node: str, *, takeover: bool = False) -> trio.CapacityLimiter:
        """Return the limit of partitions that are synchronised with a node, or taken over with its help, at once."""
        ...

    def sender(self, node: str) -> Sender:
        """Return the sender of writes to a node (this one included)."""
        ...

    async def call(self, node: str, method: str, args: dict[str, Any], *, timeout_s: float) -> Any:
        """Call a method of another node; raises `Unavailable`."""
        ...

    async def propose(self, entry: Any) -> str:
        """Submit an entry and return its verdict; raises `LogUnavailable`."""
        ...

    async def changed(self, replica: Replica) -> None:
        """Return when the replica is no longer this one."""
        ...

    def storing_found(self, leader: PartitionLeader, rows: Sequence[Row]) -> AbstractContextManager[None]:
        """Surround the storing of another node's rows that may be on too few nodes."""
        ...

    def became_ready(self, leader: PartitionLeader) -> None:
        """Take note that the partition serves from now on."""
        ...

    def became_backed(self, leader: PartitionLeader) -> None:
        """Take note that a majority of the members has all that the leader found: a next leader will have it too."""
        ...

    def live_candidates(self, partition: int) -> int:
        """Return the number of nodes that could lead the partition now."""
        ...


class PartitionLeader:
    """Leads one partition under one epoch."""

    def __init__(self, host: LeaderHost, *, partition: int, epoch: int, peer: str) -> None:
        self.partition = partition
        self.epoch = epoch
        self.peer = peer
        self.ready = False
        self.deposed = False
        self.backed = False
        """Whether a majority of the members has all rows that the takeover found.

        From then on a next leader will also know that the tasks that are finished here are finished. Completions that
        are found later are `State.UNSETTLED` until a majority has them.
        """
        self.closing: Watermark = NOTHING
        """The ids that may be purged soon. No new task with such an id is accepted."""
        self.in_doubt = False
        """Whether an entry that purges may be on its way to the log."""
        self.since_s = now()
        self.reported_s: dict[TaskId, float] = {}
        """Stretch with failed tasks -> when their failure was last reported to another node, in seconds."""
        self.scope = trio.CancelScope()
        self.current: set[str] = {host.node_id}
        """Holders that had all rows of this node when they were last compared."""
        self._storing = 0
        """Number of running writes of rows that the takeover found on too few nodes."""
        self._host = host
        self._merged: set[str] = {host.node_id}
        """Holders that promised the epoch and whose rows were merged after that."""
        self._reached: set[str] = {host.node_id}
        """Holders that promised the epoch, so they accept writes."""
        self._failing: set[str] = set()
        """Holders for which the last synchronisation failed."""
        self._marks = 0
        self._promised = trio.Event()
        """Set once this node's own promise and all earlier writes are stored, and the partition's index is complete."""
        self._pending_shared: set[str] = set()
        """Names of pending rows that were here before the first comparison, or whose holders are compared again."""
        self._progress = trio.Event()
        self._trouble_since: float | None = None
        self._alone_since: float | None = None
        """Since when no majority of the members answers this node, although they may be in the ring."""
        self._repair = RepairWait(host.store, partition)
        self._compare_now: dict[str, trio.Event] = {}
        self._transfers: dict[str, Transfer] = {}
        """The exchange with each holder that is running or was the last."""

    @property
    def placed(self) -> Partition:
        """The partition's placement in the replica."""
        return self._host.replica.partitions[self.partition]

    def in_trouble(self) -> bool:
        """Return whether the takeover or the last write has not succeeded yet, or no majority answers."""
        if not self.ready or self.has_majority():
            self._alone_since = None
        elif self._alone_since is None:
            self._alone_since = now()
        return self._since() is not None

    def _since(self) -> float | None:
        return min((at for at in (self._trouble_since, self._alone_since) if at is not None), default=None)

    def check(self) -> None:
        """Raise `NotLeader` unless the partition accepts writes."""
        if self.deposed:
            raise NotLeader(f"partition {self.partition} is no longer led from here")
        if not self.ready:
            members = self.placed.members
            answered = len(self._merged.intersection(members))
            raise NotLeader(
                f"partition {self.partition} is being taken over: {answered} of its {len(members)} members "
                f"have answered, and a majority is needed"
            )

    def check_new(self, first: bytes) -> None:
        """Raise `Purged` if a new task's id belongs to a purged time, `Unavailable` if it may be purged soon."""
        if self._host.store.watermark(self.partition).covers(first):
            raise Purged(f"task {first.hex()} belongs to a time whose finished tasks are purged", field="id")
        if self.closing.covers(first):
            raise Unavailable(f"partition {self.partition} may be about to purge tasks of that time")

    # --- writes

    def mark(self) -> Mark:
        """Return the mark of a new row, which is greater than those of all rows that any leader wrote before.

        A leader knows every acknowledged row. So if another node holds a different row, it was not acknowledged.
        """
        self._marks += 1
        return Mark(self.epoch, self._marks)

    def replicate(
        self,
        rows: Sequence[Row],
        *,
        early: bool = False,
        stored: Callable[[OnyxqError | None], None] | None = None,
        decided: Callable[[bool], None] | None = None,
    ) -> Vote:
        """Send rows to every holder; return the vote, which is won once majorities have them.

        ``early``: rows in a node's memory count as well. ``stored`` is called with the answer of this node's own
        store, None if it has the rows; ``decided`` with whether the vote is won.
        """
        placed = self.placed
        self._host.pacer.served()
        node_id, failed = self._host.node_id, self._heard_error
        vote = Vote(
            leader=node_id, members=placed.members, target=placed.target, failed=failed, own=stored, decided=decided
        )
        with failures.serving("a write"):
            if rows:  # without rows, it only asks whether this node still leads
                failures.begin()
            for node in self.holders():
                self._host.sender(node).submit(self.partition, self.epoch, rows, vote, early=early)
        return vote

    async def decide(self, vote: Vote, *, wanted: int | None = None) -> int:
        """Wait until the write is decided; return how many holders have it.

        A write is decided once majorities have it, or once ``wanted`` nodes have it, this node among them. If
        more than a majority are wanted and do not answer within `EXTRA_ACKS_S`, the outcome is `Unknown`
        although the write stays. Raises `Unknown`, `StoreFailed`, `StaleEpoch` or `Unavailable`.
        """
        if wanted is not None and wanted < vote.majority:
            await vote.wait_for(wanted, WRITE_TIMEOUT_S)
            if vote.has(wanted):
                return len(vote.acks)
        elif await vote.wait(WRITE_TIMEOUT_S):
            self._trouble_since = None
            if wanted is None or await vote.wait_for(wanted, EXTRA_ACKS_S) >= wanted:
                return len(vote.acks)
            raise Unknown(f"{len(vote.acks)} nodes have it, and w asks for {wanted}", hint=FEW_COPIES)
        if self._trouble_since is None:
            self._trouble_since = now()
        raise vote.failure(self.partition)

    async def write(self, rows: Sequence[Row]) -> int:
        """Replicate rows and wait for the decision."""
        return await self.decide(self.replicate(rows))

    def holders(self) -> list[str]:
        """Return the nodes of members and target, sorted."""
        return sorted({*holders(self.placed), self._host.node_id})

    def has_majority(self) -> bool:
        """Return whether a majority of the members is in the ring and answers, as far as is known."""
        host = self._host
        nodes, members = host.replica.nodes, self.placed.members
        up = {host.node_id}
        for node in members:
            if (found := nodes.get(node)) is None or not found.peer:
                continue
            if not host.sender(node).down:
                up.add(node)
            elif (event := self._compare_now.get(node)) is not None:
                event.set()  # it may be back, so its follower tries again
        return majority(members, up)

    def _heard_error(self, node: str, error: OnyxqError) -> None:
        if isinstance(error, StaleEpoch):
            self.deposed = True
        if node == self._host.node_id:
            self._compare_all()
        else:
            self._lacks_rows(node)

    def _compare_all(self) -> None:
        """Compare all copies now: other nodes may have rows of a write that failed here."""
        for behind in self._compare_now.values():
            behind.set()

    def _lacks_rows(self, node: str) -> None:
        """Count a copy as incomplete, and bring it up to date now."""
        self.current.discard(node)
        if node in self._compare_now:
            self._compare_now[node].set()

    # --- takeover, in the background until cancelled

    async def run(self) -> None:
        """Take over, settle, and keep every holder up to date until cancelled."""
        with self.scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._followers, nursery)
                await self._take_over()
                await self._settle()

    async def _take_over(self) -> None:
        self._trouble_since = now()
        await self._until_written(Batch(epochs=((self.partition, self.epoch),)))
        while self.partition in self._host.store.unindexed():
            await trio.sleep(RETRY_PAUSE_S)
        self._pending_shared.update(self._host.store.pending_transactions(self.partition))
        self._promised.set()
        while not self._has_read_majority():
            await self._progressed()
        with trio.move_on_after(TARGET_PATIENCE_S):
            # Writes need a majority of the target too. But reads and claims must not wait for a dead target.
            while not majority(self.placed.target, self._reached):
                await self._progressed()
        self._trouble_since = None
        while not self.ready:
            placed = self.placed
            if placed.epoch == self.epoch and placed.ready:
                self.ready = True
                self._host.became_ready(self)
                self._note_progress()
                return
            await self._propose(ready_partition.Args(self.partition, self.epoch))

    def _has_read_majority(self) -> bool:
        """Return whether the rows of a majority of the members, as of their promises, have been merged here."""
        return majority(self.placed.members, self._merged)

    async def _until_written(self, batch: Batch) -> None:
        if self.epoch < self._host.epochs.get(self.partition, 0):
            self.deposed = True
            await trio.sleep_forever()
        self._host.epochs[self.partition] = self.epoch
        await self._until_flushed()
        while True:
            try:
                await self._host.store.write(batch)
                return
            except StoreFailed:
                await trio.sleep(RETRY_PAUSE_S)

    async def _until_flushed(self) -> None:
        """Wait until all rows that this node has acknowledged are on its disk."""
        await self._host.unflushed_writes.flushed()

    async def _settle(self) -> None:
        while True:
            placed = self.placed
            if placed.members == placed.target:
                self._repair = RepairWait(self._host.store, self.partition)
                await self._host.changed(self._host.replica)
            elif (entry := self.settlement()) is None:
                await self._progressed()
            elif self._repair.lasts():
                await trio.sleep(RETRY_PAUSE_S)
            else:
                await self._propose(entry)

    def settlement(self) -> settle_partition.Args | None:
        """Return the entry that ends the partition's move, or None if there is no move that may end now."""
        placed = self.placed
        if placed.members == placed.target or not self._may_settle(placed):
            return None
        return settle_partition.Args(self.partition, self.epoch)

    def _may_settle(self, placed: Partition) -> bool:
        """Return whether the target is up to date and no complete copy of a live node would be dropped too early.

        Each complete copy of a live member needs a complete copy in the target. If the other members are gone,
        a majority is enough, because they should be replaced soon. While rows that the takeover found are being
        stored here, no copy in the target has all rows.
        """
        wanted = min(len(self._whole_copies(placed)), len(placed.target))
        whole = majority(placed.target, self.current) and sum(n in self.current for n in placed.target) >= wanted
        return whole and not self._storing

    def _whole_copies(self, placed: Partition) -> list[str]:
        """Return the live members whose copies may be complete, those included that have not been compared yet."""
        nodes = self._host.replica.nodes
        lives = [node for node in placed.members if node in nodes and nodes[node].peer]
        return [node for node in lives if node in self.current or node not in self._failing]

    async def _propose(self, entry: Any) -> None:
        try:
            await self._host.propose(entry)
        except Unavailable:
            await trio.sleep(RETRY_PAUSE_S)

    async def _progressed(self) -> None:
        # Progress may come from a holder or from a new replica (the target changed).
        replica = self._host.replica
        async with trio.open_nursery() as nursery:

            async def first(wait: Callable[..., Awaitable[None]], *args: Any) -> None:
                await wait(*args)
                nursery.cancel_scope.cancel()

            nursery.start_soon(first, self._progress.wait)
            nursery.start_soon(first, self._host.changed, replica)

    # --- holders

    async def _followers(self, nursery: trio.Nursery) -> None:
        scopes: dict[str, trio.CancelScope] = {}
        while True:
            replica = self._host.replica
            wanted = set(self.holders()) - {self._host.node_id}
            for node in sorted(scopes.keys() - wanted):
                scopes.pop(node).cancel()
                self.current.discard(node)
            for node in sorted(wanted - scopes.keys()):
                scopes[node] = trio.CancelScope()
                nursery.start_soon(self._follow, node, scopes[node])
            placed = replica.partitions[self.partition]
            while True:
                await self._host.changed(replica)
                replica = self._host.replica
                now = replica.partitions[self.partition]
                if (now.members, now.target) != (placed.members, placed.target):
                    break

    async def _follow(self, node: str, scope: trio.CancelScope) -> None:
        pause = RETRY_PAUSE_S
        with scope:
            while not self.deposed:
                try:
                    await self.compare(node)
                    pause = RETRY_PAUSE_S
                except StaleEpoch:
                    return
                except OnyxqError as error:
                    silent = type(error) in (Unavailable, TimedOut)
                    with trio.move_on_after(pause):
                        await (self._host.sender(node).back() if silent else trio.sleep_forever())
                    pause = min(2 * pause, RETRY_PAUSE_MAX_S)
                    continue
                with trio.move_on_after(COMPARE_EVERY_S):
                    await self._compare_now[node].wait()

    async def compare(self, node: str) -> None:
        """Have a holder promise the epoch, and make its copy and this one equal; raises `OnyxqError`."""
        self._compare_now[node] = trio.Event()
        try:
            await self._reach(node)
            await self._until_promised()
            await self._bring_up_to_date(node)
            self._failing.discard(node)
        except OnyxqError as error:
            self._failing.add(node)
            self._note_progress()
            self.deposed = self.deposed or isinstance(error, StaleEpoch)
            raise

    async def _reach(self, node: str) -> None:
        """Ask a node to promise the epoch; from then on it gets every write."""
        replica = self._host.replica
        log = [self._host.node_id, replica.position, trail_at(replica.trail, replica.position)]
        reach = {"partition": self.partition, "epoch": self.epoch, "log": log}
        await self._host.call(node, "cohort.reach", reach, timeout_s=REACH_TIMEOUT_S)
        self._host.sender(node).resume()
        self._reached.add(node)
        self._note_progress()

    async def _until_promised(self) -> None:
        """Wait until this node's store has all rows that the node acknowledged in earlier epochs."""
        await self._promised.wait()

    async def _bring_up_to_date(self, node: str) -> None:
        """Merge the rows of a node that reached the epoch, and send it the rows that it lacks."""
        exchange = self._exchange(node)
        if node not in self._merged:
            # The takeover must wait neither for the pace nor for copies that are made at it.
            async with self._host.sync_limit(node, takeover=not self.ready):
                differing = await exchange.run(pull=True, push=False, paced=self.ready)
                await self._share_pending(node, exchange.call)
            self._merged.add(node)
            if not differing:
                self._compared(node)
                return
            self._note_progress()
        await self._synchronize(node, exchange)
        self._compared(node)

    def _compared(self, node: str) -> None:
        """Count a copy as complete, unless rows that it lacks have come here since the comparison began."""
        if not self._compare_now[node].is_set():
            self.current.add(node)
        self._note_progress()

    async def _synchronize(self, node: str, exchange: Exchange) -> None:
        """Exchange rows that differ; a few rows are exchanged at once, because clients may wait for their majority."""
        few = exchange.few
        if few:
            async with self._host.sync_limit(node, takeover=True):
                await exchange.run(pull=True, push=True, paced=False)
                await self._share_pending(node, exchange.call)
        if not (few and exchange.few):
            async with self._host.sync_limit(node):
                await exchange.run(pull=True, push=True)
                await self._share_pending(node, exchange.call)

    async def keep(self, node: str, rows: Sequence[Row]) -> None:
        """Store rows that another node of the cohort has."""
        found: AbstractContextManager[None] = nullcontext()
        placed, pair = self.placed, {self._host.node_id, node}
        if not (majority(placed.members, pair) and majority(placed.target, pair)):
            found = self._storing_found(node, rows)
        with found:
            written = await self._host.store.write(Batch(rows=rows))
        self._host.pieces_added(written.pieces)

    @contextmanager
    def _storing_found(self, node: str, rows: Sequence[Row]) -> Iterator[None]:
        """Surround the storing of a node's rows that a majority of the members or of the target may lack.

        After rows that the takeover found, all other holders are compared with this copy again.
        """
        taking_over = not self.ready
        self._storing += taking_over
        try:
            with self._host.storing_found(self, rows):
                yield
        finally:
            self._storing -= taking_over
            if taking_over:
                self._others_lack_rows(node)

    def _others_lack_rows(self, node: str) -> None:
        """Compare all other holders with this copy again, because it has taken rows of a node that they may lack."""
        for other in self.holders():
            if other not in (self._host.node_id, node):
                self._lacks_rows(other)

    async def take_offer(self, rows: Sequence[Row]) -> None:
        """Write the rows that a node outside the cohort offers; until a majority has them, they count as found."""
        with self._host.storing_found(self, rows):
            await self.write(rows)

    def _exchange(self, node: str) -> Exchange:
        transfer = self._transfers[node] = Transfer(self._host.synced)
        return Exchange(
            store=self._host.store,
            partition=self.partition,
            epoch=self.epoch,
            call=partial(self._host.call, node, timeout_s=EXCHANGE_TIMEOUT_S),
            keep=partial(self.keep, node),
            pacer=self._host.pacer,
            transfer=transfer,
        )

    async def _share_pending(self, node: str, call: pending_facts.Call) -> None:
        """Exchange pending rows of transactions with a node too: they are in no digest.

        After rows that the takeover found, all other holders are compared with this copy again. Rows that are found
        later are on too few nodes, so no transaction can be committed with them.
        """
        store = self._host.store
        theirs = await pending_facts.pull(store, call, self.partition)
        if not self.ready and not theirs <= self._pending_shared:
            self._pending_shared |= theirs
            self._others_lack_rows(node)
        await pending_facts.push(store, call, self.partition, self.epoch, theirs=theirs)

    def transfers(self) -> list[dict[str, Any]]:
        """Return the live holders that still lack rows, with the progress of each, for display."""
        nodes = self._host.replica.nodes
        behind = (node for node in self.holders() if node not in self.current)
        return [
            {"node": node, **(self._transfers.get(node) or Transfer(self._host.synced)).view()}
            for node in behind
            if self.ready and node in nodes and nodes[node].peer
        ]

    def _note_progress(self) -> None:
        if self.ready and not self.backed and self._is_backed():
            self.backed = True
            self._host.became_backed(self)
        self._progress.set()
        self._progress = trio.Event()

    def _is_backed(self) -> bool:
        """Return whether a majority of the members has all rows that were found here; see `backed`."""
        return not self._storing and majority(self.placed.members, self.current)

    # --- giving up

    @property
    def reads_index(self) -> bool:
        """Whether the leader reads the partition's index, or may do so at any moment."""
        return self._promised.is_set()

    async def give_up(self) -> None:
        """Let the next candidate lead, which may be this node under another epoch."""
        if self.placed.epoch == self.epoch:
            await self._propose(yield_partition.Args(self.partition, self.epoch))

    async def yield_if_in_trouble(self) -> None:
        """Give up leading if no write or takeover has succeeded for too long, or no majority answered.

        The node calls it every second. Each yield of the partition in a row doubles the time.
        """
        since, placed = self._since(), self.placed
        if since is None or placed.epoch != self.epoch:
            return
        shortest_s = self._host.replica.settings.yield_after_ms / 1000
        patience = min(shortest_s * 2 ** min(placed.yields, 6), YIELD_PAUSE_MAX_S)
        if now() - since >= patience and self._host.live_candidates(self.partition) > 1:
            self._trouble_since = now()
            self._alone_since = None
            await self._propose(yield_partition.Args(self.partition, self.epoch))
