"""Entries in words: built-in entries have sentences, and others are shown by their fields."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import frozen

from log_entries import expire_claims, grant_claims, leave_cluster, release_claims, renew_claims
from log_entries.registry import ENTRIES
from onyxq.core.diff import plain
from onyxq.core.facts import EXPIRED, GRANTED, RELEASED, RETRIED
from onyxq.core.ids import Run, make_id
from onyxq.history import words
from onyxq.history.words import duration, sentence
from tests.entries.generated import generated_world

FIRST = make_id(1_700_000_000_000, 3, 7, 0)
RUNS = (Run(FIRST, 500),)
ONE = (Run(FIRST, 1),)


@pytest.mark.parametrize("name", ENTRIES)
def test_every_built_in_entry_has_a_sentence_of_its_own(name: str) -> None:
    """A new entry needs one in `onyxq.history.words`."""
    assert name in words._SENTENCES


def test_every_entry_of_a_log_can_be_told() -> None:
    """It has one line for any form and verdict, which is not just a dump of its arguments."""
    world = generated_world(seed=3, records=250, check=False)
    told = {}
    for done in world.steps:
        for one in done.outcomes:
            said = sentence(one.name, one.args, one.verdict)
            assert said == sentence(one.name, plain(one.args), one.verdict)
            assert "\n" not in said and "{" not in said and "Args(" not in said
            assert one.verdict == "applied" or said.endswith(f"nothing changed, {one.verdict}")
            told[one.name] = said
    assert len(told) >= 12


def test_claims_read_as_a_story() -> None:
    """The words say who got how much for how long, and the outcome."""
    grants = grant_claims.Args(3, 2, (grant_claims.Grant("w1", 30_000, RUNS), grant_claims.Grant("", 90_000, ONE)))
    assert sentence("grant_claims", grants) == (
        f"partition 3 (epoch 2) grants 500 tasks from {FIRST.hex()} on to worker w1 for 30 s; "
        f"task {FIRST.hex()} to worker (unnamed) for 1.5 min"
    )
    renewal = renew_claims.Args(3, 2, (renew_claims.Renewal(41, 1_500, ONE),))
    assert sentence("renew_claims", renewal, "not the leader") == (
        f"partition 3 (epoch 2) renews the claim on task {FIRST.hex()} under token 41 for 1.5 s: "
        "nothing changed, not the leader"
    )
    failed = release_claims.Release(41, RETRIED, 1_700_000_060_000, 2, "no such host", ONE)
    done = release_claims.Release(42, release_claims.COMPLETED_EVENT, 0, 0, "", RUNS)
    back = release_claims.Release(43, RELEASED, 0, 0, "", ONE)
    said = sentence("release_claims", release_claims.Args(3, 2, (failed, done, back)))
    assert "failed under token 41 in attempt 2 (no such host); due again at 2023-11-14 22:14:20.000Z" in said
    assert (
        "500 tasks from" in said
        and "ended under token 42; the outcome is stored" in said
        and "went back to the queue; the attempt under token 43 does not count" in said
    )
    expired = expire_claims.Args(3, 2, (expire_claims.Expiry(41, 3, ONE),))
    assert "went back to the queue: the lease under token 41 expired in attempt 3" in sentence("expire_claims", expired)


def test_long_entries_are_cut_and_say_so() -> None:
    """A thousand grants in one entry are shown by the first few."""
    grants = grant_claims.Args(3, 2, tuple(grant_claims.Grant(f"w{n}", 1_000, ONE) for n in range(1_000)))
    said = sentence("grant_claims", grants)
    assert said.endswith("and 996 more") and len(said) < 600


def test_what_is_not_known_is_told_by_its_fields() -> None:
    """This is for entries of extensions, arguments of other versions, and lists of other types."""

    @frozen
    class Args:
        name: str
        holder: bytes

    assert sentence("lock.grant_lock", Args("db", b"\x01")) == "lock grant lock: name db, holder 01"
    assert sentence("leave_cluster", {"who": "p1"}) == "leave cluster: who p1"
    assert sentence("leave_cluster", ["p1"], "malformed") == 'leave cluster ["p1"]: nothing changed, malformed'
    assert sentence("gc", {}) != "gc"
    assert sentence("unheard", {}) == "unheard"


def test_a_reason_is_told() -> None:
    """It is the reason of a peer that left the ring."""
    assert sentence("leave_cluster", leave_cluster.Args("p1", "its pulse is gone")) == (
        "peer p1 is out of the ring (its pulse is gone)"
    )


@pytest.mark.parametrize(
    ("event", "start"),
    [
        (GRANTED, "granted to worker w under token 5"),
        (RELEASED, "went back to the queue; the attempt under token 5 does not count"),
        (RETRIED, "failed under token 5 in attempt 2 (why)"),
        (EXPIRED, "went back to the queue: the lease under token 5 expired in attempt 2"),
    ],
)
def test_history_rows_are_told(event: int, start: str) -> None:
    """These rows are in the store when the log is trimmed."""
    said = words.history(event, token=5, worker="w", retry_ms=1_000, attempts=2, note="why")
    assert said.startswith(start)


@pytest.mark.parametrize(
    ("ms", "text"), [(0, "0 ms"), (250, "250 ms"), (1_500, "1.5 s"), (90_000, "1.5 min"), (7_200_000, "2 h")]
)
def test_durations_have_the_unit_that_fits(ms: int, text: str) -> None:
    """They have at most three digits."""
    assert duration(ms) == text


def test_times_that_no_calendar_has_are_told_as_numbers() -> None:
    """An entry can hold any 64-bit number."""
    assert words.moment(1 << 62) == f"{1 << 62} ms"
    args: Any = release_claims.Args(0, 0, (release_claims.Release(1, RETRIED, -(1 << 62), 1, "", ONE),))
    assert "due again" in sentence("release_claims", args)
