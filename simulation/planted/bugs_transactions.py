"""Planted bugs of transactions: deadlines, claims, and pending rows."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable

from attrs import evolve

from log_entries.commit_transaction import Args as Commit
from onyxq.core.entry import Stamp
from onyxq.core.replica import Replica
from onyxq.core.transactions import Claim
from onyxq.leader.transaction_apply import TransactionApplier
from onyxq.leader.transaction_parts import TransactionParts
from onyxq.store.store import Store
from onyxq.system.procedures import pause
from simulation.planted.planted import Planted
from simulation.planted.seams import Fault, instead, returning


def in_time(original: Callable[..., str]) -> Callable[..., str]:
    """Let every commit come in time."""

    def problem(replica: Replica, args: Commit, stamp: Stamp) -> str:
        return original(replica, evolve(args, deadline_ms=max(args.deadline_ms, stamp.log_time_ms)), stamp)

    return problem


def deadlines_passed(original: Callable[[Replica, int, str], bool]) -> Callable[[Replica, int, str], bool]:
    """Have the deadlines of all transactions passed."""
    return lambda replica, partition, key: original(evolve(replica, log_time_ms=sys.maxsize), partition, key)


def under_way(replica: Replica, name: str) -> object:
    """Remember only transactions that have not settled."""
    return True if name in replica.transactions else None


def in_the_background(answer: object) -> Fault:
    """Return the fault that runs a method in the background and answers at once."""

    def fault(original: Callable[..., Awaitable[object]]) -> Callable[..., Awaitable[object]]:
        async def begin(part: TransactionApplier | TransactionParts, *args: object) -> object:
            part._host.start_soon(original, part, *args)
            await pause(0.0)
            return answer

        return begin

    return fault


def _nothing_pulled(original: Callable[..., Awaitable[set[str]]]) -> Callable[..., Awaitable[set[str]]]:
    async def pull(store: Store, call: object, partition: int, **wanted: str) -> set[str]:
        if wanted:
            return await original(store, call, partition, **wanted)
        return set(store.pending_transactions(partition))

    return pull


def completed_only(args: Commit) -> tuple[Claim, ...]:
    """Return the claims that a commit completes, without those that it requires."""
    return args.claims


TRANSACTION_BUGS: tuple[Planted, ...] = (
    Planted(
        "a commit ignores its deadline",
        "log_entries.commit_transaction:_problem",
        in_time,
        "a transaction commits after nodes deleted its pending rows",
        "lagging",
        quick=6,
    ),
    Planted(
        "pending rows are deleted before the deadline",
        "onyxq.leader.cohort.pending_facts:is_over",
        deadlines_passed,
        "a transaction commits without its pending rows",
        "log_away",
        quick=2,
    ),
    Planted(
        "a task expires while a transaction holds it",
        "onyxq.core.transactions:HELD_MS",
        instead(0),
        "a task that a commit completes is granted to another worker",
        "slow_to_see",
    ),
    Planted(
        "a commit does not check its required claims",
        "log_entries.commit_transaction:_needed",
        instead(completed_only),
        "a transaction commits under an expired claim",
        "late_commits",
        quick=2,
    ),
    Planted(
        "a repeated transaction commits again",
        "log_entries.commit_transaction:answer_of",
        instead(under_way),
        "a transaction that two nodes coordinate is applied twice",
        "asked_twice",
    ),
    Planted(
        "a part settles before it is written",
        "onyxq.leader.transaction_apply:TransactionApplier._make_visible",
        in_the_background(None),
        "committed facts are lost with a leader",
        "dead_leaders",
        quick=2,
    ),
    Planted(
        "a part counts as prepared before a majority has its rows",
        "onyxq.leader.transaction_parts:TransactionParts._keep",
        in_the_background({}),
        "no live node has the rows of a committed transaction",
        "dying",
    ),
    Planted(
        "tasks that become ready during a prepare are not offered",
        "onyxq.leader.state.completion_plan:unclaimed",
        returning(()),
        "a task that was released, or whose claim expired, during a prepare is never granted",
        "given_back_meanwhile",
        quick=3,
    ),
    Planted(
        "a takeover does not fetch pending rows",
        "onyxq.leader.cohort.pending_facts:pull",
        _nothing_pulled,
        "the next leaders lack the rows of transactions that will be committed",
        "handed_over",
        quick=3,
    ),
    Planted(
        "new copies lack pending rows",
        "onyxq.leader.cohort.pending_facts:push",
        returning(None),
        "after all nodes of a partition were replaced, pending rows are lost",
        "handed_over",
    ),
)
"""The planted bugs of transactions."""
