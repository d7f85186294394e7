"""Planted bugs of cancelling tasks, and of what is asked for and no longer waited for."""

from __future__ import annotations

from simulation.planted.planted import Planted

CANCELLING_BUGS: tuple[Planted, ...] = (
    Planted(
        "a cancel older than the claim that it ends",
        "onyxq/leader/cancellations.py",
        "return claim[2], [facts.CLAIMED]",
        "return claim[2] - 1, [facts.CLAIMED]",
        "the worker of a cancelled task completes it",
        "told_to_stop",
        quick=3,
    ),
    Planted(
        "cancelled although a transaction completes it",
        "onyxq/leader/cancellations.py",
        "if claim_of(replica, task_id) is not None and pending_facts.is_completed(self._host.store, replica, task_id):",
        "if False:",
        "a transaction that is committed next completes a task that was cancelled",
        "told_to_stop",
    ),
    Planted(
        "cancelled while a transaction is being prepared",
        "onyxq/leader/transaction_parts.py",
        "with self._completing.begun([run for one in prepared for run in pending_facts.completed_runs(one.items)]):",
        "with self._completing.begun([]):",
        "the same, if its pending facts are not stored yet",
        "told_to_stop",
    ),
    Planted(
        "a cancel does not wait for a completion",
        "onyxq/leader/cancellations.py",
        "await self._completing.turn([Run(task_id, 1) for task_id in ids])",
        "pass",
        "a cancel is acknowledged beside a completion that was stored before",
        "told_to_stop",
    ),
    Planted(
        "a repeated cancel is refused",
        "onyxq/leader/cancellations.py",
        "if again is not None:",
        "if again := None:",
        "who was not answered, and asks again, is told that a task was not cancelled which he cancelled",
        "impatient",
    ),
    Planted(
        "a repeated requeue is refused",
        "onyxq/leader/dead_letters.py",
        "if self._opened_again(task_id):",
        "if not task_id:",
        "who was not answered, and asks again, is told that a task is no dead letter which he requeued",
        "requeued_twice",
        quick=3,
    ),
    Planted(
        "completions that nobody waits for are forgotten",
        "onyxq/leader/completions.py",
        "self._host.start_soon(self._decide, sent, refused)",
        "pass",
        "nobody is answered about these tasks any more, and what comes after them never runs",
        "impatient",
        quick=2,
    ),
    Planted(
        "a unique key is let go with the request",
        "onyxq/leader/enqueues.py",
        "over = partial(self._host.start_soon, self._see_through, asked[place], started)",
        "pass",
        "the next enqueue does not see a task of its key that is on its way to the disk",
        "impatient",
    ),
    Planted(
        "given up before the leader knows of itself",
        "onyxq/leader/cohort/replication.py",
        "return self._leader in self.errors or (self._leader in self.acks and out_of_reach)",
        "return self._leader in self.errors or out_of_reach",
        "the same, if the other nodes could not be reached",
        "impatient",
        runs=200,
    ),
)
