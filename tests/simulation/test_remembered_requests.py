"""Idempotency keys on a whole cluster: the first request under a key is the same for all, whatever leaders do."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import trio
from attrs import evolve

from onyxq.core.limits import REQUESTS_QUEUE
from onyxq.errors import OnyxqError
from simulation.scenes.rules import lead_elsewhere
from simulation.world.world import World, simulate
from tests.simulation.scheduled import STEADY

SHORT = evolve(STEADY, purge_bucket_ms=2_000, purge_margin_ms=20_000)
PASSED_S = 60.0
"""Time in which everything that may be purged is purged."""
KEYS, CLIENTS, REPEATS = 6, 4, 5


def asked(key: int, number: int) -> dict[str, Any]:
    """Return a request under a key; its body tells which one it is."""
    return {"key": bytes([key]) * 16, "request": {"body": bytes([number]) * 16, "at_ms": number, "partitions": [0]}}


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1, 5))
def test_all_who_use_a_key_get_the_same_first_request(seed: int) -> None:
    """Clients race for keys at several nodes and repeat their requests, while leaders die."""
    first: dict[int, set[int]] = {}

    async def race(world: World, number: int) -> None:
        async with world.client() as client:
            for turn in range(KEYS * REPEATS):
                try:
                    answer = await client.client.call("request.remember", asked(turn % KEYS, number))
                except OnyxqError:
                    continue  # the repeat tells what is stored
                first.setdefault(turn % KEYS, set()).add(answer["first"]["at_ms"])
                await trio.sleep(world.random.uniform(0, 0.5))

    async def workload(world: World) -> None:
        async with trio.open_nursery() as nursery:
            for number in range(CLIENTS):
                nursery.start_soon(partial(race, world, number + 1))
            for _ in range(2):
                await trio.sleep(world.random.uniform(0.5, 2))
                await lead_elsewhere(world)
        await world.settle()
        assert {key: len(found) for key, found in first.items()} == dict.fromkeys(range(KEYS), 1)
        async with world.client() as client:
            counts = (await client.client.count(REQUESTS_QUEUE))[REQUESTS_QUEUE]
            assert (counts["total"], counts["completed"]) == (KEYS, KEYS)

    simulate(workload, seed=seed, options=STEADY)


def test_a_key_is_new_again_once_its_request_is_purged() -> None:
    """The retention of the queue of requests decides; a look alone stores nothing."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            ask = client.client.call
            await client.client.set_queue(REQUESTS_QUEUE, retention_ms=5_000)
            assert (await ask("request.remember", {"key": b"\1" * 16}))["first"] is None
            for number in (1, 2):
                assert (await ask("request.remember", asked(1, number)))["first"]["at_ms"] == 1
            await trio.sleep(PASSED_S)
            assert (await ask("request.remember", asked(1, 3)))["first"]["at_ms"] == 3

    simulate(workload, seed=1, options=SHORT)
