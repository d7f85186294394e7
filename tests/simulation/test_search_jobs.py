"""The search with jobs: their promises hold under each scheduler, and rare branches are reached."""

from __future__ import annotations

import pytest

from simulation.probes import JOBS as PROBES
from simulation.probes import OF_SEARCHES, Probes
from simulation.search.jobs_search import JOBS, KINDS, JobSearch
from simulation.workloads import WORKLOADS


@pytest.mark.long
@pytest.mark.parametrize("kind", range(len(KINDS)))
def test_twenty_jobs_keep_their_promises_under_churn(kind: int) -> None:
    """``onyxq simulate --workload jobs --seed N`` plays one of them again."""
    for seed in (kind + len(KINDS), kind + 2 * len(KINDS)):
        search = JobSearch(seed)
        run = search.run(3_000)
        assert search.kinds == KINDS[kind] and run.broken is None, run.broken
        assert len({name for action in run.actions for name in action if name in JOBS}) == 20
        assert run.course.applied > 100, "the search hardly did anything"


@pytest.mark.long
def test_the_rare_branches_are_reached() -> None:
    """Nearly all are reached within a few runs; a hundred runs must reach all."""
    probes = Probes(OF_SEARCHES)
    for seed in range(1, 7):
        probes.add(JobSearch(seed).run(3_000).probes)
    assert len({*probes.unreached()} & {*PROBES}) <= 3, probes.table()


def test_the_same_seed_makes_the_same_run() -> None:
    """Equal actions, equal bytes in the log."""
    first, second = (JobSearch(11).run(300) for _ in range(2))
    assert first.actions == second.actions
    assert [r.data for r in first.cluster.log.records] == [r.data for r in second.cluster.log.records]


def test_it_is_a_workload() -> None:
    """It reports what it reached."""
    found = WORKLOADS["jobs"]
    assert "scheduler" in found.about
    assert set(found.play(3).probes) >= set(PROBES)
