"""``onyxq simulate``: runs of a simulated cluster, and the suite of planted bugs."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from onyxq.core.errors import BadRequest
from onyxq.interfaces.cli.context import Context
from onyxq.system.settings import did_you_mean

if TYPE_CHECKING:
    from simulation.planted.suite import Verdict
    from simulation.results import Result, Totals

EXIT_BROKEN = 1
SEEDS_MAX = 1 << 32
JOBS_MAX = 256
RUNS_MAX = 100_000_000


def simulate(context: Context) -> int:
    """Run and print; return 1 if a property broke, a planted bug was missed, or a probe was not reached."""
    args = context.args
    jobs = _within("jobs", args.jobs if args.jobs is not None else os.cpu_count() or 1, 1, JOBS_MAX)
    seed = args.seed if args.seed is not None else random.SystemRandom().randrange(SEEDS_MAX)
    _within("seed", seed, 0, 1 << 62)
    workload = args.workload or "standard"
    if args.planted and args.spark:
        raise BadRequest(
            "planted bugs are searched on this machine only: leave out --spark or --planted", field="spark"
        )
    if args.planted:
        return _planted(context, jobs, args.workload)
    if args.list:
        return _list(context)
    runs = _within("runs", args.runs, 1, RUNS_MAX)

    from simulation.results import Totals
    from simulation.workloads import WORKLOADS

    if workload not in WORKLOADS:
        hint = did_you_mean(workload, list(WORKLOADS))
        raise BadRequest(
            f"there is no workload {workload!r}{hint}",
            field="workload",
            hint="List all workloads: onyxq simulate --list.",
        )
    context.out.line({"seed": seed, "workload": workload, "runs": runs}, f"seed {seed}")
    totals = Totals()
    with _results(workload, range(seed, seed + runs), jobs=jobs, master=args.spark) as results:
        for result in results:
            totals.add(result)
            if result.checker:
                _broken(context, result)
            context.out.progress(
                f"{totals.runs} of {runs} runs, {len(totals.broken)} broken, {totals.speed:.0f} x real time",
                totals.runs,
                runs,
            )
    unreached = _unreached(totals, workload)
    _figures(context, totals, unreached, show_probes=args.probes)
    return EXIT_BROKEN if totals.broken or unreached else 0


@contextmanager
def _results(workload: str, seeds: Sequence[int], *, jobs: int, master: str | None) -> Iterator[Iterator[Result]]:
    """Yield results as runs end, from processes of this machine or from Spark."""
    if master is None:
        from simulation.runs import run_many

        yield run_many(workload, seeds, jobs=jobs)
        return
    from onyxq.spark.analysis.session import spark_session
    from simulation.on_spark import run_on_spark

    with spark_session(master) as session:
        yield run_on_spark(session, workload, seeds)


def _within(name: str, value: int, low: int, high: int) -> int:
    if not low <= value <= high:
        raise BadRequest(f"{name} must be {low} to {high}, not {value}", field=name)
    return value


def _list(context: Context) -> int:
    from simulation.workloads import WORKLOADS

    rows = [{"workload": one.name, "about": one.about} for one in WORKLOADS.values()]
    context.out.table(rows, rows, ("workload", "about"))
    return 0


def _broken(context: Context, result: Result) -> None:
    first = result.what.splitlines()[0] if result.what else ""
    what = first.removeprefix(f"{result.checker}: ")
    context.out.line(
        {
            "seed": result.seed,
            "workload": result.workload,
            "checker": result.checker,
            "what": result.what,
            "replay": result.replay,
        },
        f"broken: {result.checker}: {what[:400]}; replay: {result.replay}",
    )


def _unreached(totals: Totals, workload: str) -> list[str]:
    """Return the probes that this number of runs must reach and did not."""
    from simulation.probes import WANTED

    names, runs = WANTED.get(workload, ((), 0))
    return [name for name in names if totals.runs >= runs and not totals.probes.get(name)]


def _figures(context: Context, totals: Totals, unreached: list[str], *, show_probes: bool) -> None:
    figures: dict[str, Any] = {
        "runs": totals.runs,
        "broken": len(totals.broken),
        "simulated_s": round(totals.simulated_s, 1),
        "cpu_s": round(totals.cpu_s, 1),
        "simulated_s_per_s_and_core": round(totals.speed, 1),
        "records": totals.records,
        "applied_entries": totals.applied,
        "applied_entries_per_s_and_core": round(totals.applied_per_s),
        "unreached": unreached,
    }
    if context.out.as_json:
        context.out.line({**figures, "probes": totals.probes}, "")
        return
    lines = [
        f"{totals.runs} runs, {len(totals.broken)} broken",
        f"{totals.simulated_s:,.0f} simulated seconds in {totals.cpu_s:,.1f} s of processor time: "
        f"{totals.speed:,.1f} times real time per core",
        f"{totals.applied:,} entries applied: {totals.applied_per_s:,.0f} per s and core",
        *(f"not reached: {name}" for name in unreached),
    ]
    if show_probes:
        lines += [f"{count:9,}  {name}" for name, count in totals.probes.items()]
    for line in lines:
        context.out.line(None, line)


# --- planted bugs -----------------------------------------------------------------------------


def _planted(context: Context, jobs: int, workload: str | None) -> int:
    """Search the planted bugs, or only those of one workload."""
    from simulation.planted.bugs import PLANTED
    from simulation.planted.suite import missed, run_suite

    wanted = [one for one in PLANTED if workload in (None, one.workload)]
    if not wanted:
        hint = did_you_mean(workload or "", sorted({one.workload for one in PLANTED}))
        raise BadRequest(f"no bug is planted for a workload {workload!r}{hint}", field="workload")
    verdicts: list[Verdict] = []
    for verdict in run_suite(wanted, jobs=jobs):
        verdicts.append(verdict)
        said = f"{len(verdicts)} bugs tried, {sum(not one.found for one in verdicts)} not found"
        context.out.progress(said, len(verdicts), len(wanted))
    rows = [verdict.row() for verdict in sorted(verdicts, key=lambda one: one.planted.name)]
    context.out.table(rows, rows, ("planted", "found", "checker", "workload", "runs", "seconds"))
    lost = missed(verdicts)
    context.out.note(f"{len(verdicts) - len(lost)} of {len(verdicts)} planted bugs were found")
    return EXIT_BROKEN if lost else 0
