"""The checkers of claims, keys, limits and periodic tasks, on histories made by hand."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
from attrs import evolve
from pyrsistent import pmap

from log_entries import (
    expire_claims,
    fire_periodic,
    grant_claims,
    grant_limited_claims,
    purge,
    release_claims,
    renew_claims,
    set_periodic,
    set_queue,
    settle_transactions,
)
from onyxq.client.values import Task
from onyxq.core.entry import APPLIED
from onyxq.core.facts import Mark, Update, update_row
from onyxq.core.ids import Run, TaskId, make_id, offset_of, stretch_of
from onyxq.core.replica import EMPTY, Partition, Periodic, Replica
from onyxq.core.step import Outcome, Step
from onyxq.store.memory import MemoryTables
from simulation.checkers import Broken, Course
from simulation.checkers.enough_copies import EnoughCopies
from simulation.checkers.invariants_hold import SnapshotsEqual
from simulation.checkers.keys_in_order import KeysInOrder
from simulation.checkers.leaders_only import LeadersOnly
from simulation.checkers.ledger import Event, Ledger
from simulation.checkers.limits_kept import LimitsKept
from simulation.checkers.linearizable import explains
from simulation.checkers.nothing_lost import NothingLost
from simulation.checkers.one_claim import OneClaim
from simulation.checkers.pauses_hold import PausesHold
from simulation.checkers.periodic_once import PeriodicOnce
from simulation.planted.seams import faulty, returning
from simulation.replay import checkers_from
from simulation.world.audit import Audit
from simulation.world.clock import SimulatedClock
from simulation.world.history import (
    CANCEL,
    CLAIM,
    COMPLETE,
    DISCARD,
    FAIL,
    OK,
    REFUSED,
    REQUEUE,
    Enqueued,
    Finished,
    Heard,
    History,
    Operation,
    Said,
    Sent,
)
from simulation.world.log import MemoryBackend

SECOND_MS = 1_000


def task_id(number: int) -> TaskId:
    """Return ids of tasks of partition 0."""
    return make_id(1_000_000 + number, 0, 7, number * 1024)


def completed(number: int, data: bytes, **more: Any) -> Task:
    """Return a completed task as it is read back."""
    return Task(
        id=task_id(number), queue="q", data=data, format="bytes", priority=0, state="completed", at_ms=0,
        attempts=0, claims=(), updates=0, **more,
    )  # fmt: skip


def stepped(position: int, *entries: object, clock_ms: int = 0, **replica: object) -> Step:
    """Return a record whose entries all apply."""
    partitions = pmap({0: Partition((), (), "", 1)})
    after = evolve(EMPTY, position=position, clock_ms=clock_ms, partitions=partitions, **replica)
    return Step(after, tuple(Outcome(place, "", args, APPLIED, 1) for place, args in enumerate(entries)))


def limits(**numbers: int) -> set_queue.Args:
    """Return limits of the queue."""
    return set_queue.Args("q", pmap(numbers), pmap(), pmap(), (), "", "")


def grant(*numbers: int) -> grant_limited_claims.Args:
    """Return a grant of the queue's tasks."""
    runs = tuple(Run(task_id(number), 1) for number in numbers)
    return grant_limited_claims.Args(0, 1, "q", (grant_claims.Grant("w", 1_000, runs),))


# --- claims


def expiry(token: int, *numbers: int) -> expire_claims.Args:
    """Return an expiry of the claims under the token."""
    runs = tuple(Run(task_id(number), 1) for number in numbers)
    return expire_claims.Args(0, 1, (expire_claims.Expiry(token, 1, runs),))


def test_an_expiry_takes_what_is_over_and_leaves_what_was_renewed() -> None:
    """It may name both, because its writer did not know of the renewal yet."""
    checker = OneClaim(History())
    checker.step(EMPTY, stepped(1, grant(1, 2), log_time_ms=5_000))
    renewed = renew_claims.Args(0, 1, (renew_claims.Renewal(1, 2_000, (Run(task_id(2), 1),)),))
    checker.step(EMPTY, stepped(2, renewed, log_time_ms=6_400))
    checker.step(EMPTY, stepped(3, expiry(1, 1, 2), log_time_ms=6_600))
    checker.step(EMPTY, stepped(4, grant(1), log_time_ms=6_700))
    with pytest.raises(Broken, match="was granted under 5 while held under 1"):
        checker.step(EMPTY, stepped(5, grant(2), log_time_ms=6_700))


def test_claims_of_before_an_origin_expire_behind_it() -> None:
    """They expire once they are over, and no earlier."""
    claimed = {stretch_of(task_id(number)): ((offset_of(task_id(number)), 1, 1, "w", 6_000),) for number in (1, 2)}
    start = evolve(EMPTY, claims=pmap({0: pmap(claimed)}))
    (checker,) = (one for one in checkers_from(start) if isinstance(one, OneClaim))
    checker.step(EMPTY, stepped(2, expiry(1, 1), log_time_ms=6_600))
    checker.step(EMPTY, stepped(3, grant(1), log_time_ms=6_600))
    with pytest.raises(Broken, match="was granted under 4 while held under 1"):
        checker.step(EMPTY, stepped(4, grant(2), log_time_ms=6_600))


def test_a_grant_of_what_expired_too_early_is_seen() -> None:
    """The check uses log time and the lease; another tenth of a second belongs to the worker."""
    checker = OneClaim(History())
    checker.step(EMPTY, stepped(1, grant(1), log_time_ms=5_000))
    checker.step(EMPTY, stepped(2, expiry(1, 1), log_time_ms=6_100))
    with pytest.raises(Broken, match="was granted under 3 while held under 1"):
        checker.step(EMPTY, stepped(3, grant(1), log_time_ms=6_100))


# --- leaders and snapshots


@pytest.mark.parametrize("args", [purge.Args(0, 3, 1_000, ()), settle_transactions.Args(("t",), 0, 3)])
def test_a_peer_that_does_not_lead_neither_purges_nor_settles(args: object) -> None:
    """Only the leader knows which tasks are finished, and what is visible."""
    found = Partition(("n",), ("n",), "leader", 3, True)
    replica = evolve(EMPTY, position=1, partitions=pmap({0: found}))
    applied = (Outcome(0, "", args, APPLIED, 1),)
    LeadersOnly().step(replica, Step(replica, applied, peer="leader"))
    with pytest.raises(Broken, match="of other for partition 0 under 3 was applied"):
        LeadersOnly().step(replica, Step(replica, applied, peer="other"))
    with pytest.raises(Broken, match="leads under 4"):
        later = evolve(replica, partitions=pmap({0: evolve(found, epoch=4)}))
        LeadersOnly().step(later, Step(later, applied, peer="leader"))


def test_short_logs_have_their_snapshots_judged_too() -> None:
    """Most scenes and searches write fewer records than lie between two snapshots of a long log."""
    checker = SnapshotsEqual()
    found: list[int] = []
    with faulty([("onyxq.core.snapshot:unpack", returning(EMPTY))]):
        for number in range(1, 400):
            try:
                checker.step(EMPTY, stepped(number))
            except Broken:
                found.append(number)
    assert found == [1, 2, 4, 8, 16, 32, 64, 128, 256, 384]


# --- limits and pauses


def limits_course() -> Course:
    """A log that is checked by the checker of limits, and by the one that reports ended claims."""
    claims = OneClaim(History())
    return Course(checkers=(claims, LimitsKept(History(), claims=claims)))


def test_one_task_too_many_at_a_time_is_seen() -> None:
    """Released tasks no longer count."""
    course = limits_course()
    course.judge(stepped(1, limits(concurrency=2)))
    course.judge(stepped(2, grant(1, 2)))
    released = release_claims.Release(2, release_claims.COMPLETED_EVENT, 0, 0, "", (Run(task_id(1), 1),))
    course.judge(stepped(3, release_claims.Args(0, 1, (released,))))
    course.judge(stepped(4, grant(3)))
    with pytest.raises(Broken, match="3 tasks of q are claimed"):
        course.judge(stepped(5, grant(4)))


def test_tasks_granted_too_soon_are_seen() -> None:
    """The check uses the log's clock; at first a second's worth is allowed."""
    course = limits_course()
    course.judge(stepped(1, limits(rate=2_000)))
    course.judge(stepped(2, grant(1, 2), clock_ms=5_000))
    course.judge(stepped(3, grant(3), clock_ms=5_500))
    with pytest.raises(Broken, match="too soon"):
        course.judge(stepped(4, grant(4), clock_ms=5_900))


def test_a_grant_without_regard_to_limits_is_seen_once_all_nodes_know_them() -> None:
    """Before that it may have been in flight."""
    checker = LimitsKept(History(), claims=OneClaim(History()))
    checker.step(EMPTY, stepped(1, limits(concurrency=2)))
    plain = grant_claims.Args(0, 1, grant(1).grants)
    checker.step(EMPTY, stepped(2, plain))
    checker.heard("q", task_id(1), 2, sent_s=5.0, now_s=5.0)
    checker.looked([1, 2], 6.0)
    checker.heard("q", task_id(1), 2, sent_s=5.0, now_s=7.0)
    with pytest.raises(Broken, match="without regard"):
        checker.heard("q", task_id(1), 2, sent_s=7.0, now_s=7.0)


def test_a_grant_of_a_paused_queue_is_seen() -> None:
    """In the log it is found at once; for other grants once all nodes know the pause."""
    checker = PausesHold(History())
    paused = set_queue.Args("q", pmap(), pmap(), pmap({"paused": True}), (), "", "")
    checker.step(EMPTY, stepped(1, paused))
    checker.heard("q", 2, 3.0)
    checker.looked([0, 1], 4.0)
    checker.looked([1, 1], 5.0)
    checker.heard("q", 2, 4.5)
    with pytest.raises(Broken, match="paused since 1"):
        checker.heard("q", 2, 5.5)
    with pytest.raises(Broken, match="though it is paused"):
        checker.step(EMPTY, stepped(3, grant(1)))


# --- keys


def keyed(history: History, *orders: tuple[int, int]) -> KeysInOrder:
    """Tasks 1, 2, ... of a key, each with the due time of its row and the second of its acknowledgement."""
    headers = {}
    ledger = Ledger(history, float, lambda one: headers[one])
    for number, (due_ms, seen_s) in enumerate(orders, start=1):
        data = b"%d" % number
        history.sent[data] = Sent("q", Said(ordering_key="k"), seen_s - 1, seen_s)
        headers[task_id(number)] = {"order": [due_ms, 1, number]}
        ledger.read[task_id(number)] = completed(number, data, ordering_key="k")
    return KeysInOrder(history, ledger, PausesHold(history))


def test_a_task_that_overtakes_another_of_its_key_is_seen() -> None:
    """It is allowed if the other task was not acknowledged yet, or was requeued."""
    checker = keyed(History(), (10, 1), (20, 2))
    grants = checker.ledger.grants
    grants[task_id(1)], grants[task_id(2)] = [Event(8, 8.0, 1)], [Event(5, 5.0, 1)]
    with pytest.raises(Broken, match="not the order of their rows"):
        checker.finish()
    checker.ledger.reopened[task_id(1)] = [Event(7, 7.0, 1)]
    checker.finish()
    late = keyed(History(), (10, 6), (20, 2))
    late.ledger.grants.update(grants)
    late.finish()


def test_rows_that_do_not_follow_the_enqueueing_are_seen() -> None:
    """Both are immediate: if one was acknowledged before the other was sent, it comes first."""
    checker = keyed(History(), (30, 1), (20, 9))
    grants = checker.ledger.grants
    grants[task_id(1)], grants[task_id(2)] = [Event(12, 12.0, 1)], [Event(10, 10.0, 1)]
    with pytest.raises(Broken, match="not the order in which they were enqueued"):
        checker.finish()


def test_two_tasks_of_a_key_with_workers_at_a_time_are_seen() -> None:
    """This is by the workers' own clocks."""
    history = History()
    checker = keyed(history, (10, 1), (20, 2))
    for number in (1, 2):
        history.heard[task_id(number)] = {number: Heard("w", 3.0, 9.0)}
    checker.heard(("q", "k"), task_id(1), 1, 3.0)
    with pytest.raises(Broken, match="holds"):
        checker.heard(("q", "k"), task_id(2), 2, 4.0)
    history.heard[task_id(1)][1].ended = True
    checker.heard(("q", "k"), task_id(2), 2, 4.0)


# --- periodic tasks


def planned(next_ms: int) -> tuple[set_periodic.Args, dict[str, object]]:
    """Return a periodic task for every five seconds, as an entry and in the replica."""
    args = set_periodic.Args("tick", "q", "every 5s", "UTC", b"", "bytes", 0, "all", False, next_ms)
    made = Periodic("tick", "q", "every 5s", "UTC", b"", "bytes", 0, "all", False, next_ms, 0)
    return args, {"periodic": pmap({"tick": made})}


@pytest.mark.parametrize(
    ("fired", "problem"),
    [
        ((5_000, 15_000, 2), ""),
        ((5_000, 15_000, 1), "fired 1 times"),
        ((10_000, 15_000, 1), "not its time"),
        ((5_000, 12_000, 2), "fired 2 times"),
    ],
)
def test_each_planned_time_is_passed_once(fired: tuple[int, int, int], problem: str) -> None:
    """Times pass in order, with as many runs as times."""
    checker = PeriodicOnce(History(), Ledger(History(), float, lambda one: {}))
    args, replica = planned(5_000)
    checker.step(EMPTY, stepped(1, args, **replica))
    step = stepped(2, fire_periodic.Args("tick", *fired))
    if not problem:
        checker.step(EMPTY, step)
        with pytest.raises(Broken, match="never ran"):
            checker.finish()
        return
    with pytest.raises(Broken, match=problem):
        checker.step(EMPTY, step)


# --- payloads


def test_a_worker_that_is_given_another_tasks_payload_is_seen() -> None:
    """It need not be acknowledged yet; then its id is not known."""
    history = History()
    history.enqueued[task_id(1)] = Enqueued("q", b"one", 0.0)
    checker = NothingLost(history)
    checker.given(task_id(1), "q", b"one")
    checker.given(task_id(2), "q", b"two")
    with pytest.raises(Broken, match="was given .* with b'two', acknowledged was b'one'"):
        checker.given(task_id(1), "q", b"two")
    with pytest.raises(Broken, match="was given"):
        checker.given(task_id(1), "other", b"one")


def test_a_worker_may_be_given_what_replaced_the_data_of_a_unique_key() -> None:
    """That is so before the replacement is acknowledged; data that was sent for another key never is."""
    history = History()
    history.enqueued[task_id(1)] = Enqueued("q", b"one", 0.0, Said(unique_key="k"))
    history.sent = {b"two": Sent("q", Said(unique_key="k"), 1.0), b"other": Sent("q", Said(unique_key="l"), 1.0)}
    checker = NothingLost(history)
    checker.given(task_id(1), "q", b"two")
    with pytest.raises(Broken, match="was given"):
        checker.given(task_id(1), "q", b"other")


def test_a_client_that_is_told_that_an_acknowledged_task_does_not_exist_is_seen() -> None:
    """It is right before the acknowledgement, and once the task is purged."""
    history = History()
    history.enqueued[task_id(1)] = Enqueued("q", b"one", 5.0)
    checker = NothingLost(history, read={task_id(1)})
    checker.looked(1, [1, 1], 5.5)
    denied = [evolve(call(CANCEL, -1, at_s, REFUSED), code="not_found") for at_s in (4.0, 6.0)]
    history.operations[task_id(1)] = denied[:1]
    checker.finish()
    history.operations[task_id(1)] = denied
    with pytest.raises(Broken, match=r"was acknowledged at 5.000, and then cancel\(-1\) .* not_found"):
        checker.finish()
    checker.purged = {task_id(1)}
    checker.finish()


@pytest.mark.parametrize(("denied_s", "broken"), [(7.5, False), (9.5, True)])
def test_a_leader_that_does_not_know_yet_that_it_is_deposed_may_deny_a_task(denied_s: float, broken: bool) -> None:
    """It has not read of the next leader, which acknowledged the task."""
    history = History()
    history.enqueued[task_id(1)] = Enqueued("q", b"one", 5.0)
    history.operations[task_id(1)] = [evolve(call(CANCEL, -1, denied_s, REFUSED), code="not_found")]
    checker = NothingLost(history, read={task_id(1)})
    checker.looked(1, [1, 1], 3.0)
    checker.looked(2, [1, 2], 4.0)  # the epoch of the next leader
    checker.looked(3, [1, 3], 7.0)
    checker.looked(4, [2, 4], 9.0)
    with pytest.raises(Broken, match="acknowledged at 5.000") if broken else nullcontext():
        checker.finish()


# --- copies


def test_an_update_that_a_minority_of_the_members_has_is_seen() -> None:
    """It is seen as soon as it is acknowledged, and again when the members change."""
    disks = {node: MemoryTables() for node in "abcd"}
    row = update_row(task_id(1), Update(5, 0, 1_000, b"half", Mark(3, 9)))
    checker = EnoughCopies(History(), lambda: disks)

    def placed(*members: str) -> Replica:
        return evolve(EMPTY, partitions=pmap({0: Partition(members, members, "", 1)}))

    disks["a"].rows.put(row.key, row.value)
    with pytest.raises(Broken, match="an update of .* is on 1 of 3 members' disks"):
        checker.updated(placed("a", "b", "c"), task_id(1), 5, 0)
    disks["b"].rows.put(row.key, row.value)
    checker.updated(placed("a", "b", "c"), task_id(1), 5, 0)
    with pytest.raises(Broken, match="an update of .* is on 0 of 2 members' disks"):
        checker.acknowledged(placed("c", "d"), [task_id(1)])
    with pytest.raises(Broken, match="an update of .* is on 1 of 2 members' disks"):
        checker.updated(placed("a", "c"), task_id(1), 5, 0)


# --- completions


def test_a_completion_is_judged_although_the_enqueue_of_its_task_was_never_acknowledged() -> None:
    """The answer of an enqueue may be lost while a worker has the task already."""
    history = History()
    history.completed[task_id(1)] = Finished(5, b"done", 7)
    audit = Audit(MemoryBackend(SimulatedClock()), history)
    audit.read_back(completed(1, b"sent", result=b"done"))
    with pytest.raises(Broken, match="has the result b'other', acknowledged was b'done'"):
        audit.read_back(completed(1, b"sent", result=b"other"))
    with pytest.raises(Broken, match="is ready although its completion was acknowledged"):
        audit.read_back(evolve(completed(1, b"sent"), state="ready"))


# --- what clients were told


def call(kind: str, token: int, at_s: float, outcome: str = OK) -> Operation:
    """Return a call that took no time."""
    return Operation(kind, "c", token, at_s, at_s, outcome, lease_ms=10 * SECOND_MS)


def test_a_requeued_task_may_be_claimed_and_a_discarded_one_may_not() -> None:
    """A worker that holds a task cannot have it requeued."""
    died = [call(CLAIM, 1, 1), call(FAIL, 1, 2)]
    assert explains([*died, call(REQUEUE, -1, 3), call(CLAIM, 5, 4), call(COMPLETE, 5, 5)])
    assert not explains([*died, call(DISCARD, -1, 3), call(CLAIM, 5, 4)])
    assert not explains([call(CLAIM, 1, 1), call(REQUEUE, -1, 2), call(COMPLETE, 1, 3)])
    assert not explains([*died, call(CANCEL, -1, 3), call(REQUEUE, -1, 4), call(CLAIM, 5, 5)])
