"""The task store's operations at a node: requests become entries, and reads come from the replica.

The answer to a change is the outcome of its entry at its place in the log. Reads are of the replica as this peer
knows it, which holds all that the peer has acknowledged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from onyxq.core.errors import BadRequest, LogUnavailable, StoreFull, TooLarge, Unknown
from onyxq.core.taskstore import claim as claim_entry
from onyxq.core.taskstore import set_limits, state
from onyxq.core.taskstore import update as update_entry
from onyxq.core.taskstore.state import Numbered, Refusal
from onyxq.node.node import Node
from onyxq.operations.handlers import Handler, merged, served
from onyxq.operations.table import store as table
from onyxq.operations.table.store import Changed, Found, GroupNames, GroupTasks, LimitsSet, Refused, StoredTask

_REQUEST_BITS = 62


class TaskStore:
    """Serves the task store at one node."""

    def __init__(self, node: Node, random_64: Callable[[], int]) -> None:
        self._node = node
        self._random_64 = random_64

    def handlers(self) -> dict[str, Handler]:
        """Return the functions that serve the operations."""
        return merged(
            served(table.UPDATE_STORE, self.update),
            served(table.CLAIM_STORED, self.claim),
            served(table.GET_STORED, self.tasks),
            served(table.LIST_GROUP, self.group),
            served(table.LIST_GROUPS, self.groups),
            served(table.SET_STORE_LIMITS, self.set_limits),
        )

    async def update(self, args: table.UpdateStore) -> Changed:
        """Add, change and delete tasks, all or nothing; raises `TooLarge`, `StoreFull`, `Unknown`."""
        limit = state.read(self._node.replica).limits[0]
        _check_sizes("adds", args.adds, limit)
        _check_sizes("changes", args.changes, limit)
        return await self._done(
            update_entry.Args(
                request=self._request(),
                client=args.client,
                adds=tuple((one.group, one.data, one.time) for one in args.adds),
                changes=tuple((one.id, one.data, one.time) for one in args.changes),
                deletes=tuple(args.deletes),
                depends=tuple(args.depends),
            )
        )

    async def claim(self, args: table.ClaimStored) -> Changed:
        """Claim a random available task of a group; raises `Unknown`."""
        return await self._done(
            claim_entry.Args(
                request=self._request(),
                client=args.client,
                group=args.group,
                duration_ms=args.duration_ms,
                depends=tuple(args.depends),
            )
        )

    async def tasks(self, args: table.GetStored) -> Found:
        """Return tasks by their ids; None for an id that does not exist.

        Raises `BadRequest` if repeated ids would make the answer larger than the store may be.
        """
        store = state.read(self._node.replica)
        most = left = max(store.size, store.limits[1])
        found: list[StoredTask | None] = []
        for number in args.ids:
            task = store.get(number)
            if task is not None:
                left -= state.size_of(task)
            if left < 0:
                problem = f"the tasks of ids have more than {most} bytes together"
                raise BadRequest(problem, field="ids", hint="Name each task once.")
            found.append(None if task is None else StoredTask(number, *task))
        return Found(tasks=found)

    async def group(self, args: table.ListGroup) -> GroupTasks:
        """Return tasks of a group by the times at which they are available."""
        store, now_ms = state.read(self._node.replica), self._node.cluster_ms()
        found: list[StoredTask] = []
        for number in store.members(args.group):
            task = store.get(number)
            assert task is not None, "every task that a group lists exists"
            if (task[1] > now_ms and not args.owned) or len(found) == args.limit > 0:
                break
            found.append(StoredTask(number, *task))
        return GroupTasks(tasks=found)

    async def set_limits(self, args: table.SetStoreLimits) -> LimitsSet:
        """Set the largest size of one task, and of all together; raises `BadRequest`."""
        if args.bytes_max < args.task_bytes_max:
            raise BadRequest(f"bytes_max must be at least task_bytes_max, {args.task_bytes_max}", field="bytes_max")
        self._node.outbox_now()
        _, (verdict,) = await self._node.verdicts([set_limits.Args(args.task_bytes_max, args.bytes_max)])
        return LimitsSet(verdict=verdict)

    async def groups(self, args: table.ListGroups) -> GroupNames:
        """Return the names of groups that have tasks."""
        return GroupNames(groups=sorted(state.read(self._node.replica).groups))

    def _request(self) -> int:
        return self._random_64() >> (64 - _REQUEST_BITS)

    async def _done(self, entry: update_entry.Args | claim_entry.Args) -> Changed:
        """Append an entry and return its outcome."""
        self._node.outbox_now()
        try:
            position, _, replica = await self._node.stepped([entry])
        except LogUnavailable as error:
            hint = "Look whether the tasks that the request depends on still exist."
            raise Unknown(f"the task store: {error.message}", hint=hint) from error
        answer = state.answer_of(replica, position, entry.request)
        assert answer is not None, "the replica directly after a record has the answers of its requests"
        made, refusal = answer
        if not refusal:
            return Changed(tasks=[_shown(task) for task in made])
        told = Refusal(*refusal)
        full = next((bug for bug in told.bugs if bug.startswith(state.FULL)), None)
        if full:
            raise StoreFull(full)
        return Changed(refused=Refused(**{name: list(found) for name, found in told._asdict().items()}))


def _shown(numbered: Numbered) -> StoredTask:
    number, task = numbered
    return StoredTask(number, *task)


def _check_sizes(name: str, tasks: Sequence[table.Add | table.Change], limit: int) -> None:
    for place, task in enumerate(tasks):
        size = len(task.data.encode())
        if size > limit:
            field = f"{name}[{place}].data"
            raise TooLarge(f"{field} has {size} bytes; a task may have {limit}", field=field)
