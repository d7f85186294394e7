"""A disk that changed bytes while its node was stopped: nobody is given a wrong payload."""

from __future__ import annotations

import random

import pytest

from onyxq.store.soundness import DATA
from tests.processes.cluster import Cluster, bounded
from tests.processes.workload import all_there, spread

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

NAMES = ("a", "b", "c")
TASKS = 2_000
FLIPPED = 1_000
ABSENT_AFTER_MS = 5_000


@bounded(240)
async def test_a_store_with_a_thousand_flipped_bytes_is_filled_from_the_others(cluster: Cluster) -> None:
    """Its node comes back empty, as another; every copy is whole again and every task is what it was."""
    for name in (*NAMES, "d"):
        peer = cluster.add(name, data=cluster.root / "c" if name == "d" else None)
        peer.surroundings["ONYXQ_ABSENT_AFTER_MS"] = str(ABSENT_AFTER_MS)
    await cluster.start(*NAMES)
    await cluster.whole(*NAMES)
    async with cluster.client() as client:
        ids = await spread(client, "work", TASKS)
        payloads = {task: (await client.get(task)).data for task in ids[::20]}
    damaged = cluster["c"]
    await damaged.terminate()
    path = damaged.data / DATA
    data = bytearray(path.read_bytes())
    chosen = random.Random(4)
    for _ in range(FLIPPED):
        data[chosen.randrange(len(data))] ^= chosen.randrange(1, 256)
    path.write_bytes(data)
    await cluster.start("d")
    assert cluster["d"].node != damaged.node
    assert "set aside" in cluster["d"].tail()
    await cluster.whole("a", "b", "d", seconds=120)
    await cluster.replicated(cluster["d"])
    await cluster["a"].terminate()
    async with cluster.client("b", "d") as client:
        await all_there(cluster, client, "work", dict.fromkeys(ids, "ready"))
        for task, payload in payloads.items():
            assert (await client.get(task)).data == payload
