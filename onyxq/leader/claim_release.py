"""Release of the claims on completed tasks.

No client waits for a release, so the releases of one partition are sent together. The replicated
log then has few entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

from log_entries import release_claims
from onyxq.core.errors import Corrupt
from onyxq.core.ids import Run, TaskId, id_at, mask_of, runs_of, stretch_of
from onyxq.core.replica import held_bits
from onyxq.leader.completion_rows import overtaken_bits
from onyxq.leader.entry_chunks import fitting, run_groups, size_of
from onyxq.leader.host import OperationsHost
from onyxq.leader.leader import PartitionLeader
from onyxq.leader.state.leader_state import HeldRun
from onyxq.system.procedures import Wait, pause

RELEASE_DELAY_S = 0.2
"""Longest delay of a release, in seconds, so that several are sent together."""
RELEASE_RUNS_MAX = 1_000
"""Completed runs of one partition that may wait; with more they are released at once."""


class ClaimRelease:
    """Releases claims of the partitions that a node leads."""

    def __init__(self, host: OperationsHost) -> None:
        self._host = host
        self._state = host.leader_state
        self._soon = Wait()

    def release_finished(self, leader: PartitionLeader) -> None:
        """Release claims on tasks whose completions an earlier leader stored, and offer the next tasks of their keys.

        Such a completion may arrive after the partition began to serve, when the task still held its key. What is
        being finished here is released once it is decided.
        """
        held: list[HeldRun] = []
        for stretch, pieces in sorted((self._host.replica.claims.get(leader.partition) or {}).items()):
            finished = self._host.store.finished_bits(stretch) if pieces else 0
            for offset, count, token, *_ in pieces:
                run = Run(id_at(stretch, offset), count)
                bits = finished & mask_of(*run) & ~self._state.unsure(stretch)
                with suppress(Corrupt):  # the claim is released by the leadership after the repair
                    bits &= ~overtaken_bits(self._host.store, run, token, bits)
                    held += [(part, token) for part in runs_of(stretch, bits)]
        if held:
            self._host.granter.finished(run for run, _ in held)
            self.release_later(leader, held)

    def release_later(self, leader: PartitionLeader, held: Sequence[HeldRun]) -> None:
        """Release the claims of stored completions, a little later and together.

        If the cluster has limited queues, release them at once: their claims count towards the limits.
        """
        waiting = self._state.release_later(leader.partition, held)
        if self._host.replica.limited or waiting >= RELEASE_RUNS_MAX:
            self._release(leader.partition)
        else:
            self._soon.end()

    async def run(self) -> None:
        """Release the claims that wait for it, until cancelled."""
        while True:
            await self._soon.wait()
            await pause(RELEASE_DELAY_S)
            self._soon = Wait()
            for partition in self._state.partitions_to_release():
                self._release(partition)

    def _release(self, partition: int) -> None:
        held = self._state.take_releases(partition)
        leader = self._host.leaders.get(partition)
        if leader is not None:  # otherwise the new leader of the partition finds them
            for entry in self.releases(leader, held):
                self._host.submit_lazily(entry)

    def releases(self, leader: PartitionLeader, held: Iterable[HeldRun]) -> list[release_claims.Args]:
        """Return the entries that release the claims of stored completions."""
        by_token: dict[int, dict[bytes, int]] = {}
        for run, token in held:
            stretch, masks = stretch_of(run.first), by_token.setdefault(token, {})
            masks[stretch] = masks.get(stretch, 0) | held_bits(self._host.replica, run, token)
        releases = [
            release_claims.Release(token, release_claims.COMPLETED_EVENT, 0, 0, "", runs)
            for token, masks in sorted(by_token.items())
            for runs in run_groups([run for stretch, bits in masks.items() for run in runs_of(TaskId(stretch), bits)])
        ]
        return [
            release_claims.Args(leader.partition, leader.epoch, tuple(group))
            for group in fitting(releases, lambda one: size_of(one.runs))
        ]
