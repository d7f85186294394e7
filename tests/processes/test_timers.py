"""Timers on real peers: none is early by the leader's clock, none is lost when a leader is killed.

All leaders have the clock of this machine. The load is that of `bench.timers`.
"""

from __future__ import annotations

import os
import random

import pytest
import trio

from bench.timers import Timers, wall_ms, work
from tests.processes.cluster import SESSION_TIMEOUT_MS, Cluster, PeerProcess, bounded

pytestmark = [pytest.mark.anyio, pytest.mark.long]

TIMERS = int(os.environ.get("ONYXQ_TEST_TIMERS", "1000"))
SECONDS = int(os.environ.get("ONYXQ_TEST_SECONDS", "6"))
"""Time in which timers are due; before a release there are 50,000 timers in 60 seconds."""
NAMES = ("a", "b", "c")
SET_PER_S = 500
"""Timers that can be set in a second even on a busy machine."""
WORKERS_PER_PEER = 4
LATE_MS_MAX = 2_000
"""Longest delay, far above that of an idle machine, because this is not a test of speed."""
TAKEOVER_MS_MAX = 10_000
"""Longest time from the end of a killed leader's session to its last timer, on a busy machine."""
SEED = 11


async def set_timers(cluster: Cluster) -> Timers:
    """Set timers that are all due later."""
    begin_ms = int(wall_ms() + 1_000 * (2 + TIMERS / SET_PER_S))
    timers = Timers.spread("timers", TIMERS, begin_ms=begin_ms, seconds=SECONDS, rng=random.Random(SEED))
    async with cluster.client() as client:
        await timers.set_all(client)
    assert timers.due_ms[0] > wall_ms(), "all are set before the first is due"
    return timers


async def fired(cluster: Cluster, timers: Timers, victim: PeerProcess | None = None) -> None:
    """Wait until all timers fired, with a leading peer killed and restarted meanwhile."""
    addresses = [peer.address for peer in cluster.serving]
    async with trio.open_nursery() as workers:
        for place in range(len(NAMES)):
            workers.start_soon(work, addresses, timers, place, WORKERS_PER_PEER)
        if victim is not None:
            await timers.until_fired(TIMERS // 2)
            victim.kill()
            await cluster.start(victim.name)
        await timers.all_fired()
    timers.check()


@bounded(120 + TIMERS / SET_PER_S + SECONDS)
async def test_timers_fire_in_time(cluster: Cluster) -> None:
    """Each comes once, after its due time and soon."""
    await cluster.start(*NAMES)
    await cluster.whole(*NAMES)
    timers = await set_timers(cluster)
    await fired(cluster, timers)
    found = timers.summary()
    print(found)
    assert found["p50_ms"] < LATE_MS_MAX / 4
    assert found["p99_ms"] < LATE_MS_MAX


@bounded(120 + TIMERS / SET_PER_S + SECONDS)
async def test_a_killed_leader_loses_no_timer(cluster: Cluster) -> None:
    """Its successors fire its timers soon after its session has expired."""
    await cluster.start(*NAMES)
    await cluster.whole(*NAMES)
    timers = await set_timers(cluster)
    await fired(cluster, timers, victim=cluster["a"])
    found = timers.summary()
    print(found)
    assert found["max_ms"] < SESSION_TIMEOUT_MS + TAKEOVER_MS_MAX
