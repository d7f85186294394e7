"""Batches as drivers meet them: prepared, committed once under the present version, read by runs; on a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from onyxq.client import Client
from onyxq.core.facts import pack_task, unpack_task
from onyxq.core.ids import TaskId, ids_of, make_id, with_counter
from onyxq.errors import BadRequest, Conflict, StaleToken, Superseded, TimedOut, TooLarge, Unavailable
from tests.interfaces.batches_world import JobsCluster, jobs_cluster

_names = count(1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[JobsCluster]:
    """Three nodes for all tests of this module."""
    with jobs_cluster() as found:
        yield found


@pytest.fixture
def client(cluster: JobsCluster) -> Iterator[Client]:
    """A client of it."""
    with cluster.client() as found:
        yield found


def claimed(client: Client, queue: str, number: int, *, lease_ms: int = 60_000) -> list[tuple[TaskId, int, int, None]]:
    """Runs of claimed tasks, as a batch completes them."""
    client.enqueue_many(queue, [b"%d" % place for place in range(number)])
    runs: list[tuple[TaskId, int, int, None]] = []
    while sum(one[1] for one in runs) < number:
        batch = client.claim(queue, max=number, lease_ms=lease_ms, wait_ms=5_000, worker="job/j/1")
        runs += [(run.first, run.count, run.token, None) for run in batch.runs]
    return runs


def new_runs(client: Client, queue: str, number: int, *, each: int = 10) -> list[list[Any]]:
    """Runs to enqueue, each in another partition."""
    maker, now_ms = next(_names) << 32, client.now_ms()
    payloads = [b"made %d" % place for place in range(each)]
    return [[make_id(now_ms, part % 16, maker, 0), pack_task({"queue": queue}, payloads)] for part in range(number)]


def total(client: Client, queue: str, state: str = "total") -> int:
    """How many tasks of a queue there are."""
    return client.count(queue)[queue][state]


# --- a batch -----------------------------------------------------------------------------------


def test_a_batch_is_seen_at_once_and_nothing_of_it_before(cluster: JobsCluster, client: Client, queue: str) -> None:
    """What several writers prepared, the tasks that it has read, and how far its job is."""
    job = cluster.start_job()
    done = claimed(client, queue, 40)
    mine = {"job": job.id, "version": job.version}
    parts = [
        client.prepare_batch(name=f"{queue}/{n}", enqueue=new_runs(client, f"{queue}-out", 3), **mine) for n in "ab"
    ]
    assert total(client, f"{queue}-out") == 0 and total(client, queue, "completed") == 0
    said = client.commit_batch(name=f"{queue}/in", prepared=parts, complete=done, batch=3, offsets=b"3", **mine)
    assert not said.repeat and said.settled
    assert total(client, f"{queue}-out", "ready") == 60 and total(client, queue, "completed") == 40
    assert (cluster.job(job.id).batch, cluster.job(job.id).offsets) == (3, b"3")


def test_the_same_batch_again_is_a_repeat(cluster: JobsCluster, client: Client, queue: str) -> None:
    """Whatever its writers have prepared meanwhile: the first one counts."""
    job = cluster.start_job()
    done = claimed(client, queue, 5)
    mine = {"job": job.id, "version": job.version}
    for name in ("first", "second"):
        part = client.prepare_batch(name=f"{queue}/{name}", enqueue=new_runs(client, f"{queue}-out", 1), **mine)
        said = client.commit_batch(name=f"{queue}/in {name}", prepared=[part], complete=done, batch=0, **mine)
        assert said.repeat == (name == "second")
    assert total(client, f"{queue}-out") == 10
    with pytest.raises(Conflict) as caught:
        client.commit_batch(name=f"{queue}/in 3", complete=done, batch=0, offsets=b"other", **mine)
    assert (caught.value.code, caught.value.field) == ("conflict", "offsets")
    with pytest.raises(Conflict) as caught:
        client.commit_batch(name=f"{queue}/in 4", batch=2, **mine)
    assert caught.value.field == "batch"


def test_a_batch_before_the_last_one_is_refused(cluster: JobsCluster, client: Client) -> None:
    """Only the offsets of the last batch are known. So it may be another attempt, whose driver knew an old state."""
    job = cluster.start_job()
    mine = {"job": job.id, "version": job.version}
    for batch in range(2):
        client.commit_batch(name=f"{job.id}/{batch}", batch=batch, **mine)
    with pytest.raises(Conflict, match="is before its last one, batch 1") as caught:
        client.commit_batch(name=f"{job.id}/again", batch=0, **mine)
    assert caught.value.field == "batch"


def test_a_driver_that_was_replaced_commits_nothing(cluster: JobsCluster, client: Client, queue: str) -> None:
    """Neither what it had prepared before nor anything else; its successor does."""
    job = cluster.start_job()
    done = claimed(client, queue, 5)
    old = {"job": job.id, "version": job.version}
    part = client.prepare_batch(name=f"{queue}/a", enqueue=new_runs(client, f"{queue}-out", 1), **old)
    new = {"job": job.id, "version": cluster.take_over(job.id).version}
    with pytest.raises(Superseded) as caught:
        client.commit_batch(name=f"{queue}/in", prepared=[part], complete=done, **old)
    assert (caught.value.code, caught.value.field, caught.value.status) == ("superseded", "version", 409)
    with pytest.raises(Superseded):
        client.prepare_batch(name=f"{queue}/b", enqueue=new_runs(client, f"{queue}-out", 1), **old)
    assert total(client, f"{queue}-out") == 0 and total(client, queue, "completed") == 0
    client.commit_batch(name=f"{queue}/in 2", complete=done, **new)
    cluster.kill(job.id)
    with pytest.raises(Superseded):
        client.commit_batch(name=f"{queue}/in 3", batch=1, **new)


@pytest.mark.long
def test_what_drivers_left_behind_goes_long_before_its_deadline(
    cluster: JobsCluster, client: Client, queue: str
) -> None:
    """Attempts at a batch that was committed otherwise, and the batch of a driver that was replaced."""
    job = cluster.start_job()
    old = {"job": job.id, "version": job.version}
    attempts = [
        client.prepare_batch(
            name=f"job/{job.id}/{job.version}/0/{attempt}", enqueue=new_runs(client, f"{queue}-out", 2), **old
        )
        for attempt in "ab"
    ]
    client.commit_batch(name=f"job/{job.id}/{job.version}/0/in", prepared=attempts[1:], batch=0, **old)
    name = f"job/{job.id}/{job.version}/1/a"
    client.prepare_batch(name=name, enqueue=new_runs(client, f"{queue}-out", 2), **old)
    cluster.until_prepared(job.id, {name})
    cluster.take_over(job.id)
    cluster.until_prepared(job.id, set())
    assert total(client, f"{queue}-out") == 20


def test_names_of_batches_are_for_these_batches(cluster: JobsCluster, client: Client, queue: str) -> None:
    """Nothing else is committed under them: it would be dropped when its batch is over."""
    job = cluster.start_job()
    mine, runs = {"job": job.id, "version": job.version}, new_runs(client, queue, 1)
    for other in (f"job/k/{job.version}/0/a", f"job/{job.id}/{job.version - 1}/0/a"):
        with pytest.raises(BadRequest) as caught:
            client.prepare_batch(name=other, enqueue=runs, **mine)
        assert caught.value.field == "name"
    first = f"job/{job.id}/{job.version}/0/a"
    part = client.prepare_batch(name=first, enqueue=runs, **mine)
    wrong: tuple[tuple[str, dict[str, Any]], ...] = (("b", {"batch": 1, **mine}), ("b", {}))
    for name, more in wrong:
        with pytest.raises(BadRequest) as caught:
            client.commit_batch(name=name, prepared=[part], **more)
        assert caught.value.field == "prepared[0]"
    for call in (lambda: client.commit_batch(name=first), lambda: client.prepare_batch(name=first, enqueue=runs)):
        with pytest.raises(BadRequest) as caught:
            call()
        assert caught.value.field == "name"
    with pytest.raises(BadRequest) as caught:
        client.transact(enqueue=[{"queue": queue, "data": b"x"}], name=first)
    assert caught.value.field == "name" and "batch 0" in caught.value.message


def test_claims_that_do_not_stand_are_named_and_keep_all_of_it_back(
    cluster: JobsCluster, client: Client, queue: str
) -> None:
    """The job stays where it was."""
    job = cluster.start_job()
    done = claimed(client, queue, 4)
    mine = {"job": job.id, "version": job.version}
    part = client.prepare_batch(name=f"{queue}/a", enqueue=new_runs(client, f"{queue}-out", 1), **mine)
    wrong = [(first, size, token + 1, None) for first, size, token, _ in done]
    with pytest.raises(StaleToken) as caught:
        client.commit_batch(name=f"{queue}/in", prepared=[part], complete=wrong, **mine)
    assert {bytes(one[0]) for one in caught.value.details} == {one for run in done for one in ids_of(run[0], run[1])}
    assert cluster.job(job.id).batch == -1 and total(client, f"{queue}-out") == 0
    client.commit_batch(name=f"{queue}/in 2", prepared=[part], complete=done, **mine)
    assert total(client, f"{queue}-out") == 10


def test_a_peer_that_does_not_know_the_version_yet_does_not_refuse_it(cluster: JobsCluster, client: Client) -> None:
    """A version is a position of the log: who is behind it says so, and is asked again."""
    job = cluster.start_job()
    with pytest.raises((Unavailable, TimedOut)):
        client.prepare_batch(name="x", enqueue=new_runs(client, "x", 1), job=job.id, version=1 << 40, timeout_ms=500)


def test_batches_without_a_job_are_known_by_their_name(client: Client, queue: str) -> None:
    """All of it once, also where it completes something."""
    done = claimed(client, queue, 5)
    for again in (False, True):
        part = client.prepare_batch(name=f"{queue}/{again}", enqueue=new_runs(client, f"{queue}-out", 2))
        said = client.commit_batch(name=f"query {queue}", prepared=[part], complete=done)
        assert said.repeat == again
    assert total(client, f"{queue}-out") == 20 and total(client, queue, "completed") == 5


def test_a_share_may_have_many_tasks(cluster: JobsCluster, client: Client, queue: str) -> None:
    """More than a transaction; but the log's entries have their limit."""
    job = cluster.start_job()
    mine = {"job": job.id, "version": job.version}
    part = client.prepare_batch(name=f"{queue}/a", enqueue=new_runs(client, queue, 16, each=1_000), **mine)
    client.commit_batch(name=f"{queue}/b", prepared=[part], **mine)
    assert total(client, queue) == 16_000
    many = [client.prepare_batch(name=f"{queue}/c", enqueue=new_runs(client, queue, 16, each=1), **mine)] * 2_000
    with pytest.raises(TooLarge) as caught:
        client.commit_batch(name=f"{queue}/d", prepared=many, batch=1, **mine)
    assert caught.value.field == "prepared"


@pytest.mark.parametrize(
    ("method", "args", "field"),
    [
        ("jobs.prepare", {"job": 1}, "job"),
        ("jobs.prepare", {"name": "n", "job": "j"}, "version"),
        ("jobs.prepare", {"name": "n", "version": 3}, "job"),
        ("jobs.prepare", {"name": "n", "more": 1}, "more"),
        ("jobs.prepare", {"name": "n"}, "complete"),
        ("jobs.prepare", {"name": "", "complete": [[bytes(20), 1, 1, None]]}, "name"),
        ("jobs.prepare", {"name": "n", "complete": [[bytes(19), 1, 1, None]]}, "complete[0].id"),
        ("jobs.prepare", {"name": "n", "enqueue": [[bytes(20), b"x"]]}, "enqueue[0]"),
        ("jobs.prepare", {"name": "n", "enqueue": [[bytes(20), b"x"]], "deadline_ms": 0}, "deadline_ms"),
        ("jobs.prepare", {"name": "n", "enqueue": [[bytes(20), b"x"]] * 20_001}, "enqueue"),
        ("jobs.commit", {"job": "j", "version": 1, "batch": -1}, "batch"),
        ("jobs.commit", {"job": "j", "version": 1, "offsets": "x"}, "offsets"),
        ("jobs.commit", {"job": "j", "version": 1, "offsets": bytes(65_537)}, "offsets"),
        ("jobs.commit", {"job": "j", "version": 1, "prepared": b"x"}, "prepared"),
        ("jobs.commit", {"job": "j", "version": 1}, "name"),
        ("jobs.commit", {"name": "n", "job": "j", "version": 1, "prepared": [b"x"]}, "prepared[0]"),
        ("jobs.commit", {"job": "j", "version": 1, "prepared": [7]}, "prepared[0]"),
        ("jobs.commit", {"name": "", "prepared": []}, "name"),
        ("jobs.commit", {"name": "n", "keep_ms": -1}, "keep_ms"),
        ("tasks.bodies", {}, "runs"),
        ("tasks.bodies", {"runs": [[bytes(20)]]}, "runs[0]"),
        ("tasks.bodies", {"runs": [[bytes(20), 1_025]]}, "runs[0].count"),
        ("tasks.bodies", {"runs": [[with_counter(bytes(20), 1_000), 100]]}, "runs[0].count"),
        ("lead.bodies", {"runs": []}, None),
    ],
)
def test_bad_input_names_the_field(client: Client, method: str, args: dict[str, Any], field: str | None) -> None:
    """Nothing is kept of it."""
    with pytest.raises((BadRequest, Exception)) as caught:
        client.call(method, args)
    assert caught.value.code in ("bad_request", "too_large") if field else caught.value.code == "forbidden"
    assert caught.value.field == field


# --- bodies ------------------------------------------------------------------------------------


def test_bodies_are_read_by_runs_whatever_has_become_of_the_tasks(client: Client, queue: str) -> None:
    """Ready, claimed and completed ones, cut to what was asked for; what is not there is named."""
    payloads = [b"payload %d" % place for place in range(3_000)]
    ids = client.enqueue_many(queue, payloads)
    batch = client.claim(queue, max=500, lease_ms=60_000, wait_ms=5_000)
    client.complete(list(batch)[:200])
    runs = [(ids[place], 1) for place in range(0, 3_000, 100)]
    nowhere = make_id(5, 3, next(_names) << 32, 10)
    found = client.read_bodies([*runs, (nowhere, 4)])
    read = {bytes(first): unpack_task(body).all_payloads() for first, body in found.found}
    assert read == {bytes(ids[place]): [payloads[place]] for place in range(0, 3_000, 100)}
    assert found.missing == [(nowhere, 4)]
    part = client.read_bodies([(run.first, run.count) for run in batch.runs])
    assert sum(unpack_task(body).count for _, body in part.found) == len(batch)
    assert sorted(one for _, body in part.found for one in unpack_task(body).all_payloads()) == sorted(batch.payloads)


def test_many_bytes_come_in_several_answers(client: Client, queue: str) -> None:
    """One answer holds about four megabytes."""
    payloads = [bytes([place]) * 200_000 for place in range(60)]
    ids = client.enqueue_many(queue, payloads)
    answer = client.call("tasks.bodies", {"runs": [[one, 1] for one in ids]})
    assert answer["rest"] and sum(len(body) for _, body in answer["bodies"]) < 6_000_000
    found = client.read_bodies([(one, 1) for one in ids])
    assert {bytes(first): unpack_task(body).payload(0) for first, body in found.found} == {
        bytes(one): payload for one, payload in zip(ids, payloads, strict=True)
    }


def test_the_data_that_replaced_a_unique_tasks_is_read(client: Client, queue: str) -> None:
    """It is the data that a claimer gets."""
    first = client.enqueue(queue, b"old", unique_key="k")
    assert client.enqueue(queue, b"new", unique_key="k") == first
    ((_, body),) = client.read_bodies([(first, 1)]).found
    assert unpack_task(body).payload(0) == b"new"
    assert client.claim(queue, wait_ms=5_000)[0].data == b"new"
