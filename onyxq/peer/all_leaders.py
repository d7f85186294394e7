"""Asking the leaders of all partitions: what they answer is together of every partition, each once.

Leaders change while they are being asked.  So whoever asks names the partitions that it wants of a node, each
with the epoch that it knows, and the answer names those of which it is: led by the node under that very epoch
from the beginning of its look to the end.  What remains is asked for again, as the log says by then.

A leader that was deposed and whoever asks may both not have read of it yet.  So all nodes that hold a partition are
asked whether they have promised a later epoch, in the same message: an answer counts only if
as many have not as a write needs.  Nobody can have acknowledged anything under a later epoch before that.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, TypeAlias

import trio
from attrs import define, field, frozen

from onyxq.errors import BadRequest, OnyxqError, Unavailable, Unknown
from onyxq.ids import PARTITIONS_MAX
from onyxq.peer import arguments as check
from onyxq.peer.node import Node
from onyxq.peer.routing import RETRY_PAUSE_MAX_S, RETRY_PAUSE_S, is_passing, leader_of
from onyxq.placement import holders
from onyxq.replica import Partition, majority, unserved

LEADERS_TIMEOUT_S = 1.0
"""How long partitions that move, or are being taken over, are waited for since another one was answered for."""
READ_TIMEOUT_S = 5.0
EPOCH_MAX = 1 << 62
WORD = "partitions"
"""The argument that peers of an older version do not know: they answer for whatever they lead."""

Look: TypeAlias = Callable[[dict[str, Any], Sequence[int]], Awaitable[Any]]
"""What the arguments of a method ask for, of some of the partitions led from here."""


@frozen
class Part:
    """What one node answers."""

    answer: Any
    partitions: Collection[int]
    """Of which it is; where there are none the answer says nothing."""
    past: Collection[int]
    """Of which the node has promised a later epoch."""


@define
class Round:
    """Every node is asked once."""

    placed: dict[int, Partition]
    """What is asked for, and under which epochs."""
    told: dict[str, Part] = field(factory=dict)
    errors: list[OnyxqError] = field(factory=list)

    def parts(self) -> list[Part]:
        """Answers that count."""
        parts = (part for _, part in sorted(self.told.items()))
        return [part for part in parts if part.partitions and all(map(self._stands, part.partitions))]

    def whole(self) -> bool:
        """Whether no more answers are needed."""
        if sum(len(part.partitions) for part in self.told.values()) < len(self.placed):
            return False
        return all(map(self._stands, self.placed))

    def _stands(self, number: int) -> bool:
        placed = self.placed[number]
        same = {node for node, part in self.told.items() if number not in part.past}
        return majority(placed.members, same) and majority(placed.target, same)


class AllLeaders:
    """See the module's first paragraph; one per node."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def led(self) -> list[int]:
        """Partitions that serve from here, sorted."""
        return [number for number, leader in sorted(self._node.leaders.items()) if leader.ready]

    # --- the node that asks

    async def ask(self, method: str, args: dict[str, Any], look: Look) -> list[Any]:
        """Answers to a method that are together of all partitions; ``look`` is this node's own.

        Raises `Unavailable` if nobody can answer for some of them.
        """
        node, answers = self._node, list[Any]()
        if node.replica.cluster is None:
            raise Unavailable("the cluster is not known here yet")
        left = set(node.replica.partitions)
        until, pause = trio.current_time() + LEADERS_TIMEOUT_S, RETRY_PAUSE_S
        while True:
            await self._served(left, until)
            replica = node.replica
            asked = await self._round(method, args, look, left)
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

    async def _served(self, left: Collection[int], until: float) -> None:
        node = self._node
        with trio.move_on_at(until):
            while any(number in left for number in unserved(node.replica)):
                await node.changed(node.replica)
        if missing := [number for number in unserved(node.replica) if number in left]:
            raise Unavailable(f"nobody serves partitions {_some(missing)} now")

    async def _round(self, method: str, args: dict[str, Any], look: Look, left: Collection[int]) -> Round:
        node = self._node
        asked = Round({number: node.replica.partitions[number] for number in sorted(left)})
        wanted: dict[str, dict[int, int]] = {}
        for number, placed in asked.placed.items():
            for name in {leader_of(node, number), *holders(placed)} - {""}:
                wanted.setdefault(name, {})[number] = placed.epoch
        async with trio.open_nursery() as nursery:

            async def ask(name: str, epochs: dict[int, int]) -> None:
                try:
                    if name == node.node_id:
                        asked.told[name] = await self._look(args, epochs, look)
                    else:
                        asked.told[name] = await self._call(name, method, args, epochs)
                except OnyxqError as error:
                    asked.errors.append(error)
                if asked.whole():
                    nursery.cancel_scope.cancel()

            for name, epochs in sorted(wanted.items()):
                nursery.start_soon(ask, name, epochs)
        lasting = [error for error in asked.errors if not (is_passing(error) or isinstance(error, Unknown))]
        if lasting and not asked.whole():
            raise lasting[0]
        return asked

    async def _call(self, name: str, method: str, args: dict[str, Any], epochs: dict[int, int]) -> Part:
        try:
            told = await self._node.call(name, method, args | {WORD: epochs}, timeout_s=READ_TIMEOUT_S)
        except BadRequest as error:
            if error.field != WORD:
                raise
            return await self._call_older(name, method, args, epochs)
        return Part(told["answer"], told[WORD], told["past"])

    async def _call_older(self, name: str, method: str, args: dict[str, Any], epochs: dict[int, int]) -> Part:
        """The same of a peer of an older version, which says neither what it leads nor what it has promised."""
        leads = [number for number in self._node.replica.partitions if leader_of(self._node, number) == name]
        if not epochs.keys() & leads:
            return Part(None, (), ())
        if not epochs.keys() >= set(leads):
            raise Unavailable("a peer of an older version cannot be asked again for some partitions alone")
        return Part(await self._node.call(name, method, args, timeout_s=READ_TIMEOUT_S), leads, ())

    # --- the node that is asked

    def serving(self, look: Look) -> Callable[[dict[str, Any]], Awaitable[Any]]:
        """The method as other nodes call it."""

        async def handler(args: dict[str, Any]) -> Any:
            rest = {name: value for name, value in args.items() if name != WORD}
            if WORD not in args:  # a peer of an older version asks
                await self._node.settled()
                return await look(rest, self.led())
            part = await self._look(rest, _epochs(args[WORD]), look)
            return {"answer": part.answer, WORD: list(part.partitions), "past": list(part.past)}

        return handler

    async def _look(self, args: dict[str, Any], epochs: dict[int, int], look: Look) -> Part:
        answer, leads = None, self._leads(epochs)
        if leads:
            await self._node.settled()
            leads = self._leads(epochs)
        while leads:
            answer = await look(args, leads)
            still = [number for number in self._leads(epochs) if number in leads]
            if still == leads:
                break
            leads = still
        past = [number for number, epoch in epochs.items() if self._node.epochs.get(number, 0) > epoch]
        return Part(answer, leads, past)

    def _leads(self, epochs: dict[int, int]) -> list[int]:
        """Which of the partitions are led from here under these epochs, as far as is known here."""
        found = [(number, self._node.leaders.get(number)) for number in sorted(epochs)]
        ready = [(number, one) for number, one in found if one is not None and one.ready and not one.deposed]
        return [number for number, one in ready if one.epoch == epochs[number]]


def _epochs(value: Any) -> dict[int, int]:
    """Partitions and their epochs, as another node names them."""
    if not isinstance(value, dict):
        raise BadRequest(f"{WORD} must be a map", field=WORD)
    return {
        check.integer(number, WORD, 0, PARTITIONS_MAX - 1): check.integer(epoch, WORD, 0, EPOCH_MAX)
        for number, epoch in value.items()
    }


def _some(partitions: Collection[int]) -> str:
    return f"{sorted(partitions)[:5]} ({len(partitions)} in all)"
