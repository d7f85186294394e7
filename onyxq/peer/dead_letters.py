"""Dead letters for clients: failed tasks of the whole cluster, to be listed, requeued or discarded.

Which ones is said by ids, or by queue and a part of the error; then the leaders find them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import trio

from onyxq.errors import BadRequest, Unavailable
from onyxq.ids import PARTITIONS_MAX, TaskId
from onyxq.peer import arguments as check
from onyxq.peer.node import Node
from onyxq.peer.reading import Reading, start_of
from onyxq.peer.routing import Router, passing_map

WHERE_CHARS_MAX = 1_000
CHANGED_MAX = 100_000
"""Dead letters that one request requeues or discards."""
PAGE = 1_000


class DeadLetters:
    """Serves ``dead`` and ``dead.*`` of one node."""

    def __init__(self, node: Node, router: Router, reading: Reading) -> None:
        self._node = node
        self._router = router
        self._reading = reading

    async def page(self, args: dict[str, Any]) -> dict[str, Any]:
        """A page of dead letters in id order: ``{"tasks": as get answers, "after"}``."""
        check.only(args, ("queue", "after", "limit", "error"))
        wanted = _wanted(
            args.get("queue"), args.get("error"), args.get("after"), args.get("limit", 100), check.LIMIT_MAX
        )
        pages = await self._reading.everywhere("lead.dead", wanted | {"views": True}, self.lead_dead)
        tasks = sorted((task for page in pages for task in page), key=lambda task: bytes(task["id"]))[: wanted["limit"]]
        return {"tasks": tasks, "after": tasks[-1]["id"] if len(tasks) == wanted["limit"] else None}

    async def requeue(self, args: dict[str, Any]) -> dict[str, Any]:
        """Have dead letters run again: ``{"results"}`` for ids, ``{"count"}`` for a filter."""
        return await self._change(args, "lead.requeue", self._node.operations.dead.requeue)

    async def discard(self, args: dict[str, Any]) -> dict[str, Any]:
        """Give dead letters up: ``{"results"}`` for ids, ``{"count"}`` for a filter."""
        return await self._change(args, "lead.discard", self._node.operations.dead.discard)

    async def _change(
        self, args: dict[str, Any], method: str, local: Callable[[Sequence[TaskId]], Awaitable[list[Any]]]
    ) -> dict[str, Any]:
        check.only(args, ("ids", "queue", "where", "limit"))
        if args.get("ids") is not None:
            if any(args.get(name) is not None for name in ("queue", "where")):
                raise BadRequest("ids, or queue and where: not both", field="ids")
            ids = check.task_ids({"ids": args["ids"]}, self._partitions())
            return {"results": await self._send(ids, method, local)}
        wanted = _wanted(args.get("queue"), args.get("where"), None, args.get("limit", CHANGED_MAX), CHANGED_MAX)
        count, left = 0, wanted["limit"]
        while left > 0:
            ids = await self._find(wanted | {"limit": min(left, PAGE)})
            results = await self._send(ids, method, local)
            count += sum(one is None for one in results)
            left -= len(ids)
            if len(ids) < PAGE:
                break
            wanted["after"] = ids[-1]
        return {"count": count}

    async def _send(
        self, ids: Sequence[TaskId], method: str, local: Callable[[Sequence[TaskId]], Awaitable[list[Any]]]
    ) -> list[Any]:
        return await self._router.each(
            [(one,) for one in ids],
            method=method,
            pack=lambda part: {"ids": [one[0] for one in part]},
            unpack=lambda answer: list(answer),
            local=lambda part: local([one[0] for one in part]),
            passing=passing_map,
            failed=lambda _, error: error.to_map(),
        )

    async def _find(self, wanted: dict[str, Any]) -> list[TaskId]:
        pages = await self._reading.everywhere("lead.dead", wanted | {"views": False}, self.lead_dead)
        return sorted(TaskId(one) for page in pages for one in page)[: wanted["limit"]]

    async def lead_dead(self, args: dict[str, Any]) -> list[Any]:
        """The first dead letters of the partitions led from here, in id order: ids, or with ``views`` tasks."""
        check.only(args, ("queue", "where", "after", "limit", "views"))
        wanted = _wanted(args["queue"], args["where"], args["after"], args["limit"], CHANGED_MAX)
        after, found = wanted["after"] or b"", list[TaskId]()
        await self._node.settled()
        for partition in self._reading.led():
            # Ids are in order of time first: nothing of any partition lies before ``after``.
            start = start_of(partition, after)
            found += self._node.operations.dead.find(
                partition, queue=wanted["queue"], where=wanted["where"], after=start, limit=wanted["limit"]
            )
            await trio.lowlevel.checkpoint()
        ids = sorted(found)[: wanted["limit"]]
        return [view for one in ids if (view := self._reading.view_here(one))] if args["views"] else ids

    def _partitions(self) -> int:
        if self._node.replica.cluster is None:
            raise Unavailable("the cluster is not known here yet")
        return self._node.replica.settings.partitions


def _wanted(queue: Any, where: Any, after: Any, limit: Any, most: int) -> dict[str, Any]:
    if queue is not None:
        check.text(queue, "queue", check.QUEUE_CHARS_MAX, least=1)
    if where is not None:
        check.text(where, "where", WHERE_CHARS_MAX)
    if after is not None:
        check.task_id(after, "after", PARTITIONS_MAX)
    return {"queue": queue, "where": where, "after": after, "limit": check.integer(limit, "limit", 1, most)}
