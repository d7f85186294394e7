"""``python -m simulation.search``: cuts a broken run of the search down to a scenario file."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from simulation.search.jobs_search import JobSearch
from simulation.search.run import replay, shrink, trace
from simulation.search.search import Run, Search

SEARCHES = {"explorer": Search, "jobs": JobSearch}


def report(run: Run, *, tries: int = 2_000) -> str:
    """Return a broken run as a scenario file with as few actions as possible."""
    assert run.broken is not None
    options = run.plan.options
    kept = shrink(options, run.actions, run.broken.check, tries=tries)
    return trace(options, kept, replay(options, kept) or run.broken)


def main(arguments: Sequence[str] | None = None) -> int:
    """See ``--help``."""
    parser = argparse.ArgumentParser(prog="python -m simulation.search", description=__doc__)
    parser.add_argument("--workload", choices=SEARCHES, default="explorer")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--steps", type=int, help="another number of moves")
    asked = parser.parse_args(arguments)
    run = SEARCHES[asked.workload](asked.seed).run(asked.steps)
    print("nothing broke" if run.broken is None else report(run))
    return 0 if run.broken is None else 1


if __name__ == "__main__":
    sys.exit(main())
