"""The search notices what goes wrong with limits, transactions and periodic tasks, and soon."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from attrs import evolve

from log_entries import commit_transaction, fire_periodic, grant_limited_claims, settle_transaction
from onyxq.core import claims, replica
from onyxq.core.replica import Replica
from simulation.search.search import search_many


def settled_in_part(before: Replica, name: str, partition: int) -> Replica:
    """The transaction goes, and what it held stays held."""
    return evolve(before, transactions=before.transactions.discard(name))


def fired_again(found: Any, **changes: Any) -> Any:
    """The next time stays what it was."""
    return evolve(found, **{name: value for name, value in changes.items() if name != "next_ms"})


PLANTED: dict[str, tuple[Any, str, Callable[..., Any] | int]] = {
    "what a transaction holds is ended like any claim": (claims, "HELD_MS", -1),
    "what ends counts on": (replica, "still_counted", lambda counted, pieces: None),
    "a name that comes again commits again": (commit_transaction, "answer_of", lambda *_: None),
    "claims that do not stand are taken": (commit_transaction, "stale", lambda *_, **__: []),
    "a grant does not look at the limits": (grant_limited_claims, "room", lambda *_: None),
    "a grant takes nothing from the rate": (grant_limited_claims, "taken", lambda *_: None),
    "a settled part keeps what it held": (settle_transaction, "settled", settled_in_part),
    "a time can be fired over and over": (fire_periodic, "evolve", fired_again),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a few short runs."""
    module, name, twisted = PLANTED[bug]
    monkeypatch.setattr(module, name, twisted)
    totals = search_many(1, 12, 1_500)
    assert totals.failed, f"not found in {totals.runs} runs"
    assert totals.failed[0].broken is not None
    assert totals.failed[0].broken.check in ("claims", "invariants", "liveness", "no errors")
