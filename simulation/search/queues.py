"""What leaders and clients do with queues, transactions and periodic tasks of the pure cluster (design: simulation).

Another part of `simulation.search.cluster.Cluster`, whose first paragraph tells what it is for.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from attrs import define
from pyrsistent import pmap

from log_entries import (
    commit_transaction,
    fire_periodic,
    force_partition,
    grant_claims,
    grant_limited_claims,
    pause_periodic,
    purge,
    remove_periodic,
    reopen_tasks,
    set_periodic,
    set_queue,
    settle_transactions,
)
from onyxq.core.ids import Run, make_id, stretch_of
from onyxq.core.replica import ClaimPiece, claim_of
from onyxq.core.transactions import Claim, Part
from simulation.search.members import Members
from simulation.search.peer import Peer

TASKS = 48
"""Tasks of each partition that are granted and ended over and over."""
KEEP_MS = 20_000
"""For how long names of transactions are remembered here."""
PERIOD_MS = 5_000


@cache
def task(partition: int, offset: int) -> Run:
    """The run of one task of a partition."""
    return Run(make_id(1, partition, 1, offset), 1)


def tasks(partition: int, offset: int, count: int) -> Run:
    """A run of tasks of a partition."""
    return Run(task(partition, offset).first, count)


@define(eq=False)
class Queueing(Members):
    """See the module's first paragraph."""

    def held(self, peer: Peer, partition: int, offset: int) -> ClaimPiece | None:
        """The claim on a task as far as a peer knows."""
        return claim_of(peer.replica, task(partition, offset).first)

    def _epoch(self, peer: Peer, partition: int, behind: int) -> int:
        return max(0, peer.replica.partitions[partition].epoch - behind)

    # --- queues

    def limit(self, peer_id: str, queue: str, concurrency: int, rate: int) -> bool:
        """A member limits the claims of a queue at a time, and its grants in 1,000 s; 0 is no limit."""
        numbers = pmap({"concurrency": concurrency, "rate": rate})
        return self._submit(self._member(peer_id), set_queue.Args(queue, numbers, pmap(), pmap(), (), "", ""))

    def pause(self, peer_id: str, queue: str, paused: str) -> bool:
        """A member pauses a queue (``yes``) or resumes it (``no``)."""
        flags = pmap({"paused": paused == "yes"})
        return self._submit(self._member(peer_id), set_queue.Args(queue, pmap(), pmap(), flags, (), peer_id, ""))

    def grant_limited(
        self, peer_id: str, partition: int, offset: int, count: int, lease_ms: int, queue: str, behind: int = 0
    ) -> bool:
        """A member grants tasks of a queue with limits; whether they allow it the log must say."""
        peer = self._member(peer_id)
        if peer is None or partition not in peer.replica.partitions:
            return False
        grant = grant_claims.Grant(f"w{offset % 3}", lease_ms, (tasks(partition, offset, count),))
        epoch = self._epoch(peer, partition, behind)
        return self._submit(peer, grant_limited_claims.Args(partition, epoch, queue, (grant,)))

    def reopen(self, peer_id: str, partition: int, offset: int, count: int) -> bool:
        """A leader opens failed tasks again."""
        peer = self._member(peer_id)
        if peer is None or partition not in peer.led():
            return False
        found = reopen_tasks.Reopened(tasks(partition, offset, count), 1)
        epoch = peer.replica.partitions[partition].epoch
        return self._submit(peer, reopen_tasks.Args(partition, epoch, self._wall_ms(peer), (found,)))

    def purge(self, peer_id: str, partition: int, before_ms: int, keep: str, behind: int = 0) -> bool:
        """A member raises a watermark, and keeps (``yes``) the tasks of the partition or not (``no``)."""
        peer = self._member(peer_id)
        if peer is None or partition not in peer.replica.partitions:
            return False
        kept = (stretch_of(task(partition, 0).first),) if keep == "yes" else ()
        return self._submit(peer, purge.Args(partition, self._epoch(peer, partition, behind), before_ms, kept))

    # --- transactions

    def commit(self, peer_id: str, name: str, ms: int, offset: int, count: int, need: int = -1, wrong: int = 0) -> bool:
        """A member commits a transaction within ``ms`` of log time: it ends the claims on ``count`` tasks from
        ``offset`` on of all partitions, as far as it knows of them, and requires that on the task ``need``.

        ``wrong`` is added to the last token, as if the member knew another claim."""
        peer = self._member(peer_id)
        if peer is None:
            return False
        claims = self._known_claims(peer, range(offset, min(offset + count, TASKS)))
        require = self._known_claims(peer, range(need, need + 1)) if need >= 0 else []
        if claims:
            claims[-1] = claims[-1]._replace(token=claims[-1].token + wrong)
        parts = tuple(Part(partition, 1, b"digest") for partition in sorted({claim.partition for claim in claims}))
        deadline_ms = peer.replica.log_time_ms + ms
        args = commit_transaction.Args(name, deadline_ms, tuple(claims), tuple(require), parts, KEEP_MS)
        return self._submit(peer, args)

    def _known_claims(self, peer: Peer, offsets: range) -> list[Claim]:
        found: dict[tuple[int, int], list[Run]] = {}
        for partition in sorted(peer.replica.partitions):
            for offset in offsets:
                piece = self.held(peer, partition, offset)
                if piece is not None:
                    found.setdefault((partition, piece[2]), []).append(task(partition, offset))
        return [Claim(partition, token, tuple(runs)) for (partition, token), runs in found.items()]

    def settle_part(self, peer_id: str, name: str, partition: int, behind: int = 0) -> bool:
        """A leader's part of a transaction is visible, which takes a majority of members that run.

        Another peer may have settled other parts that the leader has not read of yet, so it names all.
        """
        peer = self._member(peer_id)
        if peer is None or partition not in peer.led() or not self.majority_runs(self._members(peer, partition)):
            return False
        epoch = self._epoch(peer, partition, behind)
        mine = {other for other, found in peer.replica.transactions.items() if partition in found.parts}
        return self._submit(peer, settle_transactions.Args((name, *sorted(mine - {name})), partition, epoch))

    def _members(self, peer: Peer, partition: int) -> tuple[str, ...]:
        return peer.replica.partitions[partition].members

    def majority_runs(self, cohort: tuple[str, ...]) -> bool:
        """Whether processes run on a majority of a cohort's nodes."""
        return 2 * sum(node in self.latest and self.latest[node].alive for node in cohort) > len(cohort)

    # --- periodic tasks

    def periodic(self, peer_id: str, name: str, schedule: str = "every-5s") -> bool:
        """A member sets a periodic task up, or changes it."""
        peer = self._member(peer_id)
        if peer is None:
            return False
        next_ms = self._wall_ms(peer) // PERIOD_MS * PERIOD_MS + PERIOD_MS
        args: Any = set_periodic.Args(name, "mail", schedule, "UTC", b"", "bytes", 0, "all", False, next_ms)
        return self._submit(peer, args)

    def fire(self, peer_id: str, name: str) -> bool:
        """A member has enqueued the next run of a periodic task, and says so."""
        peer = self._member(peer_id)
        found = peer.replica.periodic.get(name) if peer is not None else None
        if peer is None or found is None:
            return False
        return self._submit(peer, fire_periodic.Args(name, found.next_ms, found.next_ms + PERIOD_MS, 1))

    def rest(self, peer_id: str, name: str, paused: str) -> bool:
        """A member pauses a periodic task (``yes``), resumes it (``no``) or removes it (``gone``)."""
        peer = self._member(peer_id)
        if peer is None or name not in peer.replica.periodic:
            return False
        if paused == "gone":
            return self._submit(peer, remove_periodic.Args(name))
        return self._submit(peer, pause_periodic.Args(name, paused == "yes", self._wall_ms(peer) + PERIOD_MS))

    # --- lost majorities

    def force(self, peer_id: str, partition: int) -> bool:
        """A member accepts for an operator that a partition's majority is lost."""
        return self._submit(self._member(peer_id), force_partition.Args(partition, peer_id))
