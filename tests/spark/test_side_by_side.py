"""Seeds played and dumps replayed by Spark in parallel give the same as in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from onyxq.spark.analysis.replays import on_spark, pieces, replayed, summed
from simulation import on_spark as on_spark_module
from simulation.on_spark import run_on_spark
from simulation.results import Result
from simulation.runs import play
from tests.entries.generated import generated_world
from tests.interfaces.test_replay_archive import whole

pytestmark = pytest.mark.long


def test_seeds_are_played_as_they_are_here(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is played once with the same result; there are more than run at a time."""
    monkeypatch.setattr(on_spark_module, "SEEDS_OF_TASK_MAX", 2)
    seeds = range(3, 10)
    found = {one.seed: one for one in run_on_spark(spark, "explorer", seeds)}
    assert sorted(found) == list(seeds)
    for seed in seeds[:2]:
        assert evolve(found[seed], cpu_s=0) == evolve(play("explorer", seed), cpu_s=0)


def test_a_seed_that_breaks_is_told_with_its_replay(spark: Any) -> None:
    """An unknown workload breaks in the process that plays it."""
    (found,) = run_on_spark(spark, "no such workload", [5])
    assert isinstance(found, Result) and found.checker == "no errors"
    assert found.replay == "onyxq simulate --workload no such workload --seed 5"


def test_files_of_an_archive_are_replayed(spark: Any, tmp_path: Path) -> None:
    """The sum is the same as one after the other."""
    some = pieces(whole(generated_world(seed=33, records=300, check=False), tmp_path))
    assert summed(some, on_spark(spark, some)) == summed(some, map(replayed, some))
