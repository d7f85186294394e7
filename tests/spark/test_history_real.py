"""The archive of a cluster with faults is correct, and not any more once a file is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import evolve
from pyarrow import dataset

from onyxq.errors import OnyxqError
from onyxq.spark.analysis.history_check import check
from onyxq.spark.analysis.rules import LOST, UNCLAIMED
from onyxq.spark.analysis.stats import stats
from simulation.scenes.base import leader_of
from simulation.world.world import World, simulate
from tests.simulation.scheduled import STEADY
from tests.spark.test_history_check import aged

pytestmark = pytest.mark.long


SHORT = evolve(STEADY, purge_bucket_ms=2_000, purge_margin_ms=20_000)
ARCHIVES = ("task_archive", "record_archive")
PASSED_S = 90.0
"""Time in which everything that may be purged is purged."""
KEYED, PLAIN = 12, 40


async def work(world: World) -> None:
    """Process tasks with and without keys by workers that fail, forget, release and move; leaders die meanwhile."""
    async with world.client() as recording:
        client = recording.client
        await client.set_queue("q", retention_ms=5_000, archive=True)
        await client.enqueue_many("q", [b"plain"] * PLAIN, backoff_ms=100)
        await client.enqueue_many("q", [b"keyed"] * KEYED, backoff_ms=100, ordering_key=["a", "b"] * (KEYED // 2))
        left = PLAIN + KEYED
        turn = 0
        while left:
            try:
                for claim in await client.claim("q", max=3, lease_ms=3_000, wait_ms=10_000):
                    turn += 1
                    await client.update(claim, b"half way")
                    if turn % 7 == 0 and not claim.attempts:
                        await client.fail(claim, "did not work", retry_in_ms=50)
                    elif turn % 11 == 0 and not claim.attempts:
                        continue  # it expires
                    else:
                        await client.complete(claim, b"done")
                        left -= 1
            except OnyxqError:
                await trio.sleep(1)
            if turn % 25 == 24:
                await world.restart_node(leader_of(world), after_s=1)
        await world.settle()
        await trio.sleep(PASSED_S)
        await client.call("gc", {})


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive of this."""
    directory = tmp_path_factory.mktemp("tasks")
    simulate(work, seed=4, options=evolve(SHORT, **dict.fromkeys(ARCHIVES, str(directory))))
    return aged(directory)


def test_a_real_history_holds(spark: Any, archive: Path) -> None:
    """It has retries, expired claims and keys, and its clocks may hardly differ."""
    report = check(spark, [str(archive)], apart_ms=1_000)
    assert report.clean, report.first
    assert (report.tasks, report.updates > report.tasks) == (PLAIN + KEYED, True)
    assert report.claims > report.tasks
    assert report.grants is not None and report.grants == report.claims, "its records are all there"
    (queue,) = stats(spark, [str(archive)]).queues
    assert (queue.claims, queue.retries) == (report.claims, report.claims - report.tasks)
    assert queue.outcomes["expired"] and queue.outcomes["failed"]


def test_a_lost_file_of_claims_is_noticed(spark: Any, archive: Path, tmp_path: Path) -> None:
    """Each of its tasks lacks a claim."""
    lost = sorted((archive / "claims").rglob("*.parquet"))[0]
    ids = set(dataset.dataset(lost).to_table(columns=["id"])["id"].to_pylist())
    kept = lost.rename(tmp_path / lost.name)
    try:
        report = check(spark, [str(archive)], first=1_000)
    finally:
        kept.rename(lost)
    assert {one.id for one in report.first if one.rule == UNCLAIMED} == ids
    assert {one.id for one in report.first if one.rule == LOST} <= ids, "the log still knows of them"
    assert report.counts[LOST] > 0
