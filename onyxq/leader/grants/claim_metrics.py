"""What the metrics tell about claims: how they ended, and how long their tasks waited and ran.

A node remembers the queue and the start of the claims that it granted. What an earlier leader granted it reads from
the store. A task that cannot be read is counted without its queue, as metrics must not stop a claim from ending. The
store notes the damage.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from onyxq.core.errors import OnyxqError
from onyxq.core.facts import EXPIRED, GRANTED, RELEASED, RETRIED, History, task_header
from onyxq.core.ids import Run, TaskId, stretch_of
from onyxq.leader.completion_rows import attempts_of, history_of
from onyxq.store.store import Store
from onyxq.system.metrics import Metrics

CLAIMS_KNOWN_MAX = 100_000
"""Claims that are remembered; beyond that the store is read."""
TIMED = ("completed", "failed", "retried")
"""Ends of a claim that say how long the task ran."""
RETURNS = {RELEASED: "released", RETRIED: "retried", EXPIRED: "expired"}
"""Events of the log that take a task from its worker unfinished."""


class MeasuredHost(Protocol):
    """What the metrics of claims need of their node."""

    store: Store
    metrics: Metrics

    def count_event(self, queue: str, event: str, count: int) -> None:
        """Count an event of a queue in the metrics."""
        ...

    def wall_ms(self) -> int:
        """Return the node's wall clock."""
        ...


class _Known(NamedTuple):
    queue: str
    began_ms: int | None
    """When the tasks could start; None if they were finished without a claim."""


class ClaimMetrics:
    """Counts what happens to the claims of the partitions that a node leads."""

    def __init__(self, host: MeasuredHost) -> None:
        self._host = host
        self._known: dict[tuple[TaskId, int], _Known] = {}
        """Stretch and token -> what is known of the claims; of grants that share both, the last one."""

    def claimed(self, run: Run, token: int, queue: str, *, due_ms: int, due_in_ms: int) -> None:
        """Count a grant of tasks that are due since ``due_ms``; their worker starts them after ``due_in_ms``."""
        if len(self._known) >= CLAIMS_KNOWN_MAX:
            self._known.clear()
        now_ms = self._host.wall_ms()
        self._known[stretch_of(run.first), token] = _Known(queue, now_ms + due_in_ms)
        self._host.count_event(queue, "claimed", run.count)
        self._host.metrics.task_wait_seconds.observe((now_ms - due_ms) / 1000, run.count)

    def ended(self, run: Run, token: int, event: str) -> None:
        """Count tasks whose claim ended or that were finished without one; and how long they ran, if they did."""
        queue, began_ms = self._found(run.first, token)
        self._host.count_event(queue, event, run.count)
        if began_ms is not None and event in TIMED:
            self._host.metrics.task_run_seconds.observe((self._host.wall_ms() - began_ms) / 1000, run.count)

    def returned(self, run: Run, said: History) -> None:
        """Count tasks that an event of the log took from their worker unfinished; the event is not stored yet."""
        if said.event == EXPIRED:
            self.expired(run, said.token)
        elif said.event == RETRIED and self._is_postponed(run.first, said.attempts):
            self.ended(run, said.token, RETURNS[RELEASED])
        else:
            self.ended(run, said.token, RETURNS[said.event])

    def expired(self, run: Run, token: int) -> None:
        """Count tasks whose claim ran out."""
        self._host.metrics.claims_expired.add(n=run.count)
        self.ended(run, token, RETURNS[EXPIRED])

    def _is_postponed(self, task_id: TaskId, attempts: int) -> bool:
        """Return whether a retry counts no attempt: the worker gave the task back for later."""
        try:
            return attempts == attempts_of(self._host.store, task_id)[0]
        except OnyxqError:
            return False

    def _found(self, task_id: TaskId, token: int) -> _Known:
        known = self._known.get((stretch_of(task_id), token))
        return known if known is not None else self._stored(task_id, token)

    def _stored(self, task_id: TaskId, token: int) -> _Known:
        store = self._host.store
        try:
            row = store.task_row(task_id)
            said = history_of(store, task_id)
        except OnyxqError:
            return _Known("", None)
        began_ms = next((one.at_ms for one in said if (one.event, one.token) == (GRANTED, token)), None)
        return _Known(str(task_header(row[1])[0]["queue"]) if row is not None else "", began_ms)
