"""Probes of the world: rare branches that runs of real nodes come by (design: simulation).

Most of them can be told from the log; the others are counted where they happen, in the
simulated log, and where clients hear of them.
"""

from __future__ import annotations

from typing import Any, ClassVar

from attrs import define, field

from log_entries import (
    abort_join_cluster,
    expire_claims,
    grant_claims,
    leave_cluster,
    ready_partition,
    release_claims,
    renew_claims,
    settle_partition,
)
from onyxq.core import facts
from onyxq.core.entry import APPLIED
from onyxq.core.replica import Partition, Replica
from onyxq.core.ring import stitching
from onyxq.core.step import GAP, NOT_IN_RING, REPEAT, Step
from simulation.checkers import Checker
from simulation.probes import Probes
from simulation.world.log import LOG_PROBES
from simulation.world.rule_probes import RARE_RULES, RULES

STANDARD = (
    "a deposed leader's grant",
    "a deposed leader's release",
    "a claim expired",
    "a claim was renewed",
    "a claim survived its leader",
    "a failed task was to be tried again",
    "a task was given back",
    "a stale token was refused",
    "a task was cancelled that a worker held",
    "a completion was taken under a lapsed token",
    "a lapsed claim was renewed",
    "a task was claimed before it was due",
    "a takeover during a takeover",
    "a takeover without its first leader",
    "a target changed before its copies had arrived",
    "a partition settled on other nodes",
    "a partition was given up",
    "a node was replaced",
    "a record was repeated",
    "a record landed after its writer had gone",
    "a peer left while it took another in",
    "a joiner waited in the queue",
    "a peer was put out by its node's next one",
    "everybody was gone",
    *RULES,
)
"""What `STANDARD_RUNS` runs of the standard workload must have reached."""

STANDARD_RUNS = 500

OTHERS = (
    "acknowledged tasks were purged",
    "something was kept below a watermark",
    "something that was kept was purged",
    "a task was sent again",
    "a purged task was sent again",
    "a gap in a peer's records",
    "a join was aborted",
    "an obsolete ready came late",
    *LOG_PROBES,
    "the log's clock went back",
    "a peer left because of its clock",
    *RARE_RULES,
)
"""What other workloads reach."""

WORLD_PROBES = STANDARD + OTHERS


_DEPOSED: dict[type[Any], str] = {
    grant_claims.Args: "a deposed leader's grant",
    release_claims.Args: "a deposed leader's release",
    ready_partition.Args: "an obsolete ready came late",
    settle_partition.Args: "an obsolete ready came late",
}


@define(eq=False)
class Watcher(Checker):
    """Counts what the log tells; it is told of every step as checkers are."""

    name: ClassVar[str] = "probes"
    probes: Probes = field(factory=lambda: Probes(WORLD_PROBES))

    def step(self, before: Replica, step: Step) -> None:
        """Count what one record shows."""
        reached = self.probes.reached
        if step.problem == REPEAT:
            reached("a record was repeated")
        elif step.problem == GAP:
            reached("a gap in a peer's records")
        if step.ctime_ms and before.ctime_ms and step.ctime_ms < before.ctime_ms - 500:
            reached("the log's clock went back")
        for outcome in step.outcomes:
            self._outcome(before, step, outcome.args, outcome.verdict)
        self._ring(before, step.replica)
        if before.partitions is not step.replica.partitions:
            for number, now in step.replica.partitions.items():
                then = before.partitions.get(number)
                if then is not None and then is not now:
                    self._partition(then, now, step.replica)
        if any(
            node.replaced and not before.nodes[name].replaced
            for name, node in step.replica.nodes.items()
            if name in before.nodes
        ):
            reached("a node was replaced")

    def _outcome(self, before: Replica, step: Step, args: Any, verdict: str) -> None:
        reached = self.probes.reached
        if verdict == NOT_IN_RING:
            reached("a record landed after its writer had gone")
        if verdict in ("stale epoch", "not the leader", "not ready"):
            for kind, name in _DEPOSED.items():
                if isinstance(args, kind):
                    reached(name)
        if verdict != APPLIED:
            return
        if isinstance(args, expire_claims.Args):
            reached("a claim expired")
        elif isinstance(args, renew_claims.Args):
            reached("a claim was renewed")
        elif isinstance(args, release_claims.Args):
            for release in args.releases:
                if release.event == facts.RETRIED:
                    reached("a failed task was to be tried again")
                elif release.event == facts.RELEASED:
                    reached("a task was given back")
        elif isinstance(args, abort_join_cluster.Args):
            reached("a join was aborted")
        elif isinstance(args, leave_cluster.Args):
            self._left(before, args)

    def _left(self, before: Replica, args: leave_cluster.Args) -> None:
        if args.peer in before.ring.members and args.peer in stitching(before.ring):
            self.probes.reached("a peer left while it took another in")
        if "clock" in args.reason:
            self.probes.reached("a peer left because of its clock")

    def _ring(self, before: Replica, after: Replica) -> None:
        if before.ring is after.ring:
            return
        if after.ring.queue:
            self.probes.reached("a joiner waited in the queue")
        if before.ring.members and not any(peer in after.ring.members for peer in before.ring.members):
            self.probes.reached("everybody was gone")
        for name, node in after.nodes.items():
            then = before.nodes.get(name)
            if then is not None and then.peer and then.peer != node.peer and then.peer not in after.ring.members:
                known = any(peer.node == name and one != then.peer for one, peer in after.peers.items())
                if known:
                    self.probes.reached("a peer was put out by its node's next one")

    def _partition(self, then: Partition, now: Partition, after: Replica) -> None:
        reached = self.probes.reached
        if now.epoch > then.epoch and not then.ready and then.epoch and now.leader != then.leader:
            reached("a takeover during a takeover")
        if now.epoch > then.epoch and now.leader and then.leader and then.leader not in after.ring.members:
            reached("a takeover without its first leader")
        if then.target not in (then.members, now.target) and now.members == then.members:
            reached("a target changed before its copies had arrived")
        if then.members and now.members != then.members:
            reached("a partition settled on other nodes")
        if now.yields > then.yields:
            reached("a partition was given up")
        if now.ready and not then.ready:
            number = next((number for number, placed in after.partitions.items() if placed is now), None)
            if number is not None and number in after.claims:
                reached("a claim survived its leader")
