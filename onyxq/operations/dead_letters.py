"""Dead letters for clients: failed tasks of the whole cluster, to be listed, requeued or discarded.

Which ones is said by ids, or by queue and a part of the error; then the leaders find them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

from onyxq.core.errors import BadRequest, Unavailable
from onyxq.core.ids import PARTITIONS_MAX, TaskId
from onyxq.node import arguments as check
from onyxq.node.node import Node
from onyxq.node.routing import Router, passing_map
from onyxq.operations.task_lists import VIEW_LOOKS, Found, Listing, Place, look, merged
from onyxq.operations.task_reads import Reading

WHERE_CHARS_MAX = 1_000
CHANGED_MAX = 100_000
"""Dead letters that one request requeues or discards."""
PAGE = 1_000


class DeadLetters:
    """Serves ``dead`` and ``dead.*`` of one node."""

    def __init__(self, node: Node, router: Router, reading: Reading, listing: Listing) -> None:
        self._node = node
        self._router = router
        self._reading = reading
        self._listing = listing

    async def page(self, args: dict[str, Any]) -> dict[str, Any]:
        """A page of dead letters in id order: ``{"tasks": as get answers, "after"}``."""
        check.only(args, ("queue", "after", "limit", "error"))
        if args.get("error") is not None:
            check.text(args["error"], "error", WHERE_CHARS_MAX)
        wanted = _wanted(
            args.get("queue"), args.get("error"), args.get("after"), args.get("limit", 100), check.LIMIT_MAX
        )
        tasks, after = await self._listing.gather("lead.dead", wanted | {"views": True}, self.look)
        return {"tasks": tasks, "after": after}

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
            page = wanted | {"limit": min(left, PAGE), "views": False}
            ids, after = await self._listing.gather("lead.dead", page, self.look)
            results = await self._send([TaskId(one) for one in ids], method, local)
            count += sum(one is None for one in results)
            left -= len(ids)
            if after is None:
                break
            wanted["after"] = after
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

    async def look(self, args: dict[str, Any], partitions: Sequence[int]) -> Found:
        """Look for dead letters of partitions led from here: ids, or with ``views`` tasks."""
        check.only(args, ("queue", "where", "after", "limit", "views"))
        wanted = _wanted(args["queue"], args["where"], args["after"], args["limit"], CHANGED_MAX)
        where, dead = wanted["where"], self._node.operations.dead

        def take(task_id: TaskId) -> Any:
            if where is not None and where not in dead.error_of(task_id):
                return None
            return self._reading.view_here(task_id) if args["views"] else task_id

        cheap = where is None and not args["views"]
        return await look(
            merged(self._places, wanted, partitions), take, limit=wanted["limit"], cost=0 if cheap else VIEW_LOOKS
        )

    def _places(self, partition: int, after: bytes, wanted: dict[str, Any]) -> Iterator[Place]:
        for task_id in self._node.operations.dead.find(partition, queue=wanted["queue"], after=after):
            yield task_id, True, 1

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
