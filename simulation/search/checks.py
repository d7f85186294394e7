"""What is checked after every record of the pure cluster, and at the end (design: simulation).

Cheap checks see every record.  The invariants are looked at whenever ring, peers, nodes or
partitions changed, and at every `SAMPLED_EVERY`-th record besides; a snapshot is packed
and unpacked at every `PACKED_EVERY`-th.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs import define, field

from onyxq.core import ring, snapshot
from onyxq.core.invariants.replica import violations
from onyxq.core.log.clock import LOG_TIME_SLACK_MS, LOG_TIME_STEP_MAX_MS
from onyxq.core.log.interface import Record
from onyxq.core.replica import Replica
from onyxq.core.step import GAP, NOT_A_RECORD, NOT_IN_RING, OTHER_CLUSTER, REPEAT, Outcome, Step
from simulation.probes import Probes
from simulation.search.claims import ClaimsModel
from simulation.search.extension import TallyModel
from simulation.search.jobs_model import JobsModel

SAMPLED_EVERY = 16
PACKED_EVERY = 128

LEADERS = frozenset({"ready_partition", "settle_partition", "yield_partition"})
WITHOUT_LEADERS = frozenset(
    "grant_claims grant_limited_claims renew_claims release_claims expire_claims reopen_tasks purge commit_transaction "
    "commit_batch settle_transaction set_queue set_periodic pause_periodic remove_periodic fire_periodic "
    "submit_job driver_ready seal_input kill_job complete_job fail_job".split()
)
"""Entries that say nothing of who leads what."""


class Broken(AssertionError):
    """A property does not hold; ``check`` names it."""

    def __init__(self, check: str, what: str) -> None:
        super().__init__(f"{check}: {what}")
        self.check = check


@define(eq=False)
class Checks:
    """Sees every record of one log; raises `Broken`."""

    probes: Probes
    elapsed_ms: Callable[[], int]
    """True time since the log's start."""
    claims: ClaimsModel = field(init=False)
    tally: TallyModel = field(init=False)
    jobs: JobsModel = field(init=False)
    numbers: dict[str, int] = field(factory=dict)
    """Number of each peer's last record that counted; nothing is ever forgotten here."""
    records: int = 0
    grown: int = 0
    """Records since the last collection."""
    entries: int = 0
    """Entries of records that counted."""
    applied: int = 0
    """Those of them that changed something."""
    ahead_ms: int = 0
    """How far log time was ahead of true time, at the least, after any record that counted."""

    def __attrs_post_init__(self) -> None:
        self.claims = ClaimsModel(self.probes)
        self.tally = TallyModel(self.probes)
        self.jobs = JobsModel(self.probes)

    def __call__(self, record: Record, before: Replica, done: Step) -> None:
        """Judge a record that landed."""
        self.records += 1
        self.entries += len(done.outcomes)
        for outcome in done.outcomes:
            if outcome.verdict == "applied":
                self.applied += 1
                probe = _PROBES.get(outcome.name)
                if probe is not None:
                    probe(self.probes, before, done, outcome)
            else:
                probe_name = _REFUSED.get((outcome.name, outcome.verdict))
                if probe_name is not None:
                    self.probes.reached(probe_name)
                elif outcome.verdict == NOT_IN_RING:
                    self.probes.reached("an entry of a peer that is not in the ring")
        self._leads(before, done)
        self._forced(before, done)
        self._once(before, done)
        self._time(before, done)
        self._growth(done)
        self._claims(before, done)
        wrong = self.tally.step(before, done)
        if wrong:
            raise Broken("extensions", f"position {done.replica.position}: {wrong}")
        wrong = self.jobs.step(before, done)
        if wrong:
            raise Broken("jobs", f"position {done.replica.position}: {wrong}")
        self._invariants(before, done)
        if self.records % PACKED_EVERY == 0:
            self._packs(done.replica)

    def _leads(self, before: Replica, done: Step) -> None:
        """Only the leader of the present epoch says ready, settles or yields, and settles only what is ready."""
        ready: set[int] = set()
        for outcome in done.outcomes:
            if outcome.verdict != "applied":
                continue
            if outcome.name not in LEADERS:
                if outcome.name not in WITHOUT_LEADERS:
                    return  # who leads what may have changed within the record
                continue
            found = before.partitions[outcome.args.partition]
            if found.epoch != outcome.args.epoch or found.leader != done.peer:
                raise Broken(
                    "leaders", f"{outcome.name} of {done.peer} at epoch {outcome.args.epoch} applied to {found}"
                )
            if outcome.name == "settle_partition" and not (found.ready or found.epoch in ready):
                raise Broken("leaders", f"{done.peer} settled {found}")
            if outcome.name != "ready_partition":
                return
            ready.add(found.epoch)

    def _forced(self, before: Replica, done: Step) -> None:
        """A partition may be forced if, and only if, no majority of its members lives and some holder does."""
        outcome = done.outcomes[0] if done.outcomes else None
        if outcome is None or outcome.name != "force_partition" or outcome.args.partition not in before.partitions:
            return
        found = before.partitions[outcome.args.partition]
        lives = {name for name, node in before.nodes.items() if node.peer}
        lost = 2 * len(lives & set(found.members)) <= len(found.members)
        if (lost and bool(lives & {*found.members, *found.target})) != (outcome.verdict == "applied"):
            raise Broken("forced", f"{outcome.verdict!r} for {found} while {sorted(lives)} live")

    def _once(self, before: Replica, done: Step) -> None:
        """Every record of a peer counts once, in the order of its numbers.

        Of a peer that has gone a collection forgets the number: what it left behind is not told apart.
        """
        last = self.numbers.get(done.peer, 0)
        if not done.problem:
            if done.number != last + 1:
                raise Broken("exactly once", f"record {done.number} of {done.peer} counted after {last}")
            self.numbers[done.peer] = done.number
        elif done.problem == REPEAT:
            self.probes.reached("an outbox number came twice")
            if done.number > last:
                raise Broken("exactly once", f"record {done.number} of {done.peer} is no repeat, {last} was the last")
        elif done.problem == GAP:
            self.probes.reached("an outbox number left a gap")
            if done.number <= last + 1 and done.peer in before.peers:
                raise Broken("exactly once", f"record {done.number} of {done.peer} is behind no gap after {last}")
        elif done.problem == NOT_A_RECORD:
            self.probes.reached("bytes that are no record")
        elif done.problem == OTHER_CLUSTER:
            self.probes.reached("two peers created a cluster")

    def _time(self, before: Replica, done: Step) -> None:
        """Log time never goes back, and between two records never passes faster than true time, but for the slack."""
        rise_ms = done.replica.log_time_ms - before.log_time_ms
        if not 0 <= rise_ms <= LOG_TIME_STEP_MAX_MS:
            raise Broken("log time", f"it moved by {rise_ms} ms in one record")
        if done.ctime_ms < before.ctime_ms - 1_000:
            self.probes.reached("the log's clock went back")
        elif before.ctime_ms and done.ctime_ms > before.ctime_ms + 600_000:
            self.probes.reached("the log's clock leapt")
        ahead_ms = done.replica.log_time_ms - self.elapsed_ms()
        if ahead_ms > self.ahead_ms + LOG_TIME_SLACK_MS:
            raise Broken("log time", f"it ran {ahead_ms - self.ahead_ms} ms ahead of true time")
        if not done.problem:
            self.ahead_ms = min(self.ahead_ms, ahead_ms)

    def _growth(self, done: Step) -> None:
        """Every record counts towards the next collection, also one that changed nothing."""
        collected = any(outcome.name == "gc" and outcome.verdict == "applied" for outcome in done.outcomes)
        self.grown = 0 if collected else self.grown + 1
        if done.replica.grown_records != self.grown:
            raise Broken("growth", f"{done.replica.grown_records} records are counted, not {self.grown}")

    def _claims(self, before: Replica, done: Step) -> None:
        try:
            wrong = self.claims.step(before, done)
        except AssertionError as error:
            raise Broken("rising tokens", str(error)) from None
        if wrong:
            raise Broken("claims", f"position {done.replica.position}: {wrong}")

    def _invariants(self, before: Replica, done: Step) -> None:
        after = done.replica
        same = (
            after.ring is before.ring
            and after.peers is before.peers
            and after.nodes is before.nodes
            and after.partitions is before.partitions
            and after.jobs is before.jobs
        )
        if same and self.records % SAMPLED_EVERY:
            return
        found = violations(after)
        if found:
            raise Broken("invariants", f"position {after.position}: {'; '.join(found)}")
        if not same:
            self._partitions(before, after)
            self._peers(before, done)

    def _peers(self, before: Replica, done: Step) -> None:
        """Nobody goes who is not named, and all but the last in the queue are watched."""
        now = done.replica
        gone = [peer for peer in before.peers if peer not in now.peers]
        if gone:
            named = {getattr(outcome.args, _NAMES[outcome.name]) for outcome in done.outcomes if outcome.name in _NAMES}
            lost = [peer for peer in gone if peer not in named and before.peers[peer].node not in named]
            if lost:
                raise Broken("who goes is named", f"position {now.position}: {lost} went with {sorted(named)}")
        if len(now.ring.queue) > 1:
            watched = {other for peer in now.peers for other in ring.watches(now, peer)}
            unseen = [peer for peer in now.ring.queue[:-1] if peer not in watched]
            if unseen:
                raise Broken("everybody is watched", f"position {now.position}: nobody watches {unseen}")

    def _partitions(self, before: Replica, after: Replica) -> None:
        """Epochs never fall, and rise whenever another leads or is to hold a copy."""
        for number, new in after.partitions.items():
            old = before.partitions.get(number)
            if old is None or old is new:
                continue
            moved = (new.leader, new.target) != (old.leader, old.target)
            if new.epoch < old.epoch + moved:
                raise Broken("epochs", f"partition {number} went from {old} to {new}")
            if not new.leader and old.leader:
                self.probes.reached("a partition had no live holder")
            if new.leader != old.leader and number in after.claims:
                self.probes.reached("a claim survived its leader")
            if new.leader != old.leader and any(number in one.parts for one in after.transactions.values()):
                self.probes.reached("a transaction survived a leader")

    def _packs(self, replica: Replica) -> None:
        data = snapshot.pack(replica)
        back = snapshot.unpack(data)
        if back != replica:
            raise Broken("snapshot", f"unpacking at position {replica.position} gives another replica")
        if snapshot.pack(back) != data:
            raise Broken("snapshot", f"packing twice at position {replica.position} gives other bytes")


_NAMES = {"leave_cluster": "peer", "abort_join_cluster": "joiner", "prepare_join_cluster": "node"}
"""Entries that take peers out, and which argument says whom: a peer, or the node whose last peer goes."""


# --- probes of applied entries ---------------------------------------------------------------

_REFUSED = {
    ("abort_join_cluster", "already joined"): "an abort came too late",
    ("leave_cluster", "not in the ring"): "a leave was repeated",
}


def _left(probes: Probes, before: Replica, done: Step, outcome: Outcome) -> None:
    now, gone = before.ring, outcome.args.peer
    state = ring.state_of(now, gone)
    if state in ("queued", "prepared", "accepted"):
        probes.reached(f"a{'n' if state == 'accepted' else ''} {state} joiner went")
    for name, joins in (("prepared", now.prepared), ("accepted", now.accepted)):
        if gone in joins:
            probes.reached(f"a helper went whose joiner was {name}")
            if ring.state_of(done.replica.ring, joins[gone]) == "prepared":
                probes.reached("a joiner was put back and prepared anew in the same entry")
    if any(now.pairs.get(host) == gone for host in now.accepted):
        probes.reached("the successor of a stitch went")
    if gone in now.members and gone == done.peer and gone in ring.stitching(now):
        probes.reached("a member left by itself while stitching")
    if gone in now.members and len(now.members) == 1 and (now.queue or now.prepared or now.accepted):
        probes.reached("the last member went while somebody joined")


def _prepared(probes: Probes, before: Replica, done: Step, outcome: Outcome) -> None:
    if len(done.replica.ring.queue) >= 3:
        probes.reached("three joiners waited in the queue")
    for peer in before.peers.values():
        if peer.node == outcome.args.node and peer.id != outcome.args.peer:
            probes.reached("a new peer evicted the last one of its node")
            if peer.id not in before.ring.members:
                probes.reached("a new peer evicted one of its node that was joining")


def _collected(probes: Probes, before: Replica, done: Step, outcome: Outcome) -> None:
    now = before.ring
    if now.prepared or now.accepted or now.queue:
        probes.reached("a collection during a join")
    if before.claims:
        probes.reached("a collection while claims were held")
    if len(done.replica.remembered) > len(before.remembered):
        probes.reached("a collection remembered a peer that had gone")
    if before.grown_records >= before.settings.gc_records:
        probes.reached("a collection was owed")


def _finished(probes: Probes, before: Replica, done: Step, outcome: Outcome) -> None:
    if done.peer != before.snapshot.peer:
        probes.reached("a collection was finished by another peer")


def _settled(probes: Probes, before: Replica, done: Step, outcome: Outcome) -> None:
    if before.partitions[outcome.args.partition].members:
        probes.reached("a partition settled on other nodes")


def _transaction_settled(probes: Probes, before: Replica, done: Step, outcome: Outcome) -> None:
    found = before.transactions.get(outcome.args.name)
    if found is not None and found.position < before.snapshot.position:
        probes.reached("a collection while a transaction was under way")


def _segments(probes: Probes, before: Replica, done: Step, outcome: Outcome) -> None:
    segment = done.replica.position >> 31
    items: tuple[Any, ...] = getattr(outcome.args, "renewals", ()) or getattr(outcome.args, "releases", ())
    if any(item.token >> 31 < segment for item in items):
        probes.reached("a claim was held across a segment's end")


def _plain(name: str) -> Callable[[Probes, Replica, Step, Outcome], None]:
    return lambda probes, before, done, outcome: probes.reached(name)


_PROBES: dict[str, Callable[[Probes, Replica, Step, Outcome], None]] = {
    "leave_cluster": _left,
    "prepare_join_cluster": _prepared,
    "gc": _collected,
    "finish_gc": _finished,
    "settle_partition": _settled,
    "renew_claims": _segments,
    "release_claims": _segments,
    "abort_join_cluster": _plain("a join was aborted"),
    "yield_partition": _plain("a partition was given up"),
    "replace_node": _plain("an absent node was replaced"),
    "drain_node": _plain("a node drained"),
    "force_partition": _plain("a partition was forced"),
    "reopen_tasks": _plain("failed tasks were opened again"),
    "settle_transaction": _transaction_settled,
}
