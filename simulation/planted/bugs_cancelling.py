"""Planted bugs of cancelling tasks that workers hold."""

from __future__ import annotations

from simulation.planted.planted import Planted

CANCELLING_BUGS: tuple[Planted, ...] = (
    Planted(
        "a cancel older than the claim that it ends",
        "onyxq/partition/cancelling.py",
        "return claim[2], [facts.CLAIMED]",
        "return claim[2] - 1, [facts.CLAIMED]",
        "the worker of a cancelled task completes it",
        "told_to_stop",
        quick=3,
    ),
    Planted(
        "cancelled although a transaction completes it",
        "onyxq/partition/cancelling.py",
        "if pending.is_completed(store, replica, task_id):",
        "if False:",
        "a transaction that is committed next completes a task that was cancelled",
        "told_to_stop",
    ),
    Planted(
        "cancelled while a transaction is being prepared",
        "onyxq/partition/transacting.py",
        "with self._completing.begun([run for one in prepared for run in pending.completed_runs(one.items)]):",
        "with self._completing.begun([]):",
        "the same, if its pending facts are not stored yet",
        "told_to_stop",
    ),
    Planted(
        "a cancel does not wait for a completion",
        "onyxq/partition/cancelling.py",
        "await self._completing.turn([Run(task_id, 1) for task_id in ids])",
        "pass",
        "a cancel is acknowledged beside a completion that was stored before",
        "told_to_stop",
    ),
)
