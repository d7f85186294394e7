"""A leader that does not know that it was deposed calls no claim of its successor stale."""

from __future__ import annotations

import pytest

from onyxq.errors import OnyxqError, TimedOut, Unavailable
from simulation.scenes.base import ONE, deposed
from simulation.world.world import World, simulate


@pytest.mark.parametrize("call", ["complete", "renew", "fail", "release", "update"])
def test_it_says_that_it_cannot_tell(call: str) -> None:
    """The token is newer than what it has read; its holder must not be made to stop."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            await client.enqueue("q", [b"x"], backoff_ms=0)
            await client.claim("q", lease_ms=1_000)
            old, new = await deposed(world)
            async with world.client(nodes=[old]) as misled, world.client(nodes=[new]) as served:
                (claim,) = await served.claim("q", lease_ms=60_000, wait_ms=10_000)
                world.network.part([old.name], [new.name])
                rest = {"renew": (60_000,), "fail": ("no",), "update": (b"half",)}.get(call, ())
                with pytest.raises(OnyxqError) as refused:
                    await getattr(misled.client, call)(claim, *rest, timeout_ms=1_500)
                assert isinstance(refused.value, (Unavailable, TimedOut))  # neither error says that nothing was done
                await served.complete(claim)
            world.network.heal()
            world.reconnect_log(old)
            await world.settle()

    simulate(workload, seed=1, options=ONE)
