"""One step of the state machine: a record of the log applied to the replica.

Pure: `step` is the only place where the replica moves on, and `owed` says which entries
a peer must append because of what the replica says (design: entries, replica, step).

A record is applied if it carries the cluster's id and its outbox number is its peer's
last + 1; anything else (a repeat of a record appended twice, one behind a gap, another
cluster's, bytes that are no record) only advances position and log time, on every peer
alike.
"""

from __future__ import annotations

from typing import Any

from attrs import evolve, frozen
from pyrsistent import PMap

from log_entries.registry import ENTRIES
from onyxq.entry import Entry, Malformed, Stamp, Verdict, decode_args
from onyxq.errors import OlderThanCluster
from onyxq.log.codec import RawEntry, RecordContent, decode_record
from onyxq.log.interface import Record
from onyxq.replica import LOG_TIME_STEP_MAX_MS, Peer, Replica

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

SKEW_STEP_MS = 250
"""A peer's clock skew is noted anew when it moved by more than this."""

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


def step(replica: Replica, record: Record) -> Step:
    """Apply one record, which must lie above the replica's position.

    Raises `OlderThanCluster` for an enabled entry that this program does not know, and
    for nothing else.
    """
    assert record.position > replica.position, "records are stepped in the order of the log"
    content = decode_record(record.data)
    problem = NOT_A_RECORD if content is None else _problem(replica, content)
    if content is None or problem:
        moved = _advance(replica, record, outbox=replica.outbox, peers=replica.peers)
        if content is None:
            return Step(moved, problem=problem)
        return Step(moved, problem=problem, peer=content.peer, number=content.number)
    replica = _advance(
        replica,
        record,
        outbox=replica.outbox.set(content.peer, content.number),
        peers=_with_skew(replica.peers, content, record.ctime_ms),
    )
    outcomes = []
    for index, raw in enumerate(content.entries):
        stamp = Stamp(record.position, index, content.peer, replica.log_time_ms, content.wall_ms)
        replica, outcome = _apply(replica, raw, stamp)
        outcomes.append(outcome)
    return Step(replica, tuple(outcomes), "", content.peer, content.number)


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


def _advance(replica: Replica, record: Record, *, outbox: PMap[str, int], peers: PMap[str, Peer]) -> Replica:
    """The replica at the record's position; log time rises by what the znode's ctime rose, within 0 to 5 s."""
    rise_ms = min(max(record.ctime_ms - replica.ctime_ms, 0), LOG_TIME_STEP_MAX_MS)
    return evolve(
        replica,
        position=record.position,
        log_time_ms=replica.log_time_ms + rise_ms,
        ctime_ms=record.ctime_ms,
        outbox=outbox,
        peers=peers,
    )


def _with_skew(peers: PMap[str, Peer], content: RecordContent, ctime_ms: int) -> PMap[str, Peer]:
    """The peers with the writer's clock skew noted, if it moved by more than the jitter of appending."""
    peer = peers.get(content.peer)
    if peer is None:
        return peers
    skew_ms = content.wall_ms - ctime_ms
    if abs(skew_ms - peer.clock_skew_ms) <= SKEW_STEP_MS:
        return peers
    return peers.set(peer.id, evolve(peer, clock_skew_ms=skew_ms))


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
