"""Lists of tasks made by several clients at the same moment."""

from __future__ import annotations

import time

import pytest

from tests.processes.cluster import Cluster, bounded

pytestmark = pytest.mark.anyio


@bounded(120)
async def test_pages_leave_out_no_task_of_the_same_millisecond(cluster: Cluster) -> None:
    """Ids of one millisecond are ordered by partition, for any client."""
    await cluster.start("a")
    await cluster.whole("a")
    now = (time.time_ns() // 1_000_000).to_bytes(6, "big")
    ids = [
        now + partition.to_bytes(2, "big") + maker.to_bytes(8, "big") + counter.to_bytes(4, "big")
        for partition, maker, counter in ((3, 7, 5), (5, 2, 9), (9, 9, 1), (9, 9, 2), (11, 1, 0), (40, 9, 0))
    ]
    listed: list[bytes] = []
    async with cluster.client() as client:
        for task_id in reversed(ids):
            await client.enqueue("work", b"x", id=task_id)
        after: bytes | None = None
        while len(listed) < len(ids):
            page = await client.list("work", after=after, limit=1)
            assert page.tasks, f"the list ends behind {len(listed)} of {len(ids)} tasks"
            listed += [task.id for task in page.tasks]
            after = page.after
    assert listed == ids
