"""The model that sizes clusters: it repeats what was measured, and behaves as the design says."""

from __future__ import annotations

import pytest

from bench import scale_model as model
from bench.pace import APPEND_S
from bench.scale_page import stored

DOCUMENT = stored()
COSTS = model.costs_of(DOCUMENT)
LOADS = model.loads_of(DOCUMENT)


@pytest.mark.parametrize("load", model.LOADS)
def test_the_model_repeats_what_larger_clusters_needed(load: str) -> None:
    """It knows them only by the cost of reading, which it adds to the figures of three peers."""
    for peers, measured, modelled in model.checked(DOCUMENT, load):
        assert modelled == pytest.approx(measured, rel=0.3), peers


def test_costs_between_two_rates_lie_between_their_costs() -> None:
    """Below the lowest rate and above the highest, the cost of the nearest one counts."""
    points = ((100.0, 3.0), (300.0, 2.0))
    assert [model.at_rate(points, rate) for rate in (10, 100, 300, 900)] == [3.0, 3.0, 2.0, 2.0]
    assert model.at_rate(points, 200) == pytest.approx((300 + 600) / 2 / 200)


def test_few_entries_make_a_record_each_and_many_share_records() -> None:
    """Alone, a peer writes no faster than its appends; many peers are slowed down by their pauses."""
    assert model.records_per_s(3, 10) == pytest.approx(10, rel=0.02)
    assert model.records_per_s(1, 1e6) == pytest.approx(1 / APPEND_S, rel=0.02)
    assert model.records_per_s(12, 1e6) < 0.5 * 12 / APPEND_S


def test_busy_peers_write_as_many_records_as_in_the_simulation() -> None:
    """The document has what simulated outboxes wrote; only the largest crowds pause there for most of the time."""
    for one in DOCUMENT["simulated"]:
        if one["peers"] >= 12:
            found = model.records_per_s(one["peers"], DOCUMENT["settings"]["simulated"]["entries_per_s"])
            assert found == pytest.approx(one["paced"]["records_per_s"], rel=0.2), one["peers"]


@pytest.mark.parametrize("name", LOADS)
def test_a_plan_has_the_fewest_peers_that_stay_below_the_use(name: str) -> None:
    """One peer less would use more; where no number of peers suffices there is no plan."""
    load = LOADS[name]
    most = model.limit(COSTS, load)
    found = model.plan(COSTS, load, 0.9 * most)
    assert found is not None and found.use <= model.USE
    fewer = model.sized(COSTS, load, 0.9 * most, groups=1, peers=found.peers - 1)
    assert fewer.use > model.USE
    assert model.plan(COSTS, load, 1.1 * most) is None


@pytest.mark.parametrize("name", LOADS)
def test_groups_with_logs_of_their_own_carry_what_one_log_cannot(name: str) -> None:
    """The limit of reading rises with the number of logs."""
    load = LOADS[name]
    beyond = 2 * model.reading_limit(COSTS, load)
    assert model.plan(COSTS, load, beyond) is None
    found = next(plan for groups in (2, 4, 8, 16) if (plan := model.plan(COSTS, load, beyond, groups=groups)))
    assert found.total == found.groups * found.peers
