"""Tasks that are sent as runs of one: those with a key, a time or an id of their own (design: runs, ordering keys).

Each keeps its id. Concurrent tasks share requests. Each leader gets one request at a time, so tasks of one key
reach it in the order in which they were given.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

import anyio

from onyxq.client.policy import Policy, When
from onyxq.client.pool import RETRYABLE, Backoff, Group, Pool
from onyxq.core.errors import BadRequest, OnyxqError, Unavailable, Unknown, from_map
from onyxq.core.ids import TaskId, ms_of, partition_of

GROUP_MAX = 512
REQUEST_RUNS_MAX = 256
REQUEST_BYTES_MAX = 1024 * 1024
"""Payload bytes from which a request takes no further run."""

COPIES_WAIT_S = 1.5
"""Time for one more attempt at an enqueue with ``w``, in seconds: leaders wait up to 1 s for further copies."""

_PLACE = re.compile(r"runs\[[0-9]+\]\.?")

Run = Sequence[Any]
"""A run as the method ``enqueue`` takes it: first id, body, and the due time that the user gave, if any."""
Outcome = TaskId | OnyxqError | None
"""Outcome of a run: the id of the existing task of its unique key, an error, or None if it was stored."""


class Single(NamedTuple):
    """One task to be stored."""

    id: TaskId
    body: bytes
    at_ms: int | None

    @property
    def run(self) -> list[Any]:
        """The task as the method ``enqueue`` takes it."""
        return [self.id, self.body] if self.at_ms is None else [self.id, self.body, self.at_ms]

    @property
    def ids(self) -> tuple[TaskId, ...]:
        """The id of the task."""
        return (self.id,)


def named_by_caller(first: TaskId, when: When, policy: Policy) -> int | None:
    """Return the due time to send with a task; None if its id is enough for the leader.

    The user's time orders tasks of a key. A time in the past is checked against the queue's grace.
    """
    if when.at_ms is None or (policy.key is None and ms_of(first) == when.at_ms):
        return None
    return when.at_ms


def refusals(runs: Sequence[Run], acks: Sequence[Any]) -> list[tuple[list[Any], OnyxqError]]:
    """Return the refused runs in the form in which they may be sent again, with their errors."""
    return [(again(run), error_of(ack)) for run, ack in zip(runs, acks, strict=True) if isinstance(ack, dict)]


def again(run: Run) -> list[Any]:
    """Return a run for a repeat, without a due time that was in the future at first: it may be past by now."""
    return list(run[:2]) if len(run) > 2 and ms_of(run[0]) == run[2] else list(run)


def error_of(ack: dict[str, Any]) -> OnyxqError:
    """Return the error in a run's acknowledgement."""
    return told(from_map(ack))


def told(error: OnyxqError) -> OnyxqError:
    """Return the error with its field named as the caller knows it."""
    error.field = _PLACE.sub("", error.field or "") or None
    return error


def about(error: OnyxqError, task_id: TaskId) -> OnyxqError:
    """Return a copy of the error for the caller that enqueued this task."""
    found = copy.copy(error)
    found.ids = (task_id,)
    return found


def time_for(error: OnyxqError) -> float:
    """Return how long a peer may wait for further copies before it repeats this error, in seconds."""
    return COPIES_WAIT_S if isinstance(error, Unknown) and error.copies is not None else 0.0


class Singles:
    """Sender of one client's single tasks."""

    def __init__(self, pool: Pool, *, avoid: Callable[[int], None]) -> None:
        self._pool = pool
        self._avoid = avoid
        self._groups: dict[int | None, Group[Single, TaskId]] = {}

    async def add(self, single: Single, w: int | None, *, until: float) -> TaskId:
        """Store a task together with others that arrive meanwhile; return the id of the stored or existing task."""
        group = self._groups.get(w)
        if group is None:
            send = partial(self._send_group, w)
            group = self._groups[w] = Group(self._pool, send, size_max=GROUP_MAX, leave=attrgetter("ids"))
        return await group.add(single, until=until)

    async def _send_group(self, w: int | None, singles: list[Single], until: float) -> list[TaskId | OnyxqError]:
        return [
            about(one, single.id) if isinstance(one, RETRYABLE) else one
            for single, one in zip(singles, await self._each(singles, w, until), strict=True)
        ]

    async def store(self, singles: Sequence[Single], w: int | None, *, until: float) -> list[TaskId]:
        """Store several tasks; return the ids of the stored or existing tasks. Raise the first error."""
        stored: list[TaskId] = []
        for found in await self._each(singles, w, until, stops=True):
            if isinstance(found, OnyxqError):
                if isinstance(found, RETRYABLE):
                    found.ids = tuple(single.id for single in singles)
                raise found
            stored.append(found)
        return stored

    async def in_order(self, runs: Sequence[Run], *, until: float) -> None:
        """Store runs through one peer, each request after the one before; raise the first error."""
        for part in cut(runs):
            for outcome in await self._one_by_one(part, None, None, until):
                if isinstance(outcome, OnyxqError):
                    raise outcome

    async def _each(
        self, singles: Sequence[Single], w: int | None, until: float, *, stops: bool = False
    ) -> list[TaskId | OnyxqError]:
        """Return the outcome of each task; ``stops``: send a leader nothing more after a task was not stored."""
        outcomes: list[TaskId | OnyxqError] = [Unavailable("it was not sent")] * len(singles)
        places: dict[str | None, list[int]] = {}
        for place, single in enumerate(singles):
            places.setdefault(self._pool.leader_of(partition_of(single.id)), []).append(place)

        async def to_leader(address: str | None, mine: list[int]) -> None:
            start = 0
            for part in cut([singles[place].run for place in mine]):
                found = await self._one_by_one(part, address, w, until)
                for place, outcome in zip(mine[start : start + len(part)], found, strict=True):
                    outcomes[place] = singles[place].id if outcome is None else outcome
                if stops and any(isinstance(outcome, OnyxqError) for outcome in found):
                    return
                start += len(part)

        async with anyio.create_task_group() as group:
            for address, mine in places.items():
                group.start_soon(to_leader, address, mine)
        return outcomes

    async def _one_by_one(self, runs: Sequence[Run], address: str | None, w: int | None, until: float) -> list[Outcome]:
        """Return the outcome of each run. If a request is refused as a whole, only the run at fault gets the error."""
        try:
            return await self._deliver(runs, address, w, until)
        except BadRequest as error:
            if len(runs) == 1:
                return [told(error)]
            return [(await self._one_by_one([run], address, w, until))[0] for run in runs]
        except OnyxqError as error:
            return [error] * len(runs)

    async def _deliver(self, runs: Sequence[Run], address: str | None, w: int | None, until: float) -> list[Outcome]:
        outcomes: list[Outcome] = [None] * len(runs)
        left = list(enumerate(list(run) for run in runs))
        backoff = Backoff(until, self._pool.generator)
        while left:
            sent = [run for _, run in left]
            async with self._pool.crowding.turn(sum(len(run[1]) for run in sent), until):
                answer = await self._pool.call("enqueue", {"runs": sent, "w": w}, until=until, address=address)
                for _, why in refusals(sent, answer["acks"]):
                    self._pool.crowding.refused(why)
            unsure, lacking = [], list[OnyxqError]()
            for (place, run), ack in zip(left, answer["acks"], strict=True):
                outcomes[place] = outcome = _outcome(ack)
                if isinstance(outcome, RETRYABLE):
                    backoff.heed(outcome)
                    unsure.append((place, again(run)))
                    lacking.append(outcome)
                    self._avoid(partition_of(run[0]))
            if not unsure or backoff.over(margin_s=max(map(time_for, lacking))):
                break
            address, left = None, unsure
            self._pool.refresh_soon()
            await backoff.wait()
        return outcomes


def cut(runs: Sequence[Run]) -> list[list[Run]]:
    """Return the runs of each request, in order."""
    requests: list[list[Run]] = []
    size = 0
    for run in runs:
        if not requests or len(requests[-1]) >= REQUEST_RUNS_MAX or size >= REQUEST_BYTES_MAX:
            requests.append([])
            size = 0
        requests[-1].append(run)
        size += len(run[1])
    return requests


def _outcome(ack: Any) -> Outcome:
    if isinstance(ack, dict):
        return error_of(ack)
    return TaskId(ack[1]) if isinstance(ack, list) else None
