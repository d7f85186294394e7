"""Planted bugs of facts and stores: rows written twice, not at all, or too early."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from onyxq.client.enqueues import Enqueuer
from onyxq.client.policy import NOW
from onyxq.core.errors import OnyxqError
from onyxq.core.facts import UPDATE
from onyxq.core.ids import RUN_TASKS_MAX
from onyxq.history.claim_rows import HistoryWriter
from onyxq.leader.cohort.anti_entropy import Exchange
from onyxq.store.interface import Batch
from simulation.planted.planted import Planted
from simulation.planted.seams import instead, returning


def _under_new_ids(enqueuer: Enqueuer, failed: Iterable[tuple[list[Any], OnyxqError]]) -> list[list[Any]]:
    return [[enqueuer._run(RUN_TASKS_MAX, NOW).first, run[1]] for run, _ in failed]


_Push = Callable[[Exchange, Iterable[bytes]], Awaitable[None]]


def _no_updates(original: _Push) -> _Push:
    return lambda exchange, keys: original(exchange, [key for key in keys if key[2:3] != UPDATE])


_Take = Callable[[HistoryWriter], Batch | None]


def _rows_kept_back(original: _Take) -> _Take:
    def take(writer: HistoryWriter) -> Batch | None:
        rows, writer._rows = writer._rows, []
        try:
            return original(writer)
        finally:
            writer._rows = rows

    return take


def _renewed_or_not(original: Callable[..., int]) -> Callable[..., int]:
    return lambda held, run, token, *, lapsed_only=False: original(held, run, token)


def _of_the_first_tasks(original: Callable[[bytes, int, int], bytes]) -> Callable[[bytes, int, int], bytes]:
    return lambda body, offset, count: original(body, 0, count)


STORE_BUGS: tuple[Planted, ...] = (
    Planted(
        "a part of a run is granted with the payloads of its first tasks",
        "onyxq.leader.grants.bodies:slice_task",
        _of_the_first_tasks,
        "a worker gets the payload of another task",
        "leases",
    ),
    Planted(
        "a repeated enqueue makes a second task",
        "onyxq.client.enqueues:Enqueuer._again",
        instead(_under_new_ids),
        "an enqueue whose answer was lost has two tasks",
        "leases",
    ),
    Planted(
        "anti-entropy ignores task updates",
        "onyxq.leader.cohort.anti_entropy:Exchange._push",
        _no_updates,
        "a copy that missed task updates never gets them",
        "disks",
    ),
    Planted(
        "digests are not updated with the rows",
        "onyxq.store.index.digests:row_hash",
        returning(0),
        "copies with different rows have equal digests",
        "crossed",
        quick=3,
    ),
    Planted(
        "the history position is written before the rows",
        "onyxq.history.claim_rows:HistoryWriter.take",
        _rows_kept_back,
        "after a crash between the two, history rows are missing",
        "attempts",
        quick=6,
    ),
    Planted(
        "renewed claims are recorded as expired",
        "onyxq.history.claim_rows:_Held.end",
        _renewed_or_not,
        "attempts are counted for claims that continue",
        "renewed_unheard",
    ),
)
"""The planted bugs of facts and stores."""
