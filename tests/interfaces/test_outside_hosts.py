"""A job whose Spark host is a process that a user has started: here the test is this process, and runs no Spark."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
from attrs import evolve

from onyxq import Client, Function, HostSettings, Input, Job, Output
from onyxq.errors import BadRequest, Conflict, NotFound, Superseded
from onyxq.interfaces import job_hosts
from onyxq.interfaces.local_cluster import LocalCluster
from onyxq.node.jobs.hosts import Message
from tests.interfaces.live_world import running
from tests.jobs.fake_host import FakeHosts, FakeLink, obedient

WAIT_S = 30.0
LEASE_S = 3.0
_serial = count(1)


class Process:
    """A process that offers to serve a job, and serves it."""

    def __init__(self, client: Client, job: str) -> None:
        self.orders: list[dict[str, Any]] = []
        self._client, self._job = client, job
        self._name, self._number, self._node = f"process {next(_serial)}", 0, ""

    def offer(self) -> dict[str, Any]:
        """Call once without serving."""
        return self._client.host_job(self._job, self._name)

    def begin(self) -> dict[str, Any]:
        """Offer until it serves, and say that the session is up; return the plan."""
        plan: dict[str, Any] = until(lambda: self.offer()["plan"])
        self._node = plan.pop("node")
        self.call({"event": "up"})
        return plan

    def call(self, *events: dict[str, Any], again: bool = False) -> dict[str, Any]:
        """Send events, and keep the orders of the answer."""
        self._number += not again
        said = {"number": self._number, "node": self._node, "events": events}
        found = self._client.host_job(self._job, self._name, **said)
        self.orders += found["orders"]
        return found

    def order(self, kind: str) -> dict[str, Any]:
        """Call until there is an order of a kind, and return the last one."""

        def look() -> Any:
            self.call()
            return [one for one in self.orders if one["do"] == kind]

        found: dict[str, Any] = until(look)[-1]
        return found

    def say(self, event: str, version: int) -> dict[str, Any]:
        """Send an event of the job."""
        return self.call({"event": event, "job": self._job, "version": version})


def until(look: Callable[[], Any]) -> Any:
    """Look again and again, and return the first result that is not empty."""
    deadline = time.monotonic() + WAIT_S
    while not (found := look()):
        assert time.monotonic() < deadline
    return found


@pytest.fixture(scope="module")
def hosts() -> FakeHosts:
    """Hosts that peers start; they die when an input is sealed."""

    def acts(link: FakeLink, order: Message) -> None:
        obedient(link, order)
        if order["do"] == "seal":
            link.die()

    return FakeHosts(acts)


@pytest.fixture(scope="module")
def cluster(hosts: FakeHosts) -> Iterator[LocalCluster]:
    """Two peers that host Spark; a process is lost after some seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job_hosts, "LEASE_S", LEASE_S)
        with running(peers=2, slots=4, launch_host=hosts.launch) as found:
            yield found


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    """A client of one peer; jobs may be driven by the other."""
    with Client(cluster.addresses[next(_serial) % 2]) as found:
        yield found


@pytest.fixture
def job(client: Client) -> Iterator[str]:
    """A job that waits for such a process; killed after the test."""
    name = client.submit_job(job_of(submit_wait_ms=60_000), importable=False)
    yield name
    try:
        client.kill_job(name)
    except Conflict:
        return


def job_of(**settings: Any) -> Job:
    """Return a job with settings of its host."""
    return Job(
        id=f"outside-{next(_serial)}",
        workflow=[("in", "work"), ("work", "out")],
        catalog=[Input("in", queue="a"), Function("work", "pkg:work"), Output("out", queue="b")],
        own_host=True,
        max_slots=2,
        host=HostSettings(**settings),
    )


def test_a_process_of_a_user_serves_a_job_to_its_end(client: Client, job: str, hosts: FakeHosts) -> None:
    """It gets what a host of a peer gets, and the log hears of it; the peer starts none."""
    process = Process(client, job)
    assert process.begin() == {"slots": 2, "checkpoints": None, "lease_s": LEASE_S}
    version = process.order("start")["version"]
    assert version == client.job(job)["version"] and not client.job(job)["ready"]
    process.say("ready", version)
    until(lambda: process.call() and client.job(job)["ready"])
    client.seal_job(job, "in")
    assert process.order("seal")["input"] == "in"
    process.say("completed", version)
    until(lambda: process.call() and client.job(job)["state"] == "completed")
    assert process.order("forget")["version"] == version
    assert until(lambda: (said := process.call())["state"] == "ended" and said)["orders"] == []
    assert all(not link.plan.work.endswith(job) for link in hosts.links)


@pytest.mark.long
def test_a_process_that_is_silent_has_lost_the_job_to_the_next(client: Client, job: str) -> None:
    """The next one continues from the log under a higher version; what the first still commits is refused."""
    first, second = Process(client, job), Process(client, job)
    first.begin()
    old = first.order("start")["version"]
    first.say("ready", old)
    commit = {"job": job, "version": old, "batch": 0, "offsets": b"places"}
    assert client.commit_batch(name=f"{job}/0", **commit).position > old
    assert second.offer()["state"] == "waiting"
    second.begin()
    start = second.order("start")
    assert start["version"] > old and (start["batch"], start["offsets"]) == (0, "cGxhY2Vz")
    with pytest.raises(Superseded):
        client.commit_batch(name=f"{job}/1", **{**commit, "batch": 1})
    assert first.call()["state"] == "ended"
    client.commit_batch(name=f"{job}/2", **{**commit, "batch": 1, "version": start["version"]})


@pytest.mark.long
def test_a_process_that_is_stopped_is_followed_by_one_under_another_version(client: Client, job: str) -> None:
    """The next one may be the same program again: its queries of before may still run."""
    process = Process(client, job)
    process.begin()
    old = process.order("start")["version"]
    process.call({"event": "down", "error": "the user stopped it"})
    again = Process(client, job)
    again.begin()
    assert again.order("start")["version"] > old


@pytest.mark.long
def test_a_peer_serves_the_job_if_no_process_comes_in_time(client: Client, hosts: FakeHosts) -> None:
    """And a process that comes later waits until that host has ended."""
    name = client.submit_job(job_of(submit_wait_ms=100), importable=False)
    until(lambda: client.job(name)["ready"])
    assert [link.running for link in hosts.links if link.plan.work.endswith(name)] == [True]
    late = Process(client, name)
    assert late.offer() == {"state": "waiting", "plan": None, "orders": [], "why": ""}
    client.seal_job(name, "in")
    late.begin()
    assert late.order("start")["sealed"] == ["in"]
    client.kill_job(name)
    late.order("stop")


def test_a_repeat_of_a_call_has_the_same_answer(client: Client, job: str) -> None:
    """No order is lost with an answer; a call out of order is refused."""
    process = Process(client, job)
    process.begin()
    process.order("start")
    found = process.call()
    assert process.call(again=True) == found
    process._number += 1
    with pytest.raises(Conflict, match="does not follow"):
        process.call()


def test_a_job_without_such_a_process_takes_none(client: Client) -> None:
    """The error says what to submit; unknown jobs and events are refused by name."""
    plain = evolve(job_of(), host=None)
    client.submit_job(plain, importable=False)
    with pytest.raises(BadRequest, match="takes no process") as caught:
        client.host_job(plain.id, "p")
    assert "submit_wait_ms" in caught.value.advice
    client.kill_job(plain.id)
    assert client.host_job(plain.id, "p")["state"] == "ended"
    with pytest.raises(NotFound):
        client.host_job("nobody", "p")


@pytest.mark.long
def test_events_are_checked(client: Client, job: str) -> None:
    """An event without a name would end the duty of its peer."""
    process = Process(client, job)
    process.begin()
    with pytest.raises(BadRequest) as caught:
        process.call({"event": "ready"}, {"evnt": "ready"})
    assert caught.value.field == "events[1].event"
