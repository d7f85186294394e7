"""Planted bugs of cancels, and of requests whose client no longer waits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from onyxq.core.ids import TaskId
from onyxq.leader.cancellations import Cancellations
from onyxq.leader.cohort.replication import Vote
from onyxq.leader.task_keys import Started
from onyxq.system.procedures import pause
from simulation.planted.planted import Planted
from simulation.planted.seams import instead, returning

_TokenAndResults = Callable[..., tuple[int, list[bytes | None]]]


def _one_token_older(original: _TokenAndResults) -> _TokenAndResults:
    def token_and_results(*args: object, **options: object) -> tuple[int, list[bytes | None]]:
        token, results = original(*args, **options)
        return (token - 1 if results else token), results

    return token_and_results


async def _only_readable(cancellations: Cancellations, ids: Sequence[TaskId]) -> None:
    await cancellations._host.unflushed_writes.readable()


async def _over_at_once(enqueues: object, asked: object, started: Started) -> None:
    await pause(0.0)
    started.over()


def _lost_before_the_leader_knows(vote: Vote) -> bool:
    return bool(vote.errors) and (vote._leader in vote.errors or vote._out_of_reach)


CANCEL_BUGS: tuple[Planted, ...] = (
    Planted(
        "a cancel has an older token than the claim that it ends",
        "onyxq.leader.cancellations:Cancellations._token_and_results",
        _one_token_older,
        "the worker of a cancelled task completes it",
        "told_to_stop",
        quick=3,
    ),
    Planted(
        "a task that a transaction completes is cancelled",
        "onyxq.leader.cancellations:Cancellations._check_transactions",
        returning(None),
        "a transaction commits and completes a task that was cancelled",
        "told_to_stop",
    ),
    Planted(
        "a task is cancelled while a transaction is being prepared",
        "onyxq.leader.transaction_parts:_completed_runs",
        returning(()),
        "a transaction commits and completes a task that was cancelled before its pending rows were stored",
        "told_to_stop",
    ),
    Planted(
        "a cancel does not wait for a completion",
        "onyxq.leader.cancellations:Cancellations._until_decided",
        instead(_only_readable),
        "a cancel is acknowledged although a completion was stored before",
        "told_to_stop",
    ),
    Planted(
        "a repeated cancel is refused",
        "onyxq.leader.cancellations:Cancellations._repeated_cancel",
        returning(None),
        "a client that repeats an unanswered cancel gets an error although the task was cancelled",
        "impatient",
    ),
    Planted(
        "a repeated requeue is refused",
        "onyxq.leader.dead_letters:DeadLetters._is_reopened",
        returning(False),
        "a client that repeats an unanswered requeue gets an error although the task was requeued",
        "requeued_twice",
        quick=3,
    ),
    Planted(
        "completions whose client no longer waits are never decided",
        "onyxq.leader.completions:Completions._decide_in_background",
        returning(None),
        "requests about these tasks are never answered, and tasks after them never run",
        "impatient",
        quick=2,
    ),
    Planted(
        "a unique key is unlocked when its request ends",
        "onyxq.leader.enqueues:Enqueues._decide_abandoned",
        instead(_over_at_once),
        "the next enqueue does not see a task of its key that is being written",
        "impatient",
    ),
    Planted(
        "a write is given up before the leader's own store has answered",
        "onyxq.leader.cohort.replication:Vote._lost",
        instead(_lost_before_the_leader_knows),
        "the next enqueue does not see a task of its key if the other nodes cannot be reached",
        "impatient",
        runs=200,
    ),
)
