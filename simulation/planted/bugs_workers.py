"""Planted bugs of workers: how they hold claims, end, and give back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from onyxq.client import AsyncClient, Claim
from onyxq.worker.attempts import Attempt, LogEntry
from onyxq.worker.loop import Worker
from simulation.planted.planted import Planted
from simulation.planted.seams import instead, returning

_GiveBack = Callable[[AsyncClient, Claim | list[Claim]], Awaitable[None]]


def _interrupted_is_failed(original: _GiveBack) -> _GiveBack:
    async def give_back(client: AsyncClient, claims: Claim | list[Claim]) -> None:
        if isinstance(claims, list):
            await original(client, claims)
        else:
            await client.fail(claims, "stopped")

    return give_back


def _waiting_is_kept(original: _GiveBack) -> _GiveBack:
    async def give_back(client: AsyncClient, claims: Claim | list[Claim]) -> None:
        if isinstance(claims, list):
            await client.get(claims[0].id)
        else:
            await original(client, claims)

    return give_back


def _a_whole_lease(worker: Worker) -> float:
    return worker._lease_ms / 1000


def _of_this_attempt(attempt: Attempt, entry: LogEntry) -> bool:
    return entry.token == attempt.claim.token


WORKER_BUGS: tuple[Planted, ...] = (
    Planted(
        "what a stop interrupts counts as failed",
        "onyxq.worker.loop:_give_back",
        _interrupted_is_failed,
        "every new version of a program costs its tasks an attempt",
        "staff_changes",
        quick=3,
    ),
    Planted(
        "a worker that stops keeps what it has not begun",
        "onyxq.worker.loop:_give_back",
        _waiting_is_kept,
        "tasks wait for leases of workers that are gone, and count an attempt",
        "staff_changes",
    ),
    Planted(
        "claims are not renewed",
        "onyxq.worker.heartbeats:Renewals._renew",
        returning(None),
        "what takes longer than its lease is run by several at a time",
        "staff_changes",
        quick=3,
    ),
    Planted(
        "a worker hoards what it claimed ahead",
        "onyxq.worker.loop:Worker._patience_s",
        instead(_a_whole_lease),
        "tasks wait behind a long one while others are idle",
        "staff_changes",
    ),
    Planted(
        "code goes on behind its lease",
        "onyxq.worker.heartbeats:_is_lost",
        returning(False),
        "a worker that is cut off goes on with what another one has",
        "staff_cut_off",
    ),
    Planted(
        "a worker begins what came too late",
        "onyxq.worker.loop:Worker._came_late",
        returning(False),
        "a claim whose answer was long on the way is another's by now",
        "staff_cut_off",
    ),
    Planted(
        "checkpoints of earlier attempts are not found",
        "onyxq.worker.attempts:Attempt._is_earlier",
        instead(_of_this_attempt),
        "every attempt begins from the beginning",
        "staff_changes",
    ),
)
