"""Planted bugs of what leaders decide about tasks, which the search of facts alone finds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onyxq.leader.state.states import BLOCKED
from simulation.planted.planted import Planted
from simulation.planted.seams import instead, returning


async def _at_once(*_: object, **__: object) -> None:
    """Wait for nothing."""


def _unchanged(_: object, __: object, body: bytes, ___: object) -> bytes:
    """Change nothing."""
    return body


def _planted(name: str, seam: str, fault: Callable[[Any], Any], breaks: str, quick: int = 0) -> Planted:
    return Planted(name, f"onyxq.leader.{seam}", fault, breaks, "facts", runs=200, quick=quick)


FACT_BUGS: tuple[Planted, ...] = (
    _planted(
        "requests do not wait for completions that are being written",
        "completions:Completions.until_decided",
        instead(_at_once),
        "a task is renewed, failed or cancelled while its completion is being written",
        quick=6,
    ),
    _planted(
        "tasks that came back are not offered",
        "grants.granter:Granter.offer",
        returning(None),
        "a task that was given back waits until the next takeover",
        quick=3,
    ),
    _planted(
        "the next task of a key is not offered",
        "grants.granter:Granter.finished",
        returning([]),
        "a key stands still once its first task is done",
        quick=3,
    ),
    _planted(
        "a key counts as free whatever its tasks do",
        "grants.grantable:Grantable._key_free",
        returning(True),
        "two tasks of a key are granted at a time",
    ),
    _planted(
        "every token is valid",
        "state.token_rules:_why_not",
        returning(None),
        "a worker completes a task that another one has",
        quick=12,
    ),
    _planted(
        "requests for a unique key do not wait for each other",
        "task_keys:TaskKeys._lock",
        instead(_at_once),
        "two tasks are stored for one key",
        quick=3,
    ),
    _planted(
        "a unique key is free at once",
        "task_keys:TaskKeys._other_holder",
        returning(None),
        "two waiting tasks are stored for one key",
        quick=12,
    ),
    _planted(
        "a task that started is changed",
        "task_keys:TaskKeys._has_started",
        returning(False),
        "an enqueue is answered `replaced` although the task already runs with the older data",
        quick=12,
    ),
    _planted(
        "extend moves no due time",
        "task_keys:TaskKeys._changed",
        instead(_unchanged),
        "a task runs before the time to which an enqueue moved it",
        quick=6,
    ),
    Planted(
        "a unique key stays taken",
        "onyxq.store.index.facets:has_released",
        returning(False),
        "the key of a task that ended is not free",
        "facts",
        runs=200,
        quick=12,
    ),
    _planted(
        "rows of tasks with keys are not written again",
        "grants.keyed_rows:KeyedRows.run",
        instead(_at_once),
        "a task whose write failed is never granted by this leader",
        quick=3,
    ),
    _planted(
        "no claim expires",
        "expiry:Expiry._led",
        returning(()),
        "a task whose worker died is held for ever",
        quick=3,
    ),
    _planted(
        "undecided completions are not written again",
        "completions:Completions.run",
        instead(_at_once),
        "a completion that only the leader has is never decided",
        quick=12,
    ),
    _planted(
        "a requeue never ends",
        "dead_letters:DeadLetters._end",
        returning(None),
        "a task is being requeued for ever",
        quick=12,
    ),
    _planted(
        "states outlive the leadership",
        "state.leader_state:LeaderState.end_leadership",
        returning(None),
        "a task whose grant was undecided is never granted here again",
        quick=24,
    ),
    _planted(
        "tasks that are being finished may be granted",
        "state.leader_state:UNGRANTABLE",
        instead(BLOCKED),
        "a task is granted while its completion is being written",
    ),
    _planted(
        "a second result replaces the first",
        "state.completion_plan:has_other_result",
        returning(False),
        "a worker is told that another result than the stored one counts",
        quick=3,
    ),
    _planted(
        "delayed tasks are forgotten",
        "grants.due_queue:DueQueue.add",
        returning(None),
        "a task with a due time waits for the next takeover",
        quick=6,
    ),
    _planted(
        "a claim's renewal does not keep it",
        "expiry:may_expire",
        returning(True),
        "a claim is expired before its time",
    ),
    _planted(
        "a write counts as stored at once",
        "cohort.replication:Vote.won",
        returning(True),
        "a write that nobody has is acknowledged",
        quick=5,
    ),
    _planted(
        "dependents do not wait",
        "dependencies:Dependencies._verdict",
        returning("run"),
        "a task runs before those that it depends on",
        quick=10,
    ),
)
"""The planted bugs of what leaders decide."""
