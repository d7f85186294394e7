"""The search of facts: leaders keep their promises step by step, and planted bugs are found."""

from __future__ import annotations

import pytest

from onyxq.leader.state.states import State
from simulation.planted.bugs_facts import FACT_BUGS
from simulation.planted.planted import Planted
from simulation.planted.seams import faulty
from simulation.probes import Probes
from simulation.search.facts import FactsSearch
from simulation.search.facts_states import PAIRS, alone, during, follows
from simulation.workloads import WORKLOADS

QUICK = [planted for planted in FACT_BUGS if planted.quick]
COMMON = (
    alone(State.GRANTING),
    during(State.FINISHING, State.UNSETTLED),
    during(State.HOLDING_KEY, State.GRANTING),
    during(State.RETURNING, State.FINISHING),
    follows(State.FINISHING, State.UNSETTLED),
)


@pytest.mark.long
def test_leaders_keep_their_promises() -> None:
    """``onyxq simulate --workload facts --seed N`` plays one of the runs again."""
    probes = Probes(PAIRS)
    for seed in range(1, 16):
        run = FactsSearch(seed).run()
        assert run.broken is None, f"seed {seed}: {run.broken}"
        probes.add(run.probes)
    assert not {*COMMON} & {*probes.unreached()}, probes.table()


@pytest.mark.long
def test_many_runs_keep_them() -> None:
    """Other seeds, long enough for rarer orders of events."""
    for seed in range(1_000, 1_050):
        run = FactsSearch(seed).run(8_000)
        assert run.broken is None, f"seed {seed}: {run.broken}"


def test_the_same_seed_makes_the_same_run() -> None:
    """Equal moves, equal bytes in the log: a seed is enough to play a run again."""
    first, second = (FactsSearch(3).run(1_000) for _ in range(2))
    assert first.actions == second.actions and first.steps == second.steps
    assert [record.data for record in first.course.records] == [record.data for record in second.course.records]


def test_it_is_a_workload() -> None:
    """So runs from many seeds can be played side by side."""
    assert WORKLOADS["facts"].play(2).applied > 20


@pytest.mark.parametrize("planted", QUICK, ids=lambda planted: planted.name)
def test_a_planted_bug_is_found_soon(planted: Planted) -> None:
    """A few runs find it, in seconds."""
    with faulty(planted.faults):
        assert any(FactsSearch(seed).run().broken for seed in range(1, planted.quick + 1))


@pytest.mark.long
@pytest.mark.parametrize("planted", [one for one in FACT_BUGS if not one.quick], ids=lambda planted: planted.name)
def test_a_rare_planted_bug_is_found(planted: Planted) -> None:
    """More runs find it."""
    with faulty(planted.faults):
        assert any(FactsSearch(seed).run().broken for seed in range(1, planted.runs + 1))
