"""The replica: one immutable tree that is equal on every peer at the same log position.

Pure: nothing here does I/O, reads a clock or draws a random number.  Nodes of the tree
are frozen attrs classes, collections are pyrsistent maps and tuples, and hot maps hold plain
tuples.  Times are integer milliseconds.  ``log_time_ms`` is the clock of leases: only records
advance it.  A name that ends in ``wall_ms`` is a writer's wall clock.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any, TypeAlias

from attrs import field, frozen
from pyrsistent import PMap, pmap

from onyxq.core.cluster_settings import Settings
from onyxq.core.ids import Run, mask_of, offset_of, runs_of, spans, stretch_of
from onyxq.core.log.digest import Milestones, Trail
from onyxq.core.log.interface import START
from onyxq.core.queue_settings import Queue

CLOCK_SKEW_MAX_MS = 5_000

ClaimPiece: TypeAlias = tuple[int, int, int, str, int]
"""One claim in flight: (offset in the stretch, count, token, worker, deadline in log time)."""
Counted: TypeAlias = tuple[str, int, int]
"""Claimed tasks that count towards a queue's limits: (queue, offset in the stretch, count)."""
Rate: TypeAlias = tuple[int, int]
"""What is left of a queue's rate: (millionths of a task, ``Replica.clock_ms`` of the calculation)."""
TransactionClaim: TypeAlias = tuple[int, int, tuple[tuple[bytes, int], ...]]
"""A claim that a transaction completes: (partition, token, runs)."""
TaskLimits: TypeAlias = tuple[str, int, int, int]
"""Slot limits of one task of a job: (task, fewest slots, most slots or 0, percentage of the job's slots or 0)."""

HELD_MS = (1 << 63) - 1
"""Deadline of a piece that a transaction holds: only settling the transaction ends it."""


@frozen
class Peer:
    """One run of the daemon, known from ``prepare_join_cluster`` until it leaves."""

    id: str
    node: str
    address: str
    http: str
    zone: str
    slots: int
    tags: tuple[str, ...]
    versions: PMap[str, int]
    joined_position: int = -1
    """Position of the record that made the peer a member; -1 while it joins."""
    clock_skew_ms: int = 0
    """How far the peer's wall clock is ahead of ``Replica.clock_ms``, according to its last record."""
    store: str = ""
    """Random id of the store with which it joined."""


@frozen
class Node:
    """A data directory with a stable id. It outlives its peers."""

    id: str
    zone: str
    peer: str = ""
    """The node's member peer; empty while the node is absent."""
    absent_since_ms: int = -1
    """Log time at which the node's last peer left; -1 while the node is present."""
    draining: bool = False
    replaced: bool = False
    """Whether placement gives the node no copies until one of its peers joins again."""
    latest_peer: str = ""
    """The node's latest member peer, kept while the node is absent."""
    store: str = ""
    """Id of the store that its latest member peer had. A node that loses its store gets another one."""


@frozen
class Ring:
    """The watch ring: which member watches which.

    ``pairs[a] == b`` means that a watches b; the pairs form one cycle through all members.
    A single member has no pair.  ``prepared[T] == S`` means that S will be inserted after T (phase 1).
    ``accepted[T] == S`` means that S was notified (phase 2).  ``queue`` holds the joiners that wait
    for a place, oldest first.
    """

    members: PMap[str, None] = field(factory=pmap)
    pairs: PMap[str, str] = field(factory=pmap)
    prepared: PMap[str, str] = field(factory=pmap)
    accepted: PMap[str, str] = field(factory=pmap)
    queue: tuple[str, ...] = ()


@frozen
class Partition:
    """The cohort and the leader of one partition. Cohorts are sorted node ids."""

    members: tuple[str, ...] = ()
    """Node ids. ``NODE~STORE`` is a copy that was lost with that store: see `onyxq.core.placement.voided`.

    ``NODE~forcedN`` is a copy that an operator gave up: see `onyxq.core.placement.unanimous`.
    """
    target: tuple[str, ...] = ()
    leader: str = ""
    """Peer id of the leader; empty while no peer can lead."""
    epoch: int = 0
    ready: bool = False
    yields: int = 0
    """Number of times that a leader gave up the partition since it was last ready or forced."""
    purged_ms: int = 0
    """The watermark: tasks with ids from before this time are purged, except those in ``kept``."""
    kept: tuple[bytes, ...] = ()
    """Stretches below the watermark that are not purged, sorted; see `onyxq.core.purged`."""


@frozen
class Cluster:
    """Name and random id of the cluster. Every record, store and connection carries the id."""

    name: str
    id: str
    settings: Settings


@frozen
class Snapshot:
    """The last ``gc`` entry: the peer that takes the snapshot, the position, and the result."""

    position: int = -1
    peer: str = ""
    finished: bool = True
    """Whether the origin is stored and the log before it is trimmed as far as possible."""
    trimmed: int = 0
    """Number of records that the collection deleted."""
    origin_bytes: int = 0
    """Size of the origin, in bytes."""


@frozen
class Remembered:
    """The outcome of something that ended, kept for a while to recognise repeats."""

    until_ms: int
    """``Replica.clock_ms`` from which the next ``gc`` forgets it."""
    answer: Any = None
    """The answer to a repeat."""


@frozen
class Transaction:
    """A committed transaction with parts that are not visible yet."""

    position: int
    """Position of its commit."""
    deadline_ms: int
    """Log time until which it had to be committed."""
    parts: PMap[int, tuple[int, bytes]] = field(factory=pmap)
    """Partition that has not settled the transaction yet -> number and digest of its pending facts."""
    claims: tuple[TransactionClaim, ...] = ()
    """The claims that it completes, under the workers' tokens; claims of settled parts are removed."""
    keep_ms: int = 600_000
    """How long its name is remembered after it is settled."""
    note: bytes = b""
    """Bytes that the coordinator gets back when the name is used again."""


@frozen
class Hold:
    """A pause in commits: no transaction is committed while a backup reads the partitions one by one."""

    name: str
    why: str
    """Reason, for people."""
    since: int
    """Position of the entry that began the hold."""
    until_ms: int
    """``Replica.clock_ms`` at which the hold ends unless it is ended earlier."""


RUNS_MAX = 1_000
"""Most runs of a periodic task that one entry enqueues."""


@frozen
class Periodic:
    """A periodic task: what to enqueue, and when."""

    name: str
    queue: str
    schedule: str
    """Text of the schedule; see `onyxq.core.cron`."""
    zone: str
    """IANA name of the schedule's time zone."""
    payload: bytes = b""
    format: str = "bytes"
    """Format of the payload: ``json`` or ``bytes``."""
    priority: int = 0
    missed: str = "once"
    """What to do about times that passed while no peer could fire: ``skip``, ``once`` or ``all``."""
    paused: bool = False
    next_ms: int = 0
    """Wall-clock time of the next run."""
    fired: int = 0
    """Number of runs that were fired."""
    options: PMap[str, int] = field(factory=pmap)
    """Options of each run; see the entry ``set_periodic``."""


@frozen
class Job:
    """A job: what was submitted, its driver and its progress; see `onyxq.core.jobs.allocation`."""

    id: str
    body: bytes
    """The job as its submitter packed it, with its functions. Peers do not decode the functions."""
    digest: bytes
    submitted: int
    """Position of its submission, plus 1 for each job that was submitted earlier in the same record."""
    submitted_ms: int
    scheduler: str = "balanced"
    """How the job shares its driver's slots with other jobs: ``greedy``, ``balanced`` or ``percentage``."""
    percentage: int = 0
    """Percentage of all slots, for the scheduler ``percentage``."""
    min_slots: int = 1
    max_slots: int = 0
    """Most slots; 0: no limit."""
    tags: tuple[str, ...] = ()
    """Tags that its driver's peer must have, all of them."""
    zones: tuple[str, ...] = ()
    """Zones where its driver's peer may be; empty: any zone."""
    beside: str = ""
    """An earlier job: this job runs on the same peer until that job ends."""
    inputs: tuple[str, ...] = ()
    """Inputs that can be sealed."""
    tasks: tuple[TaskLimits, ...] = ()
    own_host: bool = False
    keep_ms: int = 7 * 86_400_000
    """How long its outcome is kept after it ends."""
    state: str = "waiting"
    """``waiting``, ``running``, ``completed``, ``killed`` or ``failed``."""
    why: str = ""
    """The reason why it waits, the error with which it failed, or which job replaced it."""
    driver: str = ""
    """The peer that drives it; empty unless it is running."""
    slots: int = 0
    """Number of its driver's slots that it may use."""
    task_slots: tuple[tuple[str, int], ...] = ()
    """Number of these slots in which each task may run at a time."""
    version: int = -1
    """Fencing token of its driver: position of the entry that assigned the driver.

    It rises with every change of driver, and when the driver uses another Spark host (`supersede_driver`).
    """
    ready: bool = False
    """Whether this driver has reported that the job runs."""
    sealed: tuple[str, ...] = ()
    """Inputs that get no more data, sorted."""
    batch: int = -1
    """The last batch that was committed."""
    offsets: bytes = b""
    """How far that batch had read."""
    ended_ms: int = -1
    progress: bytes = b""
    """The last report of its driver, as the driver packed it."""


@frozen(slots=False)
class Replica:
    """The state that all peers agree on, at one position of the log. Without slots: see `altered`."""

    position: int = START
    log_time_ms: int = 0
    ctime_ms: int = 0
    """Znode ctime of the last record that a known peer wrote."""
    clock_ms: int = 0
    """The log's clock without its jumps.

    It starts at the ctime of the cluster's first record. It adds the time on which ctimes and writers'
    wall clocks agree, including idle times and outages.
    """
    counted_position: int = START
    """Position of the last applied record of a known peer."""
    cluster: Cluster | None = None
    ring: Ring = field(factory=Ring)
    peers: PMap[str, Peer] = field(factory=pmap)
    nodes: PMap[str, Node] = field(factory=pmap)
    partitions: PMap[int, Partition] = field(factory=pmap)
    claims: PMap[int, PMap[bytes, tuple[ClaimPiece, ...]]] = field(factory=pmap)
    """partition -> stretch -> disjoint pieces sorted by offset; no empty values."""
    enabled: PMap[str, int] = field(factory=pmap)
    outbox: PMap[str, int] = field(factory=pmap)
    """peer -> number of its last applied record."""
    remembered: PMap[str, Remembered] = field(factory=pmap)
    """``<kind>/<name>`` -> outcome of something that ended; see `onyxq.core.remembered`."""
    snapshot: Snapshot = field(factory=Snapshot)
    grown_records: int = 0
    """Records in the log since the last ``gc``."""
    grown_bytes: int = 0
    """Bytes of the records since the last ``gc``."""
    extensions: PMap[str, Any] = field(factory=pmap)
    queues: PMap[str, Queue] = field(factory=pmap)
    """Queues whose settings differ from the defaults; see `onyxq.core.queues`."""
    limited: PMap[bytes, tuple[Counted, ...]] = field(factory=pmap)
    """stretch -> its claimed tasks that count towards their queues' limits, sorted and merged."""
    running: PMap[str, int] = field(factory=pmap)
    """queue -> number of its tasks in ``limited``; no zeros."""
    rates: PMap[str, Rate] = field(factory=pmap)
    """queue with a rate -> what was left of the rate at its last grant."""
    transactions: PMap[str, Transaction] = field(factory=pmap)
    """Transactions that are committed and not settled."""
    periodic: PMap[str, Periodic] = field(factory=pmap)
    jobs: PMap[str, Job] = field(factory=pmap)
    """Jobs that have not ended, and jobs that ended since the last ``gc``."""
    hold: Hold | None = None
    """The last hold, unless it was ended; see `onyxq.core.transactions.on_hold`."""
    digest: bytes = b""
    """Chained digest of all records up to the position; see `onyxq.core.log.digest`."""
    milestones: Milestones = ()
    """The digests at some earlier positions."""
    void_below: int = 0
    """Claims under lower tokens are void: the log was lost, and a new log began at this position."""
    trail: Trail = ()
    """The first bytes of the digest at each of the last positions."""

    @property
    def settings(self) -> Settings:
        """The cluster's settings; the defaults before ``create_cluster``."""
        return self.cluster.settings if self.cluster else Settings()


EMPTY = Replica()
_NO_CLAIMS: PMap[bytes, tuple[ClaimPiece, ...]] = pmap()


def altered(replica: Replica, **parts: Any) -> Replica:
    """Return the replica with some fields replaced.

    Every change by a record passes here, so this is ten times as fast as attrs' ``evolve``.
    """
    after = object.__new__(Replica)
    after.__dict__.update(replica.__dict__, **parts)
    return after


# --- claims -----------------------------------------------------------------


def pieces_of(replica: Replica, task_id: bytes) -> tuple[ClaimPiece, ...]:
    """Return the claims in flight in the task's stretch."""
    claims = replica.claims.get(int.from_bytes(task_id[6:8], "big"))
    return claims.get(stretch_of(task_id), ()) if claims is not None else ()


def claim_of(replica: Replica, task_id: bytes) -> ClaimPiece | None:
    """Return the claim in flight on one task, or None."""
    place = offset_of(task_id)
    for piece in pieces_of(replica, task_id):
        if piece[0] <= place < piece[0] + piece[1]:
            return piece
    return None


def claimed_bits(pieces: tuple[ClaimPiece, ...], token: int | None = None) -> int:
    """Return the stretch mask of the tasks that ``pieces`` cover, only of ``token`` if it is given."""
    bits = 0
    for offset, count, piece_token, _, _ in pieces:
        if token is None or piece_token == token:
            bits |= ((1 << count) - 1) << offset
    return bits


def held_bits(replica: Replica, run: Run, token: int) -> int:
    """Return the stretch mask of the tasks of ``run`` that are claimed under ``token``.

    Tasks that a transaction holds are left out.
    """
    pieces = pieces_of(replica, run.first)
    if replica.transactions:
        pieces = tuple(piece for piece in pieces if piece[4] != HELD_MS)
    return claimed_bits(pieces, token) & mask_of(*run)


def without(pieces: tuple[ClaimPiece, ...], bits: int) -> tuple[ClaimPiece, ...]:
    """Return ``pieces`` without the tasks in the stretch mask ``bits``."""
    out: list[ClaimPiece] = []
    for piece in pieces:
        offset, count, token, worker, deadline = piece
        mine = ((1 << count) - 1) << offset
        if not mine & bits:
            out.append(piece)
            continue
        for run in runs_of(bytes(20), mine & ~bits):
            out.append((offset_of(run.first), run.count, token, worker, deadline))
    return tuple(out)


def with_pieces(replica: Replica, partition: int, changes: dict[bytes, tuple[ClaimPiece, ...]]) -> Replica:
    """Return the replica with the pieces of some stretches of a partition replaced.

    Tasks that are not claimed any more are also removed from the counts of their queue's limits.
    """
    present = replica.claims.get(partition, _NO_CLAIMS)
    evolver = present.evolver()
    for stretch, pieces in changes.items():
        if pieces:
            evolver[stretch] = pieces
        elif stretch in present:
            del evolver[stretch]
    claims = evolver.persistent()
    kept = replica.claims.set(partition, claims) if claims else replica.claims.discard(partition)
    if not replica.limited:
        return altered(replica, claims=kept)
    limited = {
        stretch: counted
        for stretch, pieces in changes.items()
        if (counted := still_counted(replica.limited.get(stretch, ()), pieces)) is not None
    }
    return with_counted(altered(replica, claims=kept), limited)


def still_counted(counted: tuple[Counted, ...], pieces: tuple[ClaimPiece, ...]) -> tuple[Counted, ...] | None:
    """Return which tasks of a stretch still count towards limits, given its claims; None if nothing changed."""
    claimed = claimed_bits(pieces) if counted else 0
    if all((bits := ((1 << count) - 1) << offset) & claimed == bits for _, offset, count in counted):
        return None
    left = [
        (queue, at, n) for queue, offset, count in counted for at, n in spans(((1 << count) - 1) << offset & claimed)
    ]
    return tuple(left)


def with_counted(replica: Replica, changes: dict[bytes, tuple[Counted, ...]]) -> Replica:
    """Return the replica with the counted tasks of some stretches replaced, and ``running`` adjusted."""
    if not changes:
        return replica
    limited, totals = replica.limited.evolver(), dict[str, int]()
    for stretch, after in changes.items():
        for sign, counted in ((-1, replica.limited.get(stretch, ())), (1, after)):
            for queue, _, count in counted:
                totals[queue] = totals.get(queue, 0) + sign * count
        if after:
            limited[stretch] = after
        elif stretch in replica.limited:
            del limited[stretch]
    running = replica.running.evolver()
    for queue in sorted(totals):
        total = replica.running.get(queue, 0) + totals[queue]
        if total:
            running[queue] = total
        elif queue in replica.running:
            del running[queue]
    return altered(replica, limited=limited.persistent(), running=running.persistent())


# --- membership, as placement and duties need it ------------------------------


def live_nodes(replica: Replica) -> tuple[str, ...]:
    """Return the sorted ids of the nodes that have a member peer."""
    return tuple(sorted(node.id for node in replica.nodes.values() if node.peer))


def first_peer(replica: Replica) -> str:
    """Return the ring's first peer, which is its oldest member, or empty.

    It owes the entries that no other peer owes.
    """
    members = [(replica.peers[peer].joined_position, peer) for peer in replica.ring.members]
    return min(members)[1] if members else ""


def collector(replica: Replica) -> str:
    """Return the peer that owes the collection in progress; empty if none is in progress.

    This is the peer that the ``gc`` names or, if that peer left, the ring's first.
    """
    taken = replica.snapshot
    if taken.finished:
        return ""
    return taken.peer if taken.peer in replica.ring.members else first_peer(replica)


def majority(cohort: Iterable[str], have: Container[str]) -> bool:
    """Return whether more than half of ``cohort`` is in ``have``; True for an empty cohort."""
    nodes = list(cohort)
    return not nodes or 2 * sum(node in have for node in nodes) > len(nodes)


def unserved(replica: Replica, among: Container[str] | None = None) -> list[int]:
    """Return the sorted partitions without a ready leader.

    If nodes are given, also those without a majority of their members ``among`` these nodes.
    """
    return [
        number
        for number, placed in sorted(replica.partitions.items())
        if not placed.ready or (among is not None and not majority(placed.members, among))
    ]


def leader_node(replica: Replica, partition: int) -> Node | None:
    """Return the node whose peer leads the partition, or None."""
    found = replica.partitions.get(partition)
    peer = replica.peers.get(found.leader) if found and found.leader else None
    return replica.nodes.get(peer.node) if peer else None
