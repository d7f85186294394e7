"""Asking the leaders of all partitions: the answers together cover every partition once.

Leaders change meanwhile. So the asking node names the partitions that it wants from a node, each with the
epoch that it knows. The answer names the partitions that it covers: those that the node led under that very
epoch from the beginning of its read to the end. The rest is asked for again, as the log then has it.

A deposed leader and the asking node may both not have read of the change yet. So the same message asks all
nodes that hold a partition whether they have promised a later epoch. An answer counts only if a majority has
answered that it has not. No leader can have acknowledged a write under a later epoch before that.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias

import trio
from attrs import define, field, frozen

from onyxq.core.errors import BadRequest, OnyxqError, Unavailable, Unknown
from onyxq.core.ids import PARTITIONS_MAX
from onyxq.core.placement import holders
from onyxq.core.replica import Replica, majority
from onyxq.leader.cohort.member import EPOCHS
from onyxq.node.node import Node
from onyxq.node.routing import LEAD, RETRY_PAUSE_MAX_S, RETRY_PAUSE_S, is_passing

LEADERS_TIMEOUT_S = 1.0
"""Time limit for partitions that move or are being taken over, in seconds.

It starts again when another partition was answered for.
"""
READ_TIMEOUT_S = 5.0
LANDED_TIMEOUT_S = 1.0
"""Longest wait of a read until acknowledged rows are on disk, in seconds."""

Cohort: TypeAlias = tuple[tuple[str, ...], tuple[str, ...]]
"""Members and target."""
Look: TypeAlias = Callable[[dict[str, Any], Sequence[int]], Awaitable[Any]]
"""Answers a method's arguments for some of the partitions that are led from here."""


@frozen
class Part:
    """The answer of one node."""

    answer: Any
    partitions: Collection[int]
    """The partitions that the answer covers; if there are none, the answer is empty."""
    past: Collection[int]
    """The partitions for which the node has promised a later epoch."""


@frozen
class Plan:
    """Which node is asked for which partitions."""

    partitions: frozenset[int]
    unserved: Sequence[int]
    """Partitions without a ready leader."""
    wanted: Mapping[str, Mapping[int, int]]
    """Node -> partitions that it holds, and may lead, with their epochs."""
    cohorts: Mapping[Cohort, frozenset[int]]


@define
class Round:
    """One round, in which every node is asked once."""

    plan: Plan
    told: dict[str, Part] = field(factory=dict)
    errors: list[OnyxqError] = field(factory=list)

    def parts(self) -> list[Part]:
        """Return the valid answers."""
        stands = self._standing()
        parts = (part for _, part in sorted(self.told.items()))
        return [part for part in parts if part.partitions and stands.issuperset(part.partitions)]

    def whole(self) -> bool:
        """Return whether no more answers are needed."""
        wanted = len(self.plan.partitions)
        return sum(len(part.partitions) for part in self.told.values()) >= wanted and len(self._standing()) >= wanted

    def _standing(self) -> set[int]:
        """Return the partitions for which majorities have answered, and no node has promised a later epoch."""
        told, stands = self.told, set[int]()
        for (members, target), partitions in self.plan.cohorts.items():
            if majority(members, told) and majority(target, told):
                stands |= partitions
        return stands.difference(*(part.past for part in told.values()))


def planned(replica: Replica, partitions: Collection[int]) -> Plan:
    """Return a plan that asks all holders of the partitions.

    Their leaders are among them.
    """
    wanted: dict[str, dict[int, int]] = {}
    cohorts: dict[Cohort, set[int]] = {}
    for number in sorted(partitions):
        placed = replica.partitions[number]
        cohorts.setdefault((placed.members, placed.target), set()).add(number)
        for name in holders(placed):
            wanted.setdefault(name, {})[number] = placed.epoch
    return Plan(
        frozenset(partitions),
        [number for number in sorted(partitions) if not replica.partitions[number].ready],
        dict(sorted(wanted.items())),
        {cohort: frozenset(numbers) for cohort, numbers in cohorts.items()},
    )


class AllLeaders:
    """Asks all leaders for a method's answers, and answers other nodes; one per node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._planned: tuple[Any, Plan] = None, Plan(frozenset(), (), {}, {})
        """Plan for all partitions, with the placement that it was made for."""
        self.questions: list[Asked] = []
        """All that is asked of all leaders."""

    def question(self, name: str, look: Look) -> Asked:
        """Register a question to all leaders and return it; ``look`` answers it for partitions that this node leads."""
        self.questions.append(asked := Asked(self, name, look))
        return asked

    def led(self) -> list[int]:
        """Return the partitions that are served from here, sorted."""
        return [number for number, leader in sorted(self._node.leaders.items()) if leader.ready]

    # --- the node that asks

    async def ask(self, method: str, args: dict[str, Any], look: Look) -> list[Any]:
        """Return answers to a method that together cover all partitions; ``look`` reads this node's own.

        Raises `Unavailable` if some partitions have no answer in time.
        """
        node, answers = self._node, list[Any]()
        if node.replica.cluster is None:
            raise Unavailable("the cluster is not known here yet")
        left = set(node.replica.partitions)
        until, pause = trio.current_time() + LEADERS_TIMEOUT_S, RETRY_PAUSE_S
        while True:
            plan = await self._served(left, until)
            replica = node.replica
            asked = await self._round(plan, method, args, look)
            for part in asked.parts():
                answers.append(part.answer)
                left.difference_update(part.partitions)
                until, pause = trio.current_time() + LEADERS_TIMEOUT_S, RETRY_PAUSE_S
            if not left:
                return answers
            if trio.current_time() + pause > until:
                why = f": {asked.errors[0].message}" if asked.errors else ""
                raise Unavailable(f"partitions {_some(left)} move, or are not reached{why}")
            with trio.move_on_after(pause):
                await node.changed(replica)
            await trio.sleep(pause / 4)
            pause = min(2 * pause, RETRY_PAUSE_MAX_S)

    async def _served(self, left: Collection[int], until: float) -> Plan:
        """Return a plan once all partitions are served; raises `Unavailable` if that takes too long."""
        with trio.move_on_at(until):
            while self._plan(left).unserved:
                await self._node.changed(self._node.replica)
        plan = self._plan(left)
        if plan.unserved:
            raise Unavailable(f"partitions {_some(plan.unserved)} have no leader that serves now")
        return plan

    def _plan(self, left: Collection[int]) -> Plan:
        replica = self._node.replica
        if len(left) < len(replica.partitions):
            return planned(replica, left)
        if self._planned[0] is not replica.partitions:
            self._planned = replica.partitions, planned(replica, left)
        return self._planned[1]

    async def _round(self, plan: Plan, method: str, args: dict[str, Any], look: Look) -> Round:
        node, asked = self._node, Round(plan)
        async with trio.open_nursery() as nursery:

            async def ask(name: str, epochs: Mapping[int, int]) -> None:
                try:
                    if name == node.node_id:
                        asked.told[name] = await self._look(args, epochs, look)
                    else:
                        asked.told[name] = await self._call(name, method, args, epochs)
                except OnyxqError as error:
                    asked.errors.append(error)
                if asked.whole():
                    nursery.cancel_scope.cancel()

            for name, epochs in plan.wanted.items():
                nursery.start_soon(ask, name, epochs)
        lasting = [error for error in asked.errors if not (is_passing(error) or isinstance(error, Unknown))]
        if lasting and not asked.whole():
            raise lasting[0]
        return asked

    async def _call(self, name: str, method: str, args: dict[str, Any], epochs: Mapping[int, int]) -> Part:
        told = await self._node.call(name, method, args | {"partitions": epochs}, timeout_s=READ_TIMEOUT_S)
        return Part(told["answer"], told["partitions"], told["past"])

    # --- the node that is asked

    async def serve(self, args: dict[str, Any], look: Look) -> dict[str, Any]:
        """Return this node's part of the answer to another node."""
        rest = {name: value for name, value in args.items() if name != "partitions"}
        part = await self._look(rest, _epochs(args.get("partitions")), look)
        return {"answer": part.answer, "partitions": list(part.partitions), "past": list(part.past)}

    async def _look(self, args: dict[str, Any], epochs: Mapping[int, int], look: Look) -> Part:
        answer, leads = None, self._leads(epochs)
        if leads:
            await self._node.settled()
            with trio.move_on_after(LANDED_TIMEOUT_S) as waited:
                await self._node.unflushed_writes.flushed()
            if waited.cancelled_caught:
                raise Unavailable("what was answered for is not on a leader's disk yet")
            leads = self._leads(epochs)
        while leads:
            answer = await look(args, leads)
            still = [number for number in self._leads(epochs) if number in leads]
            if still == leads:
                break
            leads = still
        past = [number for number, epoch in epochs.items() if self._node.epochs.get(number, 0) > epoch]
        return Part(answer, leads, past)

    def _leads(self, epochs: Mapping[int, int]) -> list[int]:
        """Return the partitions that are led from here under these epochs, as far as this node knows."""
        found = [(number, self._node.leaders.get(number)) for number in sorted(epochs)]
        ready = [(number, one) for number, one in found if one is not None and one.ready and not one.deposed]
        return [number for number, one in ready if one.epoch == epochs[number]]


class Asked:
    """A question to all leaders, and how this node answers it; one per node."""

    def __init__(self, leaders: AllLeaders, name: str, look: Look) -> None:
        self.name = LEAD + name
        """Its name among nodes."""
        self._leaders = leaders
        self._look = look

    async def ask(self, args: dict[str, Any]) -> list[Any]:
        """Return answers that together cover all partitions; raises `Unavailable`."""
        return await self._leaders.ask(self.name, args, self._look)

    async def serve(self, args: dict[str, Any]) -> dict[str, Any]:
        """Answer another node."""
        return await self._leaders.serve(args, self._look)


def _epochs(value: Any) -> dict[int, int]:
    """Return partitions and their epochs from another node's arguments."""
    whole = isinstance(value, dict) and all(type(one) is int for pair in value.items() for one in pair)
    if not whole or not all(0 <= number < PARTITIONS_MAX and 0 <= epoch < EPOCHS for number, epoch in value.items()):
        raise BadRequest(f"partitions must map partition numbers to epochs, not be {value!r:.80}", field="partitions")
    return dict(value)


def _some(partitions: Collection[int]) -> str:
    return f"{sorted(partitions)[:5]} ({len(partitions)} in all)"
