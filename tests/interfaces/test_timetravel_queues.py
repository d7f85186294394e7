"""Limits, transactions, requeues and periodic tasks in words, and the story of a task."""

from __future__ import annotations

import pytest
from attrs import evolve
from pyrsistent import pmap

from log_entries import (
    commit_transaction,
    complete_job,
    driver_ready,
    fail_job,
    fire_periodic,
    grant_claims,
    kill_job,
    pause_periodic,
    ready_partition,
    release_claims,
    renew_claims,
    seal_input,
    set_periodic,
    set_queue,
    submit_job,
)
from onyxq.core.facts import RELEASED, REOPENED
from onyxq.core.ids import Run, TaskId, id_at
from onyxq.core.transactions import Claim, Part
from onyxq.history.dump import Dump
from onyxq.history.explain import from_log
from onyxq.history.words import history, sentence
from tests.entries.golden import batches
from tests.entries.golden.batches import batch_log
from tests.entries.golden.examples import EXAMPLES, FIRST, RUNS, queue_log
from tests.entries.world import World, creation

NOW_MS = 1_700_000_060_000


@pytest.fixture(scope="module")
def dump() -> Dump:
    """Return a log with a limited queue, transactions, and requeued tasks."""
    return Dump(cluster="main", origin=None, records=queue_log())


def told(dump: Dump, task_id: TaskId) -> list[tuple[str, str, int | None]]:
    """Return entry, verdict and token of all log entries about a task."""
    return [(one.entry, one.verdict, one.token) for one in from_log(dump, task_id, 1 << 60)]


def test_a_task_of_a_transaction_is_told_until_its_part_is_settled(dump: Dump) -> None:
    """Refused entries about it are included; the part of another partition is not."""
    found = from_log(dump, id_at(FIRST, 51), 1 << 60)
    said = [(one.entry, one.verdict) for one in found]
    assert said[0] == ("grant_claims", "applied")
    assert ("commit_transaction", "applied") in said and ("commit_transaction", "repeat") in said
    assert said.count(("settle_transactions", "applied")) == 1
    assert ("release_claims", "nothing held") in said and ("renew_claims", "nothing held") in said
    committed = next(one for one in found if (one.entry, one.verdict) == ("commit_transaction", "applied"))
    assert committed.token == found[0].token
    assert committed.words == "transaction t1 ends the claims on it, in partitions 0, 1"


def test_a_grant_within_limits_and_a_reopening_are_told(dump: Dump) -> None:
    """A grant is shown with its token, refused ones without."""
    limited = told(dump, id_at(FIRST, 1))
    assert [entry for entry, verdict, _ in limited if verdict == "applied"] == ["grant_limited_claims"]
    assert all((token is None) == (verdict != "applied") for _, verdict, token in limited)
    assert [entry for entry, _, _ in told(dump, id_at(FIRST, 71))] == ["reopen_tasks"]
    row = history(REOPENED, token=7, worker="", retry_ms=NOW_MS, attempts=26, note="")
    assert row == "requeued, due at 2023-11-14 22:14:20.000Z, after 26 attempts"


def test_each_task_of_an_entry_has_a_verdict_of_its_own() -> None:
    """A repeated renewal renews, although it moves no deadline. A release under an old token ends no claim.

    The entry applies to the neighbour of the task, whose claim was one piece with that of the task.
    """
    world = World()
    world.submit("founder", creation(partitions=1))
    world.join("a")
    leader, epoch = world.now.partitions[0].leader, world.now.partitions[0].epoch
    world.submit(leader, ready_partition.Args(0, epoch))
    pair, first, second = Run(FIRST, 2), Run(FIRST, 1), Run(id_at(FIRST, 1), 1)
    world.submit(leader, grant_claims.Args(0, epoch, (grant_claims.Grant("w", 60_000, (pair,)),)))
    token = world.now.position
    renewal = renew_claims.Args(0, epoch, (renew_claims.Renewal(token, 60_000, (pair,)),))
    world.submit(leader, renewal, renewal)
    ends = [release_claims.Release(by, RELEASED, 0, 0, "", (run,)) for by, run in ((token - 1, first), (token, second))]
    world.submit(leader, release_claims.Args(0, epoch, tuple(ends)))
    dump = Dump(cluster="main", origin=None, records=world.records)
    assert [said for _, said, _ in told(dump, FIRST)] == [*["applied"] * 3, "the token no longer held it"]
    assert [said for _, said, _ in told(dump, id_at(FIRST, 1))] == ["applied"] * 4


def test_settings_read_as_people_say_them() -> None:
    """Rates are per second, durations have units, and a pause has its user and reason."""
    assert sentence("set_queue", EXAMPLES["set_queue"]) == (
        "queue mail is paused by ops (the relay is down); lease ms 1 min, on dead stops, rate 1.5/s, "
        "retries until success, grace ms back to the default"
    )
    none = set_queue.Args("q", pmap({"rate": 0, "concurrency": 0}), pmap(), pmap({"archive": False}), (), "", "")
    assert sentence("set_queue", none) == "queue q: archive off, concurrency unlimited, rate unlimited"
    resumed = set_queue.Args("q", pmap(), pmap(), pmap({"paused": False}), (), "ops", "again")
    assert sentence("set_queue", resumed) == "queue q is resumed by ops"


def test_transactions_name_what_they_end_and_what_they_need() -> None:
    """The partitions are named too."""
    claim = Claim(0, 7, RUNS[:1])
    args = commit_transaction.Args("t", 9, (claim,), (claim._replace(runs=RUNS[1:]),), (Part(0, 1, b"d"),))
    assert sentence("commit_transaction", args, "too late") == (
        f"transaction t ends the claims on 3 tasks from {FIRST.hex()} on, provided that task "
        f"{RUNS[1].first.hex()} stay claimed, in partition 0: nothing changed, too late"
    )
    assert sentence("settle_transactions", EXAMPLES["settle_transactions"]) == (
        "partition 0 (epoch 5) has made its part of transaction step-7 visible"
    )


def test_what_is_said_of_jobs_is_told() -> None:
    """The version is shown if there is one."""
    plain = ("words", b"x", b"0123456789abcdef", "balanced", 0, 2)
    rest = ((), (), "", (), (), False, 0)
    assert sentence("submit_job", submit_job.Args(*plain, 0, *rest)) == (
        "job words is submitted: 2 or more slots, balanced"
    )
    assert sentence("submit_job", submit_job.Args(*plain, 4, *rest), "conflict") == (
        "job words is submitted: 2 to 4 slots, balanced: nothing changed, conflict"
    )
    assert sentence("driver_ready", driver_ready.Args("words", 7)) == "job words runs under version 7"
    sealed = sentence("seal_input", seal_input.Args("words", "in"))
    assert sealed == "input in of job words is sealed: no more data comes"
    assert sentence("kill_job", kill_job.Args("words")) == "job words is killed"
    assert sentence("complete_job", complete_job.Args("words", 7)) == "job words is completed under version 7"
    assert sentence("fail_job", fail_job.Args("words", 7, "no")) == "job words failed under version 7: no"


def test_periodic_tasks_are_told_with_their_times() -> None:
    """The last and the next due time are shown."""
    fired = fire_periodic.Args("nightly", NOW_MS, NOW_MS + 1_000, 1)
    assert sentence("fire_periodic", fired) == (
        "periodic task nightly, due at 2023-11-14 22:14:20.000Z: 1 run is enqueued, "
        "the next is due at 2023-11-14 22:14:21.000Z"
    )
    none = fire_periodic.Args("nightly", NOW_MS, NOW_MS + 1_000, 0)
    assert ": no runs are enqueued," in sentence("fire_periodic", none)
    assert sentence("pause_periodic", pause_periodic.Args("nightly", True, 0)) == "periodic task nightly is paused"
    new = set_periodic.Args("n", "q", "@daily", "UTC", b"", "bytes", 0, "once", False, NOW_MS)
    assert sentence("set_periodic", new) == (
        "periodic task n goes to queue q by the schedule '@daily' in zone UTC, "
        "next at 2023-11-14 22:14:20.000Z if the schedule is new"
    )
    paused = evolve(new, paused=True, options=pmap({"retries": -1, "backoff_ms": 1_500}))
    assert sentence("set_periodic", paused) == (
        "periodic task n goes to queue q by the schedule '@daily' in zone UTC, paused; "
        "its tasks have backoff ms 1.5 s, retries until success"
    )


def test_a_task_of_a_batch_is_told_with_its_batch_until_its_part_is_settled() -> None:
    """Job, number and version are shown, and refused attempts as well."""
    found = from_log(Dump(cluster="main", origin=None, records=batch_log()), batches.FIRST, 1 << 60)
    said = [(one.entry, one.verdict) for one in found]
    assert said[0] == ("grant_claims", "applied") and said[-1] == ("settle_transactions", "applied")
    assert any(entry == "commit_batch" and verdict.startswith("stale token") for entry, verdict in said)
    committed = next(one for one in found if (one.entry, one.verdict) == ("commit_batch", "applied"))
    assert committed.words.startswith("batch 3 of job j under version")
    assert "transaction done ends the claims on it, in partition 0" in committed.words
    assert committed.token == found[0].token
