"""Batches of jobs in simulated clusters: each input becomes one output, through deaths, delays and repeats."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from simulation.scenes.batches import BATCH_SCENES
from simulation.world.world import simulate

pytestmark = pytest.mark.long


SEEDS = {"replaced_drivers": (1, 2), "batches_under_fire": (1, 4), "late_batches": (1, 3, 5, 9)}


@pytest.mark.parametrize("name", sorted(BATCH_SCENES))
def test_each_input_becomes_one_output(name: str) -> None:
    """The checkers verify it, and the scene reaches the branches that it is for."""
    verdicts: Counter[str] = Counter()
    repeats = 0
    for seed in SEEDS[name]:
        scene = BATCH_SCENES[name]
        world = simulate(scene.script, seed=seed, options=scene.options(random.Random(seed)))
        verdicts += world.audit.batches_once.verdicts
        repeats += world.audit.batches_once.repeats
        assert len(world.audit.batches_once.images) > 60
    assert verdicts["applied"] > 30 and repeats > 0
    if name == "late_batches":
        assert verdicts["applied"] < verdicts.total(), "no commit came late"
