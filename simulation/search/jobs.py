"""What clients and drivers do with jobs of the pure cluster (design: simulation).

Another part of `simulation.search.cluster.Cluster`, whose first paragraph tells what it is for.
"""

from __future__ import annotations

from attrs import define

from log_entries import commit_batch, complete_job, driver_ready, fail_job, kill_job, seal_input, submit_job
from onyxq.core.replica import Job
from simulation.search.peer import Peer
from simulation.search.queues import Queueing

INPUTS = ("in", "more")
NOBODY = "-"
"""Where a word names no zone, or no other job."""


@define(eq=False)
class Jobbing(Queueing):
    """See the module's first paragraph."""

    def submit_job(
        self,
        peer_id: str,
        name: str,
        scheduler: str = "balanced",
        least: int = 1,
        most: int = 0,
        share: int = 0,
        zone: str = NOBODY,
        beside: str = NOBODY,
        keep_ms: int = 20_000,
        other: int = 0,
    ) -> bool:
        """A member submits a job that needs ``least`` slots, can use ``most`` (0: any number) and is to have
        ``share`` per cent; ``other`` makes another job of it under the same name."""
        args = submit_job.Args(
            id=name,
            body=b"job",
            digest=f"{name} {other}".encode().ljust(submit_job.DIGEST_BYTES),
            scheduler=scheduler,
            percentage=share,
            min_slots=least,
            max_slots=most,
            tags=(),
            zones=() if zone == NOBODY else (zone,),
            beside="" if beside == NOBODY else beside,
            inputs=INPUTS,
            tasks=(("map", 0, 2, 0), ("reduce", 1, 0, 50)),
            own_host=False,
            keep_ms=keep_ms,
        )
        return self._submit(self._member(peer_id), args)

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
        """A member says that a job cannot go on."""
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


def driven(peer: Peer) -> list[str]:
    """The jobs that a peer drives, as far as it knows."""
    return sorted(name for name, job in peer.replica.jobs.items() if job.driver == peer.id)
