"""Peers leave the ring only if an entry names them, and every peer but the last in the queue is watched."""

from __future__ import annotations

from typing import ClassVar

from attrs import define

from onyxq.core import ring
from onyxq.core.replica import Replica
from onyxq.core.step import Step
from simulation.checkers import LogChecker

NAMED = {"leave_cluster": "peer", "abort_join_cluster": "joiner", "prepare_join_cluster": "node"}
"""Entries that remove peers, and the argument that names the peer, or the node whose last peer goes."""


@define(eq=False)
class RingWatched(LogChecker):
    """See the module's first paragraph."""

    name: ClassVar[str] = "ring watched"

    def step(self, before: Replica, step: Step) -> None:
        """Judge a record that changed ring or peers."""
        now = step.replica
        if now.ring is before.ring and now.peers is before.peers:
            return
        gone = [peer for peer in before.peers if peer not in now.peers]
        if gone:
            named = {getattr(outcome.args, NAMED[outcome.name]) for outcome in step.outcomes if outcome.name in NAMED}
            lost = [peer for peer in gone if peer not in named and before.peers[peer].node not in named]
            if lost:
                raise self.broken(f"position {now.position}: {lost} went, named were {sorted(named)}")
        if len(now.ring.queue) > 1:
            watched = {other for peer in now.peers for other in ring.watches(now, peer)}
            unseen = [peer for peer in now.ring.queue[:-1] if peer not in watched]
            if unseen:
                raise self.broken(f"position {now.position}: no peer watches {unseen}")
