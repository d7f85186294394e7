"""The replica at any position that the log still has, for views of the log.

A replica follows from the records, so it is computed again from the log's origin, in a thread beside the loop and for
one request at a time.  Replicas on the way are kept. They share their unchanged parts, and the next requested
position is then near one of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any, TypeAlias

import anyio
import anyio.to_thread
from attrs import define, field, frozen

from onyxq.core import snapshot
from onyxq.core.diff import BOOKKEEPING, Change, diff
from onyxq.core.log.interface import START, Record
from onyxq.core.replica import EMPTY, Replica
from onyxq.core.step import Step
from onyxq.history.dump import Dump
from onyxq.history.following import ask_async, drive_async, origin, records
from onyxq.history.replay import steps

Call: TypeAlias = Callable[[str, dict[str, Any]], Awaitable[Any]]
"""Function that calls a method of the node."""

KEPT_MAX = 128
KEPT_EVERY = 250
"""Number of records between two kept replicas."""


@frozen
class View:
    """Some records, and the replica after the last one."""

    first: int
    """First position that the log still has."""
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

    _kept: dict[int, Replica] = field(factory=dict)
    """Position -> replica, of one log."""
    _origin: int | None = None
    _turn: anyio.Lock = field(factory=anyio.Lock)

    async def view(self, call: Call, at: int | None, window: int) -> View:
        """Return the replica at a position (None: the last), with up to ``window`` records before it.

        A position that the log does not have means the nearest one. Raises `Unavailable`.
        """
        async with self._turn:
            first = await self._begin(call)
            last = max(first, int((await call("health", {}))["position"]))
            wanted = last if at is None else min(max(at, first), last)
            start = self._nearest(max(first, wanted - window))
            found = await gathered(call, start.position + 1, wanted)
            return await anyio.to_thread.run_sync(self._viewed, start, found, (first, last, window))

    def records_to(self, position: int) -> int:
        """Return the number of records from the origin to a position; an upper bound until the origin is known."""
        return position - (START if self._origin is None else self._origin)

    async def dump(self, call: Call) -> Dump:
        """Return the whole log from its origin on; raises `Unavailable`."""
        async with self._turn:
            first = await self._begin(call)
            last = int((await call("health", {}))["position"])
            start = self._kept[first]
        return Dump("", None if start is EMPTY else start, await gathered(call, first + 1, last))

    async def _begin(self, call: Call) -> int:
        """Load the origin's replica and return its position."""
        position = int((await call("origin", {"part": 0}))["position"])
        if self._origin != position:
            packed = await ask_async(origin(), call)
            replica = await anyio.to_thread.run_sync(snapshot.unpack, packed) if packed else EMPTY
            self._kept = {at: one for at, one in self._kept.items() if at > replica.position}
            self._kept[replica.position] = replica
            self._origin = replica.position
        return self._origin

    def _nearest(self, position: int) -> Replica:
        return self._kept[max(at for at in self._kept if at <= position)]

    def _viewed(self, start: Replica, found: list[Record], bounds: tuple[int, int, int]) -> View:
        first, last, window = bounds
        done: list[tuple[Record, Step]] = []
        before = start
        by_position = {record.position: record for record in found}
        for step in steps(start, found):
            at = step.replica.position
            if at // KEPT_EVERY != before.position // KEPT_EVERY:
                self._keep(step.replica)
            if len(done) == window:
                done.pop(0)
            done.append((by_position[at], step))
            after, before = before, step.replica
        changes: list[Change] = []
        if done:
            changes = [one for one in diff(after, before) if one.path[0] not in BOOKKEEPING]
        return View(first, last, before, done, changes, snapshot.digest(before))

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
