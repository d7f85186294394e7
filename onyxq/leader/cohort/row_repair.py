"""Repairs a node's damaged store: rows from other nodes, indexes from the rows.

Every read notes damaged rows and entries. In addition, a scrub reads the whole store now and then,
so that damage is found while the other copies are still intact. A round of the scrub begins when
the store is opened, and continues in slices of a few milliseconds. The pauses between slices are
short while no client uses the node. The longer a round worked, the longer is the pause after it.

An index is rebuilt only while no leader of this node reads it. So a leader gives its partition up
first. If no other node can lead, this node leads again once the index is complete.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Protocol

import trio

from onyxq.core.errors import OnyxqError
from onyxq.core.facts import Row, partition_of_key, rank, sealed
from onyxq.core.placement import holders
from onyxq.core.replica import Replica
from onyxq.leader.cohort.member import checked_rows
from onyxq.store.integrity.audit import progress
from onyxq.store.interface import Batch, Piece, Rebuild
from onyxq.store.store import Store
from onyxq.system.metrics import Metrics

LOOK_EVERY_S = 1.0
SCRUB_BYTES = 1024 * 1024
"""Most bytes that are checked at once, about `SLICE_S` of work."""
GRAIN_BYTES = 16 * 1024
"""Bytes that are checked between two looks at the clock. The work for a byte varies with the contents."""
SLICE_S = 0.005
"""Length of a slice, in seconds, during which the node does nothing else."""
QUIET_PAUSE_S = 0.01
"""Pause between two slices while no client uses the node, in seconds. A third of a core is used."""
BUSY_PART, BUSY_PAUSE_S = 5, 0.1
"""While clients are served: the divisor of a slice, so that claims hardly wait for one, and the pause in seconds."""
SCRUB_PAUSE_S = 60.0
"""Shortest pause between two rounds, in seconds."""
REST = 100
"""Shortest pause between two rounds, as a multiple of the round's work. A scrub uses 1% of a core at most."""
RETRY_EVERY_S = 10.0
REBUILD_AFTER_S = 5.0
"""Delay from the end of a leadership to the rebuild, in seconds, in which requests to the leader end."""
WAITING = "Its tasks wait for a sound copy. If no other node has one, restore this node's directory from a backup."
WAIT_MAX_S = 20.0
"""Longest wait of a move for the repair of the leader's copy, in seconds: two attempts."""
REPAIR_ROWS = 256
REPAIR_TIMEOUT_S = 10.0

log = logging.getLogger(__name__)


class RepairWait:
    """The wait of a move for the repair of the copy of the partition's leader.

    The new copies lack damaged rows, and the nodes that the partition leaves may have the only sound copies of them.
    After the repair the index is rebuilt. For that the leader gives the partition up, and the next leadership compares
    all copies again. If no node that answers has sound copies, the move ends without them after `WAIT_MAX_S`.
    """

    def __init__(self, store: Store, partition: int) -> None:
        self._store = store
        self._partition = partition
        self._since_s: float | None = None

    def lasts(self) -> bool:
        """Return whether the move must wait now."""
        damaged = any(partition_of_key(key) == self._partition for key in self._store.damaged)
        if not damaged and self._partition not in self._store.unindexed():
            self._since_s = None
            return False
        if self._since_s is None:
            self._since_s = trio.current_time()
        return trio.current_time() - self._since_s < WAIT_MAX_S


class RepairHost(Protocol):
    """What repair needs of its node."""

    node_id: str
    store: Store
    replica: Replica
    metrics: Metrics

    @property
    def quiet(self) -> bool:
        """Whether no client uses the node."""
        ...

    async def call(self, node: str, method: str, args: dict[str, Any], *, timeout_s: float) -> Any:
        """Call a method of another node; raises `Unavailable`."""
        ...

    def reads_index(self, partition: int) -> bool:
        """Return whether a leader of the partition on this node reads its index."""
        ...

    async def give_up(self, partition: int) -> None:
        """Let another node lead the partition, or this one again."""
        ...

    def pieces_added(self, pieces: Sequence[Piece]) -> None:
        """Take note of new pieces in the store."""
        ...

    def repaired(self, partition: int) -> None:
        """Take note of repaired rows of a partition."""
        ...


class Repair:
    """Repairs the store of one node."""

    def __init__(self, host: RepairHost) -> None:
        self._host = host
        self._after = b""
        self._slices = 0.0
        """Slices of the present round."""
        self._scrub_at_s = 0.0
        self._took_s = 0.0
        """Duration of the last slice, in seconds."""
        self._retry_s: dict[bytes, float] = {}
        """Damaged rows that could not be repaired, and when to try again."""
        self._alone: set[bytes] = set()
        """Damaged rows of partitions that no other node holds, so that none can replace them."""
        self._read_s: dict[int, float] = {}
        """Partition to rebuild -> when a leader of this node was last seen to read its index."""

    async def run(self) -> None:
        """Look for damaged rows and repair them until cancelled."""
        store, look_at_s = self._host.store, 0.0
        while True:
            await trio.sleep(self._pause_s())
            if trio.current_time() >= self._scrub_at_s:
                self._scrub()
            if trio.current_time() >= look_at_s:
                look_at_s = trio.current_time() + LOOK_EVERY_S
                if store.damaged:
                    await self._repair()
                self._host.metrics.damaged_rows.set(len(store.damaged))
                for partition in store.unindexed():
                    await self._rebuild(partition)

    def _pause_s(self) -> float:
        if not self._after:
            return LOOK_EVERY_S
        part, pause_s = self._pace()
        # A slice may last longer than planned: a stretch of a thousand rows is checked at once.
        return pause_s * max(1.0, self._took_s * part / SLICE_S)

    def _pace(self) -> tuple[int, float]:
        """Return the divisor of a slice and the pause after it, in seconds."""
        return (1, QUIET_PAUSE_S) if self._host.quiet else (BUSY_PART, BUSY_PAUSE_S)

    def _scrub(self) -> None:
        """Check one more slice."""
        metrics = self._host.metrics
        part, _ = self._pace()
        began_s, left, over = trio.current_time(), SCRUB_BYTES // part, False
        while not over:
            self._after = self._host.store.scrub(self._after, min(left, GRAIN_BYTES))
            left -= GRAIN_BYTES
            self._took_s = trio.current_time() - began_s
            over = not self._after or left <= 0 or self._took_s >= SLICE_S / part
        self._slices += max(1 / part, self._took_s / SLICE_S)
        metrics.scrub_progress.set(round(progress(self._after, len(self._host.replica.partitions)), 4))
        metrics.damaged_rows.set(len(self._host.store.damaged))
        if not self._after:
            metrics.scrub_rounds.add()
            self._scrub_at_s = trio.current_time() + max(SCRUB_PAUSE_S, REST * self._slices * SLICE_S)
            self._slices = 0.0

    async def _rebuild(self, partition: int) -> None:
        """Rebuild the index of a partition if its rows are repaired and no leader here reads it."""
        store, now_s = self._host.store, trio.current_time()
        try:
            if partition in store.damaged_indexes:
                await store.write(Batch(mark=(partition,)))
                store.damaged_indexes.discard(partition)
                log.warning("the index of partition %d disagrees with its rows and is to be rebuilt", partition)
            if self._host.reads_index(partition):
                self._read_s[partition] = now_s
                await self._host.give_up(partition)
            elif now_s >= self._read_s.get(partition, -REBUILD_AFTER_S) + REBUILD_AFTER_S:
                await self._rebuild_slices(partition)
        except OnyxqError as error:
            log.warning("the index of partition %d cannot be rebuilt now: %s", partition, error.message)

    async def _rebuild_slices(self, partition: int) -> None:
        """Rebuild until the index is complete, or a damaged row prevents it."""
        store = self._host.store
        until_s = trio.current_time() + LOOK_EVERY_S
        while partition not in {partition_of_key(key) for key in store.damaged - self._alone}:
            began_s = trio.current_time()
            if began_s >= until_s:
                return
            written = await store.write(Batch(rebuild=Rebuild(partition, without=frozenset(self._alone))))
            store.damaged.update(written.damaged)
            self._host.metrics.purged_rows.add(n=written.purged_rows)
            if written.rebuilt:
                self._read_s.pop(partition, None)
                self._host.metrics.repaired.add("indexes")
                log.warning("the index of partition %d was rebuilt from its rows", partition)
                return
            await trio.sleep(max(self._pace()[1] / BUSY_PART, trio.current_time() - began_s))

    async def _repair(self) -> None:
        store, damaged = self._host.store, self._host.store.damaged
        for key in sorted(damaged):
            value = store.get(key)
            if value is None or sealed(key, value):
                damaged.discard(key)  # dropped, or repaired by anti-entropy
        now_s = trio.current_time()
        self._retry_s = {key: at_s for key, at_s in self._retry_s.items() if key in damaged}
        self._alone &= damaged
        by_partition: dict[int, list[bytes]] = {}
        for key in sorted(damaged):
            if key not in self._retry_s:
                log.error("the row of kind %r at task %s is damaged. %s", key[2:3], key[3:23].hex(), WAITING)
            if self._retry_s.get(key, 0.0) <= now_s:
                self._retry_s[key] = now_s + RETRY_EVERY_S
                by_partition.setdefault(partition_of_key(key), []).append(key)
        for partition, keys in by_partition.items():
            for start in range(0, len(keys), REPAIR_ROWS):
                left = keys[start : start + REPAIR_ROWS]
                while left:
                    left = await self._fetch(partition, left)

    async def _fetch(self, partition: int, keys: list[bytes]) -> list[bytes]:
        """Fetch damaged rows from every holder, and keep the best version of each.

        A holder that is not up to date may have the version of another leader. Return the keys that the answers did not
        reach, because a page of large rows ends early.
        """
        host = self._host
        placed = host.replica.partitions.get(partition)
        others = [node for node in holders(placed) if node != host.node_id] if placed is not None else []
        found: dict[bytes, Row] = {}
        lost, reached = set(keys), b""
        for node in others:
            try:
                given = await host.call(node, "cohort.rows", {"keys": keys}, timeout_s=REPAIR_TIMEOUT_S)
                rows = checked_rows(given, partition)
            except OnyxqError as error:
                log.info("node %s cannot repair rows of partition %d now: %s", node, partition, error.message)
                lost.clear()
                continue
            for row in rows:
                known = found.setdefault(row.key, row)
                found[row.key] = max(known, row, key=lambda one: rank(*one))
            if rows:  # the page may have ended after its last row
                lost = {key for key in lost if key < rows[-1].key} - found.keys()
                reached = max(reached, rows[-1].key)
        await self._keep(partition, [found[key] for key in keys if key in found])
        if not others:
            self._alone.update(lost)
        elif lost and placed is not None and placed.members == placed.target:
            await self._discard(sorted(lost))
        return [key for key in keys if reached and key > reached]

    async def _discard(self, keys: list[bytes]) -> None:
        """Delete damaged rows that no member has: their keys are damaged too, or they were never acknowledged."""
        try:
            await self._host.store.write(Batch(discard=tuple(keys)))
        except OnyxqError as error:
            log.warning("damaged rows cannot be deleted now: %s", error.message)
            return
        self._host.store.damaged.difference_update(keys)
        for key in keys:
            log.error("the row of kind %r at task %s is deleted: no member has it", key[2:3], key[3:23].hex())

    async def _keep(self, partition: int, rows: Sequence[Row]) -> None:
        if not rows:
            return
        try:
            written = await self._host.store.write(Batch(rows=rows))
        except OnyxqError as error:
            log.warning("partition %d: damaged rows cannot be repaired now: %s", partition, error.message)
            return
        self._host.pieces_added(written.pieces)
        self._host.store.damaged.difference_update(row.key for row in rows)
        log.warning("partition %d: %d damaged rows were repaired", partition, len(rows))
        self._host.metrics.repaired.add("rows", n=len(rows))
        self._host.repaired(partition)
