"""Naps of tasks, and what checkers of replicas skip."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from attrs import evolve

from onyxq.core.invariants.replica import STRUCTURE, structure_violations
from onyxq.core.replica import EMPTY, Replica
from onyxq.core.step import Step
from simulation.checkers import Broken
from simulation.checkers.invariants_hold import InvariantsHold
from simulation.checkers.replicas_equal import ReplicasEqual
from simulation.world.clock import mock_clock
from simulation.world.history import History
from simulation.world.scheduling import Nap, Rounds, Spinning, seeded_scheduling, sleeping_by_naps
from tests.entries.generated import generated_world


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    """Run a scenario as a simulation does."""

    async def main() -> None:
        Rounds(Spinning(lambda: None))
        await scenario()

    with seeded_scheduling(1), sleeping_by_naps():
        trio.run(main, clock=mock_clock())


def test_a_nap_ends_at_the_time_that_was_set_last() -> None:
    """It may be set earlier, later, and while it waits; an end comes at once."""

    async def scenario() -> None:
        ended: list[tuple[str, float]] = []

        async def nap(name: str, one: Nap) -> None:
            await one.wait()
            ended.append((name, trio.current_time()))

        naps = {"kept": Nap(4.0), "sooner": Nap(5.0), "later": Nap(2.0), "at last": Nap(), "ended": Nap()}
        async with trio.open_nursery() as nursery:
            for name, one in naps.items():
                nursery.start_soon(nap, name, one)
            await trio.sleep(1.0)
            naps["sooner"].end_at(3.0)
            naps["later"].end_at(6.0)
            naps["at last"].end_at(7.0)
            naps["ended"].end()
        assert ended == [("ended", 1.0), ("sooner", 3.0), ("kept", 4.0), ("later", 6.0), ("at last", 7.0)]

    run(scenario)


@pytest.mark.parametrize("deadline", [1.0, 2.0])
def test_a_cancelled_task_does_not_go_on_after_its_nap(deadline: float) -> None:
    """It is cancelled before the nap ends, and in the instant in which it ends."""

    async def scenario() -> None:
        with trio.move_on_at(deadline) as scope:
            await trio.sleep(2.0)
            raise AssertionError("the task went on")
        assert scope.cancelled_caught
        assert trio.current_time() == deadline

    run(scenario)


def test_a_task_that_is_cancelled_once_its_nap_is_over_does_not_go_on() -> None:
    """Another task of the same round cancels it."""

    async def scenario() -> None:
        went_on: list[int] = []

        async def sleeper(scopes: list[trio.CancelScope], number: int) -> None:
            with scopes[number]:
                await trio.sleep(1.0)
                went_on.append(number)
                scopes[1 - number].cancel()

        for _ in range(8):
            scopes = [trio.CancelScope(), trio.CancelScope()]
            went_on.clear()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(sleeper, scopes, 0)
                nursery.start_soon(sleeper, scopes, 1)
            assert len(went_on) == 1

    run(scenario)


def test_a_part_that_changes_on_one_side_is_compared_again() -> None:
    """Only what is the same object on both sides as in an equal pair is skipped."""
    checker = ReplicasEqual(History())
    mine, other = evolve(EMPTY, position=4), evolve(EMPTY, position=4)
    checker.replicas[4] = mine
    checker.compare("n0", other)
    assert checker.compared == 1

    later = evolve(mine, position=8)
    checker.replicas[8] = later
    wrong: Replica = evolve(other, position=8, log_time_ms=1)
    with pytest.raises(Broken, match="log_time_ms"):
        checker.compare("n0", wrong)


def test_the_structure_follows_from_its_parts() -> None:
    """So a record that leaves them alone cannot break it, and it need not be checked again."""

    class Parts:
        def __init__(self, replica: Replica) -> None:
            for name in STRUCTURE:
                setattr(self, name, getattr(replica, name))

    for replica in generated_world(seed=1, records=300).replicas:
        parts: Any = Parts(replica)
        assert structure_violations(parts) == []


def test_a_broken_structure_is_found_when_it_changes() -> None:
    """It is reported at the record that broke it, whatever came before."""
    replica = generated_world(seed=1, records=100).replicas[-1]
    checker = InvariantsHold()
    checker.step(EMPTY, Step(replica))
    checker.step(replica, Step(evolve(replica, position=replica.position + 1)))
    with pytest.raises(Broken, match="invariants hold: .*unknown node"):
        checker.step(replica, Step(evolve(replica, nodes=EMPTY.nodes)))
