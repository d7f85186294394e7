"""A disk changes bytes while its node is stopped: no worker gets a wrong payload."""

from __future__ import annotations

import random
import re
from pathlib import Path

import lmdb
import pytest

from onyxq.core.facts import sealed
from onyxq.errors import OnyxqError
from onyxq.store.integrity.lmdb_check import DATA
from tests.processes.cluster import Cluster, PeerProcess, bounded
from tests.processes.workload import all_there, spread

pytestmark = [pytest.mark.anyio, pytest.mark.long]

NAMES = ("a", "b", "c")
TASKS = 2_000
FLIPPED = 1_000


@bounded(240)
async def test_a_store_with_a_thousand_flipped_bytes_is_filled_from_the_others(cluster: Cluster) -> None:
    """Its node returns empty under its id; every copy is completed, and every task is as before."""
    for name in (*NAMES, "d"):
        cluster.add(name, data=cluster.root / "c" if name == "d" else None)
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
    assert cluster["d"].node == damaged.node
    assert "set aside" in cluster["d"].tail()
    await cluster.whole("a", "b", "d", seconds=120)
    await cluster.replicated(cluster["d"])
    await cluster["a"].terminate()
    async with cluster.client("b", "d") as client:
        await all_there(cluster, client, "work", dict.fromkeys(ids, "ready"))
        for task, payload in payloads.items():
            assert (await client.get(task)).data == payload


@bounded(240)
async def test_rows_with_a_thousand_flipped_bytes_are_repaired_one_by_one(cluster: Cluster) -> None:
    """The pages are consistent, so the node stays the same; no worker ever gets a wrong payload."""
    for name in NAMES:
        cluster.add(name)
    await cluster.start(*NAMES)
    await cluster.whole(*NAMES)
    async with cluster.client() as client:
        given: dict[bytes, bytes] = {}
        for number in range(0, TASKS, 5):
            payloads = [b"task %d " % (number + place) * 20 for place in range(5)]
            given.update(zip(await client.enqueue_many("work", payloads), payloads, strict=True))
    await cluster.replicated(cluster["a"])
    damaged = cluster["c"]
    node = damaged.node
    await damaged.terminate()
    rows = flip_in_rows(damaged.data / DATA)
    assert rows > 200
    await cluster.start("c")
    assert (damaged.node, "set aside" in damaged.tail()) == (node, False)
    taken: dict[bytes, bytes] = {}
    async with cluster.client("c", "a") as client:
        while len(taken) < TASKS:
            try:
                claims = await client.claim(["work"], max=100, wait_ms=2_000, lease_ms=600_000)
            except OnyxqError:
                continue  # the partitions are moving to the returned node now
            taken.update({claim.id: claim.data for claim in claims})
    assert taken == given

    async def repaired() -> bool:
        found = await metrics(cluster, damaged)
        return found["onyxq_scrub_rounds_total"] > 0 and found["onyxq_damaged_rows"] == 0

    await cluster.until("the repair of all rows", repaired, seconds=60)
    # Anti-entropy may have repaired some first, which are not counted; no damage is left, as checked below.
    assert (await metrics(cluster, damaged))['onyxq_repaired_total{what="rows"}'] > 0
    await damaged.terminate()
    assert unsound(damaged.data) == []


def flip_in_rows(path: Path) -> int:
    """Flip bytes of a closed store, only in values of rows; return how many rows were hit."""
    data = bytearray(path.read_bytes())
    chosen = random.Random(5)
    places = [
        found.start() + place
        for _, value in sorted(rows_of(path.parent).items())
        # Free pages may have older copies of a row, which are hit too.
        for found in re.finditer(re.escape(value), data)
        for place in range(len(value))
    ]
    for place in chosen.sample(places, FLIPPED):
        data[place] ^= chosen.randrange(1, 256)
    path.write_bytes(data)
    return len(unsound(path.parent))


def rows_of(directory: Path) -> dict[bytes, bytes]:
    """Return all rows of a closed store."""
    with lmdb.open(str(directory), max_dbs=20, lock=False, readonly=True) as env:
        table = env.open_db(b"rows", create=False)
        with env.begin(db=table) as txn:
            return {bytes(key): bytes(value) for key, value in txn.cursor()}


def unsound(directory: Path) -> list[bytes]:
    """Return the keys of rows that do not match their checksum."""
    return [key for key, value in rows_of(directory).items() if not sealed(key, value)]


async def metrics(cluster: Cluster, peer: PeerProcess) -> dict[str, float]:
    """Return a peer's metrics by name and labels."""
    text = (await cluster.send(peer, "GET", "/metrics")).text
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}
