"""Scenes about fencing tokens: leaders judge claims while they do not know newer ones (design: simulation)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import trio

from onyxq.client.claims import Claim
from onyxq.core.errors import OnyxqError
from onyxq.core.ids import TaskId
from onyxq.core.replica import claim_of
from simulation.checkers import Broken
from simulation.scenes.base import Scene, by_name, leader_of, payloads, take_the_rest, try_to_complete
from simulation.world.clients import RecordingClient, tried
from simulation.world.world import SimulatedNode, World

TASKS = 4
SHORT_MS = 1_000
DISK_MS = (800, 1_500)
"""How long a write takes while disks are slow."""


async def lapsed_claims(world: World, client: RecordingClient) -> list[Claim]:
    """Claim all tasks, and return the claims once they have lapsed."""
    await client.enqueue("q", payloads(TASKS), retries=None, backoff_ms=0)
    claims: list[Claim] = []
    while len(claims) < TASKS:
        claims += await client.claim("q", maximum=TASKS, lease_ms=SHORT_MS, wait_ms=5_000)
    await world.until(lambda: not held(world, claims), "the claims have lapsed")
    return claims


def held(world: World, claims: Sequence[Claim]) -> list[TaskId]:
    """Return those of the tasks that are claimed according to the log."""
    return [one.id for one in claims if claim_of(world.audit.replica, one.id) is not None]


def cut_from_the_log(world: World, node: SimulatedNode) -> None:
    """End the node's session for good: it gets no new one."""
    node.log.reachable = False
    world.expire_session(node)


async def granted_unheard(world: World) -> None:
    """A leader's grants reach the log, but the leader loses the log before it reads them.

    It must not accept completions under the lapsed claims before them.
    """
    async with world.client() as client:
        lapsed = await lapsed_claims(world, client)
        old = leader_of(world)
        session = old.log.session_now
        assert session is not None
        read = world.audit.replica.position
        await world.until(
            lambda: old.replica is not None and old.replica.position >= read, "the leader knows that they have"
        )
        async with world.client(nodes=[old]) as misled, trio.open_nursery() as nursery:
            session.paused = True
            asked = misled.claim("q", maximum=TASKS, lease_ms=20_000, wait_ms=5_000, timeout_ms=6_000)
            nursery.start_soon(tried, asked)
            await world.until(lambda: bool(held(world, lapsed)), "the log has the grants")
            world.log_down()
            cut_from_the_log(world, old)
            await trio.sleep(world.random.uniform(0, 0.2))
            newer = set(held(world, lapsed))
            done = await try_to_complete(misled, [one for one in lapsed if one.id in newer])
            nursery.cancel_scope.cancel()
        if done:
            raise Broken(f"newest token: {len(done)} tasks were completed under a token that is not their newest")
        world.log_up()
        world.reconnect_log(old)
        await world.settle()
        await take_the_rest(client, wait_ms=25_000)


async def history_is_late(world: World) -> None:
    """Disks are slow: a new leader serves before its store has the history of the newest claims.

    It must not accept completions under older claims.
    """
    async with world.client() as client:
        lapsed = await lapsed_claims(world, client)
        old, delay_ms = leader_of(world), world.random.randint(*DISK_MS)
        for node in world.nodes:
            node.disk.delay_ms = lambda: delay_ms
        async with trio.open_nursery() as nursery:
            # Other writes are always in progress, so that the history of later records has to wait.
            nursery.start_soon(_write_others, client)
            await trio.sleep(world.random.uniform(2, 4))
            claims = await client.claim("q", maximum=TASKS, lease_ms=SHORT_MS, wait_ms=5_000)
            newer = {claim.id for claim in claims}
            if world.random.random() < 0.7:
                nursery.start_soon(tried, client.release(claims, timeout_ms=2_000))
            while held(world, lapsed):
                await trio.sleep(0.002)
            cut_from_the_log(world, old)
            world.isolate(old)
            others = [node for node in world.nodes if node is not old]
            done: list[bytes] = []
            async with world.client(nodes=others) as misled, trio.open_nursery() as completing:
                for claim in lapsed:
                    if claim.id in newer:
                        completing.start_soon(_insist, misled, claim, done)
            nursery.cancel_scope.cancel()
        if done:
            raise Broken(f"newest token: {len(done)} tasks were completed under a token that is not their newest")
        for node in world.nodes:
            node.disk.delay_ms = lambda: 1
        world.network.heal()
        world.reconnect_log(old)
        await world.settle()
        await take_the_rest(client, wait_ms=25_000)


async def _insist(client: RecordingClient, claim: Claim, done: list[bytes]) -> None:
    """Complete a task as soon as the partition has a leader."""
    with suppress(OnyxqError):  # noted by the client
        await client.complete(claim, b"done", timeout_ms=15_000)
        done.append(claim.id)


async def _write_others(client: RecordingClient) -> None:
    async with trio.open_nursery() as nursery:
        for number in range(400):
            nursery.start_soon(tried, client.enqueue("other", [b"other %d" % number], timeout_ms=2_000))
            nursery.start_soon(tried, client.claim("other", lease_ms=3_600_000, timeout_ms=2_000))
            await trio.sleep(0.1)


TOKEN_SCENES = by_name(
    Scene("granted_unheard", "a leader loses the log before it reads its own grants", granted_unheard),
    Scene("history_is_late", "a new leader's store lacks the history of the newest claims", history_is_late),
)
