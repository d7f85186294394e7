"""A peer: one membership of a node in the ring, from its session's start to its end.

The loop reads a record, applies it and passes the new replica to the node. Then it appends the entries that the
peer owes, and starts and stops duties. A peer ends when its session is lost, when it reads its own leave, or when
it is stopped. Then the node may start another peer with a new id.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import trio
from attrs import asdict, evolve, frozen

from log_entries import create_cluster, drain_node, leave_cluster, prepare_join_cluster
from log_entries.prepare_join_cluster import OLDER, OVERTAKEN
from onyxq.core.cluster_settings import DEFAULTS, Settings
from onyxq.core.duties import Duty, Extended, Fire, Snapshot, Watch, duties
from onyxq.core.errors import (
    ClockWrong,
    ClusterMismatch,
    LogWentBack,
    NodeCopied,
    OlderThanCluster,
    OnyxqError,
    StoreFailed,
    Unavailable,
)
from onyxq.core.log.interface import START, LogSession, Record, SessionLost, Trimmed
from onyxq.core.replica import CLOCK_SKEW_MAX_MS, EMPTY, Cluster, Replica, first_peer, unserved
from onyxq.core.ring import clock_error_ms, contains, last_member, latest_peer, worst_clock_error_ms
from onyxq.core.step import owed, step
from onyxq.log.outbox import Outbox
from onyxq.node.collector import Collector, unpacked
from onyxq.node.extension_duties import supervise
from onyxq.node.log_check import (
    Look,
    Witnesses,
    check_record,
    check_snapshot,
    cluster_of,
    mark_of,
    read_again,
    stored_mark,
    watch,
)
from onyxq.node.node import Node
from onyxq.node.periodic_duty import fire
from onyxq.node.record_archive import archive_copy
from onyxq.store.interface import CLUSTER_META, PEERS_META, Batch
from onyxq.store.store import Store

TICK_S = 0.5
QUIET_MAX_MS = 1_900
"""Longest pause between records while log time is needed, in ms. Records move it, and a long pause is an outage."""
ORPHANED_MS = 2_900
"""Pause between records after which a peer writes for the leaders of claims, in ms: they may be dead."""
CAUGHT_UP_S = 1.0
"""A peer asks to join once it could read everything that the log had within this time, in seconds."""
DRAIN_TIMEOUT_S = 30.0
OWED_EVERY_S = 1.0
STORE_PATIENCE_S = 10.0
"""Seconds without a successful write after which a peer leaves the ring until its store takes one."""
CLOCK_PATIENCE_S = 10.0
CLOCK_NEWS_MS = 1_000
"""Change of a peer's clock against the log's that causes a record to report it, in ms."""
CLOCK_EVERY_S = 600.0
"""Longest time between a peer's reports of its clock, in seconds.

A drifting clock may drift together with the other clocks of its machine.
"""

log = logging.getLogger(__name__)


async def writes(store: Store) -> bool:
    """Return whether the store takes a small write."""
    try:
        await store.write(Batch(meta=(("tried", b""),)))
    except StoreFailed:
        return False
    return True


class Evicted(Exception):
    """The peer read its own leave."""


@frozen
class Joiner:
    """Description of a peer in its request to join."""

    id: str
    address: str
    """``HOST:PORT`` of the wire protocol."""
    http: str
    """``HOST:PORT`` of HTTP, or empty."""
    zone: str
    slots: int
    """Job slots that it offers."""
    tags: tuple[str, ...]


class Peer:
    """One membership of a node in the ring."""

    def __init__(
        self,
        node: Node,
        joiner: Joiner,
        *,
        settings: Settings,
        new_cluster_id: Callable[[], str],
        look: Look,
    ) -> None:
        """Prepare the peer; ``look``: `LogBackend.look`."""
        self.id = joiner.id
        self.node = node
        self._joiner = joiner
        self.joined = trio.Event()
        self.collector = Collector(node)
        self._settings = settings
        self._new_cluster_id = new_cluster_id
        self._look = look
        self._scopes: dict[Duty, trio.CancelScope] = {}
        self._wanted: frozenset[Duty] = frozenset()
        self._leaving = False
        self._owed_at = 0.0
        self._older = False
        """Whether the request to join was refused because the cluster has enabled an unknown entry."""
        self._overtaken = False
        """Whether the request to join was refused because another peer of the node asked first."""
        self._passed = False
        """Whether the request to join is before the origin: there the peer is in the ring, or was."""
        self._trying = False
        """Whether a write is being tried because the last one was refused."""
        self._wrong: ClockWrong | None = None
        """Why it leaves for good."""
        self._clock_at = 0.0
        """When the log's clock was last seen to move."""
        self._clock_doubted_since: float | None = None
        self._clock_off_since = 0.0
        self._witnesses = Witnesses(node)
        self._connection = 0
        """The session's connection over which the log was last checked."""
        self._heard: set[str] = set()
        """Peers that have written a record since clocks came into doubt."""

    # --- life

    async def run(self, session: LogSession) -> None:
        """Join, work, and return when this peer has left.

        Raises `SessionLost`, `Evicted`, `ClusterMismatch`, `LogWentBack`, `ClockWrong`, `NodeCopied`,
        `OlderThanCluster`, `ExtensionFailed`.
        """
        node = self.node
        outbox = Outbox(
            session,
            peer=self.id,
            clock=node.clock.own,
            measure=node.measured,
            on_append=node.metrics.log_append_seconds.observe,
            encode=node.encode,
        )
        node.session = session
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._lost, session)
                await self._catch_up(session)
                nursery.start_soon(watch, node, session, self._look, self._witnesses)
                nursery.start_soon(outbox.run)
                await self._create_if_new(session, outbox)
                self._check_cluster(node.replica.cluster)
                self._name_unused_settings()
                self._check_versions()
                outbox.cluster_id = node.replica.cluster.id if node.replica.cluster else ""
                if node.store.meta("cluster_id") is None:
                    await node.store.write(Batch(meta=((CLUSTER_META, outbox.cluster_id.encode()),)))
                await self._note_attempt()
                await session.set_pulse(self.id, self._joiner.address.encode())
                node.peer_id, node.outbox = self.id, outbox
                outbox.submit([self._prepare()], self._prepared)
                nursery.start_soon(self._tick, outbox)
                await self._follow(session, outbox, nursery)
                nursery.cancel_scope.cancel()
        finally:
            # Work that needs the log ends first; the node serves facts under the last replica.
            node.outbox = None
            node.peer_id = ""
            node.session = None
            outbox.close()

    async def _lost(self, session: LogSession) -> None:
        await session.wait_lost()
        raise SessionLost("the session with the log was lost")

    async def _catch_up(self, session: LogSession) -> None:
        node = self.node
        self._connection = session.connections
        if node.replica.position == START:
            await self._read_again(session)
        else:
            await self._resume(session)
        await self._witnesses.ask(session)
        took_s = CAUGHT_UP_S
        while took_s >= CAUGHT_UP_S:
            began_s, end = trio.current_time(), await session.tail()
            while node.replica.position < end:
                await self._read(session)
            took_s = trio.current_time() - began_s
        await self._witnesses.ask(session)  # A new node knows the others only now.
        node.went_back = None

    async def _read_again(self, session: LogSession) -> None:
        """Read what this node had read when it ended; raises `LogWentBack` before it acts on another log."""
        node = self.node
        try:
            again = await read_again(session, stored_mark(node.store))
        except LogWentBack:
            self._check_cluster(await cluster_of(session, node.entries))
            raise
        if again.start.position > START:
            await archive_copy(node, again.start)
            node.replace(again.start, again.packed)
        for record in again.records:
            self._step(record)

    async def _resume(self, session: LogSession) -> None:
        """Continue reading over another connection; raises `LogWentBack`."""
        node = self.node
        position = node.replica.position
        found = await session.look(position)
        check_record(position, node.records.newest, found)
        if isinstance(found, Trimmed):
            await self._take_snapshot(session)

    async def _create_if_new(self, session: LogSession, outbox: Outbox) -> None:
        if self.node.replica.cluster is not None:
            return
        stored = self.node.store.meta("cluster_id")
        if stored is not None:
            raise LogWentBack(f"the log is empty, and this data directory belongs to cluster {stored.decode()}")
        outbox.cluster_id = self._new_cluster_id()
        node = self.node
        outbox.submit(
            [create_cluster.creation(node.cluster_name, outbox.cluster_id, self._settings, node.entries.versions)]
        )
        await outbox.flushed()
        while not self._known():
            await self._read(session)
        # Another peer may have created the cluster first. Then our entry had no effect, and its number does not count.
        outbox.number = self.node.replica.outbox.get(self.id, 0)

    def _known(self) -> bool:
        return self.node.replica.cluster is not None

    def _check_cluster(self, cluster: Cluster | None) -> None:
        stored = self.node.store.meta("cluster_id")
        if cluster is not None and stored is not None and stored.decode() != cluster.id:
            raise ClusterMismatch(
                f"this data directory belongs to cluster {stored.decode()}, the log to {cluster.id} ({cluster.name})"
            )

    def _name_unused_settings(self) -> None:
        """Log each setting of this peer that differs from the cluster's, which cannot change.

        The session timeout is each peer's own.
        """
        cluster = self.node.replica.cluster
        assert cluster is not None
        fixed = asdict(evolve(cluster.settings, session_timeout_ms=self._settings.session_timeout_ms))
        for name, theirs in fixed.items():
            ours = getattr(self._settings, name)
            if ours not in (theirs, getattr(DEFAULTS, name)):
                log.warning(
                    "%s %s is not used: cluster %s was created with %s, and that cannot change",
                    name, ours, cluster.name, theirs,
                )  # fmt: skip

    async def _note_attempt(self) -> None:
        """Store this peer's id durably before it asks to join; raises `NodeCopied`.

        A data directory lists the node's last member of the ring, and all peers that started after it. If the log's
        latest peer of the node is not listed, it ran elsewhere: this directory is a copy, or an older state.
        """
        node = self.node
        latest = latest_peer(node.replica, node.node_id)
        known = (node.store.meta(PEERS_META) or b"").decode().split()
        if latest and latest not in known:
            address = found.address if (found := node.replica.peers.get(latest)) is not None else "an unknown address"
            raise NodeCopied(
                f"node {node.node_id} last ran as peer {latest} at {address}, from another data directory than this"
                f" one: one of the two is a copy, or this one was set back to an older copy"
            )
        member = last_member(node.replica, node.node_id)  # Peers after it may not have joined: the log forgets those.
        since = known[known.index(member) :] if member in known else known
        await node.store.write(Batch(meta=((PEERS_META, " ".join([*since, self.id]).encode()),)))

    def _check_versions(self) -> None:
        """Raise `OlderThanCluster` if the cluster has enabled an entry that this program does not know."""
        unknown = self.node.entries.unknown(self.node.replica.enabled)
        if unknown:
            raise OlderThanCluster(
                f"older than the cluster: it has enabled {unknown}, which this program does not know"
            )

    def _prepared(self, position: int, verdicts: Sequence[str] | None) -> None:
        """Note the verdict of the request to join."""
        self._older = OLDER in (verdicts or ())
        self._overtaken = OVERTAKEN in (verdicts or ())
        self._passed = verdicts is None

    def _prepare(self) -> prepare_join_cluster.Args:
        return prepare_join_cluster.Args(
            peer=self.id,
            node=self.node.node_id,
            address=self._joiner.address,
            http=self._joiner.http,
            zone=self._joiner.zone,
            slots=self._joiner.slots,
            tags=self._joiner.tags,
            versions=self.node.entries.versions,
            previous=latest_peer(self.node.replica, self.node.node_id),
            store=self.node.admission.store_id,
        )

    # --- the log

    async def _read(self, session: LogSession) -> None:
        node = self.node
        before = node.replica
        found = await session.read(before.position + 1)
        if isinstance(found, Trimmed):
            await self._take_snapshot(session)
            return
        while self._is_reconnected(session):
            connection = session.connections
            await self._resume(session)
            await self._witnesses.ask(session)
            if node.replica is not before:
                return
            # The older connection may have read the record, and the log went back by just this one.
            check_record(found.position, found, await session.look(found.position))
            self._connection = connection
        self._step(found)

    async def _take_snapshot(self, session: LogSession) -> None:
        """Continue from the log's snapshot if it is after this node's replica; raises `LogWentBack`."""
        await self._witnesses.ask(session)  # A replica that is replaced shows no more what the others have read since.
        before = self.node.replica
        origin = await session.origin()
        if origin is None or origin.position < before.position:
            return
        replica = await unpacked(origin.data)
        check_snapshot(mark_of(before), replica)
        if replica.position > before.position:
            await archive_copy(self.node, replica)
            self.node.replace(replica, origin.data)
            self._note_time(before)

    def _step(self, found: Record) -> None:
        node = self.node
        before = node.replica
        done = step(before, found, node.entries)
        if not done.problem:
            self._heard.add(done.peer)
            if node.outbox is not None:
                node.outbox.note_read(done.peer)
        node.records.add(found)
        node.advance(before, done, found)
        self._note_time(before)

    def _note_time(self, before: Replica) -> None:
        """Note when the log's clock was seen to move."""
        if self.node.replica.clock_ms > before.clock_ms:
            self._clock_at = trio.current_time()

    def _is_reconnected(self, session: LogSession) -> bool:
        """Return whether the log was not checked yet over the session's connection."""
        return session.connections != self._connection

    async def _follow(self, session: LogSession, outbox: Outbox, nursery: trio.Nursery) -> None:
        known = False
        before = EMPTY
        while True:
            replica = self.node.replica
            if replica.enabled is not before.enabled or self._older:
                self._check_versions()
            known = known or self._passed or contains(replica.ring, self.id)
            if known and not contains(replica.ring, self.id):
                if self._wrong is not None:
                    raise self._wrong
                if self._leaving:
                    return
                raise Evicted(f"peer {self.id} was taken out of the ring")
            if self._overtaken:
                raise Evicted(f"peer {self.id} was not let in: another peer of its node asked first")
            if replica.ring is not before.ring and self.id in replica.ring.members and not self.joined.is_set():
                self.joined.set()
                self.node.reconcile()
            self._react(before, replica, session, outbox, nursery)
            if replica.snapshot.finished and not before.snapshot.finished:
                nursery.start_soon(self._keep_snapshot, session)
            before = replica
            await self._read(session)
            # Records that are available already are applied together before anything else runs.

    async def _keep_snapshot(self, session: LogSession) -> None:
        """Begin the node's copy of the log with the newest snapshot."""
        try:
            origin = await session.origin()
        except OnyxqError as error:
            log.info("the copy of the log grows until the next snapshot: %s", error.message)
            return
        if origin is not None and origin.position <= self.node.replica.position:
            self.node.history.keep(origin.position, origin.data)

    def _react(
        self, before: Replica, replica: Replica, session: LogSession, outbox: Outbox, nursery: trio.Nursery
    ) -> None:
        unchanged = all(new is old for new, old in zip(_structure(replica), _structure(before), strict=True))
        now = trio.current_time()
        if unchanged and now - self._owed_at < OWED_EVERY_S:
            return
        self._owed_at = now
        for entry in owed(replica, self.id, self.node.entries):
            if not outbox.holds(entry):
                outbox.submit([entry])
        if not unchanged:
            self._reconcile(replica, session, nursery)

    def _reconcile(self, replica: Replica, session: LogSession, nursery: trio.Nursery) -> None:
        wanted = duties(replica, self.id, self.node.entries)
        for duty in sorted(self._wanted - wanted, key=repr):  # the order of a set depends on the process
            if (scope := self._scopes.pop(duty, None)) is not None:
                scope.cancel()
        for duty in sorted(wanted - self._wanted, key=repr):
            if isinstance(duty, Watch):
                self._start(duty, nursery, self._watch, session, duty.peer)
            elif isinstance(duty, Snapshot):
                self._start(duty, nursery, self.collector.run, session, replica)
            elif isinstance(duty, Fire):
                self._start(duty, nursery, fire, self.node)
            elif (runner := self.node.duty_runners.get(type(duty))) is not None:
                self._start(duty, nursery, runner, duty)
            elif isinstance(duty, Extended):
                self._start(duty, nursery, supervise, self.node, self.id, duty)
        self._wanted = wanted

    def _start(self, duty: Duty, nursery: trio.Nursery, function: Callable[..., Any], *args: Any) -> None:
        scope = self._scopes[duty] = trio.CancelScope()

        async def body() -> None:
            with scope:
                await function(*args)

        nursery.start_soon(body)

    async def _watch(self, session: LogSession, peer: str) -> None:
        while True:
            await session.wait_pulse_gone(peer)
            log.info("peer %s: the pulse of %s is gone", self.id, peer)
            outbox = self.node.outbox
            entry = leave_cluster.Args(peer, "its pulse is gone")
            if outbox is not None and not outbox.holds(entry):
                outbox.submit([entry])
            # The leave ends the duty. If the entry is lost, it is owed again.
            await trio.sleep(1.0)

    # --- time

    async def _tick(self, outbox: Outbox) -> None:
        while True:
            await trio.sleep(TICK_S)
            node = self.node
            self._check_store(node.store)
            if not node.log_connected or self.id not in node.replica.ring.members:
                self._clock_doubted_since = None  # After an outage the reported clocks are out of date.
                continue
            self._say_clock(outbox)
            await self._check_clock(outbox)
            if self._needs_log_time():
                outbox.submit_empty()

    def _needs_log_time(self) -> bool:
        """Return whether this peer must write a record now, so that log time moves."""
        node = self.node
        claims = node.replica.claims
        led = any(number in claims for number in node.granter.led())
        waited_for = led or node.operations.transaction_parts.wants_time or self._counts_absence()
        quiet_ms = node.log_quiet_ms()
        if waited_for:
            return quiet_ms > QUIET_MAX_MS or node.log_clock.lags()
        return bool(claims) and quiet_ms > ORPHANED_MS

    def _check_store(self, store: Store) -> None:
        """Raise `StoreFailed` if the disk has taken no write for long, so that other nodes take over the work."""
        condition = store.condition
        if condition.trouble_s() > STORE_PATIENCE_S:
            why = condition.refusal or "the disk does not answer"
            raise StoreFailed(f"the store has taken no write for {condition.trouble_s():.0f} s: {why}")
        if condition.refusal and not self._trying:
            self._trying = True
            self.node.start_soon(self._try_store, store)

    async def _try_store(self, store: Store) -> None:
        try:
            await writes(store)
        finally:
            self._trying = False

    def _counts_absence(self) -> bool:
        """Return whether this peer, as the ring's first, must move log time because nodes are absent."""
        replica = self.node.replica
        absent = any(not node.peer and not node.replaced for node in replica.nodes.values())
        return absent and first_peer(replica) == self.id

    def _say_clock(self, outbox: Outbox) -> None:
        """Write a record if the last one no longer matches what this clock shows."""
        replica, now = self.node.replica, trio.current_time()
        clock_ms = replica.clock_ms + (now - self._clock_at) * 1000
        moved_ms = self.node.clock.own.wall_ms() - clock_ms - replica.peers[self.id].clock_skew_ms
        quiet_s = now - outbox.sent_at
        if quiet_s > CLOCK_EVERY_S or (quiet_s > QUIET_MAX_MS / 1000 and abs(moved_ms) > CLOCK_NEWS_MS):
            outbox.submit_empty()

    async def _check_clock(self, outbox: Outbox) -> None:
        """Leave if this clock stays off the others'.

        Skews are as of each peer's last record. A record that arrived late makes its writer's clock, or all other
        clocks, look wrong. So all peers write again before any of them decides. Only those that did are compared,
        if they are a majority.
        """
        replica, now = self.node.replica, trio.current_time()
        members = replica.ring.members
        if worst_clock_error_ms(replica) <= CLOCK_SKEW_MAX_MS:
            self._clock_doubted_since = None
            return
        if self._clock_doubted_since is None:
            self._clock_doubted_since = self._clock_off_since = now
            self._heard = set()
        if now - outbox.sent_at > QUIET_MAX_MS / 1000:
            outbox.submit_empty()
        heard = sorted(peer for peer in members if peer in self._heard)
        off_ms = clock_error_ms(replica, self.id, among=heard) if self.id in heard else 0
        if abs(off_ms) <= CLOCK_SKEW_MAX_MS or 2 * len(heard) <= len(members):
            self._clock_off_since = now
        elif now - self._clock_off_since > CLOCK_PATIENCE_S:
            side = "ahead of" if off_ms > 0 else "behind"
            error = ClockWrong(f"this machine's clock is {abs(off_ms)} ms {side} the median of the ring")
            self._wrong = error
            await self.node.propose(leave_cluster.Args(self.id, error.message))
            raise error

    # --- leaving

    async def leave(self) -> None:
        """Drain, then leave the ring.

        Return once the leave is submitted or time is up.
        """
        self._leaving = True
        node = self.node
        if node.outbox is None or self.id not in node.replica.ring.members:
            return
        try:
            if len(node.replica.ring.members) > 1:
                await node.propose(drain_node.Args(node.node_id, False))
                with trio.move_on_after(DRAIN_TIMEOUT_S):
                    while not self._drained():
                        await node.moved()
            await node.propose(leave_cluster.Args(self.id, "told to leave"))
        except Unavailable as error:
            log.warning("leaving without a word in the log: %s", error.message)

    def _drained(self) -> bool:
        replica = self.node.replica
        live = {found.id for found in replica.nodes.values() if found.peer and not found.draining}
        if not live:
            return True  # All nodes leave, so no node can take anything over.
        if unserved(replica) or any(placed.leader == self.id for placed in replica.partitions.values()):
            return False
        return not any(self.node.node_id in replica.partitions[number].members for number in unserved(replica, live))


def _structure(replica: Replica) -> tuple[object, ...]:
    """Return the parts of a replica that determine entries owed and duties; claims are not among them."""
    return (
        replica.ring,
        replica.partitions,
        replica.nodes,
        replica.snapshot,
        replica.enabled,
        replica.extensions,
        bool(replica.periodic),
        replica.jobs,
    )
