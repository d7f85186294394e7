"""The replica at any position in the log or in this node's archive, for views of the log.

A replica follows from the records, so it is computed again from the log's origin, or from the snapshot of an archived
file. This happens in a thread beside the loop and for one request at a time.  Replicas on the way are kept. They share
their unchanged parts, and the next requested position is then near one of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any, TypeAlias

import anyio
import anyio.to_thread
from attrs import define, field, frozen

from onyxq.core import snapshot
from onyxq.core.diff import BOOKKEEPING, Change, diff
from onyxq.core.log.interface import START, Record
from onyxq.core.replica import EMPTY, Replica
from onyxq.core.step import Step
from onyxq.history import archive as archives
from onyxq.history.dump import Dump
from onyxq.history.following import ask_async, drive_async, origin, records
from onyxq.history.replay import steps

Call: TypeAlias = Callable[[str, dict[str, Any]], Awaitable[Any]]
"""Function that calls a method of the node."""

KEPT_MAX = 128
KEPT_EVERY = 250
"""Number of records between two kept replicas."""
FILES_READ = 3
"""Number of archived files before a position whose snapshots are tried; files of several peers overlap."""


@frozen
class View:
    """Some records, and the replica after the last one."""

    first: int
    """First position that can be shown."""
    origin: int
    """First position that the log still has; earlier ones are in the archive."""
    last: int
    """Last position of the log."""
    replica: Replica
    records: list[tuple[Record, Step]]
    """Records with their outcomes, oldest first."""
    changes: list[Change]
    """Changes by the last record, without the log's bookkeeping."""
    digest: str

    @property
    def at(self) -> int:
        """The shown position."""
        return self.replica.position


@define
class Past:
    """Computes and keeps earlier replicas."""

    archive: Path | None = None
    """This node's archive of trimmed records."""
    _kept: dict[int, Replica] = field(factory=dict)
    """Position -> replica, of one log."""
    _start: Replica | None = None
    """The replica of the log's origin, once known."""
    _recent: Replica = EMPTY
    """The replica before the records of the last view. The next view is often near it."""
    _turn: anyio.Lock = field(factory=anyio.Lock)

    async def view(self, call: Call, at: int | None, window: int) -> View:
        """Return the replica at a position (None: the last), with up to ``window`` records before it.

        A position that neither the log nor the archive has means the nearest one. Raises `Unavailable`, and `Corrupt`
        for a damaged file.
        """
        async with self._turn:
            origin = await self._begin(call)
            last = max(origin.position, int((await call("health", {}))["position"]))
            first = min(origin.position, await anyio.to_thread.run_sync(self._earliest))
            wanted = last if at is None else min(max(at, first), last)
            bounds = (first, origin.position, last)
            if wanted < origin.position:
                found = await anyio.to_thread.run_sync(self._archived, origin, wanted, window)
            else:
                start = self._nearest(origin, wanted - window)
                found = start, await gathered(call, start.position + 1, wanted)
            return await anyio.to_thread.run_sync(self._viewed, *found, bounds, window)

    def records_to(self, position: int) -> int:
        """Return the number of records from the origin to a position; an upper bound until the origin is known."""
        return position - (START if self._start is None else self._start.position)

    async def dump(self, call: Call) -> Dump:
        """Return the whole log from its origin on; raises `Unavailable`."""
        async with self._turn:
            start = await self._begin(call)
            last = int((await call("health", {}))["position"])
        return Dump("", None if start is EMPTY else start, await gathered(call, start.position + 1, last))

    async def _begin(self, call: Call) -> Replica:
        """Load the origin's replica and return it."""
        position = int((await call("origin", {"part": 0}))["position"])
        if self._start is None or self._start.position != position:
            packed = await ask_async(origin(), call)
            self._start = await anyio.to_thread.run_sync(snapshot.unpack, packed) if packed else EMPTY
            if self.archive is None:
                self._kept = {at: one for at, one in self._kept.items() if at > self._start.position}
        return self._start

    def _earliest(self) -> int:
        """Return the first position of the archive; without one, a position after the end of every log."""
        found = [] if self.archive is None else archives.files(self.archive)
        return max(0, found[0][0] - 1) if found else 1 << 62

    def _archived(self, origin: Replica, wanted: int, window: int) -> tuple[Replica, list[Record]]:
        """Return a replica of the archive, and the records from there to a position.

        If the archive lacks the position, this is the next replica after it, without records.
        """
        assert self.archive is not None
        files = archives.files(self.archive)
        before = [one for one in files if one[0] <= wanted]
        dump = archives.best([archives.part(*one) for one in before[-FILES_READ:]], wanted)
        if dump is None:
            dump = archives.best([archives.part(*one) for one in before], wanted)
        if dump is not None:
            start = self._nearest(dump.start, wanted - window)
            records = takewhile(lambda record: record.position <= wanted, dump.records)
            return start, [record for record in records if record.position > start.position]
        after = (archives.part(*one).dump.start for one in files if one[1] > wanted)
        return next((start for start in after if start.position > wanted), origin), []

    def _nearest(self, start: Replica, position: int) -> Replica:
        """Return the last replica in memory up to a position, or ``start``, from which the records are complete."""
        known = [one for one in (*self._kept.values(), self._recent) if start.position < one.position <= position]
        return max(known, key=lambda one: one.position, default=start)

    def _viewed(self, start: Replica, found: list[Record], bounds: tuple[int, int, int], window: int) -> View:
        done: list[tuple[Record, Step]] = []
        before = start
        by_position = {record.position: record for record in found}
        for step in steps(start, found):
            at = step.replica.position
            if at // KEPT_EVERY != before.position // KEPT_EVERY:
                self._keep(step.replica)
            if len(done) == window:
                self._recent = done.pop(0)[1].replica
            done.append((by_position[at], step))
            after, before = before, step.replica
        changes: list[Change] = []
        if done:
            changes = [one for one in diff(after, before) if one.path[0] not in BOOKKEEPING]
        return View(*bounds, before, done, changes, snapshot.digest(before))

    def _keep(self, replica: Replica) -> None:
        """Keep one more replica, and drop the one with the nearest neighbours."""
        self._kept[replica.position] = replica
        if len(self._kept) > KEPT_MAX:
            known = sorted(self._kept)
            gaps = {middle: high - low for (low, middle), (_, high) in pairwise(pairwise(known))}
            del self._kept[min(gaps, key=lambda at: (gaps[at], at))]


async def gathered(call: Call, start: int, last: int) -> list[Record]:
    """Return every record from ``start`` to ``last``; raises `Trimmed`, `Unavailable`."""
    return [record async for record in drive_async(records(start, last), call)]
