"""The allocator of jobs: which peer drives each job, and with how many slots (design: jobs on Spark).

A pure function of the replica, on integers.  Every entry that changes jobs, members or slots calls it.
A job runs at one peer, its driver, with slots of that peer.  A peer drives jobs if it is a member, is not
draining and offers slots.  It *fits* a job if it offers enough slots, has all tags
that the job asks for, and is in one of the job's zones.  If the job runs beside another job, it must
also be the driver of that job.

Drivers are chosen first.  In the order of submission, each running job keeps its driver if that peer still
fits and has enough slots.  Then the jobs without a driver, in the order of submission, get one
with room.  If no peer has room, running jobs are moved to make room: as few as possible,
and at most `onyxq.core.jobs.placement.MOVES_MAX` for one job.  A job that runs beside another, or has
another beside it, is never moved.  A job that still finds no room waits, and later jobs may still find some.
Nothing else moves a running job: neither a better share elsewhere nor a new peer.  A job that replaces another begins
as a running job with that one's driver (`log_entries.replace_job`).

Slots are distributed next, peer by peer.  Every job there gets what it needs.  The rest is given out in this order:

* to jobs by percentage, in the order of submission, up to their share of all slots that are offered;
* to greedy jobs, in that order, as many as they can use;
* to balanced jobs, so that they have equally many;
* what no other job can use, to jobs by percentage again.

Shares change while jobs run.  Tasks of a job share its slots: each may run in a percentage of them,
within its own limits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import evolve

from onyxq.core.jobs.lifetime import RUNNING, WAITING, active
from onyxq.core.jobs.placement import Offer, placed, suits
from onyxq.core.jobs.slots import need, shares, tasks_of
from onyxq.core.replica import Job, Node, Peer, Replica


def allocated(replica: Replica, position: int) -> Replica:
    """Return the replica after a new allocation of drivers and slots; ``position``: of the entry that asks for it."""
    jobs = active(replica)
    if not jobs:
        return replica
    offered = offers(replica)
    drivers = placed(jobs, offered)
    slots = shared(jobs, drivers, offered)
    changed = replica.jobs.evolver()
    for job in jobs:
        driver = drivers.get(job.id, "")
        why = "" if driver else reason(job, jobs, drivers, offered)
        new = _driven(job, driver, position, why)
        new = evolve(new, slots=slots.get(job.id, 0), task_slots=tasks_of(job, slots.get(job.id, 0)))
        if new != job:
            changed[job.id] = new
    return evolve(replica, jobs=changed.persistent()) if changed.is_dirty() else replica


def offers(replica: Replica) -> list[Offer]:
    """Return what each peer offers for jobs, ordered by peer id."""
    found = []
    for name in sorted(replica.ring.members):
        peer = replica.peers.get(name)
        if peer is None:
            continue  # a broken replica; the invariants of membership report it
        node = replica.nodes.get(peer.node)
        if _takes_jobs(peer, node):
            found.append(Offer(name, peer.slots, peer.zone, frozenset(peer.tags)))
    return found


def _takes_jobs(peer: Peer, node: Node | None) -> bool:
    """Return whether a peer offers slots and its node is not draining."""
    return peer.slots > 0 and not (node is not None and node.draining)


def _driven(job: Job, driver: str, position: int, why: str) -> Job:
    """Return the job with its driver; a new driver gets a version above all earlier ones."""
    if driver == job.driver:
        return evolve(job, why=why)
    if not driver:
        return evolve(job, state=WAITING, why=why, driver="", ready=False)
    version = max(position, job.version + 1)
    return evolve(job, state=RUNNING, why="", driver=driver, version=version, ready=False)


def shared(jobs: Sequence[Job], drivers: Mapping[str, str], offered: Sequence[Offer]) -> dict[str, int]:
    """Return the number of slots of each job that has a driver; ``jobs`` are in the order of submission."""
    total = sum(offer.slots for offer in offered)
    at: dict[str, list[Job]] = {offer.peer: [] for offer in offered}
    for job in jobs:
        if job.id in drivers:
            at[drivers[job.id]].append(job)
    found: dict[str, int] = {}
    for offer in offered:
        found |= shares(at[offer.peer], offer.slots, total)
    return found


def reason(job: Job, jobs: Sequence[Job], drivers: Mapping[str, str], offered: Sequence[Offer]) -> str:
    """Return why a job has no driver."""
    mate = next((other.id for other in jobs if other.id == job.beside and other.submitted < job.submitted), "")
    if mate and mate not in drivers:
        return f"waits for job {mate}, beside which it runs"
    near = [offer for offer in offered if not mate or offer.peer == drivers[mate]]
    missing = _missing(job, near) or f"waits for slots: needs {need(job)} of one peer"
    return f"{missing}, and runs beside job {mate}" if mate else missing


def _missing(job: Job, offered: Sequence[Offer]) -> str:
    """Return what the job needs and no peer has; empty if one peer has all of it."""
    if not offered:
        return "no peer offers slots"
    for tag in job.tags:
        if not any(tag in offer.tags for offer in offered):
            return f"no peer with tag {tag}"
    if job.zones and not any(offer.zone in job.zones for offer in offered):
        return f"no peer in zone {' or '.join(job.zones)}"
    most = max((offer.slots for offer in offered if suits(offer, job)), default=0)
    if not most:
        return f"no peer has all of the tags {', '.join(job.tags)}{' in the zones' if job.zones else ''}"
    if need(job) > most:
        few = "peers that fit" if job.tags or job.zones else "peers"
        return f"needs {need(job)} slots, {few} offer {most} at most"
    return ""
