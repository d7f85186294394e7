"""One step of the state machine: a record of the log applied to the replica.

Pure: `step` is the only function that advances the replica.  `owed` returns the entries that
a peer must append in the present state of the replica (design: entries, replica, step).

A record is applied if it carries the cluster's id and its outbox number is its peer's
last + 1.  Any other record only advances the position, on every peer alike.  Examples are a
record that was appended twice, a record after a gap, another cluster's record, and malformed bytes.

Log time advances by what the writers of records measured with their monotonic clocks since
they read the log: see `onyxq.core.log.clock`.  No wall clock, and no clock of the log, moves it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs import evolve, fields, frozen

from onyxq.core.entry import Entries, Entry, Form, Malformed, Stamp, Verdict, decode_args, told
from onyxq.core.errors import ExtensionFailed, OlderThanCluster
from onyxq.core.log.clock import LOG_TIME_STEP_MAX_MS, passed_ms
from onyxq.core.log.digest import MILESTONE_POSITIONS, chained, with_milestone, with_step
from onyxq.core.log.interface import Record
from onyxq.core.log.record import RawEntry, RecordContent, decode_record
from onyxq.core.replica import CLOCK_SKEW_MAX_MS, Replica, altered

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
"""Entries that a peer may write while it is prepared, accepted or queued."""

CLOCK_TOLERANCE_MS = 250
"""Largest difference between clocks that agree: the time that an append takes varies."""

NOT_A_RECORD = "not a record"
REPEAT = "repeat"
GAP = "gap"
OTHER_CLUSTER = "other cluster"
NO_CLUSTER = "no cluster yet"
NOT_ENABLED = "not enabled"
NOT_IN_RING = "not in the ring"

_NOT_ITS_OWN = tuple(item.name for item in fields(Replica) if item.name != "extensions")
"""Fields of the replica that an extension must not change."""


@frozen
class Outcome:
    """The outcome of one entry. ``args``: its arguments, or the raw list if they were not decoded."""

    index: int
    name: str
    args: Any
    verdict: Verdict
    version: int


@frozen
class Step:
    """The outcome of one record. ``problem``: empty, or why the whole record had no effect."""

    replica: Replica
    outcomes: tuple[Outcome, ...] = ()
    problem: str = ""
    peer: str = ""
    """The peer that wrote the record; empty if it is unknown."""
    number: int = 0
    """The record's outbox number; 0 if it is unknown."""
    ctime_ms: int = 0
    """The record's time, by the log's clock."""


def step(
    replica: Replica,
    record: Record,
    entries: Entries,
    *,
    after_each: Callable[[Outcome, Replica], None] | None = None,
) -> Step:
    """Apply one record, which must be above the replica's position.

    ``entries``: the entries that this program knows.  ``after_each`` is called after each entry, with its
    outcome and the new replica.  Raises `OlderThanCluster` for an enabled entry that is not known,
    `ExtensionFailed` for a bug in an extension, and nothing else.
    """
    assert record.position > replica.position, "records are stepped in the order of the log"
    replica = altered(
        _digested(replica, record),
        position=record.position,
        grown_records=replica.grown_records + 1,
        grown_bytes=replica.grown_bytes + len(record.data),
    )
    content = decode_record(record.data)
    problem = NOT_A_RECORD if content is None else _problem(replica, content, entries)
    if content is None:
        return Step(replica, problem=problem, ctime_ms=record.ctime_ms)
    if problem:
        return Step(replica, (), problem, content.peer, content.number, record.ctime_ms)
    replica = _advance(replica, record, content)
    outcomes = []
    for index, raw in enumerate(content.entries):
        stamp = Stamp(record.position, index, content.peer, replica.log_time_ms, content.wall_ms)
        replica, outcome = _apply(replica, raw, stamp, entries)
        outcomes.append(outcome)
        if after_each is not None:
            after_each(outcome, replica)
    replica = _with_skew(replica, record, content)
    return Step(replica, tuple(outcomes), "", content.peer, content.number, record.ctime_ms)


def owed(replica: Replica, me: str, entries: Entries) -> list[Any]:
    """Return the arguments of every entry that the peer ``me`` owes now, in the registry's order.

    Entries that are not enabled are not owed.  Raises `ExtensionFailed` for a bug in an extension.
    """
    found: list[Any] = []
    for entry, find in entries.owing:
        if entry.extension:
            found += _owed_by_extension(replica, me, entry, entries)
        else:
            found += find(replica, me)
    return [args for args in found if entries.enabled_form(args, replica.enabled)]


def _owed_by_extension(replica: Replica, me: str, entry: Entry, entries: Entries) -> list[Any]:
    if entry.owed is None or me not in replica.ring.members or entry.name not in replica.enabled:
        return []
    try:
        found = list(entry.owed(replica, me))
    except Exception as error:
        raise ExtensionFailed(f"owed of {entry.name} raised {error!r}") from error
    for args in found:
        kind = entries.of(args)
        if kind is None or kind.extension != entry.extension:
            raise ExtensionFailed(f"owed of {entry.name} returned {args!r}, which is not an entry of its extension")
    return found


def _digested(replica: Replica, record: Record) -> Replica:
    """Return the replica with the digest after a record."""
    digest = chained(replica.digest, record.position, record.ctime_ms, record.data)
    trail = with_step(replica.trail, record.position, digest)
    if record.position % MILESTONE_POSITIONS:
        return altered(replica, digest=digest, trail=trail)
    milestones = with_milestone(replica.milestones, record.position, digest)
    return altered(replica, digest=digest, trail=trail, milestones=milestones)


def _problem(replica: Replica, content: RecordContent, entries: Entries) -> str:
    """Return why the whole record has no effect, or an empty string."""
    if replica.cluster is None:
        if not _creates(content, entries):
            return NO_CLUSTER
    elif content.cluster_id != replica.cluster.id:
        return OTHER_CLUSTER
    last = replica.outbox.get(content.peer, 0)
    if content.number == last + 1:
        return ""
    return REPEAT if content.number <= last else GAP


def _creates(content: RecordContent, entries: Entries) -> bool:
    """Return whether the first entry is ``create_cluster`` with the record's cluster id.

    Raises `OlderThanCluster` for a version of the entry that this program does not know.
    """
    if not content.entries or content.entries[0].name != CREATE:
        return False
    first = content.entries[0]
    form = entries[CREATE].forms.get(first.version)
    if form is None:
        raise OlderThanCluster(f"older than the cluster: it was made by {told(CREATE, first.version)}")
    try:
        args = decode_args(form.args, first.args)
    except Malformed:
        return False
    return bool(args.id == content.cluster_id)


def _advance(replica: Replica, record: Record, content: RecordContent) -> Replica:
    """Return the replica at the position of a record that counts, with the time that passed before it.

    A writer that is not known yet has no clock for comparison and holds no claims.  The next record
    adds the time of both.
    """
    outbox = replica.outbox.set(content.peer, content.number)
    peer = replica.peers.get(content.peer)
    if peer is None:
        start_ms = replica.clock_ms or record.ctime_ms
        ctime_ms = replica.ctime_ms or record.ctime_ms
        return evolve(replica, ctime_ms=ctime_ms, clock_ms=start_ms, outbox=outbox)
    passed = passed_ms(replica.log_time_ms, replica.counted_position, content.measured)
    return altered(
        replica,
        log_time_ms=replica.log_time_ms + (passed if passed <= LOG_TIME_STEP_MAX_MS else 0),
        counted_position=record.position,
        ctime_ms=record.ctime_ms,
        clock_ms=replica.clock_ms + _risen_ms(replica, record, content, peer.clock_skew_ms),
        outbox=outbox,
    )


def _risen_ms(replica: Replica, record: Record, content: RecordContent, skew_ms: int) -> int:
    """Return the rise of ``clock_ms``: the time on which the log's clock and the writer's wall clock agree.

    If both clocks jumped, the writer's monotonic clock is the bound.  A writer in the ring reads new
    records within a short time, so little more time passed than since it read.
    """
    rise_ms = record.ctime_ms - replica.ctime_ms
    said_ms = content.wall_ms - skew_ms - replica.clock_ms
    if not -CLOCK_TOLERANCE_MS <= rise_ms <= said_ms + CLOCK_TOLERANCE_MS:
        rise_ms = said_ms  # the log's clock was set: only the writer knows how much time passed
    if content.measured.position <= replica.counted_position:
        rise_ms = min(rise_ms, content.measured.waited_ms + CLOCK_SKEW_MAX_MS)
    return max(0, rise_ms)


def _with_skew(replica: Replica, record: Record, content: RecordContent) -> Replica:
    """Return the replica with the writer's clock skew noted, if it moved by more than the jitter of appending."""
    peer = replica.peers.get(content.peer)
    if peer is None:
        return replica
    # A new peer's first record has not moved the clock, so the time that seems to have passed is added.
    clock_ms = replica.clock_ms + max(0, record.ctime_ms - replica.ctime_ms)
    skew_ms = content.wall_ms - clock_ms
    if abs(skew_ms - peer.clock_skew_ms) <= CLOCK_TOLERANCE_MS:
        return replica
    return evolve(replica, peers=replica.peers.set(peer.id, evolve(peer, clock_skew_ms=skew_ms)))


def _apply(replica: Replica, raw: RawEntry, stamp: Stamp, entries: Entries) -> tuple[Replica, Outcome]:
    """Apply one entry of a record that counts."""
    entry = entries.named(raw.name)
    creating = replica.cluster is None and raw.name == CREATE
    if not creating and raw.version > replica.enabled.get(raw.name, 0):
        return replica, Outcome(stamp.index, raw.name, raw.args, NOT_ENABLED, raw.version)
    form = entry.forms.get(raw.version) if entry is not None else None
    if entry is None or form is None:
        raise OlderThanCluster(
            f"older than the cluster: the log uses {told(raw.name, raw.version)}, which this program does not know"
        )
    try:
        args = decode_args(form.args, raw.args)
    except Malformed as error:
        return replica, Outcome(stamp.index, raw.name, raw.args, f"malformed: {error}", raw.version)
    if not creating and not _may(replica, entry, stamp.peer):
        return replica, Outcome(stamp.index, raw.name, args, NOT_IN_RING, raw.version)
    apply = _apply_extension if entry.extension else _apply_own
    replica, verdict = apply(replica, args, stamp, entry, form)
    return replica, Outcome(stamp.index, raw.name, args, verdict, raw.version)


def _apply_own(replica: Replica, args: Any, stamp: Stamp, entry: Entry, form: Form) -> tuple[Replica, Verdict]:
    return form.apply(replica, args, stamp)


def _apply_extension(replica: Replica, args: Any, stamp: Stamp, entry: Entry, form: Form) -> tuple[Replica, Verdict]:
    """Apply an extension's entry as `_apply_own` does.

    If the entry would fork or harm the cluster, stop every peer here instead.
    """
    try:
        after, verdict = form.apply(replica, args, stamp)
        wrong = trespass(replica, after, verdict, entry)
    except Exception as error:
        raise ExtensionFailed(f"{entry.name} raised {error!r} at position {stamp.position}") from error
    if wrong:
        raise ExtensionFailed(f"{entry.name} {wrong} at position {stamp.position}")
    return after, verdict


def trespass(before: Replica, after: Replica, verdict: Verdict, entry: Entry) -> str:
    """Return what an extension's entry did that it must not do, in words; empty if it kept the rules."""
    if type(verdict) is not str or not verdict:
        return f"gave the verdict {verdict!r}, which is not a text,"
    if any(getattr(after, name) is not getattr(before, name) for name in _NOT_ITS_OWN):
        return "changed more of the replica than extensions"
    if after.extensions.discard(entry.extension) != before.extensions.discard(entry.extension):
        return "changed the state of another extension"
    return ""


def _may(replica: Replica, entry: Entry, peer: str) -> bool:
    """Return whether the writer's place in the ring allows it to write this entry."""
    if peer in replica.ring.members:
        return True
    if peer in replica.peers:
        return entry.name in JOINING_ENTRIES
    return entry.name in (PREPARE, CREATE)
