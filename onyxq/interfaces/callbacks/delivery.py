"""Delivering: the node that leads a due timer's partition claims it and makes the callback.

Claims, retries, back-off and dead letters are those of any task.  Callbacks run beside each other;
those to one place form a lane with a bound of its own, and a lane in which it would take long until
one's turn comes puts it off, uncounted.  So a receiver that never answers keeps its own timers
waiting and nobody else's.  What a node that dies has begun is tried again once its lease is over.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import trio
from attrs import define, field

from onyxq.core import facts
from onyxq.core.errors import BadRequest, OnyxqError
from onyxq.core.facts import unpack_task
from onyxq.core.ids import TaskId, ids_of, mask_of, ms_of, partition_of, stretch_of
from onyxq.core.limits import TIMERS_QUEUE as QUEUE
from onyxq.core.timer_model import Delivery, Timer, as_json, unpack
from onyxq.interfaces.callbacks.addresses import Failed
from onyxq.interfaces.callbacks.reports import Reporting
from onyxq.interfaces.callbacks.targets import targets
from onyxq.interfaces.callbacks.transports import Deliver, Transports
from onyxq.leader.grants.granter import Granted
from onyxq.node.node import Node
from onyxq.operations.claims import claim_here
from onyxq.operations.timers import Timers

LOOK_S = 1.0
PAUSE_S = 0.25
"""After something went wrong."""
HELD_MAX = 512
"""Claims held at one time; each may have a connection."""
AHEAD_MAX = 128
"""Of these, those that wait for their turn: if the node dies they wait for the end of their leases."""
LANE_RUNS_MAX, SLOW_RUNS_MAX = 32, 8
"""Callbacks to one place at one time, and if one takes longer than `SLOW_S`."""
SLOW_S = 1.0
PATIENCE_S = 2.0
"""What would have to wait for its turn for longer is put off."""
SWEEP_S = 0.5
SHARE = 0.1
"""Of the latest callback in how long they take."""
PUT_OFF_MS = 5_000
LEASE_MARGIN_S = 10.0
"""A lease is so much longer than an attempt may take."""
DRAIN_S = 3.0
"""How long callbacks may take that are under way when the node stops."""
ERROR_CHARS_MAX = 500
REPEATS_CHARS_MAX = 200
"""Of the reason for a repeat, as the callback tells it."""

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

    waiting: deque[_Attempt] = field(factory=deque)
    begun_s: dict[_Attempt, float] = field(factory=dict)
    """When each that is under way was begun; the oldest first."""
    took_s: float = 0.0
    """How long they took lately."""

    def takes_s(self) -> float:
        """How long one takes, as far as is known."""
        now = trio.current_time()
        return max(self.took_s, now - next(iter(self.begun_s.values()), now))

    def wait_s(self) -> float:
        """How long one that comes now would wait for its turn."""
        return len(self.waiting) * self.takes_s() / self.runs_max()

    def runs_max(self) -> int:
        """How many may be under way."""
        return SLOW_RUNS_MAX if self.takes_s() > SLOW_S else LANE_RUNS_MAX

    def has_room(self) -> bool:
        """Whether one more may be begun."""
        return len(self.begun_s) < self.runs_max()


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
        assert node.ask is not None
        self._reporting = Reporting(node.ask)
        self._changed = trio.Event()
        self._draining = False

    async def run(self) -> None:
        """Deliver what falls due until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._sweep)
            nursery.start_soon(self._reporting.run)
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
                self._report("release", lane.waiting.popleft())
        with trio.move_on_after(DRAIN_S):
            await self._empty()
        for scope in self._calls.values():
            scope.cancel()
        with trio.move_on_after(DRAIN_S):
            await self._empty()

    async def _empty(self) -> None:
        while self._held:
            await self._changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    # --- claiming

    async def _room(self) -> None:
        while self._free() <= 0 or self._draining:
            await self._changed.wait()

    def _free(self) -> int:
        """How many claims more there may be."""
        waiting = sum(len(lane.waiting) for lane in self._lanes.values())
        return min(HELD_MAX - self._held, AHEAD_MAX - waiting)

    async def _claimed(self) -> list[Granted]:
        room = self._free()
        head = await self._node.granter.heads.wait_head(QUEUE, None, LOOK_S, wanted=room)
        if head is None or self._draining:
            return []
        if not self._node.can_submit():
            await trio.sleep(PAUSE_S)
            return []
        asked = [([QUEUE], room, self._lease_ms, f"timers/{self._node.node_id}", 0)]
        (answer,), _ = await claim_here(self._node, asked, room)
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
                self._held += 1
                item = [task_id, 1, granted.token, error.message, None]
                self._reporting.add("fail", item, partial(self._let_go, 1))
                continue
            found.append(_Attempt(task_id, granted.token, granted.attempts, timer, until))
        return found

    # --- lanes

    async def _begin(self, attempt: _Attempt) -> None:
        name = self._transports.lane(attempt.timer.callback)
        lane = self._lanes.setdefault(name, _Lane())
        if lane.wait_s() > PATIENCE_S:
            await self._put_off([attempt])
        elif lane.has_room():
            await self._run_lane(name, lane, attempt)
        else:
            lane.waiting.append(attempt)

    async def _run_lane(self, name: str, lane: _Lane, attempt: _Attempt) -> None:
        """Deliver one, and what has gathered behind it, one after the other."""
        while True:
            lane.begun_s[attempt] = trio.current_time()
            try:
                await self._deliver(attempt)
            finally:
                took_s = trio.current_time() - lane.begun_s.pop(attempt)
                lane.took_s += SHARE * (took_s - lane.took_s)
            if not lane.waiting or not lane.has_room():
                break
            attempt = lane.waiting.popleft()
            self._wake()
        if not lane.begun_s and not lane.waiting:
            self._lanes.pop(name, None)

    def _let_go(self, count: int) -> None:
        self._held -= count
        self._wake()

    async def _sweep(self) -> None:
        """Put off what waits in lanes that have become slow."""
        while True:
            await trio.sleep(SWEEP_S)
            late: list[_Attempt] = []
            for lane in self._lanes.values():
                while lane.waiting and lane.wait_s() > PATIENCE_S:
                    late.append(lane.waiting.pop())
            if late:
                await self._put_off(late)

    async def _put_off(self, attempts: Sequence[_Attempt]) -> None:
        """Have timers that were not begun be due again a little later, which counts as no attempt."""
        try:
            items = [(one.task, 1, one.token, "many callbacks to its place wait", self._later_ms()) for one in attempts]
            refused = await self._node.operations.postpone(items)
            count = sum(map(bool, refused))
            if count:
                log.info("%d timers are tried again once their leases are over", count)
        except OnyxqError as error:
            log.info("%d timers are tried again once their leases are over: %s", len(attempts), error.message)
        finally:
            self._let_go(len(attempts))

    def _later_ms(self) -> int:
        return PUT_OFF_MS + int(PUT_OFF_MS * self._node.random())

    # --- one attempt

    def _may_begin(self, attempt: _Attempt) -> bool:
        """Return whether the timer is led from here, and its lease is long enough for a callback."""
        in_time = trio.current_time() + self._timeout_s <= attempt.until
        return partition_of(attempt.task) in self._node.leaders and in_time

    async def _deliver(self, attempt: _Attempt) -> None:
        """Make the callback, if there is still one to be made, and have told what became of it."""
        began = trio.current_time()
        if not self._may_begin(attempt):
            self._report("release", attempt)
            return
        if not self._stands(attempt):
            self._report("complete", attempt, None, [b"null"])
            return
        metrics = self._node.metrics
        if not attempt.attempts:
            metrics.timer_late_seconds.observe((self._node.wall_ms() - ms_of(attempt.task)) / 1000)
        error, status = await self._call(attempt)
        metrics.timer_deliveries.add(attempt.timer.callback.transport, "failed" if error else "delivered")
        metrics.timer_delivery_seconds.observe(trio.current_time() - began)
        if error:
            log.info("timer %s, attempt %d: %s", attempt.timer.id, attempt.attempts + 1, error)
            self._report("fail", attempt, error, None)
        else:
            self._report("complete", attempt, None, [as_json({"status": status})])

    def _report(self, method: str, attempt: _Attempt, *more: Any) -> None:
        """Have told what became of a claim; if nobody takes it the lease runs out."""
        self._reporting.add(method, [attempt.task, 1, attempt.token, *more], partial(self._let_go, 1))

    def _stands(self, attempt: _Attempt) -> bool:
        """Whether the timer was neither replaced nor cancelled since it was claimed."""
        store, partition = self._node.store, partition_of(attempt.task)
        cancelled = store.finished_bits(stretch_of(attempt.task)) & mask_of(attempt.task, 1)
        return not cancelled and store.unique(partition, QUEUE, attempt.timer.id) in (None, attempt.task)

    def _repeats(self, attempt: _Attempt) -> str:
        """Why the timer is delivered again: how the last counted attempt ended, as the history has it."""
        rows = self._node.cohort.covering(attempt.task)
        history = sorted(facts.unpack_history(body) for kind, _, body in rows if kind == facts.HISTORY)
        ended = [one for one in history if one.event in (facts.RETRIED, facts.EXPIRED)]
        if not ended:
            return f"attempt {attempt.attempts}: its end is not known here"
        last = ended[-1]
        worker = next((one.worker for one in history if (one.event, one.token) == (facts.GRANTED, last.token)), "")
        if last.event == facts.EXPIRED:
            return f"attempt {last.attempts}: the lease of {worker or 'its peer'} expired"
        return f"attempt {last.attempts}: {last.note}"[:REPEATS_CHARS_MAX]

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
            repeats=self._repeats(attempt) if attempt.attempts else "",
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


def delivering(
    node: Node,
    timers: Timers,
    others: Mapping[str, Deliver],
    *,
    allowed: str,
    listens: Sequence[str | None],
    asks: bool,
    timeout_ms: int,
) -> Delivering:
    """Return what makes a node's callbacks, by ``others`` too; timers that it cannot deliver are refused from now on.

    ``allowed``: the setting of that; ``listens``: where the node serves, if it does; ``asks``: whether it asks
    for credentials.
    """
    found = targets(allowed, listens=[address for address in listens if address], asks=asks)
    transports = Transports(found, others)
    timers.check_callback = transports.check
    return Delivering(node, transports, timeout_ms=timeout_ms)
