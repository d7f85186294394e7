"""Dependencies: tasks that wait until other tasks, of any partition, are finished (design: dependencies).

The leader of a partition reports the outcomes of its tasks (`outcomes`). The leader of waiting
tasks asks for them when the tasks are enqueued, when it takes over, and every ten seconds. Between
these times, the asked leaders send hints. The decision is stored as a fact: a resolution if the
tasks may run, otherwise the completion that the task's policy requires. A join is not run: once all
its dependencies have ended, it ends as failed, cancelled or completed, the first of these that one of them has.

A task can depend only on tasks that exist, so there are no cycles.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

from log_entries import reopen_tasks
from log_entries.reopen_tasks import Reopened
from onyxq.core import facts
from onyxq.core.entry import APPLIED
from onyxq.core.errors import BadRequest, Corrupt, NotLeader, OnyxqError, Unavailable
from onyxq.core.facts import Resolution, Row
from onyxq.core.ids import (
    Run,
    TaskId,
    callback_of,
    id_at,
    ids_of,
    is_callback,
    mask_of,
    ms_of,
    offset_of,
    partition_of,
    runs_of,
    stretch_of,
)
from onyxq.core.limits import TIMERS_QUEUE
from onyxq.core.replica import leader_node
from onyxq.core.task_headers import CALLBACK, DEPENDS, JOINS, failure_of
from onyxq.leader.completion_rows import Finish, token_now
from onyxq.leader.completions import Completions
from onyxq.leader.entry_chunks import fitting, size_of
from onyxq.leader.host import OperationsHost
from onyxq.leader.leader import PartitionLeader
from onyxq.leader.outcomes import ASKED_IDS_MAX, ENDS, UNSERVED, Outcomes
from onyxq.leader.waiting_runs import WaitingRuns
from onyxq.system.procedures import gather, now, pause

LOOK_EVERY_S = 10.0
RETRY_S = 0.5
PAGE_RUNS = 256
"""Waiting runs that are checked together."""
PAGE_PAUSE_S = 0.02
"""Pause between two pages, in seconds. Hints resolve most tasks sooner."""
ASK_TIMEOUT_S = 4.0

log = logging.getLogger(__name__)

Outcome = str | OnyxqError | None
"""Outcome of a task; None if the task does not exist."""


class Dependencies:
    """Resolves waiting tasks of the partitions that a node leads; one per node."""

    def __init__(
        self, host: OperationsHost, completions: Completions, *, outcomes: Outcomes, waiting: WaitingRuns
    ) -> None:
        self._host = host
        self._completions = completions
        self.outcomes = outcomes.outcomes
        self._watch = outcomes.watch
        self._waiting = waiting

    # --- what tasks that wait here depend on

    async def outcomes_for(self, ids: Iterable[TaskId]) -> dict[TaskId, Outcome]:
        """Return the outcomes of tasks of any partitions from their leaders, or an error for each that is unknown."""
        groups: dict[str, list[TaskId]] = {}
        for task_id in sorted(ids):
            groups.setdefault(self._leader_of(partition_of(task_id)), []).append(task_id)
        asked = [
            (node, group[start : start + ASKED_IDS_MAX])
            for node, group in sorted(groups.items())
            for start in range(0, len(group), ASKED_IDS_MAX)
        ]
        said = await gather([self._asked(node, group) for node, group in asked])
        return {task_id: outcome for found in said for task_id, outcome in found.items()}

    async def _asked(self, node: str, ids: list[TaskId]) -> dict[TaskId, Outcome]:
        """Return what a node says about tasks, or its error for all of them."""
        try:
            return dict(zip(ids, await self._ask(node, ids), strict=True))
        except OnyxqError as error:
            return dict.fromkeys(ids, error)

    def _leader_of(self, partition: int) -> str:
        if partition in self._host.leaders:
            return self._host.node_id
        found = leader_node(self._host.replica, partition)
        return found.id if found is not None else ""

    async def _ask(self, node: str, ids: list[TaskId]) -> list[str | None]:
        me = self._host.node_id
        if not node:
            return [UNSERVED] * len(ids)
        if node == me:
            return await self.outcomes(ids, me)
        said = await self._host.call(node, "lead.outcomes", {"ids": ids, "watcher": me}, timeout_s=ASK_TIMEOUT_S)
        if not isinstance(said, list) or len(said) != len(ids):
            raise NotLeader(f"node {node} does not report the outcomes of tasks")
        return said

    def check(
        self, leader: PartitionLeader, first: TaskId, count: int, header: dict[str, Any], found: dict[TaskId, Outcome]
    ) -> list[Row]:
        """Raise unless all dependencies of a new run exist; return the rows to write with the run.

        Raises `BadRequest` for a task that does not exist, `NotLeader` if that is unknown now.
        """
        for one in header[DEPENDS]:
            said = found.get(one, UNSERVED)
            if said is None:
                raise BadRequest(f"there is no task {one.hex()} to depend on", field=DEPENDS)
            if isinstance(said, OnyxqError) or said == UNSERVED:
                unserved = "its partition has no leader now, or has yet to store it"
                why = said.message if isinstance(said, OnyxqError) else unserved
                raise NotLeader(f"it is unknown whether task {one.hex()} exists: {why}")
        if self._verdict(header, found) == "run":
            return [self._resolution(leader, first, count)]
        self._waiting.note(first, header)
        if self._verdict(header, found):
            self._waiting.look([first])
            self._retry([Run(first, count)])  # the row may not be stored yet at the first look
        return []

    def _verdict(self, header: dict[str, Any], found: dict[TaskId, Outcome]) -> str:
        """Return ``run``, ``fail``, ``cancel`` or ``end``, or an empty string while the verdict is unknown."""
        policy = header.get("on_dependency_failed", "fail")
        said = [found.get(one, UNSERVED) for one in header[DEPENDS]]
        if policy != "run" and not header.get(JOINS) and any(one in ("failed", "cancelled") for one in said):
            return str(policy)
        # The dependency existed when this task was enqueued. If it is missing now, it was finished and purged.
        if not all(one is None or one in ENDS for one in said):
            return ""
        return "end" if header.get(JOINS) else "run"

    def _resolution(self, leader: PartitionLeader, first: TaskId, count: int) -> Row:
        return facts.resolution_row(first, Resolution(count, self._host.wall_ms(), leader.mark()))

    # --- callbacks

    def callback_row(self, task_id: TaskId) -> Row:
        """Return the row of a task's callback: a task of the timers' queue that waits for the end of the task.

        It is stored in the same step as the task. Its id follows from the task's, so a repeat is the same row. Raises
        `BadRequest` if that id is another task's.
        """
        first = callback_of(task_id)
        row = self._host.store.task_row(first)
        if row is None:
            self._host.count_event(TIMERS_QUEUE, "enqueued", 1)
            row = first, facts.pack_task(_callback_header(task_id), [b"null"])
        elif facts.task_header(row[1])[0]["queue"] != TIMERS_QUEUE:
            raise BadRequest(
                f"{first.hex()}, the id of the callback of this task, is another task's",
                field=CALLBACK,
                hint="Use an id from `GET /v1/ids`.",
            )
        return facts.task_row(*row)

    def follow(self, task_id: TaskId) -> None:
        """Have a task's callback checked once the task is finished."""
        self._waiting.note(callback_of(task_id), _callback_header(task_id))
        self._watch(task_id, self._host.node_id)
        if self._host.store.finished_bits(stretch_of(task_id)) & mask_of(task_id, 1):
            self._waiting.look([callback_of(task_id)])

    async def _begin_early(self, leader: PartitionLeader, runs: Sequence[Run]) -> None:
        """Make callbacks due now whose tasks ended early. By default a callback is due when its task is."""
        now_ms = self._host.wall_ms()
        early = [Reopened(run, 0) for run in runs if is_callback(run.first) and ms_of(run.first) > now_ms]
        for group in fitting(early, lambda one: size_of((one.run,))):
            entry = reopen_tasks.Args(leader.partition, leader.epoch, now_ms, tuple(group))
            _, (verdict,) = await self._host.verdicts([entry])
            if verdict != APPLIED:
                raise Unavailable(f"the log refused to make callbacks due: {verdict}")

    # --- looking again

    async def heard(self, ids: Sequence[TaskId]) -> None:
        """Take a hint from another node."""
        self._waiting.hint(ids)

    def lead(self, partition: int) -> None:
        """Check all waiting runs of a partition that this node leads from now on."""
        self._waiting.look_everywhere(partition)

    async def run(self) -> None:
        """Check waiting tasks until cancelled."""
        next_round_s = now() + LOOK_EVERY_S
        while True:
            await self._waiting.wait(max(0.0, next_round_s - now()))
            regular = set(self._host.leaders) if now() >= next_round_s else set()
            hinted = self._waiting.take_runs()
            for start in range(0, len(hinted), PAGE_RUNS):
                await self._resolve(self._rows_of(hinted[start : start + PAGE_RUNS]))
            for partition in sorted(self._waiting.take_partitions() | regular):
                await self._look_through(partition)
            if now() >= next_round_s:
                next_round_s = now() + LOOK_EVERY_S

    def _rows_of(self, firsts: Sequence[TaskId]) -> list[tuple[TaskId, bytes]]:
        """Return those of the runs that still wait."""
        store = self._host.store
        return [
            waiting
            for first in firsts
            for waiting in store.waiting(partition_of(first), after=_before(first), limit=1)
            if waiting[0] == first
        ]

    async def _look_through(self, partition: int) -> None:
        after = b""
        while self._host.leaders.get(partition) is not None:
            page = self._host.store.waiting(partition, after=after, limit=PAGE_RUNS)
            await self._resolve(page)
            if len(page) < PAGE_RUNS:
                return
            await pause(PAGE_PAUSE_S)
            last, body = page[-1]
            after = id_at(stretch_of(last), offset_of(last) + facts.task_header(body)[1] - 1)

    async def _resolve(self, rows: Sequence[tuple[TaskId, bytes]]) -> None:
        """Decide about waiting runs whose dependencies are finished."""
        if not rows:
            return
        heads = [(first, *facts.task_header(body)) for first, body in rows]
        found = await self.outcomes_for({one for _, header, _ in heads for one in header[DEPENDS]})
        ready: dict[int, list[Run]] = {}
        for first, header, count in heads:
            verdict = self._verdict(header, found)
            if verdict == "run":
                ready.setdefault(partition_of(first), []).append(Run(first, count))
            elif verdict:
                await self._end(Run(first, count), self._ending(header, found, verdict))
            else:
                self._waiting.note(first, header)
        for partition, runs in sorted(ready.items()):
            await self._let_run(partition, runs)

    async def _let_run(self, partition: int, runs: list[Run]) -> None:
        leader = self._host.leaders.get(partition)
        if leader is None or leader.deposed or not leader.ready:
            return  # the next leader checks it
        try:
            await self._begin_early(leader, runs)
            await leader.write([self._resolution(leader, *run) for run in runs])
        except OnyxqError as error:
            log.info("partition %d: resolved tasks cannot be written yet: %s", partition, error.message)
            self._retry(runs)

    def _ending(self, header: dict[str, Any], found: dict[TaskId, Outcome], verdict: str) -> tuple[int, list[bytes]]:
        """Return the outcome of a task that is not run, and the reason if it failed."""
        ended = {str(found.get(one)): one for one in reversed(header[DEPENDS])}
        if verdict == "end":
            verdict = next((fate for end, fate in (("failed", "fail"), ("cancelled", "cancel")) if end in ended), "end")
        if verdict != "fail":
            return facts.CANCELLED if verdict == "cancel" else facts.COMPLETED, []
        said = "failed" if "failed" in ended else "cancelled"
        note = f"task {ended[said].hex()}, on which it depended, {said}".encode()
        return failure_of(self._host.replica, header), [note]

    async def _end(self, run: Run, ending: tuple[int, list[bytes]]) -> None:
        partition = partition_of(run.first)
        leader = self._host.leaders.get(partition)
        if leader is None or leader.deposed or not leader.ready:
            return
        await self._completions.until_decided([run])
        store = self._host.store
        bits = mask_of(*run) & ~store.finished_bits(stretch_of(run.first))
        outcome, notes = ending
        parts = list(runs_of(stretch_of(run.first), bits))
        position = self._host.replica.position
        token = max((token_now(store, one, position) for part in parts for one in ids_of(*part)), default=0)
        finishes = [(0, Finish(part, token, outcome, [*notes] * part.count)) for part in parts]
        try:
            rows = [(one, store.task_row(one)) for part in parts for one in ids_of(*part)]
        except Corrupt:
            return  # the store lists it as waiting again once it is repaired
        for task_id, row in rows:
            if row is not None:
                self._host.leader_state.keys.note(task_id, row[1])
        refused: list[list[Any]] = [[]]
        if finishes:
            await self._completions.finish_all({partition: finishes}, refused)
        if refused[0]:
            self._retry([run])

    def _retry(self, runs: Iterable[Run]) -> None:
        async def later() -> None:
            await pause(RETRY_S)
            self._waiting.look(run.first for run in runs)

        runs = list(runs)
        self._host.start_soon(later)


def _callback_header(task_id: TaskId) -> dict[str, Any]:
    return {"depends": [task_id], "format": "json", "on_dependency_failed": "run", "queue": TIMERS_QUEUE}


def _before(first: TaskId) -> bytes:
    """Return the id before ``first``, so that a page after it starts with ``first``."""
    return (int.from_bytes(first, "big") - 1).to_bytes(len(first), "big")
