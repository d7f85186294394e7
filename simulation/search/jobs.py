"""What clients and drivers do with jobs of the pure cluster (design: simulation).

Another part of `simulation.search.cluster.Cluster`, whose first paragraph tells what it is for.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from attrs import asdict, define, frozen

from log_entries import (
    commit_batch,
    complete_job,
    driver_ready,
    fail_job,
    kill_job,
    replace_job,
    seal_input,
    submit_job,
)
from onyxq.core.replica import Job
from simulation.search.peer import Peer
from simulation.search.queues import Queueing

INPUTS = ("in", "more")
NOBODY = "-"
"""Where a word names no zone, or no other job."""


@frozen
class Wanted:
    """A job as a client submits it."""

    name: str
    scheduler: str = "balanced"
    least: int = 1
    """Slots that it needs."""
    most: int = 0
    """Slots that it can use; 0: any number."""
    share: int = 0
    """Per cent of all slots."""
    zone: str = NOBODY
    beside: str = NOBODY
    keep_ms: int = 20_000
    other: int = 0
    """Another number makes another job under the same name."""


def _of_wanted(action: Callable[..., bool]) -> Callable[..., bool]:
    """Show the fields of `Wanted` as parameters of an action, as scenario files take them."""
    own, fields = (inspect.signature(one) for one in (action, Wanted))
    shown: Any = action
    shown.__signature__ = own.replace(parameters=[*list(own.parameters.values())[:-1], *fields.parameters.values()])
    return action


@define(eq=False)
class Jobbing(Queueing):
    """See the module's first paragraph."""

    @_of_wanted
    def submit_job(self, peer_id: str, *wanted: Any) -> bool:
        """A member submits a job; ``wanted`` is the fields of `Wanted`."""
        return self._submit(self._member(peer_id), _submission(Wanted(*wanted)))

    def replace_job(
        self, peer_id: str, earlier: str, name: str, taking: str = "places", least: int = 1, keep_ms: int = 20_000
    ) -> bool:
        """A member ends a job that it knows for a client, and submits another one in its place.

        The other job has the same scheduler and share. It needs ``least`` slots, and takes over the ``places`` of the
        inputs, or the ``state``.
        """
        peer, job = self._job(peer_id, earlier)
        if job is None:
            return False
        new = Wanted(name, job.scheduler, least, share=job.percentage, keep_ms=keep_ms)
        fields = asdict(_submission(new), recurse=False)
        fields["resume"] = "" if taking == "state" else earlier
        return self._submit(peer, replace_job.Args(**fields, replaces=earlier, submitted=job.submitted))

    def driver_ready(self, peer_id: str, name: str, behind: int = 0) -> bool:
        """A member says that a job runs under the version it knows.

        Here and below, ``behind`` is by how much the version it names is too low: so does what is left of a
        driver that was replaced."""
        peer, job = self._job(peer_id, name)
        return job is not None and self._submit(peer, driver_ready.Args(name, job.version - behind))

    def complete_job(self, peer_id: str, name: str, behind: int = 0) -> bool:
        """A member says that a job is done."""
        peer, job = self._job(peer_id, name)
        return job is not None and self._submit(peer, complete_job.Args(name, job.version - behind))

    def fail_job(self, peer_id: str, name: str, behind: int = 0) -> bool:
        """A member says that a job has failed."""
        peer, job = self._job(peer_id, name)
        return job is not None and self._submit(peer, fail_job.Args(name, job.version - behind, "no such column"))

    def commit_batch(self, peer_id: str, name: str, ahead: int = 1, behind: int = 0) -> bool:
        """A member commits a batch of a job, ``ahead`` of the last one that it knows of."""
        peer, job = self._job(peer_id, name)
        if job is None:
            return False
        batch = job.batch + ahead
        args = commit_batch.Args(name, job.version - behind, batch, f"up to {batch}".encode(), ())
        return self._submit(peer, args)

    def seal_input(self, peer_id: str, name: str, what: str) -> bool:
        """A member says for a client that nothing more comes on an input."""
        return self._submit(self._member(peer_id), seal_input.Args(name, what))

    def kill_job(self, peer_id: str, name: str) -> bool:
        """A member ends a job for a client."""
        return self._submit(self._member(peer_id), kill_job.Args(name))

    def _job(self, peer_id: str, name: str) -> tuple[Peer | None, Job | None]:
        peer = self._member(peer_id)
        return peer, peer.replica.jobs.get(name) if peer is not None else None


def _submission(job: Wanted) -> submit_job.Args:
    """What a client submits."""
    return submit_job.Args(
        id=job.name,
        body=b"job",
        digest=f"{job.name} {job.other}".encode().ljust(submit_job.DIGEST_BYTES),
        scheduler=job.scheduler,
        percentage=job.share,
        min_slots=job.least,
        max_slots=job.most,
        tags=(),
        zones=() if job.zone == NOBODY else (job.zone,),
        beside="" if job.beside == NOBODY else job.beside,
        inputs=INPUTS,
        tasks=(("map", 0, 2, 0), ("reduce", 1, 0, 50)),
        own_host=False,
        keep_ms=job.keep_ms,
    )


def driven(peer: Peer) -> list[str]:
    """The jobs that a peer drives, as far as it knows."""
    return sorted(name for name, job in peer.replica.jobs.items() if job.driver == peer.id)
