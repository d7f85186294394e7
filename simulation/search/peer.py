"""One peer of the pure cluster: a reader of the log and an outbox, without any I/O (design: simulation).

It has read the log up to a position. Its entries wait, are put into numbered records, and each
record is in flight until its writer knows that it was appended. Several may be in flight at once,
and any of them may be written again under its number. The rule of outbox numbers allows this, and
real outboxes use less of it.
"""

from __future__ import annotations

from typing import Any

from attrs import define, field

from log_entries import gc, leave_cluster, prepare_join_cluster
from onyxq.core.entry import Entries
from onyxq.core.errors import NotEnabled, OlderThanCluster
from onyxq.core.log.clock import NS, LogClock
from onyxq.core.log.interface import Record
from onyxq.core.log.record import encode_entry, encode_record
from onyxq.core.replica import EMPTY, Replica, collector
from onyxq.core.ring import latest_peer, watches
from onyxq.core.step import owed, step
from simulation.search.extension import PROGRAMS
from simulation.search.log import Origin, PureLog

WINDOW = 3
"""Records that may fly at once."""


class Differs(Exception):
    """A reader that stepped for itself holds another replica than the log's own at that place."""


@define(eq=False)
class Captured:
    """What a collector has in hand: a replica to store, and how far it got."""

    place: int
    replica: Replica
    version: int = -2
    """The pointer's version as it was looked up; -2 before."""
    stored: bool = False
    """An origin covers the collection."""
    deleted: int = 0
    trimmed: bool = False
    """All that the origin covers is gone."""

    @property
    def position(self) -> int:
        """The position of its ``gc``."""
        return self.replica.snapshot.position


@define(eq=False)
class Peer:
    """See the module's first paragraph."""

    id: str
    node: str
    zone: str
    program: int = 0
    """Which of `PROGRAMS` it runs."""
    place: int = 0
    """It has read the records at lower places."""
    replica: Replica = EMPTY
    log_clock: LogClock = field(factory=LogClock)
    alone: int = 0
    """Number of records that it still steps alone instead of sharing the replica."""
    alive: bool = True
    """Its process runs."""
    pulse: bool = True
    """Its session lives."""
    asked: bool = False
    """It has asked to join."""
    asked_in: int = 0
    """The number of the record in which it asks."""
    known: bool = False
    """It has read of itself in the ring."""
    cluster_id: str = ""
    number: int = 0
    """Number of the last record made."""
    waiting: list[bytes] = field(factory=list)
    unread: dict[int, tuple[bytes, ...]] = field(factory=dict)
    """Records made and not read back, by number."""
    landed: dict[int, int] = field(factory=dict)
    """Places up to which the log was when unread records were known to have landed, by number."""
    flying: list[int] = field(factory=list)
    """Numbers of records that are not known to have landed, in order."""
    ghosts: list[bytes] = field(factory=list)
    """Copies of records that may still land late, or never."""
    captured: Captured | None = None
    jumped: bool = False
    """Its last read led it to an origin."""
    older: bool = False
    """It ended because the cluster has enabled what its program does not know."""
    _led: tuple[Any, tuple[int, ...]] = (None, ())

    @property
    def entries(self) -> Entries:
        """What its program knows."""
        return PROGRAMS[self.program]

    # --- reading

    def read(self, log: PureLog, count: int) -> int:
        """Read up to ``count`` records; returns how many. Raises `Differs`, `Unreadable`."""
        done = 0
        while done < count and self.place < log.end and self.alive:
            found = log.read(self.place)
            if isinstance(found, Origin):
                self._jump(log, found)
            else:
                self._step(log, found)
            done += 1
            self.note_log_time(log)
            if self.asked:
                self._look_for_itself()
                self._duty()
        return done

    def note_log_time(self, log: PureLog) -> None:
        """Remember when it read so far. Its monotonic clock is right."""
        self.log_clock.read(self.replica.position, self.replica.log_time_ms, log.now_ms * NS)

    def _duty(self) -> None:
        """Begin the collection that it owes, with the replica of now, or drop the one that it owes no more."""
        taken = self.replica.snapshot
        if taken.finished or collector(self.replica) != self.id:
            self.captured = None
        elif self.captured is None or self.captured.position != taken.position:
            self.captured = Captured(self.place, self.replica)

    def _jump(self, log: PureLog, origin: Origin) -> None:
        before, self.replica = self.replica, log.load(origin)
        self.place = origin.place
        self.log_clock.begin(self.replica.position, self.replica.log_time_ms, log.now_ms * NS)
        if self.replica != log.replicas[origin.place]:
            raise Differs(f"{self.id} loaded another replica from the origin at place {origin.place}")
        self.alone = max(self.alone, 3)
        self.jumped = True
        # Who is not in the ring any more may be forgotten there: what it knows to have landed is behind it too.
        behind = [number for number, place in self.landed.items() if place <= origin.place]
        self._forget(max([self.replica.outbox.get(self.id, 0), *behind]))
        self._check_versions(before)

    def _check_versions(self, before: Replica) -> None:
        """It ends once it reads that the cluster has enabled what it does not know."""
        if self.replica.enabled is not before.enabled and self.entries.unknown(self.replica.enabled):
            self.older = True
            self.end()

    def _step(self, log: PureLog, record: Record) -> None:
        before, shared = self.replica, log.replicas[self.place + 1]
        if self.alone:
            self.alone -= 1
            try:
                self.replica = step(before, record, self.entries).replica
            except OlderThanCluster:
                if self.id in before.peers:
                    raise  # nothing is enabled that somebody in the ring does not know
                self.older = True
                self.end()
                return
            if not self.alone:
                if self.replica != shared:
                    raise Differs(f"{self.id} holds another replica than the log at position {record.position}")
                self.replica = shared
        else:
            self.replica = shared
        self.place += 1
        if self.unread:
            self._forget(shared.outbox.get(self.id, 0))
        self._check_versions(before)

    def _forget(self, number: int) -> None:
        """Records up to ``number`` were applied: nothing of them is in doubt any more."""
        while self.unread and (oldest := next(iter(self.unread))) <= number:
            del self.unread[oldest]
            self.landed.pop(oldest, None)
            if self.flying and self.flying[0] == oldest:
                del self.flying[0]

    def _look_for_itself(self) -> None:
        """It ends once it reads that it left; also if it came and went within what an origin covers."""
        here = self.id in self.replica.peers
        if not here and (self.known or self.number >= self.asked_in not in self.unread):
            self.end()
        self.known = self.known or here

    def end(self) -> None:
        """The process stops in good order: its session closes, and with it all that was under way."""
        self.alive = self.pulse = False
        self.drop()

    def drop(self) -> None:
        """What the process had in memory, and what it had sent, is gone."""
        self.waiting.clear()
        self.unread.clear()
        self.landed.clear()
        self.flying.clear()
        self.ghosts.clear()
        self.captured = None

    # --- writing

    def submit(self, args: Any, *, forced: bool = False) -> bool:
        """Take an entry unless an equal one is on its way, or it may not be used yet; returns whether it was taken.

        ``forced``: in the newest version that it knows, whatever is enabled.
        """
        enabled = None if forced or self.replica.cluster is None else self.replica.enabled
        try:
            packed = encode_entry(args, self.entries, enabled)
        except NotEnabled:
            return False
        if packed in self.waiting or any(packed in record for record in self.unread.values()):
            return False
        self.waiting.append(packed)
        return True

    def make(self, *, empty: bool = False) -> bool:
        """Make a record of all that waits; returns whether there is one."""
        if len(self.flying) >= WINDOW or not (self.waiting or empty):
            return False
        self.number += 1
        self.unread[self.number] = tuple(self.waiting)
        self.flying.append(self.number)
        self.waiting.clear()
        return True

    def bytes_of(self, number: int, wall_ms: int, now_ms: int) -> bytes:
        """The record ``number`` as it is written at a wall-clock time; ``now_ms`` is true."""
        measured = self.log_clock.measured(now_ms * NS)
        return encode_record(self.cluster_id, self.id, number, wall_ms, self.unread[number], measured=measured)

    @property
    def busy(self) -> bool:
        """Whether anything of it is not read back."""
        return bool(self.waiting or self.unread or self.flying)

    # --- deciding

    def join(self) -> bool:
        """Ask to join, once it has read of a cluster; returns whether it did."""
        cluster = self.replica.cluster
        if cluster is None or self.asked or self.flying or self.waiting:
            return False
        self.unread.clear()
        self.asked, self.cluster_id = True, cluster.id
        # Somebody else's creation may have come first: then its own changed nothing.
        self.number = self.replica.outbox.get(self.id, 0)
        self.asked_in = self.number + 1
        return self.submit(joining(self))

    def react(self, pulses: dict[str, None]) -> bool:
        """Submit what it owes, and reports of watched peers without a pulse."""
        found = False
        for args in owed(self.replica, self.id, self.entries):
            found = self.submit(args) or found
        for other in watches(self.replica, self.id):
            if other not in pulses:
                found = self.submit(leave_of(other, ABSENT)) or found
        return found

    def led(self) -> tuple[int, ...]:
        """Partitions that it leads, as far as it knows."""
        partitions = self.replica.partitions
        if self._led[0] is not partitions:
            self._led = (partitions, tuple(n for n in sorted(partitions) if partitions[n].leader == self.id))
        return self._led[1]


def joining(peer: Peer) -> prepare_join_cluster.Args:
    """The arguments with which a peer asks to join."""
    addresses, latest = (f"{peer.id}:7400", f"{peer.id}:7480"), latest_peer(peer.replica, peer.node)
    versions = peer.entries.versions
    return prepare_join_cluster.Args(peer.id, peer.node, *addresses, peer.zone, 4, (), versions, latest, store="")


ABSENT = "its pulse is gone"


def leave_of(peer: str, reason: str) -> Any:
    """The leave of a peer."""
    return leave_cluster.Args(peer, reason)


def collection() -> Any:
    """The entry that starts a collection."""
    return gc.Args()
