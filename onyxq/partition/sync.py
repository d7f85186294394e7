"""Anti-entropy between a leader and one node: compare digests, exchange what differs.

Rows are facts: the union of both sides is right whatever the order, so a session may be
cut anywhere and begun again.  Digests are compared by hour, then by leaf, then keys with
checksums are listed for the leaves that differ, and rows travel in pages.  Where both
sides hold another value under one key their stores keep the same of the two.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from onyxq.errors import Corrupt
from onyxq.facts import Row, sealed
from onyxq.partition.cohort import KEYS_PAGE, ROWS_PAGE_BYTES, checked_rows
from onyxq.store.interface import Store

Call = Callable[[str, dict[str, Any]], Awaitable[Any]]
"""Calls a ``cohort.*`` method of the other node."""
Keep = Callable[[Sequence[Row]], Awaitable[None]]
"""Stores rows that the other node has."""

LEAVES_PAGE = 16


class Exchange:
    """One comparison of a partition's rows here and on another node."""

    def __init__(self, *, store: Store, partition: int, epoch: int, call: Call, keep: Keep) -> None:
        self._store = store
        self._partition = partition
        self._epoch = epoch
        self._call = call
        self._keep = keep
        self.pulled = 0
        self.pushed = 0

    async def differing(self) -> list[tuple[int, list[int]]]:
        """``(hour, leaves)`` whose digests differ."""
        theirs = await self._call("cohort.hours", {"partition": self._partition})
        mine = {hour: list(digest) for hour, digest in self._store.hours(self._partition).items()}
        found = []
        for hour in sorted(theirs.keys() | mine.keys()):
            if theirs.get(hour) == mine.get(hour):
                continue
            their_leaves = await self._call("cohort.leaves", {"partition": self._partition, "hour": hour})
            my_leaves = {leaf: list(digest) for leaf, digest in self._store.leaves(self._partition, hour).items()}
            leaves = sorted(
                leaf for leaf in their_leaves.keys() | my_leaves.keys() if their_leaves.get(leaf) != my_leaves.get(leaf)
            )
            found.append((hour, leaves))
        return found

    async def run(self, *, pull: bool, push: bool) -> bool:
        """Make one side, or both, hold what the other has; whether anything differed."""
        differing = await self.differing()
        for hour, leaves in differing:
            for start in range(0, len(leaves), LEAVES_PAGE):
                page = leaves[start : start + LEAVES_PAGE]
                await self._leaves(hour, page, pull=pull, push=push)
        return bool(differing)

    async def _leaves(self, hour: int, leaves: list[int], *, pull: bool, push: bool) -> None:
        where = {"partition": self._partition, "hour": hour, "leaves": leaves}
        theirs = {(key, checksum) for key, checksum in await self._call("cohort.keys", where)}
        mine = {listed for leaf in leaves for listed in self._store.keys(self._partition, hour, leaf)}
        if pull:
            await self._pull(sorted(key for key, _ in theirs - mine))
        if push:
            await self._push(sorted(key for key, _ in mine - theirs))

    async def _pull(self, keys: list[bytes]) -> None:
        missing = 0
        while keys:
            asked = keys[:KEYS_PAGE]
            given = await self._call("cohort.rows", {"keys": asked})
            rows = checked_rows(given, self._partition)
            await self._keep(rows)
            self.pulled += len(rows)
            got = {row.key for row in rows}
            # The page ends at a size limit: whatever was asked behind its last row comes next.
            last = max(got, default=asked[-1])
            missing += sum(key <= last and key not in got and self._store.get(key) is None for key in asked)
            keys = [key for key in keys if key > last]
        if missing:
            # Damaged there, and not here: what only that node has must not be passed over.
            raise Corrupt(f"{missing} rows of partition {self._partition} were listed but not given")

    async def _push(self, keys: list[bytes]) -> None:
        page: list[list[bytes]] = []
        size = 0
        for key in keys:
            value = self._store.get(key)
            if value is None:
                continue
            if not sealed(key, value):
                self._store.damaged.add(key)
                continue
            page.append([key, value])
            size += len(value)
            if size >= ROWS_PAGE_BYTES or len(page) >= KEYS_PAGE:
                await self._send(page)
                page, size = [], 0
        if page:
            await self._send(page)

    async def _send(self, page: list[list[bytes]]) -> None:
        await self._call("cohort.push", {"partition": self._partition, "epoch": self._epoch, "rows": page})
        self.pushed += len(page)
