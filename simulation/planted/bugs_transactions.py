"""Planted bugs of transactions: their deadlines, their claims, and what they prepare."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable

import trio
from attrs import evolve

from log_entries.commit_transaction import Args as Commit
from onyxq.core.entry import Stamp
from onyxq.core.replica import Replica
from onyxq.core.transactions import Claim
from onyxq.leader.transaction_apply import TransactionApplier
from onyxq.leader.transaction_parts import TransactionParts
from onyxq.store.interface import Store
from simulation.planted.planted import Planted
from simulation.planted.seams import Fault, instead, returning


def _in_time(original: Callable[..., str]) -> Callable[..., str]:
    def problem(replica: Replica, args: Commit, stamp: Stamp) -> str:
        return original(replica, evolve(args, deadline_ms=max(args.deadline_ms, stamp.log_time_ms)), stamp)

    return problem


def _deadlines_passed(original: Callable[[Replica, int, str], bool]) -> Callable[[Replica, int, str], bool]:
    return lambda replica, partition, key: original(evolve(replica, log_time_ms=sys.maxsize), partition, key)


def _under_way(replica: Replica, name: str) -> object:
    return True if name in replica.transactions else None


def _in_the_background(answer: object) -> Fault:
    """Return the fault that has a method of a host's part run alone, and answers at once."""

    def fault(original: Callable[..., Awaitable[object]]) -> Callable[..., Awaitable[object]]:
        async def begin(part: TransactionApplier | TransactionParts, *args: object) -> object:
            part._host.start_soon(original, part, *args)
            await trio.lowlevel.checkpoint()
            return answer

        return begin

    return fault


def _nothing_pulled(original: Callable[..., Awaitable[set[str]]]) -> Callable[..., Awaitable[set[str]]]:
    async def pull(store: Store, call: object, partition: int, **wanted: str) -> set[str]:
        if wanted:
            return await original(store, call, partition, **wanted)
        return set(store.pending_transactions(partition))

    return pull


def _completed_only(args: Commit) -> tuple[Claim, ...]:
    return args.claims


TRANSACTION_BUGS: tuple[Planted, ...] = (
    Planted(
        "deadline ignored",
        "log_entries.commit_transaction:_problem",
        _in_time,
        "what is committed was dropped by all who knew that it was too late",
        "lagging",
        quick=2,
    ),
    Planted(
        "pending dropped before the deadline",
        "onyxq.leader.cohort.pending_facts:is_over",
        _deadlines_passed,
        "what is prepared is gone when it is committed",
        "log_away",
        quick=2,
    ),
    Planted(
        "a task expires while a transaction holds it",
        "onyxq.core.transactions:HELD_MS",
        instead(0),
        "a task that is completed by a commit is given to somebody else",
        "slow_to_see",
    ),
    Planted(
        "required claims not looked at",
        "log_entries.commit_transaction:_needed",
        instead(_completed_only),
        "something happens under a claim that ran out",
        "late_commits",
        quick=2,
    ),
    Planted(
        "a repeat commits again",
        "log_entries.commit_transaction:answer_of",
        instead(_under_way),
        "a transaction that two nodes coordinate happens twice",
        "asked_twice",
    ),
    Planted(
        "settled before it is written",
        "onyxq.leader.transaction_apply:TransactionApplier._make_visible",
        _in_the_background(None),
        "a leader that dies takes what was committed with it",
        "dead_leaders",
        quick=2,
    ),
    Planted(
        "prepared before a majority keeps it",
        "onyxq.leader.transaction_parts:TransactionParts._keep",
        _in_the_background({}),
        "what is committed was kept by nobody who lives",
        "dying",
    ),
    Planted(
        "what came back meanwhile is not offered",
        "onyxq.leader.completions:Completions._unclaimed",
        returning(()),
        "nobody gets a task that was given back, or expired, while a transaction was about to complete it",
        "given_back_meanwhile",
        quick=3,
    ),
    Planted(
        "takeover without what is pending",
        "onyxq.leader.cohort.pending_facts:pull",
        _nothing_pulled,
        "the next leader does not know what is to be committed, nor does who follows it",
        "handed_over",
        quick=3,
    ),
    Planted(
        "new copies lack what is pending",
        "onyxq.leader.cohort.pending_facts:push",
        returning(None),
        "when a partition's nodes have gone one by one, so has what was to be committed",
        "handed_over",
    ),
)
"""Planted bugs about these."""
