"""Planted bugs of the log and the ring: valid records, log time, and watches."""

from __future__ import annotations

from collections.abc import Callable

from attrs import evolve
from pyrsistent import PMap

from onyxq.core.entry import Entries, Stamp
from onyxq.core.log.clock import LOG_TIME_STEP_MAX_MS, LogClock, Measured
from onyxq.core.log.interface import Record
from onyxq.core.log.record import RawEntry, RecordContent
from onyxq.core.replica import Replica, Ring
from onyxq.core.ring import stitcher
from onyxq.core.step import GAP, REPEAT, Outcome
from onyxq.node.membership import Peer
from simulation.planted.planted import Planted
from simulation.planted.seams import Fault, instead, returning

_Problem = Callable[[Replica, RecordContent, Entries], str]


def _excused(*excuses: str) -> Fault:
    """Return the fault that accepts records with these problems."""

    def fault(original: _Problem) -> _Problem:
        def problem(replica: Replica, content: RecordContent, entries: Entries) -> str:
            found = original(replica, content, entries)
            return "" if found in excuses else found

        return problem

    return fault


def _none_if_queued(original: Callable[[Replica, str], tuple[str, ...]]) -> Callable[[Replica, str], tuple[str, ...]]:
    return lambda replica, me: () if me in replica.ring.queue else original(replica, me)


def _watcher_left_alone(
    original: Callable[[PMap[str, str], str], PMap[str, str]],
) -> Callable[[PMap[str, str], str], PMap[str, str]]:
    return lambda pairs, peer: (
        original(pairs, peer).discard(stitcher(pairs, peer)) if peer in pairs else original(pairs, peer)
    )


def _joiner_forgotten(original: Callable[[Ring, str, int], Ring]) -> Callable[[Ring, str, int], Ring]:
    def remove(ring: Ring, peer: str, position: int) -> Ring:
        alone = evolve(ring, prepared=ring.prepared.discard(peer), accepted=ring.accepted.discard(peer))
        return original(alone, peer, position)

    return remove


def _time_of_the_log(
    original: Callable[[Replica, Record, RecordContent], Replica],
) -> Callable[[Replica, Record, RecordContent], Replica]:
    def advance(replica: Replica, record: Record, content: RecordContent) -> Replica:
        after = original(replica, record, content)
        passed_ms = min(5_000, max(0, record.ctime_ms - replica.ctime_ms))
        known = content.peer in replica.peers
        return evolve(after, log_time_ms=replica.log_time_ms + passed_ms) if known else after

    return advance


def _as_if_all_was_read(original: Callable[[int, int, Measured], int]) -> Callable[[int, int, Measured], int]:
    return lambda log_time_ms, counted_position, measured: original(log_time_ms, measured.position, measured)


def _same_collector(replica: Replica) -> str:
    return "" if replica.snapshot.finished else replica.snapshot.peer


def _not_passed(original: Callable[..., None]) -> Callable[..., None]:
    def prepared(peer: Peer, *heard: object) -> None:
        original(peer, *heard)
        peer._passed = False

    return prepared


def _counts_where_known(original: Callable[..., tuple[Replica, Outcome]]) -> Callable[..., tuple[Replica, Outcome]]:
    def apply(replica: Replica, raw: RawEntry, stamp: Stamp, entries: Entries) -> tuple[Replica, Outcome]:
        enabled = raw.version <= replica.enabled.get(raw.name, 0)
        if replica.cluster is None or raw.name not in entries or enabled:
            return original(replica, raw, stamp, entries)
        ahead = evolve(replica, enabled=replica.enabled.set(raw.name, raw.version))
        after, outcome = original(ahead, raw, stamp, entries)
        return evolve(after, enabled=replica.enabled), outcome

    return apply


def _any_time_of_an_outage(clock: LogClock) -> int:
    return clock._log_time_ms + LOG_TIME_STEP_MAX_MS


def _measured_since_this(
    original: Callable[[LogClock, int, int, int], None],
) -> Callable[[LogClock, int, int, int], None]:
    def read(clock: LogClock, position: int, log_time_ms: int, now_ns: int) -> None:
        clock._ahead_ns = None
        original(clock, position, log_time_ms, now_ns)

    return read


LOG_BUGS: tuple[Planted, ...] = (
    # --- the log and the ring
    Planted(
        "outbox numbers are ignored",
        "onyxq.core.step:_problem",
        _excused(REPEAT, GAP),
        "a record that was appended twice counts twice",
        "explorer",
    ),
    Planted(
        "a gap in outbox numbers is accepted",
        "onyxq.core.step:_problem",
        _excused(GAP),
        "a late record is refused, because its number was passed",
        "explorer",
    ),
    Planted(
        "a queued joiner watches no peer",
        "onyxq.core.ring:watches",
        _none_if_queued,
        "if all other peers are dead, no peer reports it",
        "explorer",
    ),
    Planted(
        "a watch is not moved when a peer leaves",
        "onyxq.core.ring:_bridge",
        _watcher_left_alone,
        "no peer watches the successor of a peer that left",
        "explorer",
        quick=6,
    ),
    Planted(
        "the joiner of a dead helper is forgotten",
        "onyxq.core.ring:remove",
        _joiner_forgotten,
        "a peer whose helper died in the middle of its join never joins",
        "explorer",
    ),
    Planted(
        "claims expire by the clock of the log service",
        "onyxq.core.step:_advance",
        _time_of_the_log,
        "a jump of that clock expires claims early",
        "clocks",
    ),
    Planted(
        "a writer counts log time that it has not read",
        "onyxq.core.log.clock:passed_ms",
        _as_if_all_was_read,
        "several peers count the same time, so log time runs too fast",
        "explorer",
    ),
    Planted(
        "the measured log time has no limit",
        "onyxq.core.log.clock:LogClock._slack_ms",
        instead(_any_time_of_an_outage),
        "time from before a grant counts against its claim, which expires early",
        "explorer",
    ),
    Planted(
        "the time for appending and reading each record is lost",
        "onyxq.core.log.clock:LogClock.read",
        _measured_since_this,
        "under load log time is slow, and leases end late",
        "busy_leases",
        quick=1,
    ),
    Planted(
        "an unfinished log collection is not taken over",
        "onyxq.core.replica:collector",
        instead(_same_collector),
        "a collector dies before or after its trim, and no peer does the rest",
        "explorer",
    ),
    Planted(
        "a removed joiner keeps waiting",
        "onyxq.node.membership:Peer._prepared",
        _not_passed,
        "a joiner that continues from a snapshot without it waits for its join for ever",
        "overtaken",
        quick=1,
    ),
    Planted(
        "a peer waits for records that its snapshot already covers",
        "onyxq.log.outbox:Outbox._landed_by",
        returning(False),
        "a joiner that was removed long ago does not see that its request is in the past",
        "overtaken",
    ),
    # --- what is enabled
    Planted(
        "a version is enabled that some peers do not know",
        "log_entries.raise_minimum:_known_to_all",
        returning(True),
        "older peers stop in the middle of their work",
        "explorer",
    ),
    Planted(
        "an entry counts before it is enabled",
        "onyxq.core.step:_apply",
        _counts_where_known,
        "peers that know an entry and peers that do not know it have different replicas",
        "explorer",
    ),
)
"""The planted bugs of the log and the ring."""
