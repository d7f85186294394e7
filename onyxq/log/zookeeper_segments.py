"""Segments of the ZooKeeper log: the present one, the end of each, and opening the next.

ZooKeeper numbers the children of a directory with a signed 32-bit number, so a log continues
in another directory before it runs out (design: the log).  One transaction creates the next
segment's directory and, as the last child of the present one, its *end*; both carry the
transaction's id.  By that id readers distinguish the end from bytes that only look like it.
They also distinguish records that landed before the end from those after it, which are never
read.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from kazoo.exceptions import NodeExistsError, NoNodeError, NotEmptyError

from onyxq.core.errors import Corrupt, LogUnavailable
from onyxq.core.log.interface import START, segment_of, segment_start
from onyxq.log.kazoo_client import BROKEN, Link, create, delete, exists, sync
from onyxq.log.zookeeper_reader import END, Layout


class Segments:
    """The present segment of one cluster's log, as of the last look."""

    def __init__(
        self, link: Link, layout: Layout, *, records: int, origin_position: Callable[[], Awaitable[int]]
    ) -> None:
        self.present = 0
        self._link = link
        self._layout = layout
        self._records = records
        self._origin_position = origin_position

    async def open(self) -> None:
        """Find the present segment; in an empty log create the first."""
        origin = await self._origin_position()
        self.present = segment_of(origin)
        if origin == START:
            try:
                await self._link.insist(create(self._layout.segment(0)))
            except NodeExistsError:
                pass
        await self.look()

    async def look(self) -> bool:
        """Advance to the newest segment; return whether it is newer than the known one."""
        known = self.present
        if not await self._is_there(known):  # trimmed altogether, and perhaps also those after it
            self.present = max(known, segment_of(await self._origin_position()))
        while await self._is_there(self.present + 1):
            self.present += 1
        return self.present > known

    async def _is_there(self, segment: int) -> bool:
        return await self._link.insist(exists(self._layout.segment(segment))) is not None

    def may_be_behind(self, sequence: int) -> bool:
        """Return whether a record of the present segment may have landed after its end; `is_behind` decides."""
        return sequence > self._records

    async def is_behind(self, segment: int, stat: Any) -> bool:
        """Return whether the record with this stat landed after the segment's end; raises kazoo's errors."""
        following = await self._link.call_patiently(exists(self._layout.segment(segment + 1)))
        return following is not None and stat.czxid > following.czxid

    async def written(self, segment: int) -> int:
        """Return how many records were ever created in a segment; 0 if the segment does not exist.

        ZooKeeper counts creations for the sequence. Its ``cversion`` is twice that, less the number
        of children (checked against real servers in the tests).
        """
        stat = await self._link.insist(exists(self._layout.segment(segment)))
        return 0 if stat is None else ((stat.cversion + stat.numChildren) & 0xFFFFFFFF) >> 1

    async def tail(self) -> int:
        """Return the position of the last record written, exact as of the call; START if there is none."""
        await self._link.insist(sync(self._layout.log))
        while True:
            await self.look()
            count = await self.written(self.present)
            if not await self.look():
                break
        if count or not self.present:
            return segment_start(self.present) + count - 1
        return await self._end(self.present - 1) - 1

    async def _end(self, segment: int) -> int:
        """Return the position of a closed segment's end; only a few records of late writers follow it."""
        following = await self._link.insist(exists(self._layout.segment(segment + 1)))
        first = segment_start(segment)
        for position in range(first + await self.written(segment) - 1, first - 1, -1):
            stat = await self._link.insist(exists(self._layout.record(position)))
            if stat is not None and stat.czxid == following.czxid:
                return position
        raise Corrupt(f"the end of segment {segment} of the log is missing")

    async def rotate(self) -> bool:
        await self.look()
        segment = self.present
        while await self.written(segment) >= self._records and not await self.look():
            try:
                answers = await self._link.call(lambda client: self._close(client, segment))
            except BROKEN:  # the next look shows whether it was carried out
                await self._link.pause()
                continue
            errors = [answer for answer in answers if isinstance(answer, Exception)]
            if any(isinstance(error, NodeExistsError) for error in errors):
                await self._link.insist(sync(self._layout.log))  # another client closed it, and we must see that
            elif errors:
                raise LogUnavailable(f"ZooKeeper refuses to open a segment: {errors[0]!r}")
        return self.present > segment

    def _close(self, client: Any, segment: int) -> Any:
        transaction = client.transaction()
        transaction.create(self._layout.segment(segment + 1))
        transaction.create(f"{self._layout.segment(segment)}/e-", END, sequence=True)
        return transaction.commit_async()

    async def drop(self, segment: int) -> bool:
        """Delete a closed segment's directory; return False if there are records in it (again)."""
        try:
            await self._link.insist(delete(self._layout.segment(segment)))
        except NotEmptyError:
            return False
        except NoNodeError:
            pass
        return True
