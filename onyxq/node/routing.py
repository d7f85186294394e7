"""Routing: which node leads a partition now, and retries when that changes.

A client's items are split by leader and sent once to each. Items that a leader refused for a reason that
passes (no leader, not ready yet, no answer) are sent again until the request's time is up. All of these
writes are idempotent.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import trio

from onyxq.core.errors import BadRequest, Corrupt, NotLeader, OnyxqError, StaleEpoch, TimedOut, Unavailable, from_map
from onyxq.core.ids import partition_of
from onyxq.core.replica import leader_node
from onyxq.node.node import Node
from onyxq.system import failures

T = TypeVar("T")

ROUTE_TIMEOUT_S = 8.0
"""Time limit for finding a leader that takes a write, in seconds."""
CALL_TIMEOUT_S = 6.0
RETRY_PAUSE_S = 0.05
RETRY_PAUSE_MAX_S = 0.5

PASSING = (NotLeader, StaleEpoch, Corrupt)
"""Errors of a leader that another leader, or the same one a little later, will not have."""

Local = Callable[[list[Any]], Awaitable[list[Any]]]
"""Serves items that are led from here: one answer per item."""


def leader_of(node: Node, partition: int) -> str:
    """Return the node id of the partition's leader, or empty.

    A node without a peer in the ring keeps serving the partitions that it led, as others do.
    """
    if partition in node.leaders:
        return node.node_id
    found = leader_node(node.replica, partition)
    return found.id if found is not None else ""


async def insist(node: Node, attempt: Callable[[], Awaitable[T]]) -> T:
    """Return the result of an attempt, repeated while its error passes, for `ROUTE_TIMEOUT_S`."""
    until, pause = trio.current_time() + ROUTE_TIMEOUT_S, RETRY_PAUSE_S
    while True:
        try:
            return await attempt()
        except OnyxqError as error:
            if not is_passing(error) or trio.current_time() + pause > until:
                raise
        with trio.move_on_after(pause):
            await node.moved()
        await trio.sleep(pause / 4)
        pause = min(2 * pause, RETRY_PAUSE_MAX_S)


class Router:
    """Sends items to the leaders of their partitions."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def each(
        self,
        items: Sequence[Any],
        *,
        method: str,
        pack: Callable[[list[Any]], dict[str, Any]],
        unpack: Callable[[Any], list[Any]],
        local: Local,
        passing: Callable[[Any], OnyxqError | None],
        failed: Callable[[Any, OnyxqError], Any],
    ) -> list[Any]:
        """Return one answer per item (whose first element is a task id).

        ``passing`` returns the error in an answer that is worth a retry. ``failed`` makes the answer for an item
        that found no leader in time.
        """
        answers: list[Any] = [None] * len(items)

        async def ask(node_id: str, group: list[int]) -> None:
            part = [items[place] for place in group]
            try:
                if not node_id:
                    raise NotLeader("the partition has no leader now")
                if node_id == self._node.node_id:
                    with failures.serving(method):
                        found = await local(part)
                else:
                    found = unpack(await self._node.call(node_id, method, pack(part), timeout_s=CALL_TIMEOUT_S))
                failures.begin()
            except OnyxqError as error:
                found = [failed(item, error) for item in part]
                if not isinstance(error, BadRequest):
                    failures.begin()
            for place, answer in zip(group, found, strict=True):
                answers[place] = answer

        open_items = list(range(len(items)))
        deadline = trio.current_time() + ROUTE_TIMEOUT_S
        pause = RETRY_PAUSE_S
        while True:
            await self._round(items, open_items, ask)
            open_items = [place for place in open_items if passing(answers[place]) is not None]
            if not open_items or trio.current_time() + pause > deadline:
                return answers
            with trio.move_on_after(pause):
                await self._node.moved()
            await trio.sleep(pause / 4)
            pause = min(2 * pause, RETRY_PAUSE_MAX_S)

    async def _round(
        self, items: Sequence[Any], places: list[int], ask: Callable[[str, list[int]], Awaitable[None]]
    ) -> None:
        """Ask each leader once, all at the same time, about the items at these places."""
        groups: dict[str, list[int]] = {}
        for place in places:
            groups.setdefault(leader_of(self._node, partition_of(items[place][0])), []).append(place)
        if len(groups) == 1:
            ((node_id, group),) = groups.items()
            await ask(node_id, group)
            return
        async with trio.open_nursery() as nursery:
            for node_id, group in sorted(groups.items()):
                nursery.start_soon(ask, node_id, group)


def is_passing(error: OnyxqError) -> bool:
    """Return whether a retry may succeed at another leader."""
    return isinstance(error, PASSING) or type(error) in (Unavailable, TimedOut)


def passing_map(answer: Any) -> OnyxqError | None:
    """Return the passing error in an answer, which is an error map or something else."""
    if isinstance(answer, dict) and "code" in answer:
        error = from_map(answer)
        return error if is_passing(error) else None
    return None


def passing_parts(answer: Any) -> OnyxqError | None:
    """Return the first passing error among refused parts, or None."""
    for part in answer or ():
        if (error := passing_map(part[2])) is not None:
            return error
    return None
