"""Release of the claims on completed tasks.

No client waits for a release, so the releases of one partition are sent together. The replicated
log then has few entries.
"""

from __future__ import annotations

import trio

from log_entries import release_claims
from onyxq.core import facts
from onyxq.core.ids import Run, TaskId, id_at, mask_of, runs_of, stretch_of
from onyxq.core.replica import held_bits
from onyxq.leader.completion_rows import Finish, overtaken_bits
from onyxq.leader.entry_chunks import fitting, run_groups, size_of
from onyxq.leader.host import OperationsHost
from onyxq.leader.leader import PartitionLeader

RELEASE_DELAY_S = 0.2
"""Longest delay of a release, in seconds, so that several are sent together."""
RELEASE_RUNS_MAX = 1_000
"""Completed runs of one partition that may wait; with more they are released at once."""


class ClaimRelease:
    """Releases claims of the partitions that a node leads."""

    def __init__(self, host: OperationsHost) -> None:
        self._host = host
        self._waiting: dict[int, list[Finish]] = {}
        """Completed runs whose claims are to be released, by partition."""
        self._soon = trio.Event()

    def release_finished(self, leader: PartitionLeader) -> None:
        """Release claims on tasks whose completions an earlier leader had stored."""
        finishes = []
        for stretch, pieces in sorted((self._host.replica.claims.get(leader.partition) or {}).items()):
            finished = self._host.store.finished_bits(stretch) if pieces else 0
            for offset, count, token, *_ in pieces:
                run = Run(id_at(stretch, offset), count)
                bits = finished & mask_of(*run)
                bits &= ~overtaken_bits(self._host.store, run, token, bits)
                finishes += [Finish(part, token, facts.COMPLETED, []) for part in runs_of(stretch, bits)]
        if finishes:
            self.release_later(leader, finishes)

    def release_later(self, leader: PartitionLeader, finishes: list[Finish]) -> None:
        """Release the claims of stored completions, a little later and together.

        If the cluster has limited queues, release them at once: their claims count towards the limits.
        """
        waiting = self._waiting.setdefault(leader.partition, [])
        waiting += finishes
        if self._host.replica.limited or len(waiting) >= RELEASE_RUNS_MAX:
            self._release(leader.partition)
        else:
            self._soon.set()

    async def run(self) -> None:
        """Release the claims that wait for it, until cancelled."""
        while True:
            await self._soon.wait()
            await trio.sleep(RELEASE_DELAY_S)
            self._soon = trio.Event()
            for partition in sorted(self._waiting):
                self._release(partition)

    def _release(self, partition: int) -> None:
        finishes = self._waiting.pop(partition)
        leader = self._host.leaders.get(partition)
        if leader is not None:  # otherwise the new leader of the partition finds them
            for entry in self.releases(leader, finishes):
                self._host.submit_lazily(entry)

    def releases(self, leader: PartitionLeader, finishes: list[Finish]) -> list[release_claims.Args]:
        """Return the entries that release the claims of stored completions."""
        held: dict[int, dict[bytes, int]] = {}
        for finish in finishes:
            stretch, masks = stretch_of(finish.run.first), held.setdefault(finish.token, {})
            masks[stretch] = masks.get(stretch, 0) | held_bits(self._host.replica, finish.run, finish.token)
        releases = [
            release_claims.Release(token, release_claims.COMPLETED_EVENT, 0, 0, "", runs)
            for token, masks in sorted(held.items())
            for runs in run_groups([run for stretch, bits in masks.items() for run in runs_of(TaskId(stretch), bits)])
        ]
        return [
            release_claims.Args(leader.partition, leader.epoch, tuple(group))
            for group in fitting(releases, lambda one: size_of(one.runs))
        ]
