"""Periodic tasks: set up, fired exactly once for each time; and missed times."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from pyrsistent import pmap

from log_entries import fire_periodic, pause_periodic, remove_periodic, set_periodic
from log_entries.fire_periodic import RUNS_MAX
from log_entries.set_periodic import PAYLOADS_BYTES_MAX, PERIODIC_MAX
from onyxq.core.cron import NEVER_MS
from onyxq.core.duties import Fire, duties
from onyxq.core.ids import ms_of, partition_of
from onyxq.core.limits import PERIODIC_DATA_BYTES_MAX, RETRIES_MAX
from onyxq.core.periodic import ON_TIME_MS, due, next_due_ms, other_id, plan, run_options, task_id
from onyxq.core.queue_settings import NO_LIMIT
from onyxq.core.replica import Periodic, first_peer
from onyxq.errors import BadRequest
from tests.entries import cohorts
from tests.entries.queue_world import QueueWorld

NIGHTLY = set_periodic.Args("nightly", "mail", "every 10s", "UTC", b"x", "bytes", 0, "once", False, 10_000)


def periodic(**changes: Any) -> Periodic:
    """Return a periodic task that is due every ten seconds, first at 10 s."""
    found = Periodic(name="nightly", queue="mail", schedule="every 10s", zone="UTC", next_ms=10_000)
    return evolve(found, **changes)


# --- entries ---------------------------------------------------------------------------------


def test_setting_up_again_keeps_the_next_run_and_the_count() -> None:
    """An application that does so at every start loses no run."""
    world = QueueWorld()
    world.done(NIGHTLY)
    world.done(fire_periodic.Args("nightly", 10_000, 20_000, 1))
    assert world.submit(evolve(NIGHTLY, next_ms=50_000)) == "already so"
    world.done(evolve(NIGHTLY, next_ms=50_000, payload=b"y"))
    found = world.replica.periodic["nightly"]
    assert (found.next_ms, found.fired, found.payload) == (20_000, 1, b"y")


def test_setting_up_again_with_other_options_changes_only_them() -> None:
    """The next run and the count stay, and other entries keep the options."""
    world = QueueWorld()
    limited = evolve(NIGHTLY, options=pmap({"retries": 3, "expires_after_ms": 5_000}))
    world.done(NIGHTLY)
    world.done(evolve(limited, next_ms=50_000))
    assert world.submit(limited) == "already so"
    world.done(fire_periodic.Args("nightly", 10_000, 20_000, 1))
    world.done(pause_periodic.Args("nightly", True, 0))
    found = world.replica.periodic["nightly"]
    assert (found.options, found.next_ms, found.fired) == (limited.options, 20_000, 1)
    world.done(evolve(NIGHTLY, paused=True))
    assert world.replica.periodic["nightly"] == evolve(found, options=pmap())


def test_the_options_of_runs_are_those_of_an_enqueue() -> None:
    """An entry has no null, so no limit of retries is a number there."""
    found = periodic(options=pmap({"retries": NO_LIMIT, "backoff_ms": 7}))
    assert run_options(found) == {"backoff_ms": 7, "retries": None}
    assert run_options(periodic()) == {}


@pytest.mark.parametrize("changes", [{"schedule": "every 20s"}, {"zone": "Europe/Berlin"}])
def test_another_schedule_or_zone_begins_anew(changes: dict[str, Any]) -> None:
    """It starts at the time that the caller computed; ids of runs continue."""
    world = QueueWorld()
    world.done(NIGHTLY)
    world.done(fire_periodic.Args("nightly", 10_000, 20_000, 3))
    world.done(evolve(NIGHTLY, next_ms=50_000, **changes))
    found = world.replica.periodic["nightly"]
    assert (found.next_ms, found.fired) == (50_000, 3)


def test_each_time_is_fired_once_whoever_does_it() -> None:
    """The second entry for a time is refused."""
    world = QueueWorld()
    world.done(NIGHTLY)
    fired = fire_periodic.Args("nightly", 10_000, 20_000, 1)
    world.done(fired)
    assert world.submit(fired) == "already fired"
    for wrong in (
        evolve(fired, fired_ms=20_000),
        fire_periodic.Args("nightly", 20_000, 30_000, -1),
        fire_periodic.Args("nightly", 20_000, 30_000, RUNS_MAX + 1),
    ):
        assert world.submit(wrong) == "bad number"
    assert world.submit(evolve(fired, name="other")) == "no such periodic task"


def test_a_pause_ends_at_a_time_ahead() -> None:
    """Times during the pause are not missed runs, however it is resumed."""
    world = QueueWorld()
    world.done(NIGHTLY)
    world.done(pause_periodic.Args("nightly", True, 99))
    assert world.replica.periodic["nightly"].next_ms == 10_000
    assert world.submit(pause_periodic.Args("nightly", True, 99)) == "already so"
    world.done(pause_periodic.Args("nightly", False, 70_000))
    assert world.replica.periodic["nightly"].next_ms == 70_000
    world.done(evolve(NIGHTLY, paused=True))
    world.done(evolve(NIGHTLY, next_ms=90_000))
    assert world.replica.periodic["nightly"].next_ms == 90_000
    assert world.submit(pause_periodic.Args("other", True, 0)) == "no such periodic task"
    world.done(pause_periodic.Args("nightly", True, 0))
    assert world.submit(pause_periodic.Args("nightly", False, -1)).startswith("next_ms ")


def test_a_removed_one_is_gone() -> None:
    """A late entry that fires it changes nothing."""
    world = QueueWorld()
    world.done(NIGHTLY)
    world.done(remove_periodic.Args("nightly"))
    assert not world.replica.periodic
    assert world.submit(remove_periodic.Args("nightly")) == "no such periodic task"
    assert world.submit(fire_periodic.Args("nightly", 10_000, 20_000, 1)) == "no such periodic task"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": "a\nb"}, "name"),
        ({"queue": "x" * 201}, "queue"),
        ({"schedule": ""}, "schedule"),
        ({"zone": "x" * 201}, "zone"),
        ({"format": "xml"}, "format"),
        ({"missed": "never"}, "missed"),
        ({"priority": 1 << 31}, "priority"),
        ({"next_ms": -1}, "next_ms"),
        ({"payload": b"x" * (PERIODIC_DATA_BYTES_MAX + 1)}, "data"),
        ({"options": pmap({"retries": -2})}, "retries"),
        ({"options": pmap({"retries": RETRIES_MAX + 1})}, "retries"),
        ({"options": pmap({"backoff_ms": -1})}, "backoff_ms"),
        ({"options": pmap({"expires_after_ms": 0})}, "expires_after_ms"),
        ({"options": pmap({"unique_key": 1})}, "options"),
    ],
)
def test_what_cannot_be_set_up_is_named(changes: dict[str, Any], field: str) -> None:
    """The verdict begins with the field."""
    world = QueueWorld()
    assert world.submit(evolve(NIGHTLY, **changes)).startswith(f"{field} ")
    assert not world.replica.periodic


def test_the_replica_holds_so_many_and_so_much() -> None:
    """Existing ones can still be changed."""
    world = QueueWorld()
    for number in range(PAYLOADS_BYTES_MAX // PERIODIC_DATA_BYTES_MAX):
        world.replica = evolve(
            world.replica,
            periodic=world.replica.periodic.set(
                f"p{number}", periodic(name=f"p{number}", payload=b"x" * PERIODIC_DATA_BYTES_MAX)
            ),
        )
    assert world.submit(NIGHTLY).startswith("data is too much")
    assert world.submit(evolve(NIGHTLY, name="p0", payload=b"y" * PERIODIC_DATA_BYTES_MAX)) == "applied"
    names = [f"p{number}" for number in range(PERIODIC_MAX)]
    world.replica = evolve(world.replica, periodic=world.replica.periodic.update({n: periodic(name=n) for n in names}))
    assert world.submit(NIGHTLY).startswith("name is one too many")


# --- firing --------------------------------------------------------------------------------------


def test_the_rings_first_peer_fires_while_there_is_something_to_fire() -> None:
    """This is a duty."""
    replica = cohorts.cluster("a", "b", partitions=2)
    first = first_peer(replica)
    assert not any(Fire() in duties(replica, peer) for peer in replica.ring.members)
    replica = evolve(replica, periodic=replica.periodic.set("nightly", periodic()))
    assert [peer for peer in replica.ring.members if Fire() in duties(replica, peer)] == [first]


def test_those_are_due_that_are_not_paused_and_whose_time_has_come() -> None:
    """By name."""
    world = QueueWorld()
    for name, next_ms, paused in (("b", 5, False), ("a", 10, False), ("c", 11, False), ("d", 1, True)):
        world.done(evolve(NIGHTLY, name=name, next_ms=next_ms, paused=paused))
    assert [one.name for one in due(world.replica, 10)] == ["a", "b"]
    assert next_due_ms(world.replica) == 5
    assert next_due_ms(QueueWorld().replica) is None


def test_a_run_is_named_by_its_task_and_time() -> None:
    """The id is the same for any leader, and shows when the run was due."""
    one, other = periodic(), periodic(name="other")
    assert task_id(one, 10_000, 64) == task_id(evolve(one, fired=7, payload=b"z"), 10_000, 64)
    assert len({task_id(one, 10_000, 64), task_id(one, 20_000, 64), task_id(other, 10_000, 64)}) == 3
    assert ms_of(task_id(one, 10_000, 64)) == 10_000 and partition_of(task_id(one, 10_000, 3)) < 3


def test_a_run_whose_id_is_taken_has_another_that_only_peers_know() -> None:
    """It is the same for every peer with the secret, and has the time and the partition of the run."""
    first = task_id(periodic(), 10_000, 64)
    other = other_id(first, b"secret")
    assert other == other_id(first, b"secret") != first
    assert (ms_of(other), partition_of(other)) == (ms_of(first), partition_of(first))
    assert len({other, other_id(first, b"other"), other_id(task_id(periodic(), 20_000, 64), b"secret")}) == 3


@pytest.mark.parametrize(
    ("missed", "fires"),
    [("skip", [60_000]), ("once", [60_000]), ("all", [10_000, 20_000, 30_000, 40_000, 50_000, 60_000])],
)
def test_times_that_were_missed_while_nobody_fired_for_a_while(missed: str, fires: list[int]) -> None:
    """The last one is at most a minute old, so it was not missed."""
    found = plan(periodic(missed=missed), 69_999)
    assert found == (fires, 70_000)


def test_after_a_long_while_a_skipped_run_waits_for_its_next_time() -> None:
    """A daily run is hours late."""
    hours_late = 86_400_000 + 5 * 3_600_000
    daily = periodic(schedule="@daily", next_ms=86_400_000)
    assert plan(evolve(daily, missed="skip"), hours_late) == ([], 2 * 86_400_000)
    assert plan(evolve(daily, missed="once"), hours_late) == ([86_400_000], 2 * 86_400_000)
    assert plan(evolve(daily, missed="skip"), 86_400_000 + ON_TIME_MS) == ([86_400_000], 2 * 86_400_000)


def test_of_very_many_missed_times_the_last_thousand_run() -> None:
    """A month of runs every ten seconds was missed."""
    found = plan(periodic(missed="all"), 30 * 86_400_000)
    assert len(found.fires) == RUNS_MAX and found.fires[-1] == 30 * 86_400_000
    assert found.fires == sorted(set(found.fires))


def test_nothing_is_fired_before_its_time() -> None:
    """Clocks differ: an earlier leader's clock may have been ahead."""
    assert plan(periodic(), 9_999) == ([], 10_000)


def test_one_that_never_falls_due_again_is_left_so() -> None:
    """This is so on the last day of the calendar."""
    last_day_ms = 253_402_214_400_000
    found = periodic(schedule="@daily", next_ms=last_day_ms)
    assert plan(found, last_day_ms + 1) == ([last_day_ms], NEVER_MS)
    assert plan(evolve(found, next_ms=NEVER_MS), last_day_ms + 1) == ([], NEVER_MS)


def test_a_zone_that_this_machine_does_not_know_is_told() -> None:
    """The files of another machine may have it."""
    with pytest.raises(BadRequest):
        plan(periodic(schedule="@daily", zone="Mars/Olympus"), 86_400_000)


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from(["skip", "once", "all"]),
    st.sampled_from(["every 10s", "*/2 * * * *", "30 2 * * *"]),
    st.lists(st.integers(0, 400_000), min_size=1, max_size=12),
)
def test_no_time_is_fired_twice_and_with_all_none_is_left_out(missed: str, schedule: str, waits: list[int]) -> None:
    """This holds for any times of the checks, even if every second leader dies before it has recorded a run."""
    world = QueueWorld()
    world.done(evolve(NIGHTLY, schedule=schedule, missed=missed, next_ms=600_000))
    now_ms, enqueued = 0, set[bytes]()
    counted = 0
    for place, wait_ms in enumerate(waits):
        now_ms += wait_ms
        for one in due(world.replica, now_ms):
            found = plan(one, now_ms)
            ids = {task_id(one, fired_ms, 4) for fired_ms in found.fires}
            assert len(ids) == len(found.fires)
            enqueued |= ids
            if place % 2:
                world.done(fire_periodic.Args("nightly", one.next_ms, found.next_ms, len(found.fires)))
                counted += len(found.fires)
    assert world.replica.periodic["nightly"].fired == counted <= len(enqueued)
    if missed == "all" and not due(world.replica, now_ms) and counted:
        first = periodic(schedule=schedule, missed="all", next_ms=600_000)
        assert {task_id(first, at_ms, 4) for at_ms in plan(first, now_ms).fires} == enqueued
