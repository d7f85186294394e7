"""``python -m simulation.search``: runs of the seeded search from the command line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from simulation.search import search
from simulation.search.determinism import compare
from simulation.search.search import STEPS, report, search_many


def main(arguments: Sequence[str] | None = None) -> int:
    """See ``--help``."""
    parser = argparse.ArgumentParser(prog="python -m simulation.search", description=search.__doc__)
    parser.add_argument("--seed", type=int, default=1, help="first seed")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--steps", type=int, default=STEPS, help="moves per run")
    parser.add_argument("--probes", action="store_true", help="print the probes; fail if one was not reached")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first failing seed")
    parser.add_argument("--no-trace", action="store_true", help="do not cut a failing run down")
    parser.add_argument(
        "--twice-every", type=int, default=0, help="repeat one of this many runs in another interpreter"
    )
    asked = parser.parse_args(arguments)
    print(f"seed {asked.seed}", flush=True)
    totals = search_many(asked.seed, asked.runs, asked.steps, stop_at=1_000_000 if asked.keep_going else 1)
    print(totals.rates())
    if asked.probes:
        print(totals.probes.table())
    for run in totals.failed:
        print(f"seed {run.seed}: {run.broken}")
        print(f"replay: python -m simulation.search --seed {run.seed} --steps {asked.steps}")
    if totals.failed and not asked.no_trace:
        print(report(totals.failed[0]))
    unreached = totals.probes.unreached() if asked.probes else []
    for name in unreached:
        print(f"not reached: {name}")
    differing = _differing(asked.seed, totals.runs, asked.steps, asked.twice_every)
    return 1 if totals.failed or unreached or differing else 0


def _differing(first_seed: int, runs: int, steps: int, every: int) -> int:
    """How many of a share of the runs come out differently in another interpreter; says so."""
    differing = 0
    for seed in range(first_seed, first_seed + runs, every) if every else ():
        found = compare(seed, steps, hash_seed=seed % 1000 + 1)
        if found:
            differing += 1
            print(f"seed {seed} elsewhere: {found}")
    return differing


if __name__ == "__main__":
    sys.exit(main())
