"""A replica with 200,000 claims in flight as the origin in a real ZooKeeper."""

from __future__ import annotations

import random

import pytest
import trio
from attrs import evolve
from pyrsistent import pmap

from onyxq.core import snapshot
from onyxq.core.replica import EMPTY, ClaimPiece, Partition, Replica
from onyxq.log.zookeeper import ZookeeperBackend
from onyxq.log.zookeeper_origin import CHUNK_BYTES
from onyxq.log.zookeeper_server import ZookeeperServer
from onyxq.node.collector import packed, unpacked
from tests.conformance.log_world import session_with

pytestmark = [pytest.mark.anyio, pytest.mark.long]

CLAIMS = 200_000
PARTITIONS = 64


def crowded() -> Replica:
    """Make a replica in which every claim has a task, a token and a stretch of its own."""
    chance = random.Random(1)
    claims: dict[int, dict[bytes, tuple[ClaimPiece, ...]]] = {number: {} for number in range(PARTITIONS)}
    for number in range(CLAIMS):
        partition = number % PARTITIONS
        head = (1_700_000_000_000 + number).to_bytes(6, "big") + partition.to_bytes(2, "big")
        stretch = head + chance.getrandbits(64).to_bytes(8, "big") + bytes(4)
        claims[partition][stretch] = ((number % 1_024, 1, number, f"worker-{number % 50}", 30_000 + number),)
    return evolve(
        EMPTY,
        position=CLAIMS,
        partitions=pmap({number: Partition() for number in range(PARTITIONS)}),
        claims=pmap({number: pmap(found) for number, found in claims.items()}),
    )


async def test_two_hundred_thousand_claims_are_stored_and_loaded(zookeeper: ZookeeperServer, cluster: str) -> None:
    """It is stored in chunks, loaded by another session and equal; other tasks run while it is packed and built."""
    replica = crowded()
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    with trio.fail_after(300):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(others)
            data = await packed(replica)
            while_packed, turns = turns, 0
            backend = ZookeeperBackend(zookeeper.hosts, cluster)
            async with session_with(backend) as writer, session_with(backend) as reader:
                assert await writer.store_origin(replica.position, data, expected_version=-1)
                origin = await reader.origin()
            assert origin is not None
            turns = 0
            again = await unpacked(origin.data)
            while_built = turns
            nursery.cancel_scope.cancel()
    assert len(data) > 5 * CHUNK_BYTES, "this is to be an origin of many chunks"
    assert again == replica
    assert snapshot.digest(again) == snapshot.digest(replica)
    slices = len(data) // snapshot.SLICE_BYTES
    assert while_packed > slices and while_built > slices
