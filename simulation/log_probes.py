"""Rare branches that a log shows, of a search or of a simulated cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from attrs import define, field

from log_entries import grant_limited_claims
from onyxq.core import facts, ring
from onyxq.core.entry import APPLIED
from onyxq.core.replica import Partition, Replica
from onyxq.core.step import GAP, NOT_A_RECORD, NOT_IN_RING, OTHER_CLUSTER, REPEAT, Outcome, Step
from simulation.checkers import LogChecker
from simulation.probes import OF_SEARCHES, OF_WORLDS, Probes

PROBLEMS = {
    REPEAT: "a record was repeated",
    GAP: "a gap in a peer's records",
    NOT_A_RECORD: "bytes that are no record",
    OTHER_CLUSTER: "two peers created a cluster",
}
DEPOSED = {
    "grant_claims": "a deposed leader's grant",
    "release_claims": "a deposed leader's release",
    "ready_partition": "an obsolete ready came late",
    "settle_partition": "an obsolete ready came late",
}

ALL = frozenset((*OF_WORLDS, *OF_SEARCHES))


@define(eq=False)
class LogWatcher(LogChecker):
    """Counts what the log shows, as far as the table of the run has it."""

    name: ClassVar[str] = "probes"
    probes: Probes
    _known: frozenset[str] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._known = frozenset(self.probes.counts)

    def reached(self, name: str) -> None:
        """Count one, if the run counts it; raises `KeyError` for a name of no table."""
        if name in self._known or name not in ALL:
            self.probes.reached(name)

    def step(self, before: Replica, step: Step) -> None:
        """Count what one record shows."""
        if step.problem in PROBLEMS:
            self.reached(PROBLEMS[step.problem])
        for outcome in step.outcomes:
            if outcome.verdict == APPLIED:
                probe = _PROBES.get(outcome.name)
                if probe is not None:
                    probe(self.reached, before, step, outcome)
            else:
                self._refused(outcome)
        if step.ctime_ms and step.ctime_ms < before.ctime_ms - 500:
            self.reached("the log's clock went back")
        elif before.ctime_ms and step.ctime_ms > before.ctime_ms + 600_000:
            self.reached("the log's clock leapt")
        after = step.replica
        if after.ring is not before.ring:
            if after.ring.queue:
                self.reached("a joiner waited in the queue")
            if before.ring.members and not any(peer in after.ring.members for peer in before.ring.members):
                self.reached("everybody was gone")
        if after.partitions is not before.partitions:
            for number, now in after.partitions.items():
                then = before.partitions.get(number)
                if then is not None and then is not now:
                    self._partition(number, then, now, after)

    def _refused(self, outcome: Outcome) -> None:
        if (outcome.name, outcome.verdict) in _REFUSED:
            self.reached(_REFUSED[outcome.name, outcome.verdict])
        elif outcome.verdict == NOT_IN_RING:
            self.reached("a record landed after its writer had gone")
        elif outcome.verdict in ("stale epoch", "not the leader", "not ready") and outcome.name in DEPOSED:
            self.reached(DEPOSED[outcome.name])

    def _partition(self, number: int, then: Partition, now: Partition, after: Replica) -> None:
        reached = self.reached
        if not now.leader and then.leader:
            reached("a partition had no live holder")
        if now.leader != then.leader and number in after.claims:
            reached("a claim survived its leader")
        if now.leader != then.leader and any(number in one.parts for one in after.transactions.values()):
            reached("a transaction survived a leader")
        if now.epoch > then.epoch and not then.ready and then.epoch and now.leader != then.leader:
            reached("a takeover during a takeover")
        if now.epoch > then.epoch and now.leader and then.leader and then.leader not in after.ring.members:
            reached("a takeover without its first leader")
        if then.target not in (then.members, now.target) and now.members == then.members:
            reached("a target changed before its copies had arrived")
        if then.members and now.members != then.members:
            reached("a partition settled on other nodes")


# --- probes of applied entries ---------------------------------------------------------------

Reached = Callable[[str], None]

_REFUSED = {
    ("grant_limited_claims", grant_limited_claims.OVER_THE_LIMIT): "a grant would have gone over a limit",
    ("grant_limited_claims", grant_limited_claims.PAUSED): "a limited grant came after a pause",
    ("fire_periodic", "already fired"): "a periodic time was passed twice",
    ("abort_join_cluster", "already joined"): "an abort came too late",
    ("leave_cluster", "not in the ring"): "a leave was repeated",
}


def _left(reached: Reached, before: Replica, done: Step, outcome: Outcome) -> None:
    now, gone = before.ring, outcome.args.peer
    state = ring.state_of(now, gone)
    if state in ("queued", "prepared", "accepted"):
        reached(f"a{'n' if state == 'accepted' else ''} {state} joiner went")
    for name, joins in (("prepared", now.prepared), ("accepted", now.accepted)):
        if gone in joins:
            reached(f"a helper went whose joiner was {name}")
            if ring.state_of(done.replica.ring, joins[gone]) == "prepared":
                reached("a joiner was put back and prepared anew in the same entry")
    if any(now.pairs.get(host) == gone for host in now.accepted):
        reached("the successor of a stitch went")
    if gone in now.members and gone in ring.stitching(now):
        reached("a peer left while it took another in")
        if gone == done.peer:
            reached("a member left by itself while stitching")
    if "clock" in outcome.args.reason:
        reached("a peer left because of its clock")
    if gone in now.members and len(now.members) == 1 and (now.queue or now.prepared or now.accepted):
        reached("the last member went while somebody joined")


def _prepared(reached: Reached, before: Replica, done: Step, outcome: Outcome) -> None:
    if len(done.replica.ring.queue) >= 3:
        reached("three joiners waited in the queue")
    for peer in before.peers.values():
        if peer.node == outcome.args.node and peer.id != outcome.args.peer:
            reached("a peer was put out by its node's next one")
            if peer.id not in before.ring.members:
                reached("a new peer evicted one of its node that was joining")


def _collected(reached: Reached, before: Replica, done: Step, outcome: Outcome) -> None:
    now = before.ring
    if now.prepared or now.accepted or now.queue:
        reached("a collection during a join")
    if before.claims:
        reached("a collection while claims were held")
    if len(done.replica.remembered) > len(before.remembered):
        reached("a collection remembered a peer that had gone")
    if before.grown_records >= before.settings.gc_records:
        reached("a collection was owed")


def _finished(reached: Reached, before: Replica, done: Step, outcome: Outcome) -> None:
    if done.peer != before.snapshot.peer:
        reached("a collection was finished by another peer")


def _transaction_settled(reached: Reached, before: Replica, done: Step, outcome: Outcome) -> None:
    found = [one for name in outcome.args.names if (one := before.transactions.get(name)) is not None]
    if any(one.position < before.snapshot.position for one in found):
        reached("a collection while a transaction was under way")


def _segments(reached: Reached, before: Replica, done: Step, outcome: Outcome) -> None:
    segment = done.replica.position >> 31
    items: tuple[Any, ...] = getattr(outcome.args, "renewals", ()) or getattr(outcome.args, "releases", ())
    if any(item.token >> 31 < segment for item in items):
        reached("a claim was held across a segment's end")


def _renewed(reached: Reached, before: Replica, done: Step, outcome: Outcome) -> None:
    reached("a claim was renewed")
    _segments(reached, before, done, outcome)


def _released(reached: Reached, before: Replica, done: Step, outcome: Outcome) -> None:
    for release in outcome.args.releases:
        if release.event == facts.RETRIED:
            reached("a failed task was to be tried again")
        elif release.event == facts.RELEASED:
            reached("a task was given back")
    _segments(reached, before, done, outcome)


def _plain(name: str) -> Callable[[Reached, Replica, Step, Outcome], None]:
    return lambda reached, before, done, outcome: reached(name)


_PROBES: dict[str, Callable[[Reached, Replica, Step, Outcome], None]] = {
    "leave_cluster": _left,
    "prepare_join_cluster": _prepared,
    "gc": _collected,
    "finish_gc": _finished,
    "renew_claims": _renewed,
    "release_claims": _released,
    "expire_claims": _plain("a claim expired"),
    "abort_join_cluster": _plain("a join was aborted"),
    "yield_partition": _plain("a partition was given up"),
    "replace_node": _plain("a node was replaced"),
    "drain_node": _plain("a node drained"),
    "force_partition": _plain("a partition was forced"),
    "reopen_tasks": _plain("failed tasks were opened again"),
    "settle_transactions": _transaction_settled,
}
