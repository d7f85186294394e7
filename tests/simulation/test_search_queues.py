"""The search soon finds faults of limits, transactions and periodic tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from attrs import evolve
from pyrsistent import pmap

from onyxq.core.replica import Replica, Transaction
from simulation.planted.seams import Fault, faulty, instead, returning
from tests.simulation.searching import broken_run

pytestmark = pytest.mark.long


def settled_in_part(before: Replica, parts: Mapping[str, Transaction], partition: int) -> Replica:
    """Settle the transactions, but keep their tasks held."""
    return evolve(before, transactions=pmap({k: v for k, v in before.transactions.items() if k not in parts}))


def fired_again(found: Any, **changes: Any) -> Any:
    """Leave the next time unchanged."""
    return evolve(found, **{name: value for name, value in changes.items() if name != "next_ms"})


PLANTED: dict[str, tuple[str, Fault]] = {
    "what a transaction holds is ended like any claim": ("onyxq.core.claims:HELD_MS", instead(-1)),
    "what ends counts on": ("onyxq.core.replica:still_counted", returning(None)),
    "a name that comes again commits again": ("log_entries.commit_transaction:answer_of", returning(None)),
    "claims that do not stand are taken": ("log_entries.commit_transaction:stale", returning(())),
    "a grant does not look at the limits": ("log_entries.grant_limited_claims:room", returning(None)),
    "a grant takes nothing from the rate": ("log_entries.grant_limited_claims:taken", returning(None)),
    "a settled part keeps what it held": ("log_entries.settle_transactions:settled", instead(settled_in_part)),
    "a time can be fired over and over": ("log_entries.fire_periodic:evolve", instead(fired_again)),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found(bug: str) -> None:
    """A few short runs find it."""
    with faulty([PLANTED[bug]]):
        broken = broken_run(1, 12, 1_500).broken
    assert broken is not None and broken.check in ("claims", "invariants hold", "liveness", "no errors")
