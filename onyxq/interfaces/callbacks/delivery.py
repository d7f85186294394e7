"""Delivery of timers: the node that leads the partition of a due timer claims it and makes the callback.

Claims, retries, backoff and dead letters are those of any task.  Callbacks run in parallel, in lanes
(`onyxq.interfaces.callbacks.lanes`).  If a timer would wait too long in its lane, it is postponed, which does not count
as an attempt.  So a receiver that never answers delays mainly its own timers.

Leases are shorter than the session timeout, and renewed until the outcome is reported.  So if a node dies, its
attempts are repeated as soon as its partitions have another leader.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import trio
from attrs import define

from onyxq.core import facts
from onyxq.core.errors import OnyxqError, StaleToken, from_map
from onyxq.core.facts import unpack_task
from onyxq.core.ids import TaskId, ids_of, is_callback, mask_of, ms_of, partition_of, stretch_of
from onyxq.core.limits import LEASE_MS_MIN
from onyxq.core.limits import TIMERS_QUEUE as QUEUE
from onyxq.core.timer_model import Delivery, Timer, as_json, unpack
from onyxq.interfaces.callbacks.addresses import Failed
from onyxq.interfaces.callbacks.ended_tasks import callback_timer
from onyxq.interfaces.callbacks.lanes import AHEAD_MAX, PLACES, Lanes
from onyxq.interfaces.callbacks.reports import Reporting
from onyxq.interfaces.callbacks.targets import targets
from onyxq.interfaces.callbacks.transports import Deliver, Transports
from onyxq.leader.grants.claims_here import claim_here
from onyxq.leader.grants.granter import Granted
from onyxq.node.node import Node
from onyxq.operations.table.claim import Failure
from onyxq.operations.timers import Timers

LOOK_S = 1.0
"""Longest wait for a due timer, in seconds."""
PAUSE_S = 0.25
"""Pause after an error, in seconds."""
SWEEP_S = 0.5
PUT_OFF_MS = 5_000
LEASE_LESS_MS = 1_000
"""How much shorter a lease is than the session timeout, in ms."""
RENEW_BELOW, RENEWALS = 2 / 3, 6
"""Remaining part of a lease below which it is renewed, and how often this is looked at within a lease."""
DRAIN_S = 3.0
"""Longest wait for running callbacks when the node stops, in seconds."""
ERROR_CHARS_MAX = 500
REPEATS_CHARS_MAX = 200
"""Longest reason for a repeated attempt that a callback reports."""

log = logging.getLogger(__name__)


@define(eq=False)
class _Attempt:
    """One claimed timer."""

    task: TaskId
    token: int
    attempts: int
    """Counted attempts before this one."""
    timer: Timer
    due_ms: int
    until: float
    """Time until which its lease is certainly valid."""
    lane: str


class Delivering:
    """The delivery of one node's timers."""

    def __init__(self, node: Node, transports: Transports, *, timeout_ms: int) -> None:
        self._node = node
        self._transports = transports
        self._timeout_s = timeout_ms / 1000
        self._lanes: Lanes[_Attempt] = Lanes()
        self._calls: dict[_Attempt, trio.CancelScope] = {}
        """Running callbacks."""
        self._attempts: dict[_Attempt, None] = {}
        """Attempts whose leases are renewed, in the order of their claims."""
        self._held = 0
        assert node.ask is not None
        self._ask = node.ask
        self._reporting = Reporting(node.ask)
        self._changed = trio.Event()
        self._draining = False

    async def run(self) -> None:
        """Deliver due timers until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._sweep)
            nursery.start_soon(self._renew)
            nursery.start_soon(self._reporting.run)
            while True:
                await self._room()
                asked_s = trio.current_time()
                for granted in await self._claimed():
                    self._admit(self._unpacked(granted, asked_s), nursery)

    async def drain(self) -> None:
        """Claim no more, release waiting timers, and cancel running callbacks after `DRAIN_S`."""
        self._draining = True
        for attempt in self._lanes.drained():
            self._report("release", attempt)
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
        while self._places() <= 0 or self._draining:
            await self._changed.wait()

    def _places(self) -> int:
        """Return how many more timers may be claimed."""
        return min(PLACES - self._held, AHEAD_MAX - self._lanes.waiting)

    async def _claimed(self) -> list[Granted]:
        room = self._places()
        head = await self._node.granter.heads.wait_head(QUEUE, None, LOOK_S, wanted=room)
        if head is None or self._draining:
            return []
        if not self._node.can_submit():
            await trio.sleep(PAUSE_S)
            return []
        asked = [([QUEUE], room, self._lease_ms(), f"timers/{self._node.node_id}", 0)]
        (answer,), _ = await claim_here(self._node, asked, room)
        if isinstance(answer, OnyxqError):
            log.info("timers cannot be claimed now: %s", answer.message)
            await trio.sleep(PAUSE_S)
            return []
        return answer

    def _lease_ms(self) -> int:
        return max(LEASE_MS_MIN, self._node.replica.settings.session_timeout_ms - LEASE_LESS_MS)

    def _unpacked(self, granted: Granted, asked_s: float) -> list[_Attempt]:
        """Return the attempts of a batch, claimed after ``asked_s``; a task that is not a timer fails at once."""
        until = asked_s + granted.lease_ms / 1000
        found: list[_Attempt] = []
        try:
            run = unpack_task(granted.body)
            payloads = run.all_payloads()
        except OnyxqError as error:
            log.error("claimed timers cannot be read: %s", error.message)
            return found
        for task_id, payload in zip(ids_of(granted.first, run.count), payloads, strict=True):
            try:
                if is_callback(task_id):
                    timer, due_ms = callback_timer(self._node.store, task_id)
                else:
                    timer, due_ms = unpack(payload), ms_of(task_id)
            except OnyxqError as error:
                self._held += 1
                item = [task_id, 1, granted.token, error.message, None]
                self._reporting.add("fail", item, self._free)
                continue
            lane = self._transports.lane(timer.callback)
            found.append(_Attempt(task_id, granted.token, granted.attempts, timer, due_ms, until, lane))
        return found

    async def _renew(self) -> None:
        """Renew leases that end soon, until cancelled."""
        while True:
            lease_ms = self._lease_ms()
            await trio.sleep(lease_ms / 1000 / RENEWALS)
            asked_s = trio.current_time()
            late = [one for one in self._attempts if one.until - asked_s < RENEW_BELOW * lease_ms / 1000]
            if not late:
                continue
            items = [[one.task, 1, one.token, lease_ms] for one in late]
            try:
                answer = await self._ask("renew", {"items": items})
            except OnyxqError as error:
                log.info("leases of callbacks cannot be renewed now: %s", error.message)
                continue
            for attempt, refused in zip(late, answer["results"], strict=True):
                self._renewed(attempt, asked_s + lease_ms / 1000, from_map(refused[0][2]) if refused else None)

    def _renewed(self, attempt: _Attempt, until: float, error: OnyxqError | None) -> None:
        """Note a renewal. If another attempt may begin elsewhere, this one ends; if the log is away, none begins."""
        if error is None:
            attempt.until = until
        elif isinstance(error, StaleToken):
            attempt.until = 0.0
            if (scope := self._calls.get(attempt)) is not None:
                scope.cancel()

    # --- lanes

    def _admit(self, attempts: Sequence[_Attempt], nursery: trio.Nursery) -> None:
        """Begin claimed attempts, let them wait in their lanes, or postpone them."""
        late: list[_Attempt] = []
        self._held += len(attempts)
        for attempt in attempts:
            self._attempts[attempt] = None
            said = self._lanes.admit(attempt.lane, attempt, trio.current_time())
            if said == "late":
                late.append(attempt)
            elif said == "runs":
                nursery.start_soon(self._run_lane, attempt, nursery)
        if late:
            nursery.start_soon(self._put_off, late)

    async def _run_lane(self, attempt: _Attempt, nursery: trio.Nursery) -> None:
        """Deliver one timer, then begin those that wait for it in its lane."""
        made = await self._deliver(attempt)
        for following in self._lanes.end(attempt.lane, attempt, trio.current_time(), made=made):
            nursery.start_soon(self._run_lane, following, nursery)
        self._wake()

    def _let_go(self, attempts: Sequence[_Attempt]) -> None:
        """Stop renewing the claims of these attempts, which have ended."""
        for attempt in attempts:
            self._attempts.pop(attempt, None)
            self._free()

    def _free(self) -> None:
        """Make room for another claim."""
        self._held -= 1
        self._wake()

    async def _sweep(self) -> None:
        """Postpone timers in lanes that have become slow."""
        while True:
            await trio.sleep(SWEEP_S)
            if late := self._lanes.late(trio.current_time()):
                await self._put_off(late)

    async def _put_off(self, attempts: Sequence[_Attempt]) -> None:
        """Make waiting timers due a little later. This counts as no attempt."""
        try:
            why = "many callbacks to this receiver or host wait"
            items = [Failure(one.task, 1, one.token, why, self._later_ms()) for one in attempts]
            refused = await self._node.operations.claim_updates.postpone(items)
            count = sum(map(bool, refused))
            if count:
                log.info("%d timers are tried again after their leases", count)
        except OnyxqError as error:
            log.info("%d timers are tried again after their leases: %s", len(attempts), error.message)
        finally:
            self._let_go(attempts)

    def _later_ms(self) -> int:
        return PUT_OFF_MS + int(PUT_OFF_MS * self._node.random())

    # --- one attempt

    def _may_begin(self, attempt: _Attempt) -> bool:
        """Return whether this node leads the timer's partition and the lease is certainly valid."""
        return partition_of(attempt.task) in self._node.leaders and trio.current_time() < attempt.until

    async def _deliver(self, attempt: _Attempt) -> bool:
        """Make the callback, if the timer is still valid, and report the outcome; return whether it was made."""
        began = trio.current_time()
        if not self._may_begin(attempt):
            self._report("release", attempt)
            return False
        if not self._is_valid(attempt):
            self._report("complete", attempt, None, [b"null"])
            return False
        metrics = self._node.metrics
        if not attempt.attempts:
            metrics.timer_late_seconds.observe((self._node.wall_ms() - attempt.due_ms) / 1000)
        error, status = await self._call(attempt)
        metrics.timer_deliveries.add(attempt.timer.callback.transport, "failed" if error else "delivered")
        metrics.timer_delivery_seconds.observe(trio.current_time() - began)
        if error:
            log.info("timer %s, attempt %d: %s", attempt.timer.id, attempt.attempts + 1, error)
            self._report("fail", attempt, error, None)
        else:
            self._report("complete", attempt, None, [as_json({"status": status})])
        return True

    def _report(self, method: str, attempt: _Attempt, *more: Any) -> None:
        """Report the outcome of a claim. If the report is lost, the lease expires."""
        self._reporting.add(method, [attempt.task, 1, attempt.token, *more], partial(self._let_go, [attempt]))

    def _is_valid(self, attempt: _Attempt) -> bool:
        """Return whether the timer was neither replaced nor cancelled after the claim."""
        store = self._node.store
        cancelled = store.finished_bits(stretch_of(attempt.task)) & mask_of(attempt.task, 1)
        return not cancelled and store.superseded_by(attempt.task) is None

    def _repeats(self, attempt: _Attempt) -> str:
        """Return why the timer is delivered again: the end of the last attempt in its history."""
        rows = self._node.cohort.covering(attempt.task)
        history = sorted(facts.unpack_history(body) for kind, _, body in rows if kind == facts.HISTORY)
        ended = [one for one in history if one.event in (facts.RETRIED, facts.EXPIRED)]
        if not ended:
            return f"attempt {attempt.attempts}: its end is not known"
        last = ended[-1]
        worker = next((one.worker for one in history if (one.event, one.token) == (facts.GRANTED, last.token)), "")
        if last.event == facts.EXPIRED:
            return f"attempt {last.attempts}: the lease of {worker or 'its peer'} expired"
        return f"attempt {last.attempts}: {last.note}"[:REPEATS_CHARS_MAX]

    async def _call(self, attempt: _Attempt) -> tuple[str, int | None]:
        """Make the callback; return the error, or an empty text, and the status of the answer."""
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
                result = await self._transports[timer.callback.transport].deliver(delivery)
                return "", result if type(result) is int else None
            return "cancelled: the peer stops, or the claim has ended", None
        except trio.TooSlowError:
            return f"no answer within {self._timeout_s:g} s", None
        except Failed as error:
            return str(error)[:ERROR_CHARS_MAX], None
        except OnyxqError as error:
            return error.message[:ERROR_CHARS_MAX], None
        except Exception as error:
            # An installed transport can raise anything. It is the outcome of the attempt.
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
    """Return the delivery of a node's timers. From now on, timers that it cannot deliver are refused.

    ``others``: installed transports. ``allowed``: the setting ``timer_targets``. ``listens``: addresses on which
    the node serves. ``asks``: whether it asks for credentials.
    """
    found = targets(allowed, listens=[address for address in listens if address], asks=asks)
    transports = Transports(found, others)
    timers.check_callback = transports.check
    return Delivering(node, transports, timeout_ms=timeout_ms)
