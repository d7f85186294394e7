"""The operations of a partition's leader for clients: enqueue, complete, renew, update, cancel and others.

Enqueues, updates, completions and cancels are facts: quorum writes under the epoch, which continue
while the log is unavailable. Renewals, failures with a retry and releases are log entries. Each
operation has its own module; this one combines them.
"""

from __future__ import annotations

from typing import Protocol

import trio

from onyxq.leader.cancellations import Cancelling
from onyxq.leader.claim_updates import ClaimsKept
from onyxq.leader.completions import Completing
from onyxq.leader.dead_letters import Dead
from onyxq.leader.deadlines import Deadlines
from onyxq.leader.dependencies import Dependencies
from onyxq.leader.dependents import Depended
from onyxq.leader.enqueues import Enqueuing
from onyxq.leader.leader import PartitionLeader
from onyxq.leader.purge import Purging, PurgingHost
from onyxq.leader.task_keys import Keyed
from onyxq.leader.task_updates import Updating
from onyxq.leader.timers import Timers
from onyxq.leader.token_check import Standing
from onyxq.leader.transaction_apply import TransactingHost
from onyxq.leader.transaction_parts import Transacting


class Host(TransactingHost, PurgingHost, Protocol):
    """What the operations need of their node."""


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
        """Run the background work of the operations until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.completing.run)
            nursery.start_soon(self.completing.freeing.run)
            nursery.start_soon(self.dependencies.run)
            nursery.start_soon(self._deadlines.run)
            nursery.start_soon(self.purging.run)

    def backed(self, leader: PartitionLeader) -> None:
        """Continue with a partition whose finished tasks will stay finished under any next leader."""
        self.completing.freeing.free_finished(leader)
        self.dependencies.lead(leader.partition)
