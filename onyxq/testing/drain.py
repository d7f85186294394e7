"""Draining of a cluster under test: run it until no work is left, and explain why if that does not happen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import trio
from attrs import frozen

from onyxq.core.errors import OnyxqError
from onyxq.core.limits import TIMERS_QUEUE
from onyxq.core.queue_settings import Queue
from onyxq.testing.found_tasks import FoundTask
from onyxq.worker.app import App

if TYPE_CHECKING:
    from onyxq.testing.base import Base

PAUSE_FIRST_S, PAUSE_MAX_S = 0.01, 2.0
"""Shortest and longest pause between two checks for unfinished tasks, in simulated seconds."""
TASKS_TOLD = 10
"""Largest number of tasks that an error names."""
FINISHED = ("completed", "failed", "cancelled")
WAITING_S = 12.0
"""Time after which tasks that only wait are taken to wait for scheduled ones, in simulated seconds."""

Counts = dict[str, dict[str, int]]


@frozen
class Drained:
    """Outcome of a drain."""

    completed: int
    """Number of tasks completed."""
    failed: int
    """Number of tasks that failed for good."""
    runs: int
    """Number of runs of handlers, repeated ones included."""
    left: int
    """Number of tasks that are due after the drain's reach, or wait for such tasks."""
    seconds: float
    """Simulated seconds that the drain took."""


class NotDrained(AssertionError):
    """A drain that left tasks unfinished; the text explains why."""


async def drain(core: Base, *, reach_s: float, patience_s: float, runs_max: int) -> Drained:
    """Drain a cluster; see `onyxq.testing.Cluster.drain`."""
    found = _Drain(core, reach_s, patience_s, runs_max)
    before = await found.counts()
    temporary = [await core.start_worker(app, {}) for app in core.apps if app.tasks and not _has_worker(core, app)]
    try:
        return await found.run(before)
    finally:
        with trio.CancelScope(shield=True):
            for worker in temporary:
                await core.stop_workers_of(worker)


def _has_worker(core: Base, app: App) -> bool:
    return any(worker.source is app for worker in core.working())


class _Drain:
    def __init__(self, core: Base, reach_s: float, patience_s: float, runs_max: int) -> None:
        self._core = core
        self._start_s = trio.current_time()
        self._end_s = self._start_s + reach_s
        self._patience_s = patience_s
        self._runs_max = runs_max
        self._runs_first = len(core.runs)
        self._seen: object = None
        self._seen_s = self._start_s
        self._pause_s = PAUSE_FIRST_S
        self._waiting: tuple[Counts, float] | None = None
        """The counts, and since when they are unchanged while tasks only wait."""

    async def run(self, before: Counts) -> Drained:
        """Drain; ``before`` is the counts at the start."""
        while True:
            counts = await self.counts()
            await self._check(counts)
            if _open(counts) and not self._only_waits(counts):
                await self._pause()
                continue
            due_s = await self._core.next_due_s()
            if due_s is not None and due_s <= self._end_s:
                await self._core.pass_to(due_s)
                self._go_on()
            elif (due_s is None) == (not _sum(counts, "scheduled")) and counts == await self.counts():
                if due_s is not None or not _open(counts):
                    return self._drained(before, counts)
                await self._pause()  # they do not wait for time

    async def _pause(self) -> None:
        """Pause until no worker holds a claim, or until patience or the number of runs is exhausted."""
        while True:
            await trio.sleep(self._pause_s)
            self._pause_s = min(2 * self._pause_s, PAUSE_MAX_S)
            self._look()
            held = any(worker.held for worker in self._core.working())
            if not held or self._impatient() or self._runs() > self._runs_max:
                return

    def _only_waits(self, counts: Counts) -> bool:
        """Return whether all unfinished, unscheduled tasks have waited for other tasks for a while."""
        if _open(counts) != _sum(counts, "waiting"):
            self._waiting = None
            return False
        if self._waiting is None or self._waiting[0] != counts:
            self._waiting = counts, trio.current_time()
        return trio.current_time() - self._waiting[1] >= WAITING_S

    def _runs(self) -> int:
        return len(self._core.runs) - self._runs_first

    def _impatient(self) -> bool:
        return trio.current_time() > self._seen_s + self._patience_s

    def _look(self) -> None:
        """Record the time when a handler started or ended."""
        seen = len(self._core.runs), sum(run.outcome == "running" for run in self._core.runs)
        if seen != self._seen:
            self._seen = seen
            self._go_on()

    def _go_on(self) -> None:
        self._seen_s, self._pause_s = trio.current_time(), PAUSE_FIRST_S

    async def counts(self) -> Counts:
        """Return tasks by state; wait while partitions have no leader to report them."""
        problem = "partitions have no leader"
        while True:
            try:
                if self._core.served():
                    counts = await self._core.counts_to_do()
                    if self._core.served():
                        return counts
            except OnyxqError as error:
                problem = str(error)
            if self._impatient():
                raise NotDrained(
                    f"not drained: the cluster cannot tell what is left ({problem}).{self._circumstances()}"
                )
            await trio.sleep(PAUSE_MAX_S)

    async def _check(self, counts: Counts) -> None:
        core = self._core
        self._look()
        served = {queue for worker in core.working() for queue in worker.queues}
        unserved = sorted(queue for queue, states in counts.items() if states.get("ready") and queue not in served)
        if unserved:
            names = " and ".join(map(repr, unserved))
            hint = f"no worker serves queue {names}" + ("" if core.apps or core.workers else _NO_WORKER)
        elif paused := self._paused(counts):
            hint = f"queue {' and '.join(map(repr, paused))} is paused"
        elif self._runs() > self._runs_max:
            hint = f"handlers have run {self._runs()} times (runs_max): do tasks enqueue tasks without end?"
        elif self._impatient():
            hint = f"no handler has begun or ended for {self._patience_s:g} simulated seconds (patience_s)"
        else:
            return
        raise NotDrained(await self._describe(hint))

    def _paused(self, counts: Counts) -> list[str]:
        """Return paused queues with ready tasks; none while a running task might resume them."""
        if _sum(counts, "claimed"):
            return []
        queues = self._core.world.audit.replica.queues
        return sorted(queue for queue, states in counts.items() if states.get("ready") and is_paused(queues, queue))

    def _drained(self, before: Counts, counts: Counts) -> Drained:
        return Drained(
            completed=_sum(counts, "completed") - _sum(before, "completed"),
            failed=_sum(counts, "failed") - _sum(before, "failed"),
            runs=self._runs(),
            left=_sum(counts, "scheduled", "waiting"),
            seconds=round(trio.current_time() - self._start_s, 3),
        )

    async def _describe(self, hint: str) -> str:
        core = self._core
        left = [task for task in await core.tasks() if task.state not in FINISHED and task.queue != TIMERS_QUEUE]
        left.sort(key=lambda task: (task.state == "scheduled", task.id))
        lines = [f"  {self._words(task)}" for task in left[:TASKS_TOLD]]
        if len(left) > TASKS_TOLD:
            lines.append(f"  ... and {len(left) - TASKS_TOLD} more")
        passed = trio.current_time() - self._start_s
        head = f"not drained after {passed:g} simulated seconds: {hint}.{self._circumstances()}"
        number = "1 task is" if len(left) == 1 else f"{len(left)} tasks are"
        return "\n".join([head, f"{number} not finished:", *lines])

    def _circumstances(self) -> str:
        core = self._core
        said = []
        if core.log_frozen:
            said.append("the log is frozen")
        if core.parted:
            said.append("the network is parted")
        down = [node.name for node in core.world.nodes if node.running is None]
        if down:
            said.append(f"peers {', '.join(down)} are down")
        return f" Mind that {', and '.join(said)}." if said else ""

    def _words(self, task: FoundTask) -> str:
        words = f"{task.call} in queue {task.queue!r}: {task.state}"
        if task.state == "scheduled":
            words += f" for {(task.due_ms - self._core.now_ms()) / 1000:g} s from now"
        if task.state == "waiting":
            words += f" for {len(task.depends)} tasks that it depends on" if task.depends else ""
            words += f" for its turn in ordering key {task.ordering_key!r}" if task.ordering_key is not None else ""
        if task.state == "claimed" and task.claims:
            words += f" by {task.claims[-1].worker}"
        if task.attempts:
            words += f", {task.attempts} attempts before"
        return words + (f"; last error: {task.error}" if task.error else "")


_NO_WORKER = " (cluster.use(app) before draining, or cluster.start_worker(...))"


def is_paused(queues: Mapping[str, Queue], queue: str) -> bool:
    """Return whether a queue is paused, so that none of its tasks are granted."""
    return queue in queues and queues[queue].paused


def _open(counts: Counts) -> int:
    """Return the number of tasks that are neither finished nor scheduled, including those between two states."""
    return _sum(counts, "total") - _sum(counts, *FINISHED, "scheduled")


def _sum(counts: Counts, *states: str) -> int:
    return sum(found.get(state, 0) for found in counts.values() for state in states)
