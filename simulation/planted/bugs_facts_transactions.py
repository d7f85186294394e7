"""Planted bugs of transactions at leaders, and of claims that end beside them: the search of facts alone finds them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

from onyxq.core.facts import Row
from onyxq.core.ids import Run, mask_of, partition_of, runs_of, stretch_of
from onyxq.core.replica import claimed_bits, pieces_of
from onyxq.leader.cohort import pending_facts
from onyxq.leader.expiry import Expiry
from onyxq.leader.leader import PartitionLeader
from onyxq.leader.state.view import View
from onyxq.leader.transaction_apply import TransactionApplier
from onyxq.leader.transaction_parts import TransactionParts
from onyxq.store.interface import Piece
from onyxq.store.key_reads import RuledReads
from simulation.planted.bugs_transactions import completed_only, deadlines_passed, in_the_background, in_time, under_way
from simulation.planted.planted import Planted
from simulation.planted.seams import Fault, instead, returning


def _claimed(view: View, tasks: Sequence[Run]) -> Iterator[Run]:
    """Yield the claimed tasks of some runs."""
    for run in tasks:
        claimed = claimed_bits(pieces_of(view.replica, run.first))
        yield from runs_of(stretch_of(run.first), mask_of(*run) & claimed)


def _first_in_their_keys(original: Callable[[RuledReads, Any], list[Piece]]) -> Callable[..., list[Piece]]:
    """Leave out pieces of tasks that are not the first of their ordering keys."""

    def moved(reads: RuledReads, record: Any) -> list[Piece]:
        return [
            piece
            for piece in original(reads, record)
            if not piece.key or reads.key_head(partition_of(piece.row_first), piece.key) == piece.row_first
        ]

    return moved


def _of_one_partition(original: Callable[[Expiry, int], Any]) -> Callable[[Expiry, int], Any]:
    """Leave the lapsed claims of other partitions for later."""

    def due(expiry: Expiry, log_time_ms: int) -> Any:
        found = original(expiry, log_time_ms)
        first = min([*(args.partition for args in found.lapsed), *found.over], default=0)
        found.lapsed = [args for args in found.lapsed if args.partition == first]
        found.over = {number: over for number, over in found.over.items() if number == first}
        return found

    return due


def _shown(original: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Make parts visible once they are prepared."""

    async def keep(parts: TransactionParts, rows: dict[int, list[Row]]) -> Any:
        failed = await original(parts, rows)
        for partition, part in rows.items():
            if part and partition not in failed:
                items = pending_facts.unpack_items(pending_facts.from_row(row).body for row in part)
                parts._host.start_soon(parts.applier._make_visible, parts._host.leaders[partition], items)
        return failed

    return keep


def _settled_anyway(original: Callable[..., Awaitable[bool]]) -> Callable[..., Awaitable[bool]]:
    """Settle parts that could not be made visible."""

    async def done(applier: TransactionApplier, leader: PartitionLeader, items: dict[str, list[Any]]) -> bool:
        if not await original(applier, leader, items):
            applier._settle(leader, list(items))
        return True

    return done


def _without_items(kind: str) -> Fault:
    """Return the fault that leaves items of a kind out when parts are made visible."""

    def fault(original: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
        async def make_visible(applier: TransactionApplier, leader: PartitionLeader, items: list[Any]) -> None:
            await original(applier, leader, [item for item in items if item[0] != kind])

        return make_visible

    return fault


def _planted(name: str, seam: str, fault: Fault, breaks: str, quick: int = 0) -> Planted:
    return Planted(name, seam, fault, breaks, "facts_transactions", runs=200, quick=quick)


PARTS, APPLY = "onyxq.leader.transaction_parts", "onyxq.leader.transaction_apply:TransactionApplier"

FACT_TRANSACTION_BUGS: tuple[Planted, ...] = (
    _planted(
        "tasks that come back beside a prepare are forgotten",
        "onyxq.leader.state.completion_plan:unclaimed",
        returning(()),
        "a task that was released while a transaction was about to complete it is never granted",
        quick=4,
    ),
    _planted(
        "after a prepare the claimed tasks are offered instead of the others",
        "onyxq.leader.state.completion_plan:unclaimed",
        instead(_claimed),
        "claimed tasks are looked at without effect, and those that came back are never granted",
        quick=4,
    ),
    _planted(
        "a task that a requeued one of its key comes before loses its attempts",
        "onyxq.store.key_reads:RuledReads._moved",
        _first_in_their_keys,
        "a requeued dead letter takes attempts from the claimed task of its key",
        quick=5,
    ),
    _planted(
        "lapsed claims are taken back one partition after the other",
        "onyxq.leader.expiry:Expiry._due",
        _of_one_partition,
        "after a takeover of many partitions claims end seconds late",
        quick=4,
    ),
    _planted(
        "parts are visible once they are prepared",
        f"{PARTS}:TransactionParts._keep",
        _shown,
        "tasks of a transaction that is not committed are granted",
        quick=2,
    ),
    _planted(
        "pending rows are dropped as soon as a sweep finds them",
        "onyxq.leader.cohort.pending_facts:is_over",
        deadlines_passed,
        "a transaction commits without its pending rows",
        quick=2,
    ),
    _planted(
        "a part settles before a majority has its facts",
        f"{APPLY}._make_visible",
        in_the_background(None),
        "committed facts are lost with a leader",
        quick=2,
    ),
    _planted(
        "a part settles although it could not be made visible",
        f"{APPLY}._done",
        _settled_anyway,
        "committed facts are on too few nodes, or on none",
        quick=8,
    ),
    _planted(
        "a part is prepared before a majority has its pending rows",
        f"{PARTS}:TransactionParts._keep",
        in_the_background({}),
        "a transaction commits, and its pending rows are lost with a leader",
        quick=2,
    ),
    _planted(
        "a prepare does not mark what it completes",
        f"{PARTS}:_completed_runs",
        returning([]),
        "a task is failed, cancelled or granted while a transaction is about to complete it",
        quick=4,
    ),
    _planted(
        "a prepare does not check its claims",
        f"{PARTS}:TransactionParts._check_claims",
        returning(None),
        "a transaction completes a task that was completed before",
        quick=4,
    ),
    _planted(
        "a settled transaction commits once more",
        "log_entries.commit_transaction:answer_of",
        instead(under_way),
        "a repeat of a transaction is done twice",
        quick=4,
    ),
    _planted(
        "claims that a transaction holds expire",
        "onyxq.core.transactions:HELD_MS",
        instead(0),
        "a task that a commit completes is granted to another worker",
        quick=3,
    ),
    _planted(
        "a commit ignores the claims that it only requires",
        "log_entries.commit_transaction:_needed",
        instead(completed_only),
        "a transaction commits under a claim that has ended",
        quick=3,
    ),
    _planted(
        "a commit applies after its deadline",
        "log_entries.commit_transaction:_problem",
        in_time,
        "a transaction commits after nodes dropped its pending rows",
        quick=2,
    ),
    _planted(
        "updates of a transaction are not stored",
        f"{APPLY}._make_visible",
        _without_items("U"),
        "a transaction has some of its effects only",
        quick=4,
    ),
    Planted(
        "a new leader does not look for committed transactions",
        f"{PARTS}:TransactionParts.lead",
        returning(None),
        "a transaction whose leader died is never visible",
        "facts_transactions",
        runs=200,
        quick=3,
        more=((f"{PARTS}:TransactionParts.look", returning(None)),),
    ),
)
"""The planted bugs of transactions at leaders."""
