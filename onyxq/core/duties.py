"""Duties: what a peer must do while the replica requires it (design: node and peer).

Pure.  The peer compares the duties before and after every record.  It starts a supervised
task for each new duty and cancels it when the duty ends.
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
    """The duty to watch the pulse of ``peer`` and report it absent by ``leave_cluster``."""

    peer: str


@frozen
class Lead:
    """The duty to lead ``partition`` at ``epoch``: take it over, serve it, settle it.

    Every epoch is a separate duty: a change of leader or target starts it again.
    """

    partition: int
    epoch: int


@frozen
class Snapshot:
    """The duty to write the replica as the origin, for the ``gc`` at ``position``, and to trim the log before it."""

    position: int


@frozen
class Fire:
    """The duty to enqueue the periodic tasks when they are due."""


@frozen
class Drive:
    """The duty to drive ``job`` under ``version``: run it on Spark, and report when it is ready, completed or failed.

    Every version is a separate duty: the driver of an older version must stop.
    """

    job: str
    version: int


@frozen
class Extended:
    """The duty to run what an extension's entry asks for; ``value`` is one of the results of its ``duties``."""

    entry: str
    value: Hashable


Duty: TypeAlias = Watch | Lead | Snapshot | Fire | Drive | Extended


def duties(replica: Replica, me: str, entries: Entries | None = None) -> frozenset[Duty]:
    """Return all duties of the peer ``me`` now, with those of the extensions among ``entries``.

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
