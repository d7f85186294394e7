"""Planted bugs of cancelling tasks, and of what is asked for and no longer waited for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio

from onyxq.core.ids import TaskId
from onyxq.leader.cancellations import Cancellations
from onyxq.leader.cohort.replication import Vote
from onyxq.leader.task_keys import Started
from simulation.planted.planted import Planted
from simulation.planted.seams import instead, returning

_Means = Callable[..., tuple[int, list[bytes | None]]]


def _one_token_older(original: _Means) -> _Means:
    def means(*args: object, **options: object) -> tuple[int, list[bytes | None]]:
        token, results = original(*args, **options)
        return (token - 1 if results else token), results

    return means


async def _only_readable(cancellations: Cancellations, ids: Sequence[TaskId]) -> None:
    await cancellations._host.unflushed_writes.readable()


async def _over_at_once(enqueuing: object, asked: object, started: Started) -> None:
    await trio.lowlevel.checkpoint()
    started.over()


def _lost_before_the_leader_knows(vote: Vote) -> bool:
    return bool(vote.errors) and (vote._leader in vote.errors or vote._out_of_reach)


CANCELLING_BUGS: tuple[Planted, ...] = (
    Planted(
        "a cancel older than the claim that it ends",
        "onyxq.leader.cancellations:Cancellations._token_and_results",
        _one_token_older,
        "the worker of a cancelled task completes it",
        "told_to_stop",
        quick=3,
    ),
    Planted(
        "cancelled although a transaction completes it",
        "onyxq.leader.cancellations:Cancellations._check_transactions",
        returning(None),
        "a transaction that is committed next completes a task that was cancelled",
        "told_to_stop",
    ),
    Planted(
        "cancelled while a transaction is being prepared",
        "onyxq.leader.transaction_parts:_completed_runs",
        returning(()),
        "the same, if its pending facts are not stored yet",
        "told_to_stop",
    ),
    Planted(
        "a cancel does not wait for a completion",
        "onyxq.leader.cancellations:Cancellations._until_decided",
        instead(_only_readable),
        "a cancel is acknowledged beside a completion that was stored before",
        "told_to_stop",
    ),
    Planted(
        "a repeated cancel is refused",
        "onyxq.leader.cancellations:Cancellations._repeated_cancel",
        returning(None),
        "who was not answered, and asks again, is told that a task was not cancelled which he cancelled",
        "impatient",
    ),
    Planted(
        "a repeated requeue is refused",
        "onyxq.leader.dead_letters:DeadLetters._is_reopened",
        returning(False),
        "who was not answered, and asks again, is told that a task is no dead letter which he requeued",
        "requeued_twice",
        quick=3,
    ),
    Planted(
        "completions that nobody waits for are forgotten",
        "onyxq.leader.completions:Completions._decide_in_background",
        returning(None),
        "nobody is answered about these tasks any more, and what comes after them never runs",
        "impatient",
        quick=2,
    ),
    Planted(
        "a unique key is let go with the request",
        "onyxq.leader.enqueues:Enqueues._decide_abandoned",
        instead(_over_at_once),
        "the next enqueue does not see a task of its key that is on its way to the disk",
        "impatient",
    ),
    Planted(
        "given up before the leader knows of itself",
        "onyxq.leader.cohort.replication:Vote._lost",
        instead(_lost_before_the_leader_knows),
        "the same, if the other nodes could not be reached",
        "impatient",
        runs=200,
    ),
)
