"""The standard workload and the scenes reach their subjects: keys, limits, deadlines, dead letters and others."""

from __future__ import annotations

import random

import pytest

from simulation.runs import play
from simulation.scenes.rules import RULE_SCENES
from simulation.workloads import NO_FAULTS
from simulation.world.load import Mix, under_load
from simulation.world.load_rules import LIMITED, STOPS, TICKS, RulesMix, draw
from simulation.world.world import Options, World, simulate

PARTS = ("ordering_key", "unique_key", "depends", "expires_ms")


@pytest.mark.long
def test_a_short_load_has_a_share_of_everything() -> None:
    """Each kind of task runs, each queue is used; failures are handled, and nothing is left."""

    async def rest(world: World) -> None:
        await world.until(lambda: len(world.history.enqueued) > 200, "enough was enqueued", within_s=300)

    async def workload(world: World) -> None:
        await under_load(world, rest, Mix(pause_s=2.0, retries=None, rules=RulesMix(operate_s=2.0)))

    world = simulate(workload, seed=4, options=Options(partitions=4))
    tasks = world.audit.ledger.read.values()
    done = [task for task in tasks if task.state == "completed"]
    assert {task.queue for task in done} == {"q", STOPS, LIMITED, TICKS}
    assert all(any(getattr(task, part) for task in done) for part in PARTS)
    assert {task.state for task in tasks} >= {"completed", "cancelled"}
    assert world.audit.ledger.reopened and world.history.discarded and world.history.transactions
    assert not world.audit.replica.periodic and not world.audit.replica.transactions


@pytest.mark.parametrize("seed", (0, 4, 5, 7))
def test_what_was_asked_for_last_is_worked_off_too(seed: int) -> None:
    """Nothing is left, and then the log applies the requeue of a dead letter."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            await client.enqueue(STOPS, [b"broken"], retries=0)
            (claim,) = await client.claim(STOPS, wait_ms=20_000)
            await client.fail(claim, "did not work")
        await under_load(world, NO_FAULTS.befall, Mix(producers=0, rules=RulesMix()))

    # A record takes longer than the load's check of what is left.
    world = simulate(workload, seed=seed, options=Options(partitions=1, append_delay_ms=(600, 900)))
    assert {task.state for task in world.audit.ledger.read.values()} <= {"completed", "cancelled"}


def test_shares_are_what_the_mix_says() -> None:
    """A kind without a share is never drawn."""
    generator = random.Random(1)
    some = RulesMix(ordered=0.5, unique=0, depends=0, expires=0, stops=0.5, limited=0)
    drawn = [draw(some, generator, "q", now_ms=0, recent=()) for _ in range(50)]
    assert {one.queue for one in drawn} == {"q", STOPS}
    assert all("ordering_key" in one.said for one in drawn)


@pytest.mark.long
@pytest.mark.parametrize("scene", sorted(RULE_SCENES))
def test_a_scene_breaks_nothing(scene: str) -> None:
    """One seed of each is played; ``onyxq simulate --workload NAME`` plays others."""
    found = play(scene, 1)
    assert not found.checker, found.what
    assert found.applied


@pytest.mark.long
@pytest.mark.parametrize("seed", (4, 6, 9, 17))
def test_attempts_count_of_a_task_that_was_overtaken_in_its_key(seed: int) -> None:
    """Seed 21147 of the standard workload also had a dead letter requeued before a claimed task of its key."""
    found = play("overtaken_in_a_key", seed)
    assert not found.checker, found.what
