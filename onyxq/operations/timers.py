"""Operations on timers, which are set, read and cancelled at the leader of their id's partition."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from attrs import define, field

from onyxq.core import facts, timer_model
from onyxq.core.errors import Conflict, NotFound, OnyxqError, Unavailable, from_map
from onyxq.core.ids import IdMaker, TaskId, make_id, partition_of
from onyxq.core.limits import TIME_MS_MAX
from onyxq.core.limits import TIMERS_QUEUE as QUEUE
from onyxq.core.task_headers import CALLBACK, may_say
from onyxq.leader import timers as leading
from onyxq.node.node import Node
from onyxq.node.routing import Router
from onyxq.operations.checks.peers import Ids, TimerNames, TimerRuns
from onyxq.operations.handlers import Handler, merged, served
from onyxq.operations.table.enqueue import NewRun
from onyxq.operations.table.operation import Items, plain
from onyxq.operations.table.task import LIST_TASKS
from onyxq.operations.table.timer import (
    CANCEL_TIMER,
    GET_TIMER,
    LIST_TIMERS,
    SET_TIMER,
    CancelTimer,
    GetTimer,
    ListTimers,
    SetTimer,
    TimerNamed,
    TimerPage,
    TimerView,
)
from onyxq.operations.task_lists import Listing
from onyxq.operations.task_reads import Reading
from onyxq.system.procedures import Wait

CANCEL_TRIES = 8
"""Number of times that a timer may be replaced while it is cancelled."""
STATES = {"completed": "fired"}
"""State of a task -> name of the state of its timer, if it is another one."""


@define(eq=False)
class _Check:
    """The check of a callback of the task at ``place``."""

    callback: timer_model.Callback
    place: str
    error: OnyxqError | None = None
    over: Wait = field(factory=Wait)


@contextmanager
def _within(place: str) -> Iterator[None]:
    """Let the field of an error begin with the place of its task."""
    try:
        yield
    except OnyxqError as error:
        error.field = f"{place}.{error.field or CALLBACK}"
        raise


class Timers:
    """See the module's first paragraph."""

    def __init__(self, node: Node, router: Router, reading: Reading, *, listing: Listing, ids: IdMaker) -> None:
        self._node = node
        self._stored = router.asked("timer.set", TimerRuns, Items(argument="runs"), self._set_here)
        self._found = router.asked("timer.find", TimerNames, Items(argument="timers"), self._find_here)
        self._cancelled = router.asked("timer.cancel", Ids, Items(argument="ids"), self._cancel_here)
        self._reading = reading
        self._listing = listing
        self._ids = ids
        self.check_callback: Callable[[timer_model.Callback], Awaitable[None]] | None = None
        """Function that raises `BadRequest` for a callback that this node cannot make; None: any callback is fine."""

    def handlers(self) -> dict[str, Handler]:
        """Return the functions that serve the operations."""
        return merged(
            served(SET_TIMER, self.set),
            served(GET_TIMER, self.get),
            served(LIST_TIMERS, self.page),
            served(CANCEL_TIMER, self.cancel),
        )

    # --- as clients call them

    async def set(self, args: SetTimer) -> TimerNamed:
        """Set a timer, or with ``replace`` set an existing one again.

        ``request`` names the request: a repeat under the same name has no other effect.  Raises `BadRequest` naming
        the field, `Conflict`, `NotFound`, `Unavailable`.
        """
        timer = timer_model.checked(
            args.id,
            timeout=args.timeout,
            data=args.data,
            callback=plain(args.callback),
            longest_ms=TIME_MS_MAX - self._node.wall_ms(),
            request=args.request,
        )
        payload = timer_model.pack(timer)
        if self.check_callback is not None:
            await self.check_callback(timer.callback)
        first = self._ids.run(self._partition(timer.id), 1, due_ms=self._node.wall_ms() + timer.timeout).first
        body = facts.pack_task(
            {"format": "json", "queue": QUEUE, "unique_key": timer.id, "unique_until": "purged"}, [payload]
        )
        (found,) = await self._stored.ask(TimerRuns(runs=[(first, body)], replace=args.replace))
        if isinstance(found, dict):
            raise from_map(found)
        return TimerNamed(id=timer.id)

    async def get(self, args: GetTimer) -> TimerView:
        """Return a timer, even if it has fired, until it is purged; raises `NotFound`, `Unavailable`."""
        return shown(await self._find(timer_model.timer_id(args.id)))

    async def cancel(self, args: CancelTimer) -> TimerNamed:
        """Cancel a timer; raises `NotFound` if it does not exist or has fired, `Unavailable`."""
        timer = timer_model.timer_id(args.id)
        for _ in range(CANCEL_TRIES):
            view = await self._find(timer)
            if view["state"] in ("completed", "failed", "cancelled"):
                raise _gone(timer, view["state"])
            became = await self._cancel(TaskId(view["id"]))
            if became == leading.CANCELLED:
                return TimerNamed(id=timer)
            if became == leading.FINISHED:
                raise _gone(timer, "completed")
        raise Conflict(f"timer {timer!r} was replaced {CANCEL_TRIES} times while it was cancelled", field="id")

    async def page(self, args: ListTimers) -> TimerPage:
        """Return timers in the order of their due times."""
        state = next((name for name, said in STATES.items() if said == args.state), args.state)
        asked = LIST_TASKS.decode({"queue": QUEUE, "state": state, "after": args.after, "limit": args.limit})
        page = await self._listing.page(asked)
        timers = [shown(plain(task)) for task in page.tasks if task.unique_key is not None]
        return TimerPage(timers=timers, after=page.after)

    # --- callbacks of tasks

    async def check_callbacks(self, runs: Sequence[NewRun], name: str) -> None:
        """Raise `BadRequest` if this node cannot make the callback of a new run; runs are the argument ``name``.

        A procedure may call it. The checks, which may resolve host names, are tasks.
        """
        said = [
            (f"{name}[{place}]", header[CALLBACK])
            for place, run in enumerate(runs)
            if may_say(run.body, CALLBACK) and CALLBACK in (header := facts.task_header(run.body)[0])
        ]
        if said:
            await self.check_each(said)

    async def check_each(self, said: Iterable[tuple[str, Any]]) -> None:
        """Raise `BadRequest` if this node cannot make a callback; each has the place that the error's field names."""
        places: dict[timer_model.Callback, str] = {}
        for place, callback in said:
            with _within(place):
                places.setdefault(timer_model.checked_callback(callback), place)
        checks = [_Check(callback, place) for callback, place in places.items()]
        for one in checks:
            self._node.start_soon(self._check, one)
        for one in checks:
            await one.over.wait()
            if one.error is not None:
                with _within(one.place):
                    raise one.error

    async def _check(self, one: _Check) -> None:
        try:
            if self.check_callback is not None:
                await self.check_callback(one.callback)
        except OnyxqError as error:
            one.error = error
        finally:
            one.over.end()

    # --- at the leader

    async def _set_here(self, args: TimerRuns) -> list[int]:
        timers = self._node.operations.timers
        return [await timers.set(first, body, replace=args.replace) for first, body in args.runs]

    async def _find_here(self, args: TimerNames) -> list[dict[str, Any]]:
        """Return the valid task of each timer's id as ``{"view"}``, None if there is none."""
        await self._node.settled()
        return [{"view": self._current(partition_of(home), timer)} for home, timer in args.timers]

    def _current(self, partition: int, timer: str) -> dict[str, Any] | None:
        task_id = self._node.operations.timers.current_task(partition, QUEUE, timer)
        return None if task_id is None else self._reading.view_here(task_id)

    async def _cancel_here(self, args: Ids) -> list[str]:
        """Cancel each task if it is the valid one of its timer's id."""
        return [await self._node.operations.timers.cancel(one) for one in args.ids]

    # --- helpers

    def _partition(self, timer: str) -> int:
        replica = self._node.replica
        if replica.cluster is None:
            raise Unavailable("the cluster is not known here yet")
        return facts.partition_of_keys(QUEUE, timer, replica.settings.partitions)

    async def _find(self, timer: str) -> dict[str, Any]:
        partition = self._partition(timer)
        (found,) = await self._found.ask(TimerNames(timers=[(make_id(0, partition, 0, 0), timer)]))
        if "code" in found:
            raise from_map(found)
        if found["view"] is None:
            raise NotFound(f"there is no timer {timer!r}", field="id")
        return dict(found["view"])

    async def _cancel(self, task_id: TaskId) -> str:
        (found,) = await self._cancelled.ask(Ids(ids=[task_id]))
        if isinstance(found, dict):
            raise from_map(found)
        return str(found)


def _gone(timer: str, state: str) -> NotFound:
    what = {"completed": "has fired", "failed": "has failed for good", "cancelled": "was cancelled"}[state]
    return NotFound(f"timer {timer!r} {what}", field="id")


def shown(view: dict[str, Any]) -> TimerView:
    """Return a timer as users see it, from its task."""
    said: dict[str, Any] = {"timeout": None, "data": None, "callback": None}
    try:
        timer = timer_model.unpack(view["data"])
        callback = {name: getattr(timer.callback, name) for name in timer_model.CALLBACK}
        said = {"timeout": timer.timeout, "data": timer.data, "callback": callback}
    except OnyxqError:
        pass  # a task in this queue that is not a timer
    return TimerView(
        id=view["unique_key"],
        **said,
        state=STATES.get(view["state"], view["state"]),
        at_ms=view["at_ms"],
        attempts=view["attempts"],
        error=view["error"],
        task=view["id"],
    )
