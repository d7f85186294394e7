"""Planted bugs of cancelling tasks, and of what is asked for and no longer waited for."""

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
        "if claim_of(replica, task_id) is not None and pending.is_completed(self._host.store, replica, task_id):",
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
    Planted(
        "a repeated cancel is refused",
        "onyxq/partition/cancelling.py",
        "if again is not None:",
        "if again := None:",
        "who was not answered, and asks again, is told that a task was not cancelled which he cancelled",
        "impatient",
    ),
    Planted(
        "a repeated requeue is refused",
        "onyxq/partition/dead.py",
        "if self._opened_again(task_id):",
        "if not task_id:",
        "who was not answered, and asks again, is told that a task is no dead letter which he requeued",
        "requeued_twice",
        quick=3,
    ),
    Planted(
        "completions that nobody waits for are forgotten",
        "onyxq/partition/completing.py",
        "self._host.start_soon(self._decide, sent, refused)",
        "pass",
        "nobody is answered about these tasks any more, and what comes after them never runs",
        "impatient",
        quick=2,
    ),
    Planted(
        "a unique key is let go with the request",
        "onyxq/partition/enqueuing.py",
        "over = partial(self._host.start_soon, self._see_through, asked[place], started)",
        "pass",
        "the next enqueue does not see a task of its key that is on its way to the disk",
        "impatient",
    ),
    Planted(
        "given up before the leader knows of itself",
        "onyxq/partition/replication.py",
        "return self._leader in self.errors or (self._leader in self.acks and out_of_reach)",
        "return self._leader in self.errors or out_of_reach",
        "the same, if the other nodes could not be reached",
        "impatient",
        runs=200,
    ),
)
