"""Heartbeats of a worker: all its claims are renewed together, every third of the lease (design: claims)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import anyio

from onyxq.client import AsyncClient, Claim
from onyxq.core.errors import BatchRefused, Conflict, LogUnavailable, OnyxqError
from onyxq.core.ids import ids_of

RENEWALS_PER_LEASE = 3
RENEWAL_TIMEOUT_MIN_S = 0.1

Lost = Callable[[Claim], None]


class Renewals:
    """Renewal of claims while they are held; reports those that are no longer valid."""

    def __init__(self, held: Callable[[], Iterable[Claim]], lost: Lost, *, lease_ms: int) -> None:
        self._held = held
        self._lost = lost
        self._lease_ms = lease_ms

    async def run(self, client: AsyncClient) -> None:
        """Renew until cancelled."""
        pause_s = self._lease_ms / RENEWALS_PER_LEASE / 1000
        next_at = anyio.current_time() + pause_s
        while True:
            # After a failed renewal a lease may end first; its task must not run on after that.
            now = anyio.current_time()
            ends_at = min((claim.expires for claim in self._held() if claim.expires > now), default=next_at)
            await anyio.sleep_until(min(next_at, ends_at))
            next_at = anyio.current_time() + pause_s
            claims = list(self._held())
            if claims:
                await self._renew(client, claims, pause_s)

    async def _renew(self, client: AsyncClient, claims: list[Claim], pause_s: float) -> None:
        # A task must not run on after its lease: an attempt to renew ends with the first lease at the latest.
        left_s = min(claim.expires for claim in claims) - anyio.current_time()
        timeout_s = min(pause_s, max(left_s, RENEWAL_TIMEOUT_MIN_S))
        try:
            await client.renew(claims, self._lease_ms, timeout_ms=math.ceil(timeout_s * 1000))
        except BatchRefused as error:
            refused = {one: part.error for part in error.refused for one in ids_of(part.first, part.count)}
        except OnyxqError as error:
            refused = {claim.id: error for claim in claims}
        else:
            return
        for claim in claims:
            problem = refused.get(claim.id)
            if problem is not None and _is_lost(claim, problem):
                self._lost(claim)


def _is_lost(claim: Claim, error: OnyxqError) -> bool:
    """Return whether a claim that could not be renewed is not valid any more, or may not be."""
    if isinstance(error, Conflict):
        return True
    # While the log cannot be reached its time stops, so leases do not expire.
    return not isinstance(error, LogUnavailable) and anyio.current_time() >= claim.expires
