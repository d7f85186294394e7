"""Repair: rows that do not match their checksum are found and fetched from another holder.

Whoever reads a damaged row notes it in the store; besides, every row is read once in a
while, a little at a time, so that rot is found while the other copies are still sound.
So are the indexes, counts and digests, which are mended from the rows that are here.

A round begins when the store is opened and goes on in slices of a few milliseconds: with
short pauses while nobody asks the node for anything, else with long ones.  The longer a
round's work is, the longer it rests before the next, so it is a small part of all work.
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
from onyxq.store.interface import Batch, Mending, Piece, Store
from onyxq.system.metrics import Metrics

LOOK_EVERY_S = 1.0
SCRUB_BYTES = 1024 * 1024
"""About `SLICE_S` of work, the most that is checked at once."""
GRAIN_BYTES = 16 * 1024
"""What is checked between two looks at the clock: how much work bytes are depends on what they are."""
SLICE_S = 0.005
"""How long a slice lasts, during which the node does nothing else."""
QUIET_PAUSE_S = 0.01
"""Between two slices while nobody asks for anything: a third of a core is used."""
BUSY_PART, BUSY_PAUSE_S = 5, 0.1
"""While clients are served a slice is a fifth as long: a claim that waits for one is not much slower."""
SCRUB_PAUSE_S = 60.0
"""From the end of one round to the next, at least."""
REST = 100
"""The same as a multiple of the round's own work: scrubbing is a hundredth of a core at most."""
RETRY_EVERY_S = 10.0
SEEK_MAX = 16
"""Rows whose true key is sought at once: each takes some ms."""
MEND_MAX = 64
"""Stretches and entries that are mended at a look."""
REPAIR_ROWS = 256
REPAIR_TIMEOUT_S = 10.0

log = logging.getLogger(__name__)


class RepairHost(Protocol):
    """What repairing needs of its node."""

    node_id: str
    store: Store
    replica: Replica
    metrics: Metrics

    @property
    def quiet(self) -> bool:
        """Whether nobody asks the node for anything."""
        ...

    async def call(self, node: str, method: str, args: dict[str, Any], *, timeout_s: float) -> Any:
        """Call a method of another node; raises `Unavailable`."""
        ...

    def pieces_added(self, pieces: Sequence[Piece]) -> None:
        """New pieces are in the store."""
        ...

    def repaired(self, partition: int, rows: int) -> None:
        """Rows of a partition can be read again."""
        ...


class Repair:
    """See the module's first paragraph."""

    def __init__(self, host: RepairHost) -> None:
        self._host = host
        self._after = b""
        self._slices = 0.0
        """Those of the present round."""
        self._scrub_at_s = 0.0
        self._took_s = 0.0
        """By the clock, the last slice."""
        self._told: dict[bytes, float] = {}
        """Damaged rows that could not be repaired, and when to try again."""
        self._sought: set[bytes] = set()
        """Those that nobody else has, after it was tried whether only their key was changed."""

    async def run(self) -> None:
        """Look for damaged rows and repair them until cancelled."""
        store, look_at_s = self._host.store, 0.0
        while True:
            await trio.sleep(self._pause_s())
            if trio.current_time() >= self._scrub_at_s:
                self._scrub()
            if store.crooked:
                await self._mend(store.crooked.take(MEND_MAX))
            if trio.current_time() >= look_at_s:
                look_at_s = trio.current_time() + LOOK_EVERY_S
                if store.damaged:
                    await self._repair()
                self._host.metrics.damaged_rows.set(len(store.damaged))

    def _pause_s(self) -> float:
        if not self._after:
            return LOOK_EVERY_S
        part, pause_s = self._pace()
        # One thing may be more than a slice: a stretch of a thousand rows is looked at whole.
        return pause_s * max(1.0, self._took_s * part / SLICE_S)

    def _pace(self) -> tuple[int, float]:
        """What part of a slice is made at once, and the pause behind it."""
        return (1, QUIET_PAUSE_S) if self._host.quiet else (BUSY_PART, BUSY_PAUSE_S)

    def _scrub(self) -> None:
        """Check one slice more."""
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

    async def _mend(self, found: Mending) -> None:
        """Put right what can be told from the rows that are here."""
        try:
            written = await self._host.store.write(Batch(mend=found))
        except OnyxqError as error:
            log.warning("what does not agree with the rows cannot be mended now: %s", error.message)
            return
        self._host.pieces_added(written.pieces)
        amount = sum(map(len, (found.stretches, found.entries, found.partitions, found.leaves)))
        self._host.metrics.repaired.add("entries", n=amount)
        if amount:
            log.warning("%d entries or sums that did not agree with the rows were mended", amount)

    async def _repair(self) -> None:
        store, damaged = self._host.store, self._host.store.damaged
        for key in sorted(damaged):
            value = store.get(key)
            if value is None or sealed(key, value):
                damaged.discard(key)  # dropped, or repaired by anti-entropy
        now_s = trio.current_time()
        self._told = {key: at_s for key, at_s in self._told.items() if key in damaged}
        self._sought &= damaged
        by_partition: dict[int, list[bytes]] = {}
        for key in sorted(damaged):
            if key not in self._told:
                log.error("the row of kind %r at task %s is damaged", key[2:3], key[3:23].hex())
            if self._told.get(key, 0.0) <= now_s:
                self._told[key] = now_s + RETRY_EVERY_S
                by_partition.setdefault(partition_of_key(key), []).append(key)
        for partition, keys in by_partition.items():
            for start in range(0, len(keys), REPAIR_ROWS):
                await self._fetch(partition, keys[start : start + REPAIR_ROWS])

    async def _fetch(self, partition: int, keys: list[bytes]) -> None:
        """Ask every holder: one that is not up to date may hold what another leader had made of a row."""
        host = self._host
        placed = host.replica.partitions.get(partition)
        found: dict[bytes, Row] = {}
        for node in holders(placed) if placed is not None else ():
            if node == host.node_id:
                continue
            try:
                given = await host.call(node, "cohort.rows", {"keys": keys}, timeout_s=REPAIR_TIMEOUT_S)
                for row in checked_rows(given, partition):
                    known = found.setdefault(row.key, row)
                    found[row.key] = max(known, row, key=lambda one: rank(*one))
            except OnyxqError as error:
                log.info("node %s repairs nothing of partition %d: %s", node, partition, error.message)
        await self._keep(partition, [found[key] for key in keys if key in found])
        unknown = [key for key in keys if key not in found and key not in self._sought][:SEEK_MAX]
        if unknown:
            self._sought.update(unknown)
            await self._mend(Mending(rows=tuple(unknown)))

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
        self._host.repaired(partition, len(rows))
