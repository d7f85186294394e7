"""Where the inputs of a job were before one of its earlier batches, as far as the log reaches back.

A replica has the offsets of each job's last batch only, so the log is applied again from its snapshot on. The result
is exact: entries that changed nothing, such as those of a replaced driver, do not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing

from attrs import define

from onyxq.core import snapshot
from onyxq.core.errors import BadRequest
from onyxq.core.log.interface import Record
from onyxq.core.replica import EMPTY, Replica
from onyxq.history.replay import steps
from onyxq.node.log_view import LogView
from onyxq.node.node import Node


async def offsets_before(node: Node, view: LogView, job: str, batch: int) -> bytes:
    """Return the record of the places where a batch of a job began: that of the batch before.

    Raises `BadRequest` naming the batches that are possible, or `LogUnavailable`.
    """
    async with view.session() as session:
        origin = await session.origin()
    start = EMPTY if origin is None else await node.offload(snapshot.unpack, origin.data)
    search = _Search(start, job, batch)
    found: bytes | None = None
    async with aclosing(view.pages(start.position + 1, node.replica.position)) as pages:
        async for page in pages:
            found = await node.offload(search.look, page)
            if found is not None:
                break
    if found:
        return found
    if found is not None:
        raise BadRequest(
            f"from_batch is {batch}, the first batch of job {job}: the log has no places before it",
            field="from_batch",
            hint="Replay from the start.",
        )
    known = "none" if search.first is None else f"{search.first} to {search.last}"
    raise BadRequest(
        f"from_batch is {batch}, and the log does not have the beginning of this batch of job {job}: it has {known}",
        field="from_batch",
        hint="Replay from a time, or from the start. A log collection trims the beginnings of earlier batches.",
    )


@define
class _Search:
    """The replica so far, and what was found of a job on the way."""

    replica: Replica
    job: str
    batch: int
    first: int | None = None
    """The first batch of the job that was committed on the way."""
    last: int | None = None

    def look(self, records: Sequence[Record]) -> bytes | None:
        """Apply records; return the offsets before the batch, once it is committed."""
        for done in steps(self.replica, records):
            before, after = (replica.jobs.get(self.job) for replica in (self.replica, done.replica))
            self.replica = done.replica
            if before is None or after is None or before.batch == after.batch:
                continue
            self.first, self.last = after.batch if self.first is None else self.first, after.batch
            if after.batch == self.batch:
                return before.offsets
        return None
