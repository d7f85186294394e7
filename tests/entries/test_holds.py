"""During a hold no transaction commits; a hold expires on its own or is ended."""

from __future__ import annotations

import pytest
from attrs import evolve

from log_entries import commit_batch, commit_transaction, hold_transactions
from log_entries.commit_transaction import HELD, REPEAT
from log_entries.hold_transactions import OTHER
from onyxq.core.limits import HOLD_MS_MAX
from onyxq.core.snapshot import pack, unpack
from onyxq.core.transactions import Prepared, on_hold
from tests.entries.world import World, creation


@pytest.fixture
def world() -> World:
    """A cluster of one peer."""
    found = World()
    found.submit("founder", creation(partitions=2))
    found.join("a")
    found.settle("a")
    return found


def hold(for_ms: int, name: str = "backup-1") -> hold_transactions.Args:
    """Return a hold with the usual name."""
    return hold_transactions.Args(name, "a backup", for_ms)


def commit(world: World, name: str) -> commit_transaction.Args:
    """Return a transaction without demands, which could always be committed."""
    return commit_transaction.Args(name, world.now.log_time_ms + 60_000, (), (), ())


def test_nothing_is_committed_until_the_hold_ends(world: World) -> None:
    """Neither single transactions nor groups commit; a repeat of an earlier commit still is one."""
    assert world.verdicts("a", commit(world, "before"), hold(60_000)) == ["applied", "applied"]
    one = commit(world, "one")
    group = commit_batch.Args("", 0, 0, b"", (Prepared("two", one.deadline_ms, (), (), ()),))
    before = world.now
    assert world.verdicts("a", one, group, commit(world, "before")) == [
        f"{HELD}: a backup",
        f"{HELD}: a backup",
        REPEAT,
    ]
    assert world.now.remembered == before.remembered
    assert world.verdicts("a", hold(0), one, group) == ["applied"] * 3
    assert world.now.hold is None


def test_a_hold_that_nobody_ends_is_over_by_the_logs_clock(world: World) -> None:
    """This holds while no claim or lease counts time."""
    world.submit("a", hold(5_000))
    held = world.now.hold
    assert held is not None and on_hold(evolve(world.now, clock_ms=held.until_ms - 1)) == held
    assert on_hold(evolve(world.now, clock_ms=held.until_ms)) is None
    world.now_ms += 4_900
    assert world.verdicts("a", commit(world, "one")) == [f"{HELD}: a backup"]
    world.now_ms += 200
    assert world.verdicts("a", commit(world, "one")) == ["applied"]
    assert on_hold(world.now) is None


def test_a_hold_that_is_put_off_in_time_is_still_the_same(world: World) -> None:
    """It keeps its first position; a hold that is started again after its end has another one."""
    world.submit("a", hold(5_000))
    began = world.now.position
    for _ in range(3):
        world.now_ms += 4_000
        assert world.verdicts("a", hold(5_000)) == ["applied"]
    found = on_hold(world.now)
    assert found is not None and found.since == began
    world.now_ms += 6_000
    world.submit("a", hold(5_000))
    found = on_hold(world.now)
    assert found is not None and found.since == world.now.position


def test_one_hold_at_a_time(world: World) -> None:
    """Another name neither starts nor ends a hold until the first one is over."""
    world.submit("a", hold(5_000))
    refused = f"{OTHER}: a backup"
    assert world.verdicts("a", hold(5_000, "backup-2"), hold(0, "backup-2")) == [refused, refused]
    world.now_ms += 6_000
    assert world.verdicts("a", hold(0), hold(5_000, "backup-2")) == ["no such hold", "applied"]


@pytest.mark.parametrize(
    ("entry", "verdict"),
    [
        (hold(5_000, ""), "bad name"),
        (hold(5_000, "n" * 201), "bad name"),
        (hold_transactions.Args("b", "w" * 201, 5), "bad why"),
        (hold(-1), "bad time"),
        (hold(HOLD_MS_MAX + 1), "bad time"),
    ],
)
def test_what_is_out_of_range_changes_nothing(world: World, entry: hold_transactions.Args, verdict: str) -> None:
    """Each refusal has its reason."""
    assert world.verdicts("a", entry) == [verdict]
    assert world.now.hold is None


def test_a_hold_survives_the_origin(world: World) -> None:
    """A reader that starts from the snapshot refuses the same."""
    world.submit("a", hold(5_000))
    assert unpack(pack(world.now)).hold == world.now.hold
