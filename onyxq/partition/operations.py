"""What the leader of a partition does for clients: enqueue, finish, renew, update, cancel.

Enqueues, updates, completions and cancels are facts: quorum writes under the epoch, which
go on while the log is away.  Renewals, failures with a retry and returns are entries.
Each has its own module; this is where they meet.
"""

from __future__ import annotations

from typing import Protocol

import trio

from onyxq.partition.cancelling import Cancelling
from onyxq.partition.claims_kept import ClaimsKept
from onyxq.partition.completing import Completing
from onyxq.partition.dead import Dead
from onyxq.partition.deadlines import Deadlines
from onyxq.partition.depended import Depended
from onyxq.partition.dependencies import Dependencies
from onyxq.partition.enqueuing import Enqueuing
from onyxq.partition.keyed import Keyed
from onyxq.partition.leader import PartitionLeader
from onyxq.partition.making_visible import TransactingHost
from onyxq.partition.purging import Purging, PurgingHost
from onyxq.partition.standing import Standing
from onyxq.partition.timers import Timers
from onyxq.partition.transacting import Transacting
from onyxq.partition.updating import Updating


class Host(TransactingHost, PurgingHost, Protocol):
    """What all of it needs of its node."""


class Operations:
    """Serves the ``lead.*`` methods of one node."""

    def __init__(self, host: Host) -> None:
        self.standing = Standing(host)
        updating = Updating(host, self.standing)
        self.completing = Completing(host, self.standing, updating)
        self.dependencies = Dependencies(host, self.completing)
        self.dead = Dead(host, self.standing, self.completing)
        self.depended = Depended(host)
        self.purging = Purging(host, dead=self.dead, depended=self.depended)
        self._deadlines = Deadlines(host, self.completing)
        kept = ClaimsKept(host, self.standing, self.completing)
        self.leader = self.standing.leader
        keyed = Keyed(host)
        self.enqueue = Enqueuing(host, self.standing, self.dependencies, keyed).enqueue
        self.transacting = Transacting(host, standing=self.standing, completing=self.completing, enqueue=self.enqueue)
        self.complete = self.completing.complete
        self.update = updating.update
        self.fail, self.release, self.renew = kept.fail, kept.release, kept.renew
        self.renewed = kept.renewed
        self.postpone = kept.postpone
        cancelling = Cancelling(host, self.standing, self.completing)
        self.cancel = cancelling.cancel
        self.timers = Timers(host, self.standing, keyed=keyed, completing=self.completing, cancelling=cancelling)

    async def run(self) -> None:
        """What goes on without being asked for, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.completing.run)
            nursery.start_soon(self.completing.freeing.run)
            nursery.start_soon(self.dependencies.run)
            nursery.start_soon(self._deadlines.run)
            nursery.start_soon(self.purging.run)

    def backed(self, leader: PartitionLeader) -> None:
        """What is finished in the partition stays so."""
        self.completing.freeing.free_finished(leader)
        self.dependencies.lead(leader.partition)
