"""Who drives which job, and with how many slots: one small integer allocator (design: jobs on Spark).

A pure function of the replica, called by every entry that changes jobs, members or slots.  A job
runs at one peer, its driver, with slots of that peer.  A peer drives jobs if it is a member, is not
draining and offers slots; it *fits* a job that needs no more slots than it offers, has all tags
that the job asks for, lies in one of the job's zones, and is where the job is that it runs beside.

Drivers first.  In the order of submission, a running job keeps its driver as long as that fits and
has room for what the job needs.  Then those that have none, in the order of submission, get one
with room.  Where a job finds none, running jobs are moved to make room for it: as few as possible,
and at most `onyxq.core.jobs.placement.MOVES_MAX` for one job; none that runs beside another, or has
another beside it.  A job that finds no room even so waits, and those behind it may still find some.
Nothing else moves a running job: not a better share elsewhere, and no peer that is new.

Then slots, peer by peer.  Every job there gets what it needs.  What is left goes to the jobs by
percentage, in the order of submission, up to their share of all slots that are offered; to greedy
ones, in that order, as many as they can take; to balanced ones so that they have equally many; and
what nobody else can take to those by percentage again.  Shares change while jobs run.

Tasks of a job share its slots: each may run in a percentage of them, within its own bounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import evolve

from onyxq.core.jobs.lifetime import RUNNING, WAITING, active
from onyxq.core.jobs.placement import Offer, placed, suits
from onyxq.core.jobs.slots import need, shares, tasks_of
from onyxq.core.replica import Job, Replica


def allocated(replica: Replica, position: int) -> Replica:
    """Return the replica with drivers and slots given out anew; ``position``: of the entry that asks for it."""
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
    """Return what peers have for jobs, by id of the peer."""
    found = []
    for name in sorted(replica.ring.members):
        peer = replica.peers.get(name)
        if peer is None:
            continue  # a broken replica, which the invariants of membership tell
        node = replica.nodes.get(peer.node)
        if peer.slots > 0 and not (node is not None and node.draining):
            found.append(Offer(name, peer.slots, peer.zone, frozenset(peer.tags)))
    return found


def _driven(job: Job, driver: str, position: int, why: str) -> Job:
    """Return the job with its driver; another one than before comes with a version above all before."""
    if driver == job.driver:
        return evolve(job, why=why)
    if not driver:
        return evolve(job, state=WAITING, why=why, driver="", ready=False)
    version = max(position, job.version + 1)
    return evolve(job, state=RUNNING, why="", driver=driver, version=version, ready=False)


def shared(jobs: Sequence[Job], drivers: Mapping[str, str], offered: Sequence[Offer]) -> dict[str, int]:
    """Return how many slots each job has that has a driver; ``jobs`` in the order of submission."""
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
    """Return what no peer has of what a job needs; empty if one has all."""
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
