"""Entries have the same effect on every peer: equal logs give equal replicas in every interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from log_entries.registry import ENTRIES
from onyxq.core.snapshot import pack, unpack
from onyxq.core.step import step
from tests.entries.generated import generated_world

ROOT = Path(__file__).resolve().parents[2]
RECORDS = 400


def digests_under(hash_seed: str, seed: int) -> list[str]:
    """Return the digests of an interpreter with another seed of string hashes."""
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.entries.generated", str(seed), str(RECORDS)]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_two_interpreters_compute_the_same_bytes() -> None:
    """This holds at every position of a generated log, for any seed of string hashes."""
    one, other = digests_under("1", seed=11), digests_under("4242", seed=11)
    assert len(one) > RECORDS
    assert one == other


@pytest.mark.long
def test_the_generated_log_exercises_every_entry() -> None:
    """Each kind of entry is applied at least once; otherwise the comparison would show little."""
    applied: Counter[str] = Counter()
    for seed in range(6):
        for done in generated_world(seed=seed, records=RECORDS).steps:
            applied.update(outcome.name for outcome in done.outcomes if outcome.verdict == "applied")
    assert set(ENTRIES) - set(applied) <= {"abort_join_cluster"}
    assert applied["grant_claims"] > 20


def test_a_reader_that_starts_from_a_snapshot_goes_on_equally() -> None:
    """A snapshot from the middle of the log and the rest of the records give the same bytes."""
    world = generated_world(seed=3, records=200, check=False)
    for start in (1, 60, 150):
        replica = unpack(pack(world.replicas[start]))
        for record in world.records[start:]:
            replica = step(replica, record, ENTRIES).replica
        assert replica == world.now
        assert pack(replica) == pack(world.now)
