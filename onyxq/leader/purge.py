"""Chooses what a partition's leader purges, and when (design: retention).

Ids begin with the time at which their tasks were made, or are due. The leader goes through a
partition in *buckets* of that time, oldest first. A stretch can be purged once all of the following
hold:

* all of its tasks are finished and their queues' retention has passed,
* no unfinished task waits for a failed task of it,
* no stretch that is kept has a task that gave way to one of it for a unique key,
* it is archived if a queue asks for that.

Up to a limit, stretches below the watermark are kept as exceptions. A bucket with more exceptions
delays the later buckets.

While it looks, the leader accepts no new task below the possible watermark. So no unfinished task
can join stretches that were found to be finished.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Container
from pathlib import Path
from typing import Any, Protocol

from attrs import define, field, frozen

from log_entries import purge, renew_claims
from onyxq.core.entry import APPLIED
from onyxq.core.errors import Incomplete, OnyxqError, Unavailable
from onyxq.core.ids import TaskId, callback_of, ms_of, partition_of
from onyxq.core.periodic import task_id
from onyxq.core.purged import KEPT_MAX, NOTHING, Watermark, watermark_of
from onyxq.core.queue_settings import DEFAULTS
from onyxq.core.queues import settings_of
from onyxq.history.parquet.bucket import Bucket
from onyxq.history.parquet.writer import write_bucket
from onyxq.leader.dependents import Dependents, pending_runs
from onyxq.leader.host import OperationsHost
from onyxq.leader.leader import PartitionLeader
from onyxq.leader.state.states import State
from onyxq.store.index.records import HOUR_MS
from onyxq.store.interface import Ended
from onyxq.system.procedures import now, pause

LOOKS_PER_BUCKET = 4
"""Checks of a partition per bucket time."""
LOOK_EVERY_S_MAX = 60.0
PAGE_STRETCHES = 64
"""Stretches that are checked without a pause."""
PAUSE_S = 0.005
SETTLED_PART = 5
"""Part of the margin (1/5) after which a reported failure has reached all dependents."""
BEFORE_ALL = b""

ABSENT = "a node does not answer"
TOO_MANY = "too many stretches to keep"
NO_DIRECTORY = "no archive directory"

log = logging.getLogger(__name__)


@frozen
class Plan:
    """Settings of a node for purging."""

    bucket_ms: int = HOUR_MS
    """Time of a bucket. The watermark is a multiple of it."""
    margin_ms: int = 600_000
    """Shortest distance of the watermark from the clock."""
    directory: Path | None = None
    """Directory of the archive, for queues that ask for one."""

    @property
    def settled_ms(self) -> int:
        """Shortest time from the end of a task to its purge."""
        return self.margin_ms // SETTLED_PART


class PurgingHost(OperationsHost, Protocol):
    """The part of a node that purging uses."""

    offload: Callable[..., Awaitable[Any]]
    purging: Plan


@define
class _Bucket:
    """The checked stretches of one bucket."""

    keep: list[TaskId] = field(factory=list)
    failed: list[TaskId] = field(factory=list)
    replaced: dict[TaskId, frozenset[TaskId]] = field(factory=dict)
    goes: int = 0
    archives: set[str] = field(factory=set)


@define
class _Found:
    """The result of a check: what can be purged of a partition."""

    before_ms: int
    keep: list[TaskId] = field(factory=list)
    failed: list[TaskId] = field(factory=list)
    """Stretches to purge that contain failed tasks."""
    replaced: dict[TaskId, frozenset[TaskId]] = field(factory=dict)
    """Stretch to purge -> other stretches with tasks that gave way to its tasks for their unique keys."""
    goes: int = 0
    archives: set[str] = field(factory=set)
    """Queues whose tasks must be archived before the purge."""
    waits: str = ""
    """Why the next bucket cannot be purged yet."""

    def take(self, bucket: _Bucket, before_ms: int) -> bool:
        """Add a bucket and return True, unless too many of its stretches must be kept."""
        if len(self.keep) + len(bucket.keep) > KEPT_MAX:
            self.waits = TOO_MANY
            return False
        self.before_ms = max(self.before_ms, before_ms)
        self.keep += bucket.keep
        self.failed += bucket.failed
        self.replaced |= bucket.replaced
        self.goes += bucket.goes
        self.archives |= bucket.archives
        return True

    def spare(self, stretches: list[TaskId]) -> None:
        """Keep stretches that were to be purged."""
        self.keep += stretches
        self.goes -= len(stretches)

    def spare_replacing(self) -> None:
        """Keep stretches without which a task that gave way would get its unique key back and run."""
        replacing: dict[TaskId, list[TaskId]] = {}
        for one, others in self.replaced.items():
            for other in others:
                replacing.setdefault(other, []).append(one)
        kept = set(self.keep)
        left = [other for other in replacing if other in kept or ms_of(other) >= self.before_ms]
        while left:
            found = [one for one in replacing[left.pop()] if one not in kept]
            self.spare(found)
            kept.update(found)
            left += [one for one in found if one in replacing]


class Purger:
    """Purges partitions that a node leads; one per node."""

    def __init__(self, host: PurgingHost, dependents: Dependents) -> None:
        self._host = host
        self._dependents = dependents
        self._again_ms: dict[int, int] = {}
        """Partition -> time of its next check."""
        self.waits: dict[int, str] = {}
        """Partition led from here -> why its oldest bucket is not purged."""

    async def run(self) -> None:
        """Purge until cancelled."""
        every_s = min(LOOK_EVERY_S_MAX, self._pause_ms / 1000)
        while True:
            await pause(every_s)
            leaders = dict(sorted(self._host.leaders.items()))
            for known in (self._again_ms, self.waits):
                for number in known.keys() - leaders.keys():
                    del known[number]
            for number, leader in leaders.items():
                if self._host.wall_ms() >= self._again_ms.get(number, 0) and self._may(leader):
                    self._again_ms[number] = self._host.wall_ms() + self._pause_ms
                    await self._try(leader)

    @property
    def _pause_ms(self) -> int:
        return max(250, self._host.purging.bucket_ms // LOOKS_PER_BUCKET)

    def _may(self, leader: PartitionLeader) -> bool:
        return self._host.leaders.get(leader.partition) is leader and leader.backed and not leader.deposed

    async def _try(self, leader: PartitionLeader) -> None:
        try:
            why = await self.look(leader)
        except OnyxqError as error:
            log.info("partition %d: nothing can be purged now: %s", leader.partition, error.message)
            why = ABSENT
        if why and why != self.waits.get(leader.partition):
            log.warning("partition %d: finished tasks are not purged: %s", leader.partition, why)
        self.waits.pop(leader.partition, None)
        if why:
            self.waits[leader.partition] = why

    # --- one look

    async def look(self, leader: PartitionLeader) -> str:
        """Purge a partition; return why its oldest bucket cannot be purged, or an empty string.

        Raises `Unavailable` if a node does not answer, or rows or entries cannot be written now.
        """
        if leader.in_doubt:
            # Once this entry, which changes nothing, has been read, the purge that may be on its way has been
            # too.
            await self._host.verdicts([renew_claims.Args(leader.partition, leader.epoch, ())])
            leader.in_doubt, leader.closing = False, NOTHING
        number, known = leader.partition, watermark_of(leader.placed)
        edge_ms = max(known.before_ms, self._edge_ms(number))
        if not self._host.store.stretches(number, before_ms=edge_ms, limit=1):
            return ""
        leader.closing = Watermark(edge_ms)
        try:
            await self._quiet(leader)
            found = await self._walk(leader, known.before_ms, edge_ms)
            await self._spare_depended(leader, found)
            found.spare_replacing()
            if len(found.keep) > KEPT_MAX:
                return TOO_MANY
            if not found.goes or not self._may(leader):
                return found.waits
            if found.archives and (why := await self._archive(leader, found)):
                return why
            await self._submit(leader, found)
            return found.waits
        finally:
            if not leader.in_doubt:
                leader.closing = NOTHING

    def _edge_ms(self, number: int) -> int:
        """Return the highest possible watermark."""
        host, plan = self._host, self._host.purging
        replica = host.replica
        kept_ms = [settings_of(replica, queue).retention_ms for queue in host.store.queues(number)]
        edge_ms = host.wall_ms() - max(plan.margin_ms, min(kept_ms, default=DEFAULTS.retention_ms))
        partitions = replica.settings.partitions
        for _, one in sorted(replica.periodic.items()):
            # The next task of a periodic task gets an id of the time at which it should fire.
            if not one.paused and partition_of(task_id(one, one.next_ms, partitions)) == number:
                edge_ms = min(edge_ms, one.next_ms)
        for first, _ in pending_runs(host, number):
            edge_ms = min(edge_ms, ms_of(first))
        return max(0, edge_ms // plan.bucket_ms * plan.bucket_ms)

    async def _quiet(self, leader: PartitionLeader) -> None:
        """Wait until all rows that were accepted before are in the store."""
        await leader.write([])
        await self._host.unflushed_writes.flushed()
        await self._host.recorded()
        for first, _ in pending_runs(self._host, leader.partition):
            if leader.closing.covers(first):
                raise Unavailable("a transaction enqueues a task in the time to purge")

    async def _walk(self, leader: PartitionLeader, before_ms: int, edge_ms: int) -> _Found:
        """Check the stretches up to ``edge_ms``, bucket by bucket."""
        bucket_ms = self._host.purging.bucket_ms
        found, open_buckets, after = _Found(before_ms), dict[int, _Bucket](), BEFORE_ALL
        while page := self._host.store.stretches(
            leader.partition, after=after, before_ms=edge_ms, limit=PAGE_STRETCHES
        ):
            # The pages are in order of hours, so buckets that end before this hour are complete.
            hour_ms = ms_of(page[0][-20:]) // HOUR_MS * HOUR_MS
            for number in sorted(one for one in open_buckets if (one + 1) * bucket_ms <= hour_ms):
                if not found.take(open_buckets.pop(number), (number + 1) * bucket_ms):
                    return found
            for name in page:
                stretch = TaskId(name[-20:])
                self._look_at(leader, stretch, open_buckets.setdefault(ms_of(stretch) // bucket_ms, _Bucket()))
            after = page[-1]
            first = min(open_buckets)
            if len(found.keep) + len(open_buckets[first].keep) > KEPT_MAX:
                found.waits = TOO_MANY
                return found
            await pause(PAUSE_S)
        for number in sorted(open_buckets):
            if not found.take(open_buckets[number], (number + 1) * bucket_ms):
                return found
        return found

    def _look_at(self, leader: PartitionLeader, stretch: TaskId, bucket: _Bucket) -> None:
        ended = self._ended(leader, stretch)
        if ended is None:
            bucket.keep.append(stretch)
            return
        bucket.goes += 1
        if ended.failed:
            bucket.failed.append(stretch)
        if ended.replaced:
            bucket.replaced[stretch] = ended.replaced
        replica = self._host.replica
        if replica.queues:
            bucket.archives |= {queue for queue in ended.queues if settings_of(replica, queue).archive}

    def _ended(self, leader: PartitionLeader, stretch: TaskId) -> Ended | None:
        """Return how a stretch ended, or None if it cannot be purged."""
        host = self._host
        if stretch in (host.replica.claims.get(leader.partition) or ()):
            return None
        if host.leader_state.unsure(stretch) or host.leader_state.bits(State.REOPENING, stretch):
            return None
        ended = host.store.ended(stretch)
        if ended is None:
            return None
        other = callback_of(stretch)
        if host.store.known_bits(other) and host.store.ended(other) is None:
            return None  # a task and its callback are purged once both are finished
        now_ms, settled_ms = host.wall_ms(), host.purging.settled_ms
        for queue, at_ms in ended.queues.items():
            if at_ms + max(settled_ms, settings_of(host.replica, queue).retention_ms) > now_ms:
                return None
        return ended

    async def _spare_depended(self, leader: PartitionLeader, found: _Found) -> None:
        """Keep failed tasks that others may wait for; raises `Unavailable` if there are too many."""
        if not found.failed:
            return
        now_s, settled_s = now(), self._host.purging.settled_ms / 1000
        leader.reported_s = {one: at_s for one, at_s in leader.reported_s.items() if now_s - at_s < settled_s}
        wanted: Container[bytes] = found.failed
        # A node to which the previous leader reported a failure may not have acted on it yet.
        if now_s - leader.since_s >= settled_s:
            try:
                wanted = await self._dependents.everywhere(
                    [one for one in found.failed if one not in leader.reported_s]
                )
            except Unavailable as error:
                log.info("partition %d: failed tasks are kept: %s", leader.partition, error.message)
                found.waits = ABSENT
        spared = [one for one in found.failed if one in wanted or one in leader.reported_s]
        found.spare(spared)
        if len(found.keep) > KEPT_MAX:
            raise Unavailable("other tasks may wait for too many failed tasks")

    # --- archive and entry

    async def _archive(self, leader: PartitionLeader, found: _Found) -> str:
        """Archive the stretches to purge; return why that is not possible now, or an empty string."""
        directory = self._host.purging.directory
        if directory is None:
            return NO_DIRECTORY
        known = watermark_of(leader.placed)
        bucket = Bucket(
            partition=leader.partition,
            from_ms=known.before_ms,
            before_ms=found.before_ms,
            keep=found.keep,
            again=known.kept,
        )
        try:
            written = await write_bucket(
                self._host.replica, self._host.store, directory, bucket, offload=self._host.offload
            )
        except Incomplete as error:
            return f"{error.message}; {error.advice}"
        except OnyxqError as error:
            return error.message
        log.info("partition %d: %s in %s", leader.partition, written, directory)
        return ""

    async def _submit(self, leader: PartitionLeader, found: _Found) -> None:
        entry = purge.Args(leader.partition, leader.epoch, found.before_ms, tuple(sorted(found.keep)))
        leader.in_doubt = True
        _, (verdict,) = await self._host.verdicts([entry])
        leader.in_doubt = False
        if verdict != APPLIED:
            raise Unavailable(f"the log refused the purge: {verdict}")
        log.info("partition %d: purged %d stretches", leader.partition, found.goes)
        self._again_ms[leader.partition] = 0
