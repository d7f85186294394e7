"""Claims of jobs, which are recognised by the names of workers."""

from __future__ import annotations

import pytest
from pyrsistent import pmap

from onyxq.core.ids import make_id, stretch_of
from onyxq.core.replica import Replica
from onyxq.node.jobs.held_claims import Held, held, to_renew, useless, worker_name

STRETCH = stretch_of(make_id(1_000, 3, 7, 0))


def claimed_by(worker: str) -> Replica:
    """Return a replica in which a worker has one claim on ten tasks."""
    pieces = ((5, 10, 77, worker, 9_000),)
    return Replica(claims=pmap({3: pmap({STRETCH: pieces})}))


def test_what_a_job_claimed_is_found_by_its_name() -> None:
    """The claim is found with the job's version."""
    (one,) = held(claimed_by(worker_name("j", 4)), {"j"})["j"]
    assert (one.version, one.count, one.token, one.deadline_ms) == (4, 10, 77, 9_000)


@pytest.mark.parametrize("version", ["²", "１", "", "-1", "x", "4/4", "9" * 5_000])
def test_workers_with_the_name_of_a_job_hold_nothing_for_it(version: str) -> None:
    """Every peer checks such names after every change, so an unreadable one must not raise an error."""
    assert held(claimed_by(f"job/j/{version}"), {"j"}) == {}


def test_a_claim_is_of_use_if_it_was_granted_after_the_floor_and_under_the_present_version() -> None:
    """A useful claim is renewed. Another one is released at once, so that others can run the task."""
    claims = [Held(version, bytes(20), 1, token, 0) for version in (3, 4, 5) for token in (76, 77, 78)]
    (kept,) = to_renew(claims, version=4, floor=77, log_time_ms=0)
    assert (kept.version, kept.token) == (4, 78)
    assert useless(claims, version=4, floor=77) == [one for one in claims if one is not kept]
