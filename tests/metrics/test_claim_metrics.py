"""Ends of claims are counted once each, at the leader, with the queue and the time that the task ran."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio

from onyxq.client import AsyncClient
from onyxq.client.claims import Claim
from onyxq.system.metrics import Histogram
from simulation.scenes.base import ONE, leader_of
from simulation.world.world import World, simulate

RAN_S = 1.5
LEASE_MS = 2_000
End = Callable[[AsyncClient, Claim], Awaitable[object]]


def counted(world: World) -> dict[str, float]:
    """Return the events of the queue ``q`` other than grants and enqueues, over all peers."""
    found: dict[str, float] = {}
    for node in world.nodes:
        for event in ("completed", "failed", "retried", "released", "expired", "cancelled"):
            count = node.inner.metrics.tasks.value("q", event) if node.inner is not None else 0
            if count:
                found[event] = found.get(event, 0) + count
    return found


def ran(world: World) -> list[Histogram]:
    """Return the run times of the peers that have any."""
    found = [node.inner.metrics.task_run_seconds for node in world.nodes if node.inner is not None]
    return [one for one in found if one.count]


def run_time(histogram: Histogram) -> float:
    """Return the sum of all run times, in seconds."""
    (line,) = (line for line in histogram.render() if line.startswith(f"{histogram.name}_sum"))
    return float(line.split()[1])


async def nothing(client: AsyncClient, claim: Claim) -> None:
    """Let the lease run out."""


ENDS: dict[str, tuple[int, End, dict[str, float], int]] = {
    "completed": (0, lambda client, claim: client.complete(claim), {"completed": 1}, 1),
    "failed for good": (0, lambda client, claim: client.fail(claim, "no"), {"failed": 1}, 1),
    "retried": (3, lambda client, claim: client.fail(claim, "no", 60_000), {"retried": 1}, 1),
    "released": (3, lambda client, claim: client.release(claim), {"released": 1}, 0),
    "postponed": (3, lambda client, claim: client.postpone(claim, 60_000), {"released": 1}, 0),
    "cancelled": (3, lambda client, claim: client.cancel(claim.id, claimed=True), {"cancelled": 1}, 0),
    "expired": (3, nothing, {"expired": 1}, 0),
    "expired for good": (0, nothing, {"expired": 1, "failed": 1}, 1),
}
"""End of a claim -> retries of the task, what its worker does, what is counted, and whether it counts as a run."""


@pytest.mark.parametrize("name", ENDS)
def test_each_end_of_a_claim_is_counted_once(name: str) -> None:
    """A run time is that of a task that its worker ended, or that failed."""
    retries, end, expected, runs = ENDS[name]

    async def workload(world: World) -> None:
        async with world.client() as recording:
            client = recording.client  # what is recorded is judged by checkers that know of no postponed task
            await client.enqueue("q", b"x", retries=retries, backoff_ms=60_000)
            (claim,) = await client.claim("q", lease_ms=LEASE_MS, wait_ms=10_000)
            await trio.sleep(RAN_S)
            await end(client, claim)
            await world.until(lambda: counted(world) == expected, f"{expected} is counted")
            await trio.sleep(1.0)
            assert counted(world) == expected
            assert [one.count for one in ran(world)] == [1] * runs
            assert all(RAN_S <= run_time(one) <= RAN_S + LEASE_MS / 1000 for one in ran(world))
            assert sum(node.inner.metrics.claims_expired.value() for node in world.nodes if node.inner) == expected.get(
                "expired", 0
            )

    simulate(workload, seed=1, options=ONE)


def test_a_claim_of_an_earlier_leader_is_measured_from_its_grant() -> None:
    """The next leader reads the queue and the start in its store."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            await client.enqueue("q", [b"x"], retries=3)
            (claim,) = await client.claim("q", lease_ms=120_000, wait_ms=10_000)
            granted = leader_of(world)
            await trio.sleep(RAN_S)
            await world.crash_node(granted)
            began_s = trio.current_time()
            await client.complete(claim, timeout_ms=60_000)
            took_s = trio.current_time() - began_s
            assert counted(world) == {"completed": 1}
            (one,) = ran(world)
            assert one.count == 1 and RAN_S <= run_time(one) <= RAN_S + took_s + 0.1
            await world.bring_back(granted)

    simulate(workload, seed=1, options=ONE)
