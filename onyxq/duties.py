"""Duties: what a peer must be doing while the replica says so (design: node and peer).

Pure.  The peer compares the duties before and after every record, starts a supervised
task for each one that appears and cancels it when it goes.
"""

from __future__ import annotations

from typing import TypeAlias

from attrs import frozen

from onyxq.replica import Replica
from onyxq.ring import watches


@frozen
class Watch:
    """Watch the pulse of ``peer`` and report it absent by ``leave_cluster``."""

    peer: str


@frozen
class Lead:
    """Lead ``partition`` at ``epoch``: take it over, serve it, settle it.

    Every epoch is a duty of its own: a change of leader or target starts it afresh.
    """

    partition: int
    epoch: int


@frozen
class Snapshot:
    """Write the replica at ``position`` as the origin and trim the log behind it."""

    position: int


Duty: TypeAlias = Watch | Lead | Snapshot


def duties(replica: Replica, me: str) -> frozenset[Duty]:
    """All that the peer ``me`` must be doing now."""
    found: set[Duty] = {Watch(peer) for peer in watches(replica, me)}
    found.update(Lead(number, part.epoch) for number, part in replica.partitions.items() if part.leader == me)
    if replica.snapshot.peer == me and replica.snapshot.position >= 0:
        found.add(Snapshot(replica.snapshot.position))
    return frozenset(found)
