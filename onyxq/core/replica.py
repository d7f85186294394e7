"""The replica: one immutable tree that every peer at the same position holds equal.

Pure: nothing here does I/O, reads a clock or draws a random number.  Nodes of the tree
are frozen attrs classes, collections are pyrsistent maps and tuples, hot maps hold plain
tuples.  Times are integer milliseconds: ``log_time_ms`` is the lease clock (it advances
with records only), anything ending in ``wall_ms`` is a writer's wall clock.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any, TypeAlias

from attrs import field, frozen
from pyrsistent import PMap, pmap

from onyxq.core.ids import PARTITIONS_MAX, Run, mask_of, offset_of, runs_of, spans, stretch_of
from onyxq.core.log.digest import Milestones, Trail

SEGMENT_POSITIONS = 1 << 31
"""Positions of one log segment: position = segment * SEGMENT_POSITIONS + sequence."""
CLOCK_SKEW_MAX_MS = 5_000
START_POSITION = -1

ClaimPiece: TypeAlias = tuple[int, int, int, str, int]
"""(offset in the stretch, count, token, worker, deadline in log time)."""
Counted: TypeAlias = tuple[str, int, int]
"""(queue, offset in the stretch, count): claimed tasks that count towards a queue's limits."""
Rate: TypeAlias = tuple[int, int]
"""(tasks that may be granted, in millionths, ``Replica.clock_ms`` at which they were counted)."""
TransactionClaim: TypeAlias = tuple[int, int, tuple[tuple[bytes, int], ...]]
"""(partition, token, runs)."""
TaskLimits: TypeAlias = tuple[str, int, int, int]
"""(task of a job, least of the job's slots, most of them or 0, percentage of them or 0)."""

HELD_MS = (1 << 63) - 1
"""The deadline of a piece that a transaction holds: nothing but its settling ends it."""


@frozen
class Settings:
    """A cluster's settings, fixed by ``create_cluster``."""

    partitions: int = 64
    replicas: int = 3
    session_timeout_ms: int = 6_000
    absent_after_ms: int = 60_000
    yield_after_ms: int = 5_000
    gc_records: int = 20_000
    """Records since the last ``gc`` after which the next one is owed."""
    gc_bytes: int = 4 << 20
    """Bytes of records since the last ``gc`` after which the next one is owed."""


SETTINGS_LIMITS: Mapping[str, tuple[int, int]] = {
    "partitions": (1, PARTITIONS_MAX),
    "replicas": (1, 9),
    "session_timeout_ms": (1_000, 60_000),
    "absent_after_ms": (1_000, 30 * 86_400_000),
    "yield_after_ms": (500, 3_600_000),
    "gc_records": (10, 100_000_000),
    "gc_bytes": (1 << 20, 1 << 40),
}
"""Lowest and highest value of each setting of a cluster."""


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
    """Position of the record that made it a member; -1 while joining."""
    clock_skew_ms: int = 0
    """How far its wall clock is ahead of ``Replica.clock_ms``, as of its last record."""


@frozen
class Node:
    """A data directory with a stable id; outlives its peers."""

    id: str
    zone: str
    peer: str = ""
    """Its member peer, or empty while absent."""
    absent_since_ms: int = -1
    """Log time at which its last peer left; -1 while present."""
    draining: bool = False
    replaced: bool = False
    """Placement gives it nothing until a peer of it joins again."""
    latest_peer: str = ""
    """Its latest member peer, kept while absent."""


@frozen
class Ring:
    """Who watches whom. ``pairs[a] == b``: a watches b; one cycle through all members.

    ``prepared[T] == S``: S is to be stitched in behind T (phase 1); ``accepted[T] == S``:
    S was notified (phase 2).  ``queue``: joiners that wait for a place, oldest first.
    A lone member has no pair.
    """

    members: PMap[str, None] = field(factory=pmap)
    pairs: PMap[str, str] = field(factory=pmap)
    prepared: PMap[str, str] = field(factory=pmap)
    accepted: PMap[str, str] = field(factory=pmap)
    queue: tuple[str, ...] = ()


@frozen
class Partition:
    """Where one partition lives and who leads it; cohorts are sorted node ids."""

    members: tuple[str, ...] = ()
    target: tuple[str, ...] = ()
    leader: str = ""
    """A peer id, or empty while nobody can lead."""
    epoch: int = 0
    ready: bool = False
    yields: int = 0
    """How often leadership was given up since the partition was last ready."""
    purged_ms: int = 0
    """The watermark: tasks whose ids are of before are purged."""
    kept: tuple[bytes, ...] = ()
    """Stretches below the watermark that stand, sorted; see `onyxq.core.purged`."""


@frozen
class Cluster:
    """Name and random id of the cluster; everything carries the id."""

    name: str
    id: str
    settings: Settings


@frozen
class Snapshot:
    """The last ``gc`` entry: who was to snapshot at which position, and what came of it."""

    position: int = -1
    peer: str = ""
    finished: bool = True
    """Whether the origin is stored and the log trimmed behind it, as far as it could be."""
    trimmed: int = 0
    """How many records the collection deleted."""
    origin_bytes: int = 0
    """How large the origin is."""


@frozen
class Remembered:
    """Something that ended, kept for a while so that a repeat of it stays a repeat."""

    until_ms: int
    """``Replica.clock_ms`` from which on the next ``gc`` forgets it."""
    answer: Any = None
    """What a repeat is told."""


@frozen
class Queue:
    """A queue's settings, where they are not the defaults; ``set_queue`` says what each may be."""

    paused: bool = False
    """Nothing of it is granted."""
    paused_by: str = ""
    paused_why: str = ""
    lease_ms: int = 30_000
    """Of claims whose worker names none."""
    retries: int | None = 25
    """Of tasks that say nothing themselves; None: until they succeed."""
    backoff_ms: int = 1_000
    """Before the first retry, of tasks that say nothing themselves."""
    on_dead: str = "goes on"
    """What the ordering key of a dead letter does: ``goes on`` or ``stops``."""
    retention_ms: int = 7 * 86_400_000
    """How long finished tasks are kept."""
    grace_ms: int = 10_000
    """How far in the past the due time of a new task may lie."""
    rate: int = 0
    """Tasks granted in 1,000 s at most, in the whole cluster; 0: any number."""
    concurrency: int = 0
    """Tasks claimed at a time at most, in the whole cluster; 0: any number."""
    key_rate: int = 0
    """Tasks granted in 1,000 s at most, of each ordering key; 0: any number."""
    durability: str = "strict"
    """``strict``, or ``opportunistic``: enqueues are answered before the disks have them."""
    archive: bool = False
    """Finished tasks are archived before they are purged."""


@frozen
class Transaction:
    """A committed transaction whose parts are not all visible yet."""

    position: int
    """Of its commit."""
    deadline_ms: int
    """Until when, in log time, it had to be committed."""
    parts: PMap[int, tuple[int, bytes]] = field(factory=pmap)
    """Partition that has not settled it yet -> number and digest of its pending facts."""
    claims: tuple[TransactionClaim, ...] = ()
    """What it completed, by the tokens that its workers had; those of settled parts are gone."""
    keep_ms: int = 600_000
    """How long its name is remembered once it is settled."""
    note: bytes = b""
    """What its coordinator wants to know of it when the name comes again."""


@frozen
class Hold:
    """Until its end no transaction is committed: a backup reads partition after partition."""

    name: str
    why: str
    """For people."""
    since: int
    """Position of the entry that began it."""
    until_ms: int
    """``Replica.clock_ms`` at which it is over, if nobody ends it before."""


RUNS_MAX = 1_000
"""Most runs of a periodic task that one entry enqueues."""


@frozen
class Periodic:
    """Something that is to be enqueued over and over."""

    name: str
    queue: str
    schedule: str
    """See `onyxq.core.cron`."""
    zone: str
    """IANA name of the time zone that the schedule is told in."""
    payload: bytes = b""
    format: str = "bytes"
    """``json`` or ``bytes``: what the payload is."""
    priority: int = 0
    missed: str = "once"
    """What becomes of times that passed while nobody could fire: ``skip``, ``once`` or ``all``."""
    paused: bool = False
    next_ms: int = 0
    """Wall-clock time of the next run."""
    fired: int = 0
    """How many runs were fired."""


@frozen
class Job:
    """A job: what was submitted, who drives it, how far it has come; see `onyxq.core.jobs.allocation`."""

    id: str
    body: bytes
    """The job as its submitter packed it, functions included; no peer looks into them."""
    digest: bytes
    submitted: int
    """Position of its submission; one more for each that stands before it in the same record."""
    submitted_ms: int
    scheduler: str = "balanced"
    """How it shares its driver's slots with others: ``greedy``, ``balanced`` or ``percentage``."""
    percentage: int = 0
    """Of all slots, for the scheduler of that name."""
    min_slots: int = 1
    max_slots: int = 0
    """0: any number."""
    tags: tuple[str, ...] = ()
    """All of which its driver's peer must have."""
    zones: tuple[str, ...] = ()
    """In one of which its driver's peer must be; empty: anywhere."""
    beside: str = ""
    """A job submitted before at whose peer it runs for as long as that one has not ended."""
    inputs: tuple[str, ...] = ()
    """Those that can be sealed."""
    tasks: tuple[TaskLimits, ...] = ()
    own_host: bool = False
    keep_ms: int = 7 * 86_400_000
    """How long its outcome is kept once it has ended."""
    state: str = "waiting"
    """``waiting``, ``running``, ``completed``, ``killed`` or ``failed``."""
    why: str = ""
    """What it waits for, or the error that it failed with."""
    driver: str = ""
    """The peer that drives it; empty unless it is running."""
    slots: int = 0
    """Those of its driver's peer that it has."""
    task_slots: tuple[tuple[str, int], ...] = ()
    """In how many of them each task may run at a time."""
    version: int = -1
    """The fencing token of its driver: position of the entry that brought it the driver; it rises
    with every change of driver, and only then."""
    ready: bool = False
    """Whether this driver has said that the job runs."""
    sealed: tuple[str, ...] = ()
    """Inputs on which nothing more comes, sorted."""
    batch: int = -1
    """The last batch that was committed."""
    offsets: bytes = b""
    """How far that batch had read."""
    ended_ms: int = -1


@frozen(slots=False)
class Replica:
    """All that peers agree on, at one position of the log. Without slots: see `altered`."""

    position: int = START_POSITION
    log_time_ms: int = 0
    ctime_ms: int = 0
    """Znode ctime of the last record that a known peer wrote."""
    clock_ms: int = 0
    """The log's clock without its jumps: the ctime of the cluster's first record and the time
    since then on which ctimes and writers' wall clocks agree, idle times and outages included."""
    counted_position: int = START_POSITION
    """Position of the last record of a known peer that was applied."""
    cluster: Cluster | None = None
    ring: Ring = field(factory=Ring)
    peers: PMap[str, Peer] = field(factory=pmap)
    nodes: PMap[str, Node] = field(factory=pmap)
    partitions: PMap[int, Partition] = field(factory=pmap)
    claims: PMap[int, PMap[bytes, tuple[ClaimPiece, ...]]] = field(factory=pmap)
    """partition -> stretch -> pieces sorted by offset, disjoint; no empty values."""
    enabled: PMap[str, int] = field(factory=pmap)
    outbox: PMap[str, int] = field(factory=pmap)
    """peer -> number of its last applied record."""
    remembered: PMap[str, Remembered] = field(factory=pmap)
    """``<kind>/<name>`` -> what is known of something that ended; see `onyxq.core.remembered`."""
    snapshot: Snapshot = field(factory=Snapshot)
    grown_records: int = 0
    """Records of the log since the last ``gc``."""
    grown_bytes: int = 0
    """Their bytes."""
    extensions: PMap[str, Any] = field(factory=pmap)
    queues: PMap[str, Queue] = field(factory=pmap)
    """Those whose settings are not the defaults; see `onyxq.core.queues`."""
    limited: PMap[bytes, tuple[Counted, ...]] = field(factory=pmap)
    """stretch -> its claimed tasks that count towards their queues' limits, sorted and merged."""
    running: PMap[str, int] = field(factory=pmap)
    """queue -> how many tasks of ``limited`` are its; no zeros."""
    rates: PMap[str, Rate] = field(factory=pmap)
    """queue with a rate -> what was left of it at its last grant."""
    transactions: PMap[str, Transaction] = field(factory=pmap)
    """Those that are committed and not settled."""
    periodic: PMap[str, Periodic] = field(factory=pmap)
    jobs: PMap[str, Job] = field(factory=pmap)
    """Those that have not ended, and those that ended since the last ``gc``."""
    hold: Hold | None = None
    """The last one, unless it was ended; see `onyxq.core.transactions.on_hold`."""
    digest: bytes = b""
    """Chained digest of all records up to the position; see `onyxq.core.log.digest`."""
    milestones: Milestones = ()
    """The digest at some earlier positions."""
    void_below: int = 0
    """Claims under lower tokens are void: the log was lost, and a new one began at this position."""
    trail: Trail = ()
    """The first bytes of the digest at each of the last positions."""

    @property
    def settings(self) -> Settings:
        """The cluster's settings; the defaults before ``create_cluster``."""
        return self.cluster.settings if self.cluster else Settings()


EMPTY = Replica()
_NO_CLAIMS: PMap[bytes, tuple[ClaimPiece, ...]] = pmap()


def altered(replica: Replica, **parts: Any) -> Replica:
    """As attrs' ``evolve``, which takes ten times as long: all that a record does passes here."""
    after = object.__new__(Replica)
    after.__dict__.update(replica.__dict__, **parts)
    return after


# --- claims -----------------------------------------------------------------


def pieces_of(replica: Replica, task_id: bytes) -> tuple[ClaimPiece, ...]:
    """The claims in flight in the task's stretch."""
    claims = replica.claims.get(int.from_bytes(task_id[6:8], "big"))
    return claims.get(stretch_of(task_id), ()) if claims is not None else ()


def claim_of(replica: Replica, task_id: bytes) -> ClaimPiece | None:
    """The claim in flight on one task."""
    place = offset_of(task_id)
    for piece in pieces_of(replica, task_id):
        if piece[0] <= place < piece[0] + piece[1]:
            return piece
    return None


def claimed_bits(pieces: tuple[ClaimPiece, ...], token: int | None = None) -> int:
    """Stretch mask of the tasks that ``pieces`` cover (of one token if given)."""
    bits = 0
    for offset, count, piece_token, _, _ in pieces:
        if token is None or piece_token == token:
            bits |= ((1 << count) - 1) << offset
    return bits


def held_bits(replica: Replica, run: Run, token: int) -> int:
    """Stretch mask of the tasks of ``run`` that are claimed under ``token``; not of what a transaction holds."""
    pieces = pieces_of(replica, run.first)
    if replica.transactions:
        pieces = tuple(piece for piece in pieces if piece[4] != HELD_MS)
    return claimed_bits(pieces, token) & mask_of(*run)


def without(pieces: tuple[ClaimPiece, ...], bits: int) -> tuple[ClaimPiece, ...]:
    """``pieces`` less the tasks in the stretch mask ``bits``."""
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
    """The replica with the pieces of some stretches of a partition replaced.

    What of them counted towards a queue's limits and is claimed no more counts no more.
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
    """What counts towards limits of a stretch whose claims are ``pieces`` now; None: the same as before."""
    claimed = claimed_bits(pieces) if counted else 0
    if all((bits := ((1 << count) - 1) << offset) & claimed == bits for _, offset, count in counted):
        return None
    left = [
        (queue, at, n) for queue, offset, count in counted for at, n in spans(((1 << count) - 1) << offset & claimed)
    ]
    return tuple(left)


def with_counted(replica: Replica, changes: dict[bytes, tuple[Counted, ...]]) -> Replica:
    """The replica with what counts towards limits in some stretches replaced; ``running`` follows."""
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
    """Sorted ids of the nodes that have a member peer."""
    return tuple(sorted(node.id for node in replica.nodes.values() if node.peer))


def first_peer(replica: Replica) -> str:
    """The ring's first peer: the oldest member, which owes what nobody else does."""
    members = [(replica.peers[peer].joined_position, peer) for peer in replica.ring.members]
    return min(members)[1] if members else ""


def collector(replica: Replica) -> str:
    """The peer that owes the collection in progress: the one that its ``gc`` names or, once
    that left, the ring's first; empty if none is in progress."""
    taken = replica.snapshot
    if taken.finished:
        return ""
    return taken.peer if taken.peer in replica.ring.members else first_peer(replica)


def majority(cohort: Iterable[str], have: Container[str]) -> bool:
    """Whether more than half of ``cohort`` is in ``have``; true for an empty one."""
    nodes = list(cohort)
    return not nodes or 2 * sum(node in have for node in nodes) > len(nodes)


def unserved(replica: Replica, among: Container[str] | None = None) -> list[int]:
    """Sorted partitions without a ready leader or, if nodes are given, without a majority of members among those."""
    return [
        number
        for number, placed in sorted(replica.partitions.items())
        if not placed.ready or (among is not None and not majority(placed.members, among))
    ]


def leader_node(replica: Replica, partition: int) -> Node | None:
    """The node whose peer leads the partition."""
    found = replica.partitions.get(partition)
    peer = replica.peers.get(found.leader) if found and found.leader else None
    return replica.nodes.get(peer.node) if peer else None
