"""Jobs that replace others: one entry ends the earlier job and submits the new one, or changes nothing."""

from __future__ import annotations

from typing import Any

import pytest

from log_entries import (
    commit_batch,
    complete_job,
    driver_ready,
    fail_job,
    gc,
    kill_job,
    set_slots,
    submit_job,
)
from log_entries.replace_job import BESIDE, CHANGED, KEEP_MS_MIN, NO_STATE
from onyxq.core.duties import Drive, duties
from onyxq.core.jobs.lifetime import OVER, UNKNOWN, outcome_of
from onyxq.core.replica import Job
from tests.entries.golden.jobs import job, replacing
from tests.entries.world import World, created


@pytest.fixture
def world() -> World:
    """Return a world of two peers, in which job ``one`` has committed two batches."""
    found = created("a", "b")
    done(found, job("one"))
    for batch in range(2):
        done(found, commit(found, "one", batch))
    return found


def done(world: World, *entries: Any) -> None:
    """Apply entries."""
    assert set(world.verdicts("a", *entries)) == {"applied"}


def refused(world: World, entry: Any) -> str:
    """Return why an entry changed neither jobs nor what is remembered of them."""
    before = world.now
    (verdict,) = world.verdicts("a", entry)
    assert verdict != "applied"
    assert (world.now.jobs, world.now.remembered) == (before.jobs, before.remembered)
    return verdict


def now(world: World, name: str) -> Job:
    """Return a job at the end of the log."""
    return world.now.jobs[name]


def commit(world: World, name: str, batch: int) -> commit_batch.Args:
    """Return what a job's present driver submits to commit a batch."""
    return commit_batch.Args(name, now(world, name).version, batch, b"after %d" % batch, ())


# --- one decision ---------------------------------------------------------------


def test_one_entry_ends_the_earlier_job_and_the_new_one_continues_after_its_last_batch(world: World) -> None:
    """The new job has the batch, the places and, at the same record, a driver."""
    done(world, replacing(world, "new", "one"))
    one, new = now(world, "one"), now(world, "new")
    assert (one.state, one.why, one.driver, one.slots) == ("killed", "replaced by job new", "", 0)
    assert (new.state, new.batch, new.offsets) == ("running", 1, b"after 1")
    found = [duty for peer in "ab" for duty in duties(world.now, peer) if isinstance(duty, Drive)]
    assert found == [Drive("new", new.version)]
    done(world, commit(world, "new", 2))


def test_the_driver_of_the_earlier_job_is_fenced_from_this_entry_on(world: World) -> None:
    """A batch before it in the same record counts, and the new job begins after it. A batch after it does not count."""
    before, after = commit(world, "one", 2), commit(world, "one", 3)
    ready = driver_ready.Args("one", now(world, "one").version)
    late = (after, ready, complete_job.Args("one", ready.version), fail_job.Args("one", ready.version, "no"))
    assert world.verdicts("a", before, replacing(world, "new", "one"), *late) == ["applied", "applied", *[OVER] * 4]
    assert (now(world, "new").batch, now(world, "new").offsets) == (2, b"after 2")
    assert (now(world, "one").batch, now(world, "one").state) == (2, "killed")


def test_a_job_whose_state_is_taken_over_stays_known_for_a_day(world: World) -> None:
    """The new job has no batch and no places: its driver finds both in the outcome, also after log collections."""
    done(world, job("brief", keep_ms=0))
    done(world, commit(world, "brief", 5))
    done(world, replacing(world, "new", "brief", resume=""))
    assert (now(world, "new").batch, now(world, "new").offsets) == (-1, b"")
    assert now(world, "brief").keep_ms == KEEP_MS_MIN
    done(world, gc.Args())
    kept = outcome_of(world.now, "brief")
    assert (kept["state"], kept["batch"], kept["offsets"]) == ("killed", 5, b"after 5")
    done(world, replacing(world, "other", "one", resume=""))
    assert now(world, "one").keep_ms == KEEP_MS_MIN > job("one").keep_ms


def test_a_longer_retention_of_the_earlier_job_stays(world: World) -> None:
    """The retention is never shortened. It is as asked for if the new job has the places already."""
    done(world, job("long", keep_ms=2 * KEEP_MS_MIN))
    done(world, commit(world, "long", 0))
    done(world, replacing(world, "new", "long", resume=""), replacing(world, "other", "one"))
    assert now(world, "long").keep_ms == 2 * KEEP_MS_MIN
    assert now(world, "one").keep_ms == job("one").keep_ms


@pytest.mark.parametrize("batches", [0, 1])
def test_a_waiting_job_can_be_replaced(world: World, batches: int) -> None:
    """No peer offers slots. Without a batch the new job begins where the earlier one would have."""
    name = "one" if batches else "idle"
    done(world, job("idle"))
    done(world, *(set_slots.Args(peer, 0) for peer in "ab"))
    assert now(world, name).state == "waiting"
    done(world, replacing(world, "new", name))
    assert (now(world, "new").state, now(world, "new").batch) == ("waiting", 1 if batches else -1)
    assert now(world, name).state == "killed"


def test_the_limits_of_jobs_count_without_the_earlier_one(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full cluster can still change its jobs."""
    monkeypatch.setattr(submit_job, "JOBS_MAX", 1)
    monkeypatch.setattr(submit_job, "BODIES_BYTES_MAX", 9)
    assert refused(world, job("two")) == "id is one too many: there are 1 jobs"
    assert refused(world, replacing(world, "new", "one", body=b"x" * 10)).startswith("body is too much")
    done(world, replacing(world, "new", "one", body=b"x" * 9))


def test_a_waiting_job_does_not_take_the_slots_of_a_job_that_is_replaced(world: World) -> None:
    """It was submitted before the new job. Otherwise the earlier job would end, and nothing would take its place."""
    done(world, job("whole", min_slots=4), job("big", min_slots=4))
    assert (now(world, "whole").state, now(world, "big").state) == ("running", "waiting")
    driver = now(world, "one").driver
    done(world, replacing(world, "new", "one", min_slots=4))
    assert (now(world, "new").driver, now(world, "new").slots, now(world, "big").state) == (driver, 4, "waiting")


def test_the_new_job_runs_at_the_same_peer_if_that_has_what_it_needs(world: World) -> None:
    """The disk of the peer may have the earlier job's state. Otherwise the new job runs elsewhere, or waits."""
    home = now(world, "one").driver
    other = min({"a", "b"} - {home})
    done(world, set_slots.Args(other, 9))
    done(world, replacing(world, "new", "one"))
    new = now(world, "new")
    assert (new.driver, new.slots, new.version, new.ready) == (home, 4, world.now.position, False)
    done(world, replacing(world, "large", "new", min_slots=5))
    large = now(world, "large")
    assert (large.driver, large.slots, large.version) == (other, 9, world.now.position)
    done(world, replacing(world, "far", "large", zones=("nowhere",)))
    assert (now(world, "far").state, now(world, "far").driver, now(world, "far").version) == ("waiting", "", -1)


# --- nothing, and why -------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"earlier": "nobody"}, UNKNOWN),
        ({"resume": "other"}, "resume must be the job that is replaced"),
        ({"submitted": 1}, CHANGED),
        ({"submitted": -1}, CHANGED),
        ({"min_slots": 0}, "min_slots must be 1 to"),
        ({"beside": "nobody"}, "beside names no job that is known"),
        ({"body": b""}, "body must have"),
        ({"name": "-"}, "id must have"),
        ({"name": "other", "digest": b"another........."}, "conflict"),
    ],
)
def test_a_job_that_is_refused_ends_nothing(world: World, changes: dict[str, Any], why: str) -> None:
    """The verdict has the reason. The earlier job commits its next batch."""
    done(world, job("other"))
    asked: dict[str, Any] = {"name": "new", "earlier": "one", **changes}
    assert refused(world, replacing(world, **asked)).startswith(why)
    assert sorted(world.now.jobs) == ["one", "other"]
    done(world, commit(world, "one", 2))


def test_state_of_a_job_without_a_batch_cannot_be_taken_over(world: World) -> None:
    """It continues. A job that needs the places only can replace it."""
    done(world, job("fresh"))
    assert refused(world, replacing(world, "new", "fresh", resume="")) == NO_STATE
    assert now(world, "fresh").state == "running"
    done(world, replacing(world, "new", "fresh"))
    assert (now(world, "new").batch, now(world, "new").offsets) == (-1, b"")


@pytest.mark.parametrize("end", ["complete", "fail", "kill", "replace"])
def test_a_job_that_has_ended_cannot_be_replaced(world: World, end: str) -> None:
    """Before a log collection and after it. A job may still resume it."""
    version = now(world, "one").version
    ends = {
        "complete": complete_job.Args("one", version),
        "fail": fail_job.Args("one", version, "no such column"),
        "kill": kill_job.Args("one"),
        "replace": replacing(world, "first", "one"),
    }
    late = replacing(world, "second", "one")
    done(world, ends[end])
    assert refused(world, late) == OVER
    done(world, gc.Args())
    assert refused(world, late) == OVER
    assert "second" not in world.now.jobs
    done(world, job("third", resume="one"))


def test_of_two_replacements_at_once_one_applies(world: World) -> None:
    """Both were checked while the earlier job ran. Otherwise two jobs would read what comes after its last batch."""
    first, second = replacing(world, "first", "one"), replacing(world, "second", "one")
    assert world.verdicts("a", first, second) == ["applied", OVER]
    assert sorted(world.now.jobs) == ["first", "one"]


def test_another_job_under_the_id_of_the_earlier_one_is_not_ended(world: World) -> None:
    """It was submitted after the definitions were compared."""
    done(world, job("brief", keep_ms=0))
    asked = replacing(world, "new", "brief")
    done(world, kill_job.Args("brief"), gc.Args())
    done(world, job("brief", digest=b"another........."))
    assert refused(world, asked) == CHANGED
    assert now(world, "brief").state == "running"


# --- again ----------------------------------------------------------------------


def test_the_same_request_again_is_a_repeat_whatever_happened_since(world: World) -> None:
    """Both jobs may have ended and been collected. Nothing is ended, and nothing begins again."""
    asked = replacing(world, "new", "one")
    assert world.verdicts("a", asked, asked) == ["applied", "repeat"]
    done(world, commit(world, "new", 2))
    again = replacing(world, "new", "one")
    assert [refused(world, one) for one in (asked, again)] == ["repeat"] * 2
    assert now(world, "new").batch == 2
    done(world, gc.Args())
    assert refused(world, asked) == "repeat"
    done(world, kill_job.Args("new"), gc.Args())
    assert refused(world, asked) == "repeat"


def test_a_repeat_does_not_end_a_job_that_got_the_id_of_the_earlier_one(world: World) -> None:
    """As a client may do that repeats its request late."""
    done(world, job("brief", keep_ms=0))
    asked = replacing(world, "new", "brief")
    done(world, asked, gc.Args())
    assert outcome_of(world.now, "brief") is None
    done(world, job("brief", digest=b"another........."))
    assert refused(world, asked) == "repeat"
    assert refused(world, replacing(world, "new", "brief")) == "repeat"
    assert now(world, "brief").state == "running"


@pytest.mark.parametrize("collected", [False, True])
def test_a_job_that_was_submitted_beside_the_earlier_one_does_not_replace_it_later(
    world: World, collected: bool
) -> None:
    """It began at an earlier batch. If the earlier job ended now, segments would count twice."""
    done(world, job("new", resume="one"))
    if collected:
        done(world, kill_job.Args("new"), gc.Args())
    assert refused(world, replacing(world, "new", "one")) == BESIDE
    assert now(world, "one").state == "running"
