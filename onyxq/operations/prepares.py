"""Messages with parts of transactions to the leaders that keep them."""

from __future__ import annotations

from collections import deque
from typing import Any

import trio
from attrs import define, field

from onyxq.core.errors import OnyxqError
from onyxq.leader.transaction_parts import PartRequest
from onyxq.node.node import Node
from onyxq.node.routing import CALL_TIMEOUT_S
from onyxq.system.failures import serving

GROUP_PARTS_MAX = 256
GROUP_BYTES_MAX = 4 * 1024 * 1024
FLIGHTS = 2
"""Most messages with prepared parts in flight to one leader."""


@define(eq=False)
class _Waiting:
    asked: PartRequest
    size: int
    answer: Any = None
    done: trio.Event = field(factory=trio.Event)


class ToLeader:
    """Sends parts to one node."""

    def __init__(self, node: Node, leader: str) -> None:
        self._node = node
        self._leader = leader
        self._waiting: deque[_Waiting] = deque()
        self._flights = 0

    async def ask(self, asked: PartRequest) -> Any:
        """Return the leader's answer, or the map of the error instead of one."""
        waiting = _Waiting(asked, _size(asked))
        self._waiting.append(waiting)
        if self._flights < FLIGHTS:
            self._flights += 1
            self._node.start_soon(self._flight)
        await waiting.done.wait()
        return waiting.answer

    async def _flight(self) -> None:
        try:
            while self._waiting:
                group = self._take()
                for waiting, answer in zip(group, await self._answers([one.asked for one in group]), strict=True):
                    waiting.answer = answer
                    waiting.done.set()
        finally:
            self._flights -= 1

    def _take(self) -> list[_Waiting]:
        group: list[_Waiting] = []
        size = 0
        while self._waiting and len(group) < GROUP_PARTS_MAX and (not group or size < GROUP_BYTES_MAX):
            group.append(self._waiting.popleft())
            size += group[-1].size
        return group

    async def _answers(self, asked: list[PartRequest]) -> list[Any]:
        try:
            if self._leader == self._node.node_id:
                with serving("lead.prepare"):
                    return await self._node.operations.transaction_parts.prepare(asked)
            parts = [[*one[:3], one.items, [list(claim) for claim in one.require]] for one in asked]
            answers = await self._node.call(self._leader, "lead.prepare", {"parts": parts}, timeout_s=CALL_TIMEOUT_S)
            return list(answers)
        except OnyxqError as error:
            return [error.to_map()] * len(asked)


def _size(asked: PartRequest) -> int:
    return sum(len(item[2]) if item[0] == "T" else 64 for item in asked.items)
