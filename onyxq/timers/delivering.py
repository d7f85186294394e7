"""Delivering: the node that leads a due timer's partition claims it and makes the callback.

Claims, retries, back-off and dead letters are those of any task.  Callbacks run beside each other;
those to one place form a lane with a bound of its own, and a lane that holds too many puts
the rest off, uncounted.  So a receiver that never answers keeps its own timers waiting and nobody
else's.  What a node that dies has begun is tried again once its lease is over.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import trio
from attrs import define, field

from onyxq.errors import BadRequest, OnyxqError, from_map
from onyxq.facts import unpack_task
from onyxq.ids import TaskId, ids_of, mask_of, ms_of, partition_of, stretch_of
from onyxq.partition.granter import Granted
from onyxq.peer.claiming import claim_here
from onyxq.peer.node import Node
from onyxq.peer.timers import Timers
from onyxq.timers.connecting import Failed
from onyxq.timers.model import QUEUE, Timer, as_json, unpack
from onyxq.timers.targets import targets
from onyxq.timers.transports import Deliver, Delivery, Transports

LOOK_S = 1.0
PAUSE_S = 0.25
"""After something went wrong."""
HELD_MAX = 512
"""Claims held at one time; each may have a connection."""
LANE_RUNS_MAX = 32
"""Callbacks to one place at one time."""
LANE_HOLDS_MAX = 128
"""Of one place, those that wait for their turn with them; the rest is put off."""
PUT_OFF_MS = 5_000
LEASE_MARGIN_S = 10.0
"""A lease is so much longer than an attempt may take."""
OUTCOME_TRIES = 5
DRAIN_S = 3.0
"""How long callbacks may take that are under way when the node stops."""
ERROR_CHARS_MAX = 500

log = logging.getLogger(__name__)


@define(eq=False)
class _Attempt:
    """One claimed timer."""

    task: TaskId
    token: int
    attempts: int
    """Counted attempts before this one."""
    timer: Timer
    until: float
    """When its lease is over at the latest, but for a margin."""


@define(eq=False)
class _Lane:
    """What goes to one place."""

    running: int = 0
    waiting: deque[_Attempt] = field(factory=deque)


class Delivering:
    """See the module's first paragraph."""

    def __init__(self, node: Node, transports: Transports, *, timeout_ms: int) -> None:
        self._node = node
        self._transports = transports
        self._timeout_s = timeout_ms / 1000
        self._lease_ms = int((self._timeout_s + LEASE_MARGIN_S) * 1000)
        self._lanes: dict[str, _Lane] = {}
        self._calls: dict[_Attempt, trio.CancelScope] = {}
        """Callbacks that are under way."""
        self._held = 0
        self._changed = trio.Event()
        self._draining = False

    async def run(self) -> None:
        """Deliver what falls due until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                await self._room()
                for granted in await self._claimed():
                    for attempt in self._attempts(granted):
                        self._held += 1
                        nursery.start_soon(self._begin, attempt)

    async def drain(self) -> None:
        """Claim no more, give back what waits, and cut off what is under way after a moment."""
        self._draining = True
        for lane in self._lanes.values():
            while lane.waiting:
                self._node.start_soon(self._give_back, lane.waiting.popleft())
        with trio.move_on_after(DRAIN_S):
            await self._empty()
        for scope in self._calls.values():
            scope.cancel()
        with trio.move_on_after(DRAIN_S):
            await self._empty()

    async def _empty(self) -> None:
        while self._held:
            await self._changed.wait()

    async def _give_back(self, attempt: _Attempt) -> None:
        try:
            await self._report("release", attempt.task, attempt.token, [])
        finally:
            self._held -= 1
            self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    # --- claiming

    async def _room(self) -> None:
        while self._held >= HELD_MAX or self._draining:
            await self._changed.wait()

    async def _claimed(self) -> list[Granted]:
        room = HELD_MAX - self._held
        head = await self._node.granter.heads.wait_head(QUEUE, None, LOOK_S, wanted=room)
        if head is None or self._draining:
            return []
        if not self._node.can_submit():
            await trio.sleep(PAUSE_S)
            return []
        asked = [([QUEUE], room, self._lease_ms, f"timers/{self._node.node_id}")]
        (answer,), _ = await claim_here(self._node, asked)
        if isinstance(answer, OnyxqError):
            log.info("timers wait: %s", answer.message)
            await trio.sleep(PAUSE_S)
            return []
        return answer

    def _attempts(self, granted: Granted) -> list[_Attempt]:
        """The claims of a run; those of tasks that are no timers fail at once."""
        until = trio.current_time() + self._lease_ms / 1000 - LEASE_MARGIN_S / 2
        found: list[_Attempt] = []
        try:
            run = unpack_task(granted.body)
            payloads = run.all_payloads()
        except OnyxqError as error:
            log.error("what was claimed of the timers cannot be read: %s", error.message)
            return found
        for task_id, payload in zip(ids_of(granted.first, run.count), payloads, strict=True):
            try:
                timer = unpack(payload)
            except BadRequest as error:
                self._node.start_soon(self._failed, task_id, granted.token, error.message)
                continue
            found.append(_Attempt(task_id, granted.token, granted.attempts, timer, until))
        return found

    # --- lanes

    async def _begin(self, attempt: _Attempt) -> None:
        name = self._transports.lane(attempt.timer.callback)
        lane = self._lanes.setdefault(name, _Lane())
        try:
            if lane.running + len(lane.waiting) >= LANE_HOLDS_MAX:
                await self._put_off(attempt)
            elif lane.running >= LANE_RUNS_MAX:
                lane.waiting.append(attempt)
                self._held += 1  # counted until its turn has come
            else:
                await self._run_lane(name, lane, attempt)
        except OnyxqError as error:
            log.info("timer %s is tried again once its lease is over: %s", attempt.timer.id, error.message)
        finally:
            self._held -= 1
            self._wake()

    async def _run_lane(self, name: str, lane: _Lane, first: _Attempt) -> None:
        """Deliver the first, and what has gathered behind it, one after the other."""
        lane.running += 1
        try:
            await self._deliver(first)
            while lane.waiting:
                attempt = lane.waiting.popleft()
                try:
                    await self._deliver(attempt)
                finally:
                    self._held -= 1
                    self._wake()
        finally:
            lane.running -= 1
            if not lane.running and not lane.waiting:
                self._lanes.pop(name, None)

    # --- one attempt

    async def _deliver(self, attempt: _Attempt) -> None:
        if partition_of(attempt.task) not in self._node.leaders:
            await self._report("release", attempt.task, attempt.token, [])  # it may have been replaced elsewhere
            return
        if not self._stands(attempt):
            await self._report("complete", attempt.task, attempt.token, [None, [b"null"]])
            return
        if trio.current_time() + self._timeout_s > attempt.until:
            await self._put_off(attempt)  # it waited for its turn for too long
            return
        metrics, began = self._node.metrics, trio.current_time()
        late_s = max(0, self._node.wall_ms() - ms_of(attempt.task)) / 1000 if not attempt.attempts else None
        error, status = await self._call(attempt)
        metrics.timer_deliveries.add(attempt.timer.callback.transport, "failed" if error else "delivered")
        metrics.timer_delivery_seconds.observe(trio.current_time() - began)
        if late_s is not None:
            metrics.timer_late_seconds.observe(late_s)
        if error:
            log.info("timer %s, attempt %d: %s", attempt.timer.id, attempt.attempts + 1, error)
            await self._failed(attempt.task, attempt.token, error)
        else:
            await self._report("complete", attempt.task, attempt.token, [None, [as_json({"status": status})]])

    def _stands(self, attempt: _Attempt) -> bool:
        """Whether the timer was neither replaced nor cancelled since it was claimed."""
        store, partition = self._node.store, partition_of(attempt.task)
        cancelled = store.finished_bits(stretch_of(attempt.task)) & mask_of(attempt.task, 1)
        return not cancelled and store.unique(partition, QUEUE, attempt.timer.id) in (None, attempt.task)

    async def _call(self, attempt: _Attempt) -> tuple[str, int | None]:
        """Make the callback: the error, empty if it was delivered, and the status of the answer."""
        timer = attempt.timer
        delivery = Delivery(
            timer=timer.id,
            key=attempt.task.hex(),
            attempt=attempt.attempts + 1,
            uri=timer.callback.uri,
            method=timer.callback.method,
            data=timer.data,
        )
        try:
            with trio.fail_after(self._timeout_s), trio.CancelScope() as scope:
                self._calls[attempt] = scope
                said = await self._transports[timer.callback.transport].deliver(delivery)
                return "", said if type(said) is int else None
            return "cut off: the peer stops", None
        except trio.TooSlowError:
            return f"no answer within {self._timeout_s:g} s", None
        except Failed as error:
            return str(error)[:ERROR_CHARS_MAX], None
        except OnyxqError as error:
            return error.message[:ERROR_CHARS_MAX], None
        except Exception as error:
            # A transport of the user's may raise anything: that is the outcome of the attempt.
            return f"{type(error).__name__}: {error}"[:ERROR_CHARS_MAX], None
        finally:
            self._calls.pop(attempt, None)

    # --- outcomes

    async def _failed(self, task: TaskId, token: int, error: str) -> None:
        await self._report("fail", task, token, [error, None])

    async def _put_off(self, attempt: _Attempt) -> None:
        why = f"many callbacks to {self._transports.lane(attempt.timer.callback)} wait"
        item = (attempt.task, 1, attempt.token, why, PUT_OFF_MS + int(PUT_OFF_MS * self._node.random()))
        refused = await self._node.operations.postpone([item])
        if refused[0]:
            log.info("timer %s is tried again once its lease is over", attempt.timer.id)

    async def _report(self, method: str, task: TaskId, token: int, more: list[Any]) -> None:
        """Say what became of a claim; if that cannot be told to anybody its lease runs out."""
        assert self._node.ask is not None
        for _ in range(OUTCOME_TRIES):
            try:
                answer = await self._node.ask(method, {"items": [[task, 1, token, *more]]})
            except OnyxqError as error:
                problem = error
            else:
                parts = answer["results"][0]
                if not parts:
                    return
                problem = from_map(parts[0][2])
            if problem.status != 503:
                break
            await trio.sleep(PAUSE_S)
        log.info("the outcome of timer task %s was not taken: %s", task.hex(), problem.message)


def delivering(
    node: Node,
    timers: Timers,
    others: Mapping[str, Deliver],
    *,
    allowed: str,
    listens: Sequence[str | None],
    timeout_ms: int,
) -> Delivering:
    """What makes a node's callbacks, by ``others`` too; timers that it cannot deliver are refused from now on.

    ``allowed``: the setting of that; ``listens``: where the node serves, if it does.
    """
    found = targets(allowed, listens=[address for address in listens if address])
    timers.transports = Transports(found, others)
    return Delivering(node, timers.transports, timeout_ms=timeout_ms)
