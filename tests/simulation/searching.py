"""Runs of the search from consecutive seeds."""

from __future__ import annotations

from collections.abc import Iterator

from simulation.search.search import Run, Search


def searched(first_seed: int, runs: int, steps: int) -> Iterator[Run]:
    """Yield runs until one is broken, which is the last."""
    for seed in range(first_seed, first_seed + runs):
        run = Search(seed).run(steps)
        yield run
        if run.broken is not None:
            return


def broken_run(first_seed: int, runs: int, steps: int) -> Run:
    """Return the first broken run."""
    for run in searched(first_seed, runs, steps):
        if run.broken is not None:
            return run
    raise AssertionError(f"nothing broke in {runs} runs")
