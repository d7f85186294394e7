"""Routing: which node leads a partition now, and retries when that changes.

A client's items are split by leader and sent once to each. Items that a leader refused for a reason that
passes (no leader, not ready yet, no answer) are sent again until the request's time is up. All of these
writes are idempotent.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

import trio
from msgspec import Struct
from msgspec.structs import asdict

from onyxq.core.errors import BadRequest, Corrupt, NotLeader, OnyxqError, StaleEpoch, TimedOut, Unavailable, from_map
from onyxq.core.ids import partition_of
from onyxq.core.replica import leader_node
from onyxq.node.node import Node
from onyxq.operations.table.operation import Args, Items, Operation, converted, id_of
from onyxq.system import failures
from onyxq.system.procedures import gather, is_procedure, pause, procedure

T = TypeVar("T")
A = TypeVar("A", bound=Struct)
B = TypeVar("B", bound=Args)

ROUTE_TIMEOUT_S = 8.0
"""Time limit for finding a leader that takes a write, in seconds."""
CALL_TIMEOUT_S = 6.0
RETRY_PAUSE_S = 0.05
RETRY_PAUSE_MAX_S = 0.5

PASSING = (NotLeader, StaleEpoch, Corrupt)
"""Errors of a leader that another leader, or the same one a little later, will not have."""

LEAD = "lead."
"""Mark of a request of another node to the leaders here, before its name; only peers may make it."""


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
    until, pause_s = trio.current_time() + ROUTE_TIMEOUT_S, RETRY_PAUSE_S
    while True:
        try:
            return await attempt()
        except OnyxqError as error:
            if not is_passing(error) or trio.current_time() + pause_s > until:
                raise
        await node.moved(pause_s)
        await pause(pause_s / 4)
        pause_s = min(2 * pause_s, RETRY_PAUSE_MAX_S)


class Routed(Generic[A]):
    """An operation whose items each go to the leader of their partition; one per node."""

    def __init__(
        self, node: Node, *, name: str, args: type[A], items: Items, lead: Callable[[A], Awaitable[list[Any]]]
    ) -> None:
        self.name = LEAD + name
        """Its name among nodes."""
        self._node = node
        self._args = args
        self._items = items
        self._lead = lead
        """The leader's method, which returns an answer for each item."""

    @property
    def handler(self) -> Callable[[dict[str, Any]], Awaitable[list[Any]]]:
        """The function that serves what another node asks of the leaders here; raises `BadRequest`."""
        return self._serve_procedure if is_procedure(self._lead) else self._serve

    async def _serve(self, given: dict[str, Any]) -> list[Any]:
        return await self._lead(converted(self._args, given))

    @procedure
    async def _serve_procedure(self, given: dict[str, Any]) -> list[Any]:
        return await self._serve(given)

    async def ask(self, args: A) -> list[Any]:
        """Return the leaders' answers to the items of a request, or the errors of items that found no leader in time.

        It was checked, and is not checked again by another node.
        """
        items = self._items.of(args)
        answers: list[Any] = [None] * len(items)
        left = list(range(len(items)))
        deadline = trio.current_time() + ROUTE_TIMEOUT_S
        pause_s = RETRY_PAUSE_S
        while True:
            await self._round(args, left, answers)
            left = [place for place in left if self._passes(answers[place])]
            if not left or trio.current_time() + pause_s > deadline:
                return answers
            await self._node.moved(pause_s)
            await pause(pause_s / 4)
            pause_s = min(2 * pause_s, RETRY_PAUSE_MAX_S)

    async def _round(self, args: A, places: list[int], answers: list[Any]) -> None:
        """Ask each leader once, all at the same time, about the items at these places."""
        items = self._items.of(args)
        groups: dict[str, list[int]] = {}
        for place in places:
            groups.setdefault(leader_of(self._node, partition_of(id_of(items[place]))), []).append(place)
        await gather([self._ask(node_id, args, group, answers) for node_id, group in sorted(groups.items())])

    async def _ask(self, node_id: str, args: A, places: list[int], answers: list[Any]) -> None:
        part = self._items.part(args, places)
        try:
            if not node_id:
                raise NotLeader("the partition has no leader now")
            if node_id == self._node.node_id:
                with failures.serving(self.name):
                    found = await self._lead(part)
            else:
                found = await self._node.call(node_id, self.name, asdict(part), timeout_s=CALL_TIMEOUT_S)
            failures.begin()
        except OnyxqError as error:
            found = [self._items.refused(item, error.to_map()) for item in self._items.of(part)]
            if not isinstance(error, BadRequest):
                failures.begin()
        for place, answer in zip(places, found, strict=True):
            answers[place] = answer

    def _passes(self, answer: Any) -> bool:
        """Return whether an answer holds an error that is worth a retry."""
        parts = answer or () if self._items.runs else ((None, None, answer),)
        return any(is_passing(from_map(part[2])) for part in parts if isinstance(part[2], dict) and "code" in part[2])


class Router:
    """Knows the operations of one node whose items go to leaders."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.routed: list[Routed[Any]] = []

    def led(self, operation: Operation[B, Any], lead: Callable[[B], Awaitable[list[Any]]]) -> Routed[B]:
        """Return an operation of the table with the leader's method for its items."""
        assert operation.items is not None
        return self.asked(operation.name, operation.args, operation.items, lead)

    def asked(self, name: str, args: type[A], items: Items, lead: Callable[[A], Awaitable[list[Any]]]) -> Routed[A]:
        """Return what only nodes ask of leaders, with the leader's method for its items."""
        self.routed.append(found := Routed(self._node, name=name, args=args, items=items, lead=lead))
        return found


def is_passing(error: OnyxqError) -> bool:
    """Return whether a retry may succeed at another leader."""
    return isinstance(error, PASSING) or type(error) in (Unavailable, TimedOut)
