"""Planted bugs of workers: how they renew, release and end claims."""

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
        "tasks interrupted by a stop count as failed",
        "onyxq.worker.loop:_give_back",
        _interrupted_is_failed,
        "each deployment costs running tasks an attempt",
        "staff_changes",
        quick=3,
    ),
    Planted(
        "a stopping worker does not release tasks that it has not started",
        "onyxq.worker.loop:_give_back",
        _waiting_is_kept,
        "tasks wait until leases of stopped workers expire, and lose an attempt",
        "staff_changes",
    ),
    Planted(
        "claims are not renewed",
        "onyxq.worker.heartbeats:Renewals._renew",
        returning(None),
        "a task that takes longer than its lease runs on several workers at a time",
        "staff_changes",
        quick=3,
    ),
    Planted(
        "a worker keeps tasks that it claimed ahead too long",
        "onyxq.worker.loop:Worker._patience_s",
        instead(_a_whole_lease),
        "tasks wait for a long one while other workers are idle",
        "staff_changes",
    ),
    Planted(
        "a task's code continues after its lease",
        "onyxq.worker.heartbeats:_is_lost",
        returning(False),
        "a worker without contact continues a task that another worker has",
        "staff_cut_off",
    ),
    Planted(
        "a worker starts a task whose grant arrived too late",
        "onyxq.worker.loop:Worker._came_late",
        returning(False),
        "the claim may already belong to another worker",
        "staff_cut_off",
    ),
    Planted(
        "checkpoints of earlier attempts are not found",
        "onyxq.worker.attempts:Attempt._is_earlier",
        instead(_of_this_attempt),
        "every attempt starts from the beginning",
        "staff_changes",
    ),
)
