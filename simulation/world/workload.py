"""Workloads of simulated clusters: what a seed draws, and how it is played."""

from __future__ import annotations

import random
from collections.abc import Callable

from attrs import frozen

from simulation.results import Result
from simulation.world.world import Options, Script, simulate

Draw = random.Random
"""Generator of what a seed decides before its run."""


@frozen
class Workload:
    """A script in a cluster; ``drawn`` makes both from a generator that depends on the name and the seed."""

    name: str
    about: str
    drawn: Callable[[Draw], tuple[Script, Options]]

    def play(self, seed: int) -> Result:
        """Play one seed; raise what broke."""
        script, options = self.drawn(Draw(f"{self.name} {seed}"))
        world = simulate(script, seed=seed, options=options)
        return Result.of(self.name, seed, world.audit, world.probes, simulated_s=world.ended_s)


def always(options: Options) -> Callable[[Draw], Options]:
    """Return what gives every seed the same options."""
    return lambda draw: options
