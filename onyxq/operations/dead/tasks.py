"""Dead letters for clients: failed tasks of the whole cluster, to be listed, requeued or discarded.

A request names them by ids, or by queue and a part of the error; then the leaders find them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from onyxq.core.ids import TaskId
from onyxq.node.all_leaders import AllLeaders
from onyxq.node.node import Node
from onyxq.node.routing import Routed, Router
from onyxq.operations.checks.runs import check_ids
from onyxq.operations.handlers import Handler, served
from onyxq.operations.handlers import merged as all_of
from onyxq.operations.table.dead import (
    DISCARD_DEAD,
    LIST_DEAD,
    REQUEUE_DEAD,
    DeadResults,
    DiscardDead,
    ListDead,
    RequeueDead,
)
from onyxq.operations.table.operation import converted
from onyxq.operations.table.task import TaskPage, task_result
from onyxq.operations.task_lists import VIEW_LOOKS, Found, Place, gather, look, merged
from onyxq.operations.task_reads import Reading, partitions_of

PAGE = 1_000
C = TypeVar("C", RequeueDead, DiscardDead)


class DeadLetters:
    """Serves ``dead`` and ``dead.*`` of one node."""

    def __init__(self, node: Node, router: Router, reading: Reading, leaders: AllLeaders) -> None:
        self._node = node
        self._requeued = router.led(REQUEUE_DEAD, node.operations.dead_letters.requeue)
        self._discarded = router.led(DISCARD_DEAD, node.operations.dead_letters.discard)
        self._reading = reading
        self._listed = leaders.question(LIST_DEAD.name, self._look)

    def handlers(self) -> dict[str, Handler]:
        """Return the functions that serve the operations."""
        return all_of(
            served(LIST_DEAD, self.page), served(REQUEUE_DEAD, self.requeue), served(DISCARD_DEAD, self.discard)
        )

    async def page(self, args: ListDead) -> TaskPage:
        """Return a page of dead letters in id order."""
        wanted = msgspec.structs.asdict(args) | {"views": True}
        tasks, after = await gather(self._listed, wanted)
        return converted(TaskPage, {"tasks": tasks, "after": after})

    async def requeue(self, args: RequeueDead) -> DeadResults:
        """Requeue dead letters."""
        return await self._change(args, self._requeued)

    async def discard(self, args: DiscardDead) -> DeadResults:
        """Discard dead letters."""
        return await self._change(args, self._discarded)

    async def _change(self, args: C, changed: Routed[C]) -> DeadResults:
        if args.ids is not None:
            check_ids(args.ids, partitions_of(self._node))
            errors = await changed.ask(args)
            results = [task_result(one, error) for one, error in zip(args.ids, errors, strict=True)]
            return DeadResults(count=sum(one.ok for one in results), results=results)
        wanted: dict[str, Any] = {"queue": args.queue, "where": args.where, "after": None, "views": False}
        wanted["newest_first"] = False
        count, left = 0, args.limit
        after: TaskId | None = None
        while left > 0:
            page = wanted | {"limit": min(left, PAGE)}
            found, after = await gather(self._listed, page)
            errors = await changed.ask(type(args)(ids=[TaskId(one) for one in found]))
            count += sum(error is None for error in errors)
            left -= len(found)
            if after is None:
                break
            wanted["after"] = after
        return DeadResults(count=count, more=after is not None)

    async def _look(self, args: dict[str, Any], partitions: Sequence[int]) -> Found:
        """Look for dead letters of partitions led from here: ids, or with ``views`` tasks."""
        views = args.get("views") is True
        asked = {name: value for name, value in args.items() if name != "views"}
        wanted = msgspec.structs.asdict(LIST_DEAD.decode(asked))
        where, dead = wanted["where"], self._node.operations.dead_letters

        def take(task_id: TaskId) -> Any:
            if where is not None and not dead.says(task_id, where):
                return None
            return self._reading.view_here(task_id) if views else task_id

        cheap = where is None and not views
        return await look(
            merged(self._places, wanted, partitions), take, limit=wanted["limit"], cost=0 if cheap else VIEW_LOOKS
        )

    def _places(self, partition: int, after: bytes, wanted: dict[str, Any]) -> Iterator[Place]:
        find = self._node.operations.dead_letters.find
        for task_id in find(partition, queue=wanted["queue"], after=after, newest_first=wanted["newest_first"]):
            yield task_id, True, 1
