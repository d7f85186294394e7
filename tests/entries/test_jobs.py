"""Jobs in the replica: submitted once, driven by one peer under a rising version, ended once, remembered."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import asdict, evolve
from pyrsistent import pmap

from log_entries import (
    begin_savepoint,
    commit_batch,
    complete_job,
    drain_node,
    driver_ready,
    drop_savepoint,
    fail_job,
    gc,
    keep_savepoint,
    kill_job,
    leave_cluster,
    prepare_join_cluster,
    report_job,
    restore_job,
    seal_input,
    set_slots,
    submit_job,
    supersede_driver,
)
from log_entries.registry import VERSIONS
from onyxq.core.duties import Drive, duties
from onyxq.core.entry import Stamp
from onyxq.core.invariants.replica import violations
from onyxq.core.jobs import lifetime
from onyxq.core.jobs.lifetime import PROGRESS_BYTES_MAX, outcome_of
from onyxq.core.limits import OFFSETS_BYTES_MAX
from onyxq.core.replica import Job
from onyxq.core.snapshot import pack, unpack
from tests.entries.golden.jobs import job, replay
from tests.entries.world import World, created, joining


@pytest.fixture
def world() -> World:
    """Return a world of three peers with four unused slots each."""
    return created("a", "b", "c")


def now(world: World, name: str) -> Job:
    """Return a job at the end of the log."""
    return world.now.jobs[name]


def done(world: World, *entries: Any, peer: str = "") -> None:
    """Apply entries by any member."""
    peer = peer or min(world.now.ring.members)
    assert set(world.verdicts(peer, *entries)) == {"applied"}


def refused(world: World, entry: Any, peer: str = "a") -> str:
    """Return why an entry changed nothing."""
    before = world.now
    verdict = world.verdicts(peer, entry)[0]
    assert verdict != "applied" and world.now.jobs is before.jobs
    return verdict


# --- submitting -----------------------------------------------------------------


def test_a_job_runs_at_once_if_there_are_slots(world: World) -> None:
    """One entry submits it and gives it a driver, which has the duty from then on."""
    done(world, job("one"))
    found = now(world, "one")
    assert (found.state, found.slots, found.version) == ("running", 4, world.now.position)
    assert [peer for peer in "abc" if Drive("one", found.version) in duties(world.now, peer)] == [found.driver]


def test_submitting_again_is_a_repeat_or_a_conflict(world: World) -> None:
    """A client without an answer may try again; an id cannot be taken from a job."""
    done(world, job("one"))
    assert refused(world, job("one"), "b") == "repeat"
    assert refused(world, job("one", digest=b"other...........")) == "conflict"


@pytest.mark.parametrize("end", ["complete", "kill", "fail"])
def test_a_job_that_has_ended_is_not_run_again(world: World, end: str) -> None:
    """This holds after a log collection too, for the requested time; then its id is free."""
    done(world, job("one", keep_ms=30_000))
    version = now(world, "one").version
    ends = {
        "complete": complete_job.Args("one", version),
        "kill": kill_job.Args("one"),
        "fail": fail_job.Args("one", version, "no such column"),
    }
    done(world, ends[end])
    ended = now(world, "one")
    assert (ended.driver, ended.slots) == ("", 0) and ended.state.startswith(end)
    for _ in range(2):
        assert refused(world, job("one")) == "repeat"
        assert refused(world, job("one", digest=b"other...........")) == "conflict"
        assert refused(world, kill_job.Args("one")) == "already ended"
        assert refused(world, complete_job.Args("one", version)) == "already ended"
        done(world, gc.Args())
        assert "one" not in world.now.jobs
        outcome = outcome_of(world.now, "one")
        assert (outcome["state"], outcome["error"]) == (ended.state, ended.why)
        assert (outcome["ended_ms"], outcome["digest"]) == (ended.ended_ms, ended.digest)
    pass_time(world, 31)
    done(world, gc.Args())
    assert outcome_of(world.now, "one") is None and refused(world, kill_job.Args("one")) == "no such job"
    done(world, job("one", digest=b"other..........."))


def pass_time(world: World, seconds: int) -> None:
    """Let log time pass."""
    for _ in range(seconds):
        world.now_ms += 1_000
        world.submit("a")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("id", "a/b"),
        ("id", ".hidden"),
        ("id", "x" * 121),
        ("body", b""),
        ("body", b"x" * (submit_job.BODY_BYTES_MAX + 1)),
        ("digest", b"short"),
        ("scheduler", "fair"),
        ("percentage", 5),
        ("min_slots", 0),
        ("max_slots", -1),
        ("tags", ("",)),
        ("zones", ("x",) * 65),
        ("beside", "nobody"),
        ("resume", "nobody"),
        ("inputs", ("in", "in")),
        ("tasks", (("t", 0, 0, 0), ("t", 0, 0, 0))),
        ("tasks", (("t", 3, 2, 0),)),
        ("tasks", (("t", 0, 0, 101),)),
        ("keep_ms", -1),
    ],
)
def test_what_cannot_be_is_refused_by_name(world: World, field: str, value: Any) -> None:
    """The verdict begins with the wrong field."""
    assert refused(world, job("one", **{field: value}) if field != "id" else job(value)).startswith(f"{field}")


def test_a_task_may_not_need_more_than_its_job_may_have(world: World) -> None:
    """Such a task could never run."""
    assert refused(world, job("one", max_slots=2, tasks=(("t", 3, 0, 0),))).startswith("tasks: t needs 3 slots")


def test_the_replica_holds_so_many_jobs_and_no_more(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """This counts jobs that have not ended."""
    monkeypatch.setattr(submit_job, "JOBS_MAX", 2)
    monkeypatch.setattr(submit_job, "BODIES_BYTES_MAX", 10)
    done(world, job("one"), job("two"))
    assert refused(world, job("three")) == "id is one too many: there are 2 jobs"
    done(world, kill_job.Args("two"))
    assert refused(world, job("three", body=b"x" * 8)).startswith("body is too much")
    done(world, job("three", body=b"x" * 7))


def test_a_job_goes_on_where_another_stopped(world: World) -> None:
    """It begins after the other job's last committed batch, whether that job runs, has ended, or was collected."""
    done(world, job("one"))
    how_far = evolve(now(world, "one"), batch=7, offsets=b"so far")
    world.replicas[-1] = evolve(world.now, jobs=world.now.jobs.set("one", how_far))
    done(world, job("two", resume="one"), kill_job.Args("one"), gc.Args(), job("three", resume="one"))
    assert [(now(world, name).batch, now(world, name).offsets) for name in ("two", "three")] == [(7, b"so far")] * 2


def test_a_replay_begins_at_places_of_another_job_without_a_batch_of_its_own(world: World) -> None:
    """It keeps the places until its first batch, whatever the other job does; without places it is refused."""
    done(world, replay("one"))
    again = world.now.jobs["one"]
    assert (again.batch, again.offsets, again.state) == (-1, b"places 0", "running")
    assert refused(world, replay("one")) == "repeat" and refused(world, replay("one", digest=b"z" * 16)) == "conflict"
    done(world, job("two", resume="one"))
    assert (world.now.jobs["two"].batch, world.now.jobs["two"].offsets) == (-1, b"places 0")
    for wrong in ({"begin": b""}, {"begin": b"x" * (OFFSETS_BYTES_MAX + 1)}, {"resume": "one"}):
        assert refused(world, replay("three", **wrong)).startswith("begin ")
    assert refused(world, replay("three", min_slots=0)).startswith("min_slots ")
    assert "three" not in world.now.jobs


@pytest.mark.parametrize(("batch", "known"), [(0, True), (7, True), (-1, False)])
def test_a_job_does_not_begin_anew_because_offsets_were_forgotten(
    world: World, monkeypatch: pytest.MonkeyPatch, batch: int, known: bool
) -> None:
    """One committed batch is enough for this. Without a batch there is nothing to forget."""
    monkeypatch.setattr(lifetime, "KEPT_BYTES_MAX", 0)
    done(world, job("one"))
    how_far = evolve(now(world, "one"), batch=batch, offsets=b"so far" if known else b"")
    world.replicas[-1] = evolve(world.now, jobs=world.now.jobs.set("one", how_far))
    done(world, kill_job.Args("one"), gc.Args())
    if known:
        assert refused(world, job("two", resume="one")) == "resume names a job whose offsets are not kept any more"
    else:
        done(world, job("two", resume="one"))


def test_offsets_of_ended_jobs_are_kept_as_long_as_there_is_room(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The jobs that ended first lose their offsets, and no job can continue from these."""
    monkeypatch.setattr(lifetime, "KEPT_BYTES_MAX", 10)
    for name in ("one", "two", "three"):
        done(world, job(name))
        how_far = evolve(now(world, name), batch=7, offsets=b"so far")
        world.replicas[-1] = evolve(world.now, jobs=world.now.jobs.set(name, how_far))
        pass_time(world, 1)
        done(world, kill_job.Args(name), gc.Args())
    assert [outcome_of(world.now, name)["offsets"] for name in ("one", "two", "three")] == [b"", b"", b"so far"]
    assert refused(world, job("four", resume="one")) == "resume names a job whose offsets are not kept any more"
    done(world, job("five", resume="three"))


@pytest.mark.parametrize("end", ["complete", "kill"])
def test_the_last_report_of_a_job_is_kept_with_its_outcome(world: World, end: str) -> None:
    """It may come after the end: a killed job's driver learns of that later."""
    done(world, job("one"))
    version = now(world, "one").version
    done(world, report_job.Args("one", version, b"7 rows"))
    assert refused(world, report_job.Args("one", version, bytes(PROGRESS_BYTES_MAX + 1))).startswith("progress must")
    done(world, complete_job.Args("one", version) if end == "complete" else kill_job.Args("one"))
    done(world, report_job.Args("one", version, b"8 rows"))
    assert now(world, "one").progress == b"8 rows"
    done(world, gc.Args())
    assert outcome_of(world.now, "one")["progress"] == b"8 rows"
    assert refused(world, report_job.Args("one", version, b"9 rows")) == "already ended"


def test_reports_of_ended_jobs_are_kept_as_long_as_there_is_room(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The jobs that ended first lose theirs."""
    monkeypatch.setattr(lifetime, "KEPT_BYTES_MAX", 10)
    for name in ("one", "two"):
        done(world, job(name))
        done(world, report_job.Args(name, now(world, name).version, b"7 rows"))
        pass_time(world, 1)
        done(world, kill_job.Args(name), gc.Args())
    assert [outcome_of(world.now, name)["progress"] for name in ("one", "two")] == [b"", b"7 rows"]


def test_errors_of_ended_jobs_are_kept_as_long_as_there_is_room(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs that fail again and again do not fill the replica. Their states are kept."""
    monkeypatch.setattr(lifetime, "KEPT_BYTES_MAX", 10)
    for name in ("one", "two"):
        done(world, job(name))
        pass_time(world, 1)
        done(world, fail_job.Args(name, now(world, name).version, "row 7"), gc.Args())
    outcomes = [outcome_of(world.now, name) for name in ("one", "two")]
    assert [(one["state"], one["error"]) for one in outcomes] == [("failed", "row 7")] * 2
    done(world, job("three"))
    pass_time(world, 1)
    done(world, fail_job.Args("three", now(world, "three").version, "row 8"), gc.Args())
    outcomes = [outcome_of(world.now, name) for name in ("one", "two", "three")]
    assert [(one["state"], one["error"]) for one in outcomes] == [
        ("failed", ""),
        ("failed", "row 7"),
        ("failed", "row 8"),
    ]


# --- savepoints -----------------------------------------------------------------


def begun(world: World, name: str) -> int:
    """Run job ``one`` for a batch, begin a savepoint of it, and return its position."""
    if "one" not in world.now.jobs:
        done(world, job("one"))
        done(world, commit_batch.Args("one", now(world, "one").version, 0, b"there", ()))
    done(world, begin_savepoint.Args(name, "one"))
    return world.now.position


def kept(name: str, position: int, version: int) -> keep_savepoint.Args:
    """Return arguments that complete a savepoint of the job's first batch."""
    return keep_savepoint.Args(name, position, version, 0, b"there", f"/{name}", 7)


def test_savepoints_that_are_being_made_count_with_the_longest_offsets(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise all savepoints together would have more bytes than they may, once they are complete."""
    monkeypatch.setattr(begin_savepoint, "BYTES_MAX", 2 * OFFSETS_BYTES_MAX)
    position = begun(world, "s")
    assert refused(world, begin_savepoint.Args("t", "one")).startswith("name is one too many")
    done(world, kept("s", position, now(world, "one").version))
    begun(world, "t")


def test_a_savepoint_waits_for_the_job_that_begins_from_it_and_not_for_a_later_one_of_its_id(world: World) -> None:
    """The id of a job is free again once its outcome is forgotten."""
    position = begun(world, "s")
    done(world, kept("s", position, now(world, "one").version))
    fields = asdict(job("two", keep_ms=0), recurse=False)
    done(world, restore_job.Args(**fields, savepoint="s", position=position))
    assert refused(world, drop_savepoint.Args("s", position)) == "in use by job two"
    done(world, kill_job.Args("two"), gc.Args())
    done(world, job("two"))
    done(world, drop_savepoint.Args("s", position))


# --- drivers --------------------------------------------------------------------


def test_a_driver_that_dies_is_replaced_under_a_higher_version(world: World) -> None:
    """Entries of the old driver are void; sealed inputs and commits stay."""
    done(world, job("one"))
    old = now(world, "one")
    done(world, driver_ready.Args("one", old.version), seal_input.Args("one", "in"))
    other = min({"a", "b", "c"} - {old.driver})
    done(world, leave_cluster.Args(old.driver, "gone"), peer=other)
    new = now(world, "one")
    assert new.driver != old.driver and new.version > old.version
    assert (new.state, new.ready, new.sealed) == ("running", False, ("in",))
    for late in (
        driver_ready.Args("one", old.version),
        complete_job.Args("one", old.version),
        fail_job.Args("one", old.version, "late"),
        report_job.Args("one", old.version, b"late"),
    ):
        assert refused(world, late, other) == "superseded"
    done(world, driver_ready.Args("one", new.version), complete_job.Args("one", new.version), peer=other)


def test_a_driver_that_is_superseded_at_its_own_peer_is_fenced(world: World) -> None:
    """The peer keeps the job with its slots and places, and the version before is void."""
    done(world, job("one", own_host=True))
    old = now(world, "one")
    done(world, driver_ready.Args("one", old.version), commit_batch.Args("one", old.version, 3, b"places", ()))
    done(world, supersede_driver.Args("one", old.version))
    new = now(world, "one")
    assert new.version > old.version
    assert (new.driver, new.slots, new.state, new.ready) == (old.driver, old.slots, "running", False)
    assert (new.batch, new.offsets) == (3, b"places")
    for late in (
        supersede_driver.Args("one", old.version),
        driver_ready.Args("one", old.version),
        commit_batch.Args("one", old.version, 4, b"late", ()),
        complete_job.Args("one", old.version),
    ):
        assert refused(world, late) == "superseded"
    done(world, commit_batch.Args("one", new.version, 4, b"further", ()), complete_job.Args("one", new.version))
    assert refused(world, supersede_driver.Args("one", new.version)) == "already ended"


def test_slots_that_change_are_no_reason_for_another_version(world: World) -> None:
    """Shares change while a job runs."""
    done(world, job("one"))
    one = now(world, "one")
    done(world, driver_ready.Args("one", one.version), set_slots.Args(one.driver, 7), job("two"), job("three"))
    found = now(world, "one")
    assert (found.driver, found.version, found.slots, found.ready) == (one.driver, one.version, 7, True)
    done(world, job("four"), *(job(f"more-{number}") for number in range(4)))
    found = now(world, "one")
    assert (found.driver, found.version, found.ready) == (one.driver, one.version, True) and found.slots < 7


def test_the_same_driver_again_has_another_version(world: World) -> None:
    """It may have stopped in between, and two runs of a job must be distinguishable."""
    done(world, job("one"))
    old = now(world, "one")
    only(world, old.driver)
    done(world, set_slots.Args(old.driver, 0))
    waiting = now(world, "one")
    assert (waiting.state, waiting.driver, waiting.version) == ("waiting", "", old.version)
    assert refused(world, complete_job.Args("one", old.version)) == "superseded"
    done(world, set_slots.Args(old.driver, 4))
    assert now(world, "one").driver == old.driver and now(world, "one").version > old.version


def test_versions_rise_within_one_record(world: World) -> None:
    """Each change of driver has a version of its own."""
    done(world, job("one"))
    driver = now(world, "one").driver
    only(world, driver)
    done(world, *[set_slots.Args(driver, slots) for slots in (0, 4, 0, 4)])
    assert now(world, "one").version == world.now.position + 1


def only(world: World, peer: str) -> None:
    """Let no other peer offer slots."""
    done(world, *(set_slots.Args(other, 0) for other in sorted(world.now.ring.members) if other != peer))


def test_a_node_that_drains_drives_nothing(world: World) -> None:
    """Its jobs are moved at once."""
    done(world, job("one"))
    old = now(world, "one")
    done(world, drain_node.Args(f"node-{old.driver}", False))
    assert now(world, "one").driver not in ("", old.driver)


def test_a_peer_that_comes_gives_slots_to_who_waits(world: World) -> None:
    """Only members count: a joining peer drives nothing."""
    done(world, *(job(f"j{number}", min_slots=4) for number in range(4)))
    assert now(world, "j3").why == "waits for slots: needs 4 of one peer"
    world.submit("d", joining("d"))
    assert now(world, "j3").state == "waiting"
    world.settle("a", "b", "c", "d")
    assert now(world, "j3").driver == "d"


def test_tags_zones_and_company(world: World) -> None:
    """A job is driven where all its demands are met."""
    plain = joining("d", zone="z2")
    fields = (plain.peer, plain.node, plain.address, plain.http, plain.zone, 4, ("gpu", "big"), VERSIONS, "", "")
    world.submit("d", prepare_join_cluster.Args(*fields))
    world.settle("a", "b", "c", "d")
    done(world, job("gpu", tags=("gpu",)), job("far", zones=("z2", "z3")), job("near", beside="gpu"))
    assert {now(world, name).driver for name in ("gpu", "far", "near")} == {"d"}
    done(world, leave_cluster.Args("d", "gone"))
    assert now(world, "near").why == "waits for job gpu, beside which it runs"
    done(world, kill_job.Args("gpu"))
    assert now(world, "near").state == "running", "who has ended binds nobody"


def test_a_name_that_is_taken_again_binds_nobody(world: World) -> None:
    """Otherwise two jobs would wait for each other, and neither could begin."""
    done(world, job("one", keep_ms=0), job("two", beside="one"), kill_job.Args("one"), gc.Args())
    two = now(world, "two")
    done(world, job("one", beside="two"))
    assert now(world, "two") == evolve(two, slots=now(world, "two").slots)
    assert now(world, "one").driver == two.driver


def test_the_order_in_which_maps_hold_jobs_decides_nothing(world: World) -> None:
    """A replica that was loaded from a snapshot has its jobs in another order."""
    kinds = ("greedy", "balanced", "percentage")
    for number in range(11):
        kind = kinds[number % 3]
        done(world, job(f"j{number}", scheduler=kind, percentage=9 if kind == "percentage" else 0, min_slots=1))
    loaded = unpack(pack(world.now))
    turned = evolve(world.now, jobs=pmap({name: world.now.jobs[name] for name in world.now.jobs}, 4_096))
    assert list(turned.jobs) != list(world.now.jobs), "nothing is shown by the same order"
    leave = leave_cluster.Args("a", "gone")
    stamp = Stamp(world.now.position + 1, 0, "b", world.now.log_time_ms, 0)
    after = [leave_cluster.apply(replica, leave, stamp)[0] for replica in (world.now, loaded, turned)]
    assert pack(after[0]) == pack(after[1]) == pack(after[2]) != pack(world.now)


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"min_slots": 9}, "needs 9 slots, peers offer 4 at most"),
        ({"tasks": (("t", 9, 0, 0),)}, "needs 9 slots, peers offer 4 at most"),
        ({"tags": ("gpu",)}, "no peer with tag gpu"),
        ({"zones": ("z8", "z9")}, "no peer in zone z8 or z9"),
        ({"zones": ("z1",), "min_slots": 5}, "needs 5 slots, peers that fit offer 4 at most"),
    ],
)
def test_who_can_never_run_is_told_what_is_missing(world: World, asked: dict[str, Any], why: str) -> None:
    """It still waits, because a suitable peer may join."""
    done(world, job("one", **asked))
    assert (now(world, "one").state, now(world, "one").why) == ("waiting", why)


def test_no_slots_at_all_is_said(world: World) -> None:
    """This is so if no peer hosts Spark."""
    done(world, *(set_slots.Args(peer, 0) for peer in "abc"), job("one"), job("two", beside="one"))
    assert now(world, "one").why == "no peer offers slots"
    assert now(world, "two").why == "waits for job one, beside which it runs"


def test_what_a_job_had_goes_to_others_when_it_ends(world: World) -> None:
    """The same entry gives its slots to other jobs, however the job ends."""
    done(world, *(job(f"j{number}", min_slots=4) for number in range(6)))
    versions = [now(world, f"j{number}").version for number in range(3)]
    ends = (
        kill_job.Args("j0"),
        complete_job.Args("j1", versions[1]),
        fail_job.Args("j2", versions[2], "no such column"),
    )
    for number, end in enumerate(ends):
        assert now(world, f"j{number + 3}").state == "waiting"
        done(world, end)
        assert now(world, f"j{number + 3}").state == "running"


# --- entries about jobs that are not there ------------------------------------------


def test_nothing_can_be_done_with_a_job_that_nobody_submitted(world: World) -> None:
    """The verdict of each entry says so."""
    for args in (
        kill_job.Args("none"),
        driver_ready.Args("none", 1),
        complete_job.Args("none", 1),
        fail_job.Args("none", 1, ""),
        seal_input.Args("none", "in"),
    ):
        assert refused(world, args) == "no such job"


def test_inputs_are_sealed_once(world: World) -> None:
    """Only inputs of the job can be sealed."""
    done(world, job("one", inputs=("in", "more")), seal_input.Args("one", "more"), seal_input.Args("one", "in"))
    assert now(world, "one").sealed == ("in", "more")
    assert refused(world, seal_input.Args("one", "in")) == "already sealed"
    assert refused(world, seal_input.Args("one", "out")) == "no such input"


def test_an_error_is_text_of_bounded_length(world: World) -> None:
    """The limit is in bytes, as stored in the replica."""
    done(world, job("one"))
    version = now(world, "one").version
    assert refused(world, fail_job.Args("one", version, "ü" * 4_097)).startswith("error must have at most")
    done(world, fail_job.Args("one", version, "ü" * 4_096))


# --- invariants see what is wrong ---------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"slots": 5}, "which offers 4"),
        ({"slots": 0}, "it has 0 slots, needs 1"),
        ({"driver": "b2"}, "its driver b2 does not fit it"),
        ({"driver": ""}, "it is running with the driver ''"),
        ({"state": "waiting", "driver": ""}, "it waits with 4 slots"),
        ({"state": "failed", "driver": ""}, "it has ended at -1 with 4 slots"),
        ({"state": "lost"}, "it cannot have the state 'lost'"),
        ({"sealed": ("out",)}, "sealed are ('out',)"),
        ({"task_slots": (("t", 1),)}, "its tasks have"),
        ({"version": -1}, "it runs without a version"),
        ({"ended_ms": 5}, "it has ended and continues"),
        ({"max_slots": 2}, "it has 4 slots, needs 1 and can take 2"),
        ({"id": "other"}, "it has another id"),
    ],
)
def test_an_invariant_that_is_broken_is_named(world: World, changes: dict[str, Any], said: str) -> None:
    """One field of a job's record is wrong."""
    done(world, job("one"))
    broken = evolve(now(world, "one"), **changes)
    found = violations(evolve(world.now, jobs=pmap({"one": broken})))
    assert any(said in line for line in found), found


def test_a_job_that_should_run_and_waits_is_noticed(world: World) -> None:
    """The allocation is wrong."""
    done(world, job("one"))
    waiting = evolve(now(world, "one"), state="waiting", driver="", slots=0, why="no reason")
    assert "jobs are not allocated as they should be" in violations(evolve(world.now, jobs=pmap({"one": waiting})))
