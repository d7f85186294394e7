"""One step of the state machine: a record of the log applied to the replica.

Pure: `step` is the only place where the replica moves on, and `owed` says which entries
a peer must append because of what the replica says (design: entries, replica, step).

A record is applied if it carries the cluster's id and its outbox number is its peer's
last + 1; anything else (a repeat of a record appended twice, one behind a gap, another
cluster's, bytes that are no record) only advances the position, on every peer alike.

Log time advances with the records of known peers, by what two clocks agree has passed: the
log's (the rise of the znodes' ctime) and the writer's own.  So a jump of either adds nothing,
and a rise that both confirm but that is too long for a log in use was an outage, or nobody
had anything to say: claims are not charged for it.
"""

from __future__ import annotations

from typing import Any

from attrs import evolve, frozen

from log_entries.registry import ENTRIES
from onyxq.entry import Entry, Malformed, Stamp, Verdict, decode_args
from onyxq.errors import OlderThanCluster
from onyxq.log.codec import RawEntry, RecordContent, decode_record
from onyxq.log.interface import Record
from onyxq.replica import LOG_TIME_STEP_MAX_MS, Replica

CREATE, PREPARE = "create_cluster", "prepare_join_cluster"
JOINING_ENTRIES = frozenset(
    {
        PREPARE,
        "notify_join_cluster",
        "accept_join_cluster",
        "abort_join_cluster",
        "leave_cluster",
        "set_slots",
    }
)
"""What a peer that is prepared, accepted or queued may do."""

CLOCK_TOLERANCE_MS = 250
"""Clocks count as one as long as they differ by no more: appending takes now more, now less time."""

NOT_A_RECORD = "not a record"
REPEAT = "repeat"
GAP = "gap"
OTHER_CLUSTER = "other cluster"
NO_CLUSTER = "no cluster yet"
NOT_ENABLED = "not enabled"
NOT_IN_RING = "not in the ring"

_OWED = tuple(entry.owed for entry in ENTRIES.values() if entry.owed is not None)


@frozen
class Outcome:
    """What became of one entry. ``args``: the entry's arguments, or the raw list if they were not decoded."""

    index: int
    name: str
    args: Any
    verdict: Verdict
    version: int


@frozen
class Step:
    """What became of one record. ``problem``: empty, or why all of it was a no-op."""

    replica: Replica
    outcomes: tuple[Outcome, ...] = ()
    problem: str = ""
    peer: str = ""
    """Who wrote the record; empty if that cannot be told."""
    number: int = 0
    """Its outbox number; 0 if that cannot be told."""
    ctime_ms: int = 0
    """The record's time, as the log's clock said."""


def step(replica: Replica, record: Record) -> Step:
    """Apply one record, which must lie above the replica's position.

    Raises `OlderThanCluster` for an enabled entry that this program does not know, and
    for nothing else.
    """
    assert record.position > replica.position, "records are stepped in the order of the log"
    content = decode_record(record.data)
    problem = NOT_A_RECORD if content is None else _problem(replica, content)
    if content is None:
        return Step(evolve(replica, position=record.position), problem=problem, ctime_ms=record.ctime_ms)
    if problem:
        moved = evolve(replica, position=record.position)
        return Step(moved, (), problem, content.peer, content.number, record.ctime_ms)
    replica = _advance(replica, record, content)
    outcomes = []
    for index, raw in enumerate(content.entries):
        stamp = Stamp(record.position, index, content.peer, replica.log_time_ms, content.wall_ms)
        replica, outcome = _apply(replica, raw, stamp)
        outcomes.append(outcome)
    replica = _with_skew(replica, record, content)
    return Step(replica, tuple(outcomes), "", content.peer, content.number, record.ctime_ms)


def owed(replica: Replica, me: str) -> list[Any]:
    """Arguments of every entry that the peer ``me`` owes now, in the registry's order."""
    return [args for find in _OWED for args in find(replica, me)]


def _problem(replica: Replica, content: RecordContent) -> str:
    """Why a record is a no-op as a whole, or empty."""
    if replica.cluster is None:
        if not _creates(content):
            return NO_CLUSTER
    elif content.cluster_id != replica.cluster.id:
        return OTHER_CLUSTER
    last = replica.outbox.get(content.peer, 0)
    if content.number == last + 1:
        return ""
    return REPEAT if content.number <= last else GAP


def _creates(content: RecordContent) -> bool:
    """Whether the record starts with ``create_cluster`` of the cluster whose id it carries."""
    if not content.entries or content.entries[0].name != CREATE:
        return False
    try:
        args = decode_args(ENTRIES[CREATE].args, content.entries[0].args)
    except Malformed:
        return False
    return bool(args.id == content.cluster_id)


def _advance(replica: Replica, record: Record, content: RecordContent) -> Replica:
    """The replica at the position of a record that counts, with the time that passed before it.

    A writer that is not known yet is no witness: then the next record tells for both.
    """
    outbox = replica.outbox.set(content.peer, content.number)
    peer = replica.peers.get(content.peer)
    if peer is None:
        start_ms = replica.clock_ms or record.ctime_ms
        ctime_ms = replica.ctime_ms or record.ctime_ms
        return evolve(replica, position=record.position, ctime_ms=ctime_ms, clock_ms=start_ms, outbox=outbox)
    rise_ms = record.ctime_ms - replica.ctime_ms
    said_ms = content.wall_ms - peer.clock_skew_ms - replica.clock_ms
    if rise_ms < -CLOCK_TOLERANCE_MS:
        # The log's clock was set back: only the writer can say what passed, too little to count leases by.
        passed_ms, counted_ms = max(0, said_ms), 0
    else:
        passed_ms = max(0, rise_ms if rise_ms <= said_ms + CLOCK_TOLERANCE_MS else said_ms)
        counted_ms = passed_ms if passed_ms <= LOG_TIME_STEP_MAX_MS else 0
    return evolve(
        replica,
        position=record.position,
        log_time_ms=replica.log_time_ms + counted_ms,
        ctime_ms=record.ctime_ms,
        clock_ms=replica.clock_ms + passed_ms,
        outbox=outbox,
    )


def _with_skew(replica: Replica, record: Record, content: RecordContent) -> Replica:
    """The replica with the writer's clock skew noted, if it moved by more than the jitter of appending."""
    peer = replica.peers.get(content.peer)
    if peer is None:
        return replica
    # A newcomer's first record has not moved the clock: what seems to have passed is added.
    clock_ms = replica.clock_ms + max(0, record.ctime_ms - replica.ctime_ms)
    skew_ms = content.wall_ms - clock_ms
    if abs(skew_ms - peer.clock_skew_ms) <= CLOCK_TOLERANCE_MS:
        return replica
    return evolve(replica, peers=replica.peers.set(peer.id, evolve(peer, clock_skew_ms=skew_ms)))


def _apply(replica: Replica, raw: RawEntry, stamp: Stamp) -> tuple[Replica, Outcome]:
    """Apply one entry of a record that counts."""
    entry = ENTRIES.get(raw.name)
    creating = replica.cluster is None and raw.name == CREATE
    if not creating and raw.version > replica.enabled.get(raw.name, 0):
        return replica, Outcome(stamp.index, raw.name, raw.args, NOT_ENABLED, raw.version)
    if entry is None or raw.version > entry.version:
        raise OlderThanCluster(f"the log uses {raw.name} version {raw.version}, which this program does not know")
    try:
        args = decode_args(entry.args, raw.args)
    except Malformed as error:
        return replica, Outcome(stamp.index, raw.name, raw.args, f"malformed: {error}", raw.version)
    if not creating and not _may(replica, entry, stamp.peer):
        return replica, Outcome(stamp.index, raw.name, args, NOT_IN_RING, raw.version)
    replica, verdict = entry.apply(replica, args, stamp)
    return replica, Outcome(stamp.index, raw.name, args, verdict, raw.version)


def _may(replica: Replica, entry: Entry, peer: str) -> bool:
    """Whether the writer's place in the ring allows it this entry."""
    if peer in replica.ring.members:
        return True
    if peer in replica.peers:
        return entry.name in JOINING_ENTRIES
    return entry.name in (PREPARE, CREATE)
