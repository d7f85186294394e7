"""Operations on claimed tasks, and cancels: each item goes to the leader of its task."""

from __future__ import annotations

from typing import Any

from onyxq.core.ids import TaskId
from onyxq.leader.state.view import Refused
from onyxq.node.all_leaders import AllLeaders
from onyxq.node.node import Node
from onyxq.node.routing import Router
from onyxq.operations import guarantees
from onyxq.operations.checks.runs import check_completions, check_ids, check_runs, write_level
from onyxq.operations.handlers import Handler, merged, served
from onyxq.operations.table.claim import (
    COMPLETE,
    FAIL,
    GIVE_UP,
    POSTPONE,
    RELEASE,
    RENEW,
    UPDATE,
    Complete,
    Fail,
    Failure,
    GiveUp,
    Postpone,
    Release,
    Renew,
    Settled,
    Updated,
    UpdateTasks,
)
from onyxq.operations.table.task import CANCEL_TASKS, PURGE_QUEUE, CancelTasks, ItemResults, PurgedQueue, PurgeQueue
from onyxq.operations.task_lists import UNFINISHED, Listing, gather
from onyxq.operations.task_reads import partitions_of
from onyxq.system.procedures import procedure

PAGE = 1_000
"""Tasks that a purge cancels together."""


class HeldTasks:
    """Serves these operations of one node."""

    def __init__(self, node: Node, router: Router, leaders: AllLeaders, listing: Listing) -> None:
        self._node = node
        self._unfinished = leaders.question(PURGE_QUEUE.name, listing.look_unfinished)
        leading = node.operations
        self._completed = router.led(COMPLETE, leading.completions.complete)
        self._failed = router.led(FAIL, leading.claim_updates.fail)
        self._renewed = router.led(RENEW, leading.claim_updates.renew)
        self._released = router.led(RELEASE, leading.claim_updates.release)
        self._given_up = router.led(GIVE_UP, leading.claim_updates.give_up)
        self._postponed = router.led(POSTPONE, self._lead_postpone)
        self._updated = router.led(UPDATE, leading.task_updates.update)
        self._cancelled = router.led(CANCEL_TASKS, leading.cancellations.cancel)

    def handlers(self) -> dict[str, Handler]:
        """Return the functions that serve the operations."""
        return merged(
            served(COMPLETE, self.complete),
            served(FAIL, self.fail),
            served(RENEW, self.renew),
            served(RELEASE, self.release),
            served(GIVE_UP, self.give_up),
            served(POSTPONE, self.postpone),
            served(UPDATE, self.update),
            served(CANCEL_TASKS, self.cancel),
            served(PURGE_QUEUE, self.purge),
        )

    @procedure
    async def complete(self, args: Complete) -> Settled:
        """Complete claimed tasks."""
        check_completions(args.items, partitions_of(self._node))
        return Settled(results=await self._completed.ask(args))

    @procedure
    async def fail(self, args: Fail) -> Settled:
        """Retry claimed tasks. Tasks that have no retries left fail for good."""
        check_runs(args.items, partitions_of(self._node))
        return Settled(results=await self._failed.ask(args))

    @procedure
    async def renew(self, args: Renew) -> Settled:
        """Extend the leases of claimed tasks."""
        check_runs(args.items, partitions_of(self._node))
        return Settled(results=await self._renewed.ask(args))

    @procedure
    async def release(self, args: Release) -> Settled:
        """Give claimed tasks back."""
        check_runs(args.items, partitions_of(self._node))
        return Settled(results=await self._released.ask(args))

    @procedure
    async def give_up(self, args: GiveUp) -> Settled:
        """Fail claimed tasks for good."""
        check_runs(args.items, partitions_of(self._node))
        return Settled(results=await self._given_up.ask(args))

    @procedure
    async def postpone(self, args: Postpone) -> Settled:
        """Give claimed tasks back; they are due again after a pause."""
        check_runs(args.items, partitions_of(self._node))
        return Settled(results=await self._postponed.ask(args))

    @procedure
    async def _lead_postpone(self, args: Postpone) -> list[list[Refused]]:
        return await self._node.operations.claim_updates.postpone([Failure(*item) for item in args.items])

    @procedure
    async def update(self, args: UpdateTasks) -> Updated:
        """Store updates of claimed tasks."""
        wanted = write_level(args.w, self._node.replica.settings.replicas)
        check_ids([item.id for item in args.items], partitions_of(self._node), "items", member=".id")
        acks = await self._updated.ask(args)
        answer = Updated(results=[ack if isinstance(ack, dict) else None for ack in acks])
        if wanted is not None:
            answer.acks = [0 if isinstance(ack, dict) else ack for ack in acks]
            stored = ((item.id, ack) for item, ack in zip(args.items, acks, strict=True))
            answer.guarantee = guarantees.few(self._node.replica, stored) or None
        return answer

    @procedure
    async def cancel(self, args: CancelTasks) -> ItemResults:
        """Cancel tasks."""
        check_ids(args.ids, partitions_of(self._node))
        return ItemResults(results=await self._cancelled.ask(args))

    async def purge(self, args: PurgeQueue) -> PurgedQueue:
        """Cancel the unfinished and unclaimed tasks of a queue, page by page."""
        count, left = 0, args.limit
        for state in UNFINISHED:
            wanted: dict[str, Any] = {"queue": args.queue, "state": state, "after": None, "newest_first": False}
            while True:
                found, after = await gather(self._unfinished, wanted | {"limit": min(left, PAGE)})
                ids = [TaskId(one) for one in found]
                refused = await self._cancelled.ask(CancelTasks(ids=ids)) if ids else []
                count += sum(error is None for error in refused)
                left -= len(ids)
                if left <= 0:
                    return PurgedQueue(count=count, more=True)
                if after is None:
                    break
                wanted["after"] = after
        return PurgedQueue(count=count, more=False)
