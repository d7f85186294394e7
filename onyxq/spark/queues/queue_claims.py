"""Claims of a source on its queue: claiming the tasks of a batch, renewing, completing and releasing them.

Plain functions over a client, without Spark, so that a simulation plans batches as Spark does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from onyxq.client import AsyncClient
from onyxq.client.claims import ClaimBatch, ClaimedRun
from onyxq.core.errors import BatchRefused, Overloaded, TimedOut, Unavailable
from onyxq.core.ids import TaskId, with_counter

CLAIM_TASKS_MAX = 1_000
"""Maximum number of tasks that one request claims."""
RUNS_MAX = 4_000
"""Maximum number of runs in one batch: they are part of its offset, and of its commit."""
TEMPORARY = (Unavailable, Overloaded, TimedOut)
"""Errors with which a stream waits for its leaders."""


class Held(NamedTuple):
    """Consecutive tasks that were claimed under one token."""

    first: TaskId
    count: int  # type: ignore[assignment]  # shadows the tuple's method
    token: int
    attempts: int = 0
    """Number of failed or expired attempts before this one."""


async def claim_tasks(
    client: AsyncClient, queues: str | Sequence[str], *, most: int, worker: str, lease_ms: int, runs_max: int = RUNS_MAX
) -> list[Held]:
    """Claim up to ``most`` tasks that are ready now, and return them in the order of the grants.

    Raises one of `TEMPORARY` only if none was claimed: then there may be some.
    """
    held: list[Held] = []
    left = most
    while left > 0 and len(held) < runs_max:
        try:
            batch = await client.claim(queues, max=min(left, CLAIM_TASKS_MAX), lease_ms=lease_ms, worker=worker)
        except TEMPORARY:
            if not held:
                raise
            break
        if not batch:
            break
        held += [Held(run.first, run.count, run.token, run.attempts) for run in batch.runs]
        left -= len(batch)
    return joined(held)


def joined(held: Sequence[Held]) -> list[Held]:
    """Return the claims with neighbours of one token, number of attempts and stretch joined."""
    out: list[Held] = []
    for one in held:
        last = out[-1] if out else None
        follows = last is not None and last[2:] == one[2:] and _following(last) == one.first
        if last is not None and follows:
            out[-1] = last._replace(count=last.count + one.count)
        else:
            out.append(one)
    return out


def _following(held: Held) -> bytes | None:
    """Return the id after the last one, if it is of the same stretch."""
    counter = int.from_bytes(held.first[16:], "big") + held.count
    return with_counter(held.first, counter) if counter % 1024 else None


async def renew(client: AsyncClient, held: Sequence[Held], lease_ms: int) -> int:
    """Renew leases, and return how many tasks are not held any more."""
    return await _each(client.renew(batch_of(held), lease_ms))


async def complete(client: AsyncClient, held: Sequence[Held]) -> int:
    """Complete the tasks, and return how many were not held any more."""
    return await _each(client.complete(batch_of(held)))


async def _each(doing: Any) -> int:
    try:
        await doing
    except BatchRefused as error:
        return sum(part.count for part in error.refused)
    return 0


def batch_of(held: Sequence[Held]) -> ClaimBatch:
    """Return claims in the client's form."""
    return ClaimBatch(ClaimedRun(token=one.token, first=one.first, count=one.count) for one in held)
