"""Where the inputs of a job were before one of its earlier batches, as far as the log reaches back.

A replica has the offsets of each job's last batch only, so the log is applied again from its snapshot on. The result
is exact: entries that changed nothing, such as those of a replaced driver, do not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing

import trio
from attrs import define

from onyxq.core.errors import BadRequest, Conflict
from onyxq.core.log.interface import Record
from onyxq.core.replica import EMPTY, Job, Replica
from onyxq.history.replay import steps
from onyxq.node.collector import unpacked
from onyxq.node.log_view import LogView
from onyxq.node.node import Node

SEARCH_S = 8.0
"""Time limit for one search, in seconds. A client sends its request again after ten seconds without an answer."""


async def offsets_before(node: Node, view: LogView, job: Job, batch: int) -> bytes:
    """Return the record of the places where a batch of a job began: that of the batch before.

    Raises `BadRequest` naming the batches that are possible, `LogUnavailable`, and `Conflict` after `SEARCH_S`.
    """
    with trio.move_on_after(SEARCH_S):
        async with view.session() as session:
            origin = await session.origin()
        start = EMPTY if origin is None else await unpacked(origin.data)
        del origin
        search = _Search(start, job.id, job.submitted, batch)
        async with aclosing(view.pages(start.position + 1, node.replica.position)) as pages:
            async for page in pages:
                for record in page:
                    if found := search.look([record]):
                        return found
                    await trio.lowlevel.checkpoint()
        raise BadRequest(
            f"from_batch is {batch}, and the log does not have the beginning of this batch of job {job.id}: "
            f"it has {search.batches}",
            field="from_batch",
            hint="Replay from a time, or from the start. A log collection trims the beginnings of earlier batches.",
        )
    raise Conflict(
        f"from_batch is {batch}, and the beginning of this batch of job {job.id} was not found in the log within "
        f"{SEARCH_S:g} s",
        field="from_batch",
        hint="Replay from a time, or from the start. Or repeat the request when this peer has less to do.",
    )


@define
class _Search:
    """The replica so far, and what was found of a job on the way."""

    replica: Replica
    job: str
    submitted: int
    """Position at which it was submitted: an earlier job may have had its id."""
    batch: int
    first: int | None = None
    """The first batch of the job whose beginning is in the log."""
    last: int | None = None

    @property
    def batches(self) -> str:
        """The batches of the job whose beginnings were found so far, in words."""
        return "none" if self.first is None else f"{self.first} to {self.last}"

    def look(self, records: Sequence[Record]) -> bytes:
        """Apply records; return the offsets before the batch, once it is committed, and nothing until then."""
        for done in steps(self.replica, records):
            before, after = (replica.jobs.get(self.job) for replica in (self.replica, done.replica))
            self.replica = done.replica
            if before is None or after is None or before.batch == after.batch or after.submitted != self.submitted:
                continue
            if before.offsets:
                self.first, self.last = after.batch if self.first is None else self.first, after.batch
            if after.batch == self.batch:
                return before.offsets
        return b""
