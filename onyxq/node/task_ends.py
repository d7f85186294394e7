"""Waits for the ends of tasks, which their leaders report (design: dependencies).

A node that waits for tasks of other leaders asks these for outcomes, as the leader of a dependent task does, and gets a
hint at the end of each task.  Hints may be lost, and leaders change, so it asks again every `ASK_EVERY_S`.  Any number
of requests may wait for one task: the node asks once for all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import islice

from onyxq.core.errors import OnyxqError, Overloaded
from onyxq.core.ids import TaskId
from onyxq.leader.outcomes import UNFINISHED, UNSERVED
from onyxq.node.node import Node
from onyxq.system.procedures import Wait, now
from onyxq.system.signal import Signal
from onyxq.wire.bounds import OWNER, has_room

ASK_EVERY_S = 1.0
ASKED_AGAIN_MAX = 5_000
"""Most tasks whose leaders are asked again at a time; the others have their turn later."""
WAITS_MAX = 50_000
"""Most requests that wait at this node; `onyxq.wire.bounds.has_room` limits the share of one credential."""
NO_END = (UNFINISHED, UNSERVED)
"""Outcomes of a task that may end later."""


class TaskEnds:
    """Wakes requests of one node once tasks have ended."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._ends: dict[TaskId, Signal] = {}
        """Tasks that requests wait for."""
        self._waits: Counter[str] = Counter()
        """Number of requests that wait, by credential."""
        self._new: dict[TaskId, None] = {}
        """Those of them whose leaders must be asked now."""
        self._wake = Wait()
        self._runs = False
        node.operations.waiting.listeners.append(self._hint)

    async def wait(self, task_id: TaskId, timeout_s: float) -> None:
        """Wait until a task may have ended, up to ``timeout_s``: read it then. Raises `Overloaded`."""
        owner = OWNER.get()
        if not has_room(self._waits, owner, WAITS_MAX):
            raise Overloaded("too many requests wait for the ends of tasks here")
        signal = self._ends.get(task_id)
        if signal is None:
            signal = self._ends[task_id] = Signal()
        self._new[task_id] = None
        self._wake.end()
        if not self._runs:
            self._runs = True
            self._node.start_soon(self._run)
        self._waits[owner] += 1
        try:
            await signal.wait(timeout_s)
        finally:
            self._waits[owner] -= 1
            if not self._waits[owner]:
                del self._waits[owner]
            if not signal.awaited and self._ends.get(task_id) is signal:
                del self._ends[task_id]

    def _hint(self, ids: Iterable[TaskId]) -> None:
        """Take a leader's hint that tasks have ended."""
        if self._ends:
            for task_id in ids:
                if (signal := self._ends.pop(task_id, None)) is not None:
                    signal.fire()

    async def _run(self) -> None:
        """Ask for outcomes while requests wait."""
        again_s = now() + ASK_EVERY_S
        try:
            while self._ends:
                ids = {one for one in self._new if one in self._ends}
                self._new.clear()
                if now() >= again_s:
                    for one in list(islice(self._ends, ASKED_AGAIN_MAX)):
                        self._ends[one] = self._ends.pop(one)
                        ids.add(one)
                    again_s = now() + ASK_EVERY_S
                await self._ask(ids)
                await self._wake.wait(max(0.0, again_s - now()))
                self._wake = Wait()
        finally:
            self._runs = False

    async def _ask(self, ids: set[TaskId]) -> None:
        if not ids:
            return
        found = await self._node.operations.dependencies.outcomes_for(ids)
        self._hint(one for one, said in found.items() if not isinstance(said, OnyxqError) and said not in NO_END)
