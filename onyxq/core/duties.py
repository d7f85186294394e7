"""Duties: what a peer must be doing while the replica says so (design: node and peer).

Pure.  The peer compares the duties before and after every record, starts a supervised
task for each one that appears and cancels it when it goes.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeAlias

from attrs import frozen

from onyxq.core.entry import Entries
from onyxq.core.errors import ExtensionFailed
from onyxq.core.replica import Replica, collector, first_peer
from onyxq.core.ring import watches


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
    """Write the replica as the origin, for the ``gc`` at ``position``, and trim the log behind it."""

    position: int


@frozen
class Fire:
    """Enqueue the periodic tasks when they are due."""


@frozen
class Drive:
    """Drive ``job`` under ``version``: run it on Spark, say when it is ready, completed or failed.

    Every version is a duty of its own: whoever drives under an older one has to stop.
    """

    job: str
    version: int


@frozen
class Extended:
    """Run what an extension's entry asks for; ``value`` is one of what its ``duties`` gave."""

    entry: str
    value: Hashable


Duty: TypeAlias = Watch | Lead | Snapshot | Fire | Drive | Extended


def duties(replica: Replica, me: str, entries: Entries | None = None) -> frozenset[Duty]:
    """Return all that the peer ``me`` must be doing now, with what the extensions among ``entries`` ask of it.

    Raises `ExtensionFailed` for a bug in an extension.
    """
    found: set[Duty] = {Watch(peer) for peer in watches(replica, me)}
    found.update(Lead(number, part.epoch) for number, part in replica.partitions.items() if part.leader == me)
    if not replica.snapshot.finished and collector(replica) == me:
        found.add(Snapshot(replica.snapshot.position))
    if replica.periodic and first_peer(replica) == me:
        found.add(Fire())
    found.update(Drive(name, job.version) for name, job in replica.jobs.items() if job.driver == me)
    if entries is not None and entries.doing and me in replica.ring.members:
        found.update(_extended(replica, me, entries))
    return frozenset(found)


def _extended(replica: Replica, me: str, entries: Entries) -> set[Extended]:
    found: set[Extended] = set()
    for entry, find in entries.doing:
        if entry.name in replica.enabled:
            try:
                found.update(Extended(entry.name, value) for value in find(replica, me))
            except Exception as error:
                raise ExtensionFailed(f"duties of {entry.name} raised {error!r}") from error
    return found
