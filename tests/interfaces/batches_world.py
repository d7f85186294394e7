"""A cluster in a thread of the test process, with a job whose driver is the test."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any, TypeVar

import trio
import trio.from_thread
from attrs import evolve

from log_entries import kill_job, set_slots, submit_job
from onyxq.client import Client
from onyxq.core.entry import APPLIED
from onyxq.core.replica import Job, Replica
from onyxq.interfaces.local_cluster import LOCAL, LocalCluster
from onyxq.leader.cohort.pending_facts import part_of
from onyxq.node.node import Node
from tests.interfaces.live_world import START_S_MAX, in_thread

R = TypeVar("R")

_names = count(1)


class JobsCluster:
    """A cluster in a thread, made by `jobs_cluster`."""

    def __init__(self, cluster: LocalCluster, token: trio.lowlevel.TrioToken) -> None:
        self.cluster = cluster
        self._token = token

    @property
    def connect(self) -> str:
        """The addresses of all peers."""
        return ",".join(self.cluster.addresses)

    @property
    def node(self) -> Node:
        """The first node."""
        node = self.cluster.nodes[0].node
        assert node is not None
        return node

    @property
    def replica(self) -> Replica:
        """Return the first node's replica."""
        return self.node.replica

    def client(self) -> Client:
        """A client of all peers."""
        return Client(self.cluster.addresses)

    def run(self, call: Callable[[], Awaitable[R]]) -> R:
        """Run a function in the cluster's thread."""
        return trio.from_thread.run(call, trio_token=self._token)

    def append(self, *entries: Any) -> Sequence[str]:
        """Append entries; return their verdicts."""
        return self.run(lambda: self.node.verdicts(list(entries)))[1]

    def start_job(self, name: str = "") -> Job:
        """Start a job that only formally has one of the peers as its driver."""
        name = name or f"job-{next(_names)}"
        peers = sorted(self.replica.ring.members)
        self.append(*(set_slots.Args(peer, 8) for peer in peers))
        submission = submit_job.Args(
            name, b"body", bytes(16), "balanced", 0, 1, 1, (), (), "", ("in",), (), False, 60_000
        )
        assert self.append(submission) == [APPLIED]
        return self.job(name)

    def job(self, name: str) -> Job:
        """A job as the log has it."""
        return self.replica.jobs[name]

    def take_over(self, name: str) -> Job:
        """Let another peer drive the job from now on."""
        before = self.job(name)
        self.append(set_slots.Args(before.driver, 0))
        after = self.job(name)
        assert after.version > before.version and after.driver != before.driver
        self.append(set_slots.Args(before.driver, 8))
        return self.job(name)

    def until_prepared(self, name: str, names: set[str]) -> None:
        """Wait until the nodes have exactly these pending rows of a job's batches."""

        async def wait() -> None:
            with trio.fail_after(START_S_MAX):
                while self._prepared(name) != names:
                    await trio.sleep(0.05)

        self.run(wait)

    def _prepared(self, name: str) -> set[str]:
        stores = [one.node.store for one in self.cluster.nodes if one.node is not None]
        numbers = range(self.replica.settings.partitions)
        keys = [key for store in stores for number in numbers for key in store.pending_transactions(number)]
        return {said for said in (part_of(key).name for key in keys) if said.startswith(f"job/{name}/")}

    def kill(self, name: str) -> None:
        """End the job."""
        assert self.append(kill_job.Args(name)) == [APPLIED]


@contextmanager
def jobs_cluster(*, peers: int = 3, partitions: int = 16) -> Iterator[JobsCluster]:
    """Run a cluster in a thread of its own; raise its error."""
    with in_thread(LocalCluster(peers=peers, config=evolve(LOCAL, partitions=partitions))) as (cluster, token):
        yield JobsCluster(cluster, token)
