"""Calls of a client beside tasks and claims: queues, dead letters, periodic tasks, timers, cluster views."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, TypedDict, Unpack

from onyxq.client.options import refuse_unknown, takes
from onyxq.client.policy import OF_QUEUE, Retries
from onyxq.client.values import Page, Submitted, Task, as_id
from onyxq.core.errors import BadRequest, from_map
from onyxq.core.limits import Format, Missed
from onyxq.operations.table.cluster import (
    FORCE_PARTITION,
    GET_CLUSTER,
    GET_HEALTH,
    GET_PARTITIONS,
    GET_PEERS,
    GET_RING,
    LEAVE,
    ForcePartition,
    GetCluster,
    GetHealth,
    GetPartitions,
    GetPeers,
    GetRing,
    Leave,
)
from onyxq.operations.table.dead import DISCARD_DEAD, LIST_DEAD, REQUEUE_DEAD, DeadResults
from onyxq.operations.table.log import GC, GET_EXTENSION, GET_LOG, SUBMIT_ENTRY, Gc, GetExtension, GetLog, SubmitEntry
from onyxq.operations.table.operation import A, Operation, R, plain
from onyxq.operations.table.periodic import (
    GET_PERIODIC,
    LIST_PERIODIC,
    REMOVE_PERIODIC,
    SET_PERIODIC,
    GetPeriodic,
    ListPeriodic,
    RemovePeriodic,
    SetPeriodic,
)
from onyxq.operations.table.queue import GET_QUEUE, LIST_QUEUES, SET_QUEUE, GetQueue, ListQueues
from onyxq.operations.table.task import COUNT_TASKS, PURGE_QUEUE, CountTasks, PurgeQueue, State
from onyxq.operations.table.timer import (
    CANCEL_TIMER,
    GET_TIMER,
    LIST_TIMERS,
    SET_TIMER,
    CancelTimer,
    GetTimer,
    TimerState,
)
from onyxq.system.durations import Milliseconds, Timeout, as_milliseconds

PAGE_TASKS = 500
Tasks = AsyncIterator[Task]


class ScheduleOptions(TypedDict, total=False):
    """How a schedule is read.

    - ``zone``: the time zone of the cron fields.
    - ``missed``: what to do about times at which no task could be enqueued: ``"skip"``, ``"once"`` or ``"all"``.
    """

    zone: str
    missed: Missed


SCHEDULE: ScheduleOptions = {"zone": "UTC", "missed": "once"}


class PeriodicOptions(ScheduleOptions, total=False):
    """Options of a periodic task.

    - ``zone``: the time zone of the cron fields.
    - ``missed``: what to do about times at which no task could be enqueued: ``"skip"``, ``"once"`` or ``"all"``.
    - ``retries``, ``backoff_ms``: retries and first pause of each of its tasks, as in `AsyncClient.enqueue`.
    - ``expires_after_ms``: a task fails if it has not started within this time after it is due, in milliseconds.
    """

    retries: Retries
    backoff_ms: Milliseconds | None
    expires_after_ms: Milliseconds | None


PERIODIC: dict[str, Any] = {**SCHEDULE, "retries": OF_QUEUE, "backoff_ms": None, "expires_after_ms": None}


class Managing:
    """The calls of `AsyncClient` that are one request and one answer."""

    async def _ask(self, method: str, args: dict[str, Any] | None = None, *, timeout_ms: Timeout = None) -> Any:
        raise NotImplementedError

    async def _map(
        self, method: str, args: dict[str, Any] | None = None, *, timeout_ms: Timeout = None
    ) -> dict[str, Any]:
        found: dict[str, Any] = await self._ask(method, args, timeout_ms=timeout_ms)
        return found

    async def _do(self, operation: Operation[A, R], args: A, *, timeout_ms: Timeout = None) -> dict[str, Any]:
        """Return the result of an operation of the table, as plain values."""
        found: dict[str, Any] = await self._ask(operation.name, plain(args), timeout_ms=timeout_ms)
        return found

    def random_name(self) -> str:
        """Return a unique random name."""
        raise NotImplementedError

    # tasks
    async def count(self, queue: str | None = None) -> dict[str, dict[str, int]]:
        """Return the number of tasks by queue and state: ``{queue: {state: number}}``."""
        counts: dict[str, dict[str, int]] = (await self._do(COUNT_TASKS, CountTasks(queue=queue)))["counts"]
        return counts

    async def list(
        self,
        queue: str | None = None,
        *,
        state: State | None = None,
        after: bytes | None = None,
        limit: int = 100,
        newest_first: bool = False,
        where: str | None = None,
    ) -> Page:
        """Return a page of tasks in id order, of one queue and state if given; ``newest_first``: in reverse order.

        ``where``: only tasks with this text in their data, keys, error or traceback. Pass ``after`` of the page to
        get the next one. If a page is short although ``after`` is set, the search stopped at its limit: continue there.
        """
        asked = {"queue": queue, "state": state, "after": after, "limit": limit, "newest_first": newest_first}
        asked["where"] = where
        answer = await self._ask("list", asked)
        return Page(tuple(Task.of(task) for task in answer["tasks"]), answer["after"])

    async def list_all(self, queue: str | None = None, *, state: State | None = None) -> Tasks:
        """Yield all tasks in id order, page by page: ``async for task in client.list_all()``."""
        after = None
        while True:
            page = await self.list(queue, state=state, after=after, limit=PAGE_TASKS)
            for task in page.tasks:
                yield task
            after = page.after
            if after is None:
                return

    # queues
    async def queues(self) -> Sequence[dict[str, Any]]:
        """Return every queue with its depth by state, the age of its oldest ready task, and whether it is paused."""
        queues: Sequence[dict[str, Any]] = (await self._do(LIST_QUEUES, ListQueues()))["queues"]
        return queues

    async def queue(self, queue: str) -> dict[str, Any]:
        """Return one queue: its ``settings`` and its ``depth`` by state. A queue without settings has the defaults."""
        return await self._do(GET_QUEUE, GetQueue(queue=queue))

    async def set_queue(self, /, queue: str, *, by: str = "", why: str = "", **settings: Any) -> None:
        """Change settings of a queue and leave the others as they are; raise `BadRequest` naming the setting.

        ``settings``: those of `onyxq.core.queue_settings.Queue`, with rates in tasks per second. None resets a setting
        to its default, except ``retries``, where it means no limit. ``by`` and ``why`` are shown with a pause.
        """
        said = {name: as_milliseconds(one, name) if name.endswith("_ms") else one for name, one in settings.items()}
        await self._do(SET_QUEUE, SET_QUEUE.decode({"queue": queue, "by": by, "why": why, **said}))

    async def pause(self, queue: str, *, by: str = "", why: str = "") -> None:
        """Stop claims from a queue; existing claims continue. ``by`` and ``why`` are shown with the queue."""
        await self.set_queue(queue, by=by, why=why, paused=True)

    async def resume(self, queue: str, *, by: str = "", why: str = "") -> None:
        """Resume a paused queue and wake the claimers that wait for it."""
        await self.set_queue(queue, by=by, why=why, paused=False)

    async def purge_queue(self, queue: str) -> int:
        """Cancel all tasks of a queue that are not finished and not claimed; return their number. It cannot be undone.

        Pause the queue first, so that no worker takes one of them meanwhile.
        """
        count, more = 0, True
        while more:
            answer = await self._do(PURGE_QUEUE, PurgeQueue(queue=queue))
            count, more = count + answer["count"], answer["more"]
        return count

    # dead letters
    async def dead(
        self,
        queue: str | None = None,
        *,
        where: str | None = None,
        after: bytes | None = None,
        limit: int = 100,
        newest_first: bool = False,
    ) -> Page:
        """Return a page of tasks that failed for good, in id order; ``where``: a part of their error.

        ``newest_first``: in reverse order. Pass ``after`` of the page to get the next one.
        """
        asked = {"queue": queue, "where": where, "after": after, "limit": limit, "newest_first": newest_first}
        answer = await self._do(LIST_DEAD, LIST_DEAD.decode(asked))
        return Page(tuple(Task.of(task) for task in answer["tasks"]), answer["after"])

    async def requeue_dead(
        self, ids: Sequence[bytes | str] | None = None, *, queue: str | None = None, where: str | None = None
    ) -> int:
        """Requeue dead letters with all their retries: those named, or all that match; return their number.

        One call requeues at most 100,000 of those that match, so repeat it if there may be more. Raises `NotFound` or
        `Conflict` for an id that is not a dead letter; the others are requeued.
        """
        return await self._change_dead(REQUEUE_DEAD, ids, queue, where)

    async def discard_dead(
        self, ids: Sequence[bytes | str] | None = None, *, queue: str | None = None, where: str | None = None
    ) -> int:
        """Discard dead letters: they are cancelled. Arguments and errors are those of `requeue_dead`."""
        return await self._change_dead(DISCARD_DEAD, ids, queue, where)

    async def _change_dead(
        self,
        operation: Operation[Any, DeadResults],
        ids: Sequence[bytes | str] | None,
        queue: str | None,
        where: str | None,
    ) -> int:
        if isinstance(ids, (str, bytes)):
            raise BadRequest("ids is a list of ids", field="ids")
        named = None if ids is None else [as_id(one) for one in ids]
        if named is not None and not named:
            return 0
        args = operation.args(
            ids=named, queue=queue, where=where, all=named is None and queue is None and where is None
        )
        found = await self._do(operation, args)
        refused = next((one for one in found.get("results", ()) if not one["ok"]), None)
        if refused is not None:
            raise from_map({**refused, "message": refused["detail"]})
        count: int = found["count"]
        return count

    # periodic tasks
    async def periodic(self, name: str) -> dict[str, Any]:
        """Return one periodic task; raise `NotFound` if it does not exist."""
        return await self._do(GET_PERIODIC, GetPeriodic(name=name))

    async def periodics(self) -> Sequence[dict[str, Any]]:
        """Return all periodic tasks, sorted by name."""
        found: Sequence[dict[str, Any]] = (await self._do(LIST_PERIODIC, ListPeriodic()))["periodic"]
        return found

    @takes(PeriodicOptions, PERIODIC)
    async def set_periodic(
        self,
        name: str,
        queue: str,
        schedule: str,
        payload: bytes = b"",
        *,
        format: Format = "bytes",
        priority: int = 0,
        paused: bool = False,
        **options: Unpack[PeriodicOptions],
    ) -> dict[str, Any]:
        """Create a periodic task, or change the one of that name; raise `BadRequest` naming the field.

        ``schedule``: five cron fields (``"*/5 8-17 * * mon-fri"``), or ``"every 90s"``.
        """
        refuse_unknown(options, self.set_periodic, PERIODIC)
        task = {"queue": queue, "data": payload, "format": format, "priority": priority, "paused": paused}
        said: dict[str, Any] = {name: value for name, value in options.items() if value != PERIODIC[name]}
        said |= {name: as_milliseconds(said[name], name) for name in said.keys() & {"backoff_ms", "expires_after_ms"}}
        return await self._do(SET_PERIODIC, SET_PERIODIC.decode({"name": name, "schedule": schedule, **task, **said}))

    async def remove_periodic(self, name: str) -> None:
        """Remove a periodic task; tasks that it has already enqueued stay. Raise `NotFound` if it does not exist."""
        await self._do(REMOVE_PERIODIC, RemovePeriodic(name=name))

    async def pause_periodic(self, name: str) -> dict[str, Any]:
        """Pause a periodic task: it enqueues nothing until it is resumed."""
        return await self._do(SET_PERIODIC, SetPeriodic(name=name, paused=True))

    async def resume_periodic(self, name: str) -> dict[str, Any]:
        """Resume a periodic task from its next scheduled time."""
        return await self._do(SET_PERIODIC, SetPeriodic(name=name, paused=False))

    # timers
    async def set_timer(
        self,
        timer: str,
        timeout_ms: Milliseconds,
        uri: str,
        data: str | Mapping[str, Any] | None = None,
        *,
        transport: str = "http",
        method: str = "POST",
        replace: bool = False,
    ) -> None:
        """Set a timer that makes a callback ``timeout_ms`` from now.

        ``replace``: change a timer that has not fired. Raises `Conflict` if such a timer exists, or with ``replace``
        `NotFound` if it does not exist; `BadRequest` naming the field.
        """
        callback = {"transport": transport, "uri": uri, "method": method}
        due_ms = as_milliseconds(timeout_ms, "timeout_ms")
        said = {"timeout": due_ms, "data": dict(data) if isinstance(data, Mapping) else data, "callback": callback}
        named = {"id": timer, "replace": replace, "request": self.random_name()}
        await self._do(SET_TIMER, SET_TIMER.decode({**named, **said}))

    async def timer(self, timer: str) -> dict[str, Any]:
        """Return one timer, until it is purged even if it has fired; raise `NotFound` if it does not exist."""
        return await self._do(GET_TIMER, GetTimer(id=timer))

    async def timers(
        self, *, state: TimerState | None = None, after: bytes | None = None, limit: int = 100
    ) -> tuple[Sequence[dict[str, Any]], bytes | None]:
        """Return a page of timers by due time, and the ``after`` for the next page; None on the last page."""
        page = await self._do(LIST_TIMERS, LIST_TIMERS.decode({"state": state, "after": after, "limit": limit}))
        return page["timers"], page["after"]

    async def cancel_timer(self, timer: str) -> None:
        """Cancel a timer; raise `NotFound` if it does not exist or has fired."""
        await self._do(CANCEL_TIMER, CancelTimer(id=timer))

    # the cluster
    async def cluster(self) -> dict[str, Any]:
        """Return the cluster's name, settings and condition."""
        return await self._do(GET_CLUSTER, GetCluster())

    async def ring(self) -> dict[str, Any]:
        """Return the ring: which peer watches which."""
        return await self._do(GET_RING, GetRing())

    async def partitions(self) -> dict[str, Any]:
        """Return every partition's members, leader and epoch."""
        return await self._do(GET_PARTITIONS, GetPartitions())

    async def peers(self) -> dict[str, Any]:
        """Return every peer and node."""
        return await self._do(GET_PEERS, GetPeers())

    async def health(self) -> dict[str, Any]:
        """Return whether the peer serves requests, and how far it lags behind the log."""
        return await self._do(GET_HEALTH, GetHealth())

    async def log(self, from_: int | None = None, limit: int = 100) -> dict[str, Any]:
        """Return log records from a position on, with the verdict on each entry."""
        return await self._do(GET_LOG, GetLog(from_=from_, limit=limit))

    async def submit_entry(
        self,
        entry: str,
        args: Mapping[str, Any] | Sequence[Any] | None = None,
        *,
        timeout_ms: Timeout = None,
    ) -> Submitted:
        """Append an entry of an extension to the log; return its position and verdict.

        The call is retried until a peer answers, so an entry may be applied twice. Raises `NotFound`, `Forbidden`,
        `NotEnabled`, or `BadRequest` naming the argument.
        """
        sent = dict(args) if isinstance(args, Mapping) else list(args or ())
        asked = SubmitEntry(entry=entry, args=sent or {})
        found = await self._do(SUBMIT_ENTRY, asked, timeout_ms=timeout_ms)
        return Submitted(found["position"], found["verdict"])

    async def extension(self, name: str, *, seen: int | None = None) -> Any:
        """Return the state of an extension, not older than the position ``seen``; raise `NotFound`."""
        return (await self._do(GET_EXTENSION, GetExtension(name=name, seen=seen)))["state"]

    async def gc(self, *, timeout_ms: Timeout = None) -> dict[str, Any]:
        """Take a snapshot and trim the log before it; return once it is trimmed."""
        return await self._do(GC, Gc(), timeout_ms=timeout_ms)

    async def leave(self, peer: str, *, permanent: bool = False, timeout_ms: Timeout = None) -> dict[str, Any]:
        """Drain a peer; ``permanent``: its copies move away first, and the answer holds their number."""
        return await self._do(LEAVE, Leave(peer=peer, permanent=permanent), timeout_ms=timeout_ms)

    async def force_partition(self, partition: int, *, by: str = "") -> dict[str, Any]:
        """Continue without the lost majority of a partition; what no live member has is given up. Raise `Conflict`."""
        return await self._do(FORCE_PARTITION, ForcePartition(partition=partition, by=by))
