"""Anti-entropy between a leader and one node: compare digests, exchange rows that differ.

Rows are facts, and the union of both sides is right in any order. So a session may be interrupted
at any point. The next one continues there, because rows that arrived compare as equal.

Digests are compared by hour, then by leaf. For leaves that differ, the keys with checksums are
listed. If one side has no rows of a leaf, the rows are sent without a list. Rows are sent in pages,
at the speed of a `onyxq.leader.cohort.copy_pace.Pacer`. Only a few pages are in memory. If both
sides have different values for one key, both stores keep the same one of the two.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import trio

from onyxq.core.errors import Corrupt
from onyxq.core.facts import Row, sealed
from onyxq.leader.cohort.copy_pace import Pacer
from onyxq.leader.cohort.member import checked_rows
from onyxq.store.store import Store

Call = Callable[[str, dict[str, Any]], Awaitable[Any]]
"""Calls a ``cohort.*`` method of the other node."""
Keep = Callable[[Sequence[Row]], Awaitable[None]]
"""Stores rows of the other node."""
Digests = Mapping[int, Sequence[int]]
"""``[rows, total]`` per hour or leaf."""

PAGE_BYTES = 1024 * 1024
PAGE_ROWS = 1_000
"""Rows in one page. A node applies a page at once, so this limits how long its clients wait."""
LISTED_ROWS = 8_000
"""Rows whose keys are compared at a time."""
FEW_ROWS, FEW_BYTES = 256, 128 * 1024
"""Most rows and bytes by which two copies differ if only the last moments of writes are missing."""


class Transfer:
    """Progress of the exchange of one partition's rows between two nodes.

    ``counted`` is called for each page with ``sent`` or ``taken``, rows and bytes.
    """

    def __init__(self, counted: Callable[[str, int, int], None]) -> None:
        self._counted = counted
        self.rows = 0
        self.bytes = 0
        self.rows_left: int | None = None
        """Estimated rows still to exchange, from the difference of the digests; None before they were compared."""
        self.began = trio.current_time()

    def moved(self, direction: str, rows: int, size: int) -> None:
        """Count rows that arrived."""
        self._counted(direction, rows, size)
        self.rows += rows
        self.bytes += size
        self.rows_left = max(0, (self.rows_left or 0) - rows)

    def view(self) -> dict[str, Any]:
        """Return the rows done and left, and the seconds left at the present rate, for display."""
        passed = trio.current_time() - self.began
        rate = self.rows / passed if passed > 0 else 0.0
        return {
            "rows_done": self.rows,
            "bytes_done": self.bytes,
            "rows_left": self.rows_left,
            "seconds_left": round(self.rows_left / rate) if rate and self.rows_left is not None else None,
        }


class Exchange:
    """One comparison of a partition's rows with those of another node."""

    def __init__(
        self, *, store: Store, partition: int, epoch: int, call: Call, keep: Keep, pacer: Pacer, transfer: Transfer
    ) -> None:
        self._store = store
        self._partition = partition
        self._epoch = epoch
        self.call = call
        self._keep = keep
        self._pacer = pacer
        self._transfer = transfer
        self._page: list[list[bytes]] = []
        self._page_bytes = 0
        self._paced = True
        self.few = False
        """Whether the two sides differed by a few rows only in the last comparison.

        `run` sets it to False if the rows turn out to be too many for an unpaced exchange.
        """
        self.pushed = 0

    async def run(self, *, pull: bool, push: bool, paced: bool = True) -> bool:
        """Give one side, or both, the rows of the other; return whether anything differed.

        ``paced``: client requests have priority. Otherwise only a few rows are sent.
        """
        self._paced = paced
        theirs: Digests = await self.call("cohort.hours", {"partition": self._partition})
        mine = _plain(self._store.hours(self._partition))
        differing = _differing(mine, theirs)
        self.few = sum(_missing(mine.get(hour), theirs.get(hour)) for hour in differing) <= FEW_ROWS
        self._transfer.rows_left = sum(
            _missing(mine.get(hour), theirs.get(hour), pull=pull, push=push) for hour in differing
        )
        for hour in differing:
            await self._hour(hour, pull=pull, push=push, known=hour in theirs)
        await self._flush()
        self._transfer.rows_left = 0
        return bool(differing)

    async def _hour(self, hour: int, *, pull: bool, push: bool, known: bool) -> None:
        where = {"partition": self._partition, "hour": hour}
        theirs: Digests = await self.call("cohort.leaves", where) if known else {}
        mine = _plain(self._store.leaves(self._partition, hour))
        differing = _differing(mine, theirs)
        if push:
            for leaf in (leaf for leaf in differing if leaf not in theirs):
                await self._push(key for key, _ in self._store.keys(self._partition, hour, leaf))
        for leaves in _grouped([leaf for leaf in differing if leaf in theirs], mine, theirs):
            await self._leaves(hour, leaves, pull=pull, push=push)

    async def _leaves(self, hour: int, leaves: list[int], *, pull: bool, push: bool) -> None:
        where = {"partition": self._partition, "hour": hour, "leaves": leaves}
        theirs = {(key, checksum) for key, checksum in await self.call("cohort.keys", where)}
        mine = {listed for leaf in leaves for listed in self._store.keys(self._partition, hour, leaf)}
        if pull:
            await self._pull(self._wanted(theirs - mine))
        if push:
            await self._push(sorted(key for key, _ in mine - theirs))

    def _wanted(self, listed: set[tuple[bytes, bytes]]) -> list[bytes]:
        """Return the sorted keys of rows to fetch: purged tasks do not come back."""
        purged = self._store.watermark(self._partition)
        return sorted(key for key, _ in listed if not purged.covers(key[3:23]))

    async def _pull(self, keys: list[bytes]) -> None:
        missing = 0
        while keys:
            asked = keys[:PAGE_ROWS]
            async with self._pacer.page() if self._paced else nullcontext():
                given = await self.call("cohort.rows", {"keys": asked})
                rows = checked_rows(given, self._partition)
                await self._keep(rows)
            size = sum(len(row.value) for row in rows)
            self._transfer.moved("taken", len(rows), size)
            if self._paced:
                await self._pacer.took(size)
            got = {row.key for row in rows}
            # A page has a size limit, so the keys after its last row are requested next.
            last = max(got, default=asked[-1])
            missing += sum(key <= last and key not in got and self._store.get(key) is None for key in asked)
            keys = [key for key in keys if key > last]
        if missing:
            # The rows are damaged on the other node and missing here. They may exist only there, so this is an
            # error.
            raise Corrupt(f"{missing} rows of partition {self._partition} were listed but not given")

    async def _push(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            value = self._store.get(key)
            if value is None:
                continue
            if not sealed(key, value):
                self._store.damaged.add(key)
                continue
            if not self._paced and self._page_bytes + len(value) > FEW_BYTES:
                self.few = False
                return
            self._page.append([key, value])
            self._page_bytes += len(value)
            if self._page_bytes >= PAGE_BYTES or len(self._page) >= PAGE_ROWS:
                await self._flush()

    async def _flush(self) -> None:
        page, size = self._page, self._page_bytes
        if not page:
            return
        self._page, self._page_bytes = [], 0
        async with self._pacer.page() if self._paced else nullcontext():
            await self.call("cohort.push", {"partition": self._partition, "epoch": self._epoch, "rows": page})
        self.pushed += len(page)
        self._transfer.moved("sent", len(page), size)
        await self._pacer.took(size)


def _plain(digests: Mapping[int, Any]) -> dict[int, list[int]]:
    return {bucket: list(digest) for bucket, digest in digests.items()}


def _differing(mine: Digests, theirs: Digests) -> list[int]:
    return sorted(bucket for bucket in mine.keys() | theirs.keys() if mine.get(bucket) != theirs.get(bucket))


def _missing(mine: Sequence[int] | None, theirs: Sequence[int] | None, *, pull: bool = True, push: bool = True) -> int:
    """Return by how many rows one side exceeds the other, in the directions that are exchanged."""
    ahead = (mine[0] if mine else 0) - (theirs[0] if theirs else 0)
    return ahead if ahead > 0 and push else -ahead if ahead < 0 and pull else 0


def _grouped(leaves: Sequence[int], mine: Digests, theirs: Digests) -> Iterator[list[int]]:
    """Yield the leaves in groups of about `LISTED_ROWS` rows."""
    group: list[int] = []
    rows = 0
    for leaf in leaves:
        group.append(leaf)
        rows += max(digests.get(leaf, (0, 0))[0] for digests in (mine, theirs))
        if rows >= LISTED_ROWS:
            yield group
            group, rows = [], 0
    if group:
        yield group
