"""Who drives which job, and with how many slots: one small integer allocator (design: jobs on Spark).

A pure function of the replica, called by every entry that changes jobs, members or slots.  A job
runs at one peer, its driver, with slots of that peer.  A peer drives jobs if it is a member, is not
draining and offers slots; it *fits* a job that needs no more slots than it offers, has all tags
that the job asks for, lies in one of the job's zones, and is where the job is that it runs beside.

Drivers first.  In the order of submission, a running job keeps its driver as long as that fits and
has room for what the job needs.  Then those that have none, in the order of submission, get one
with room.  Where a job finds none, running jobs are moved to make room for it: as few as possible,
and at most `MOVES_MAX` for one job; none that runs beside another, or has another beside it.  A job
that finds no room even so waits, and those behind it may still find some.  Nothing else moves a
running job: not a better share elsewhere, and no peer that is new.

Then slots, peer by peer.  Every job there gets what it needs.  What is left goes to the jobs by
percentage, in the order of submission, up to their share of all slots that are offered; to greedy
ones, in that order, as many as they can take; to balanced ones so that they have equally many; and
what nobody else can take to those by percentage again.  Shares change while jobs run.

Tasks of a job share its slots: each may run in a percentage of them, within its own bounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from attrs import evolve, frozen

from onyxq.jobs.lifetime import RUNNING, WAITING, active
from onyxq.replica import Job, Replica

GREEDY, BALANCED, PERCENTAGE = "greedy", "balanced", "percentage"
SCHEDULERS = (BALANCED, GREEDY, PERCENTAGE)
SLOTS_MAX = 1 << 16


@frozen
class Offer:
    """What a peer has for jobs."""

    peer: str
    slots: int
    zone: str = ""
    tags: frozenset[str] = frozenset()


def allocated(replica: Replica, position: int) -> Replica:
    """The replica with drivers and slots given out anew; ``position``: of the entry that asks for it."""
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
    """What peers have for jobs, by id of the peer."""
    found = []
    for name in sorted(replica.ring.members):
        peer = replica.peers[name]
        node = replica.nodes.get(peer.node)
        if peer.slots > 0 and not (node is not None and node.draining):
            found.append(Offer(name, peer.slots, peer.zone, frozenset(peer.tags)))
    return found


def need(job: Job) -> int:
    """The fewest slots with which a job runs."""
    return max([1, job.min_slots, *(least for _, least, _, _ in job.tasks)])


def tasks_of(job: Job, slots: int) -> tuple[tuple[str, int], ...]:
    """In how many of its slots each task of a job may run."""
    found = []
    for name, least, most, percentage in job.tasks if slots else ():
        share = slots * percentage // 100 if percentage else slots
        found.append((name, min(slots, most or slots, max(1, least, share))))
    return tuple(found)


def _driven(job: Job, driver: str, position: int, why: str) -> Job:
    """The job with its driver; another one than before comes with a version above all before."""
    if driver == job.driver:
        return evolve(job, why=why)
    if not driver:
        return evolve(job, state=WAITING, why=why, driver="", ready=False)
    version = max(position, job.version + 1)
    return evolve(job, state=RUNNING, why="", driver=driver, version=version, ready=False)


# --- drivers ---------------------------------------------------------------------


class Plan:
    """Drivers as they are being worked out: who is where, and what room is left."""

    def __init__(self, jobs: Sequence[Job], offered: Sequence[Offer]) -> None:
        self.jobs = {job.id: job for job in jobs}
        self.offers = {offer.peer: offer for offer in offered}
        self.drivers: dict[str, str] = {}
        self.room = {offer.peer: offer.slots for offer in offered}

    def mate(self, job: Job) -> str:
        """The job that it has to run beside, if that has not ended."""
        return job.beside if job.beside in self.jobs else ""

    def fits(self, job: Job, peer: str) -> bool:
        """Whether a peer may drive a job, whatever else it drives."""
        offer = self.offers.get(peer)
        if offer is None or not suits(offer, job) or need(job) > offer.slots:
            return False
        mate = self.mate(job)
        return not mate or self.drivers.get(mate) == peer

    def put(self, job: Job, peer: str) -> None:
        """Let a peer drive a job that has no driver."""
        self.drivers[job.id] = peer
        self.room[peer] -= need(job)

    def take(self, job: Job) -> str:
        """Take a job from its driver; which that was."""
        peer = self.drivers.pop(job.id)
        self.room[peer] += need(job)
        return peer


def suits(offer: Offer, job: Job) -> bool:
    """Whether a peer has the tags and the zone for a job."""
    return offer.tags.issuperset(job.tags) and (not job.zones or offer.zone in job.zones)


def placed(jobs: Sequence[Job], offered: Sequence[Offer]) -> dict[str, str]:
    """The driver of each job that has one; ``jobs`` in the order of submission."""
    plan = Plan(jobs, offered)
    for job in jobs:
        if job.driver and plan.fits(job, job.driver) and plan.room[job.driver] >= need(job):
            plan.put(job, job.driver)
    for job in jobs:
        if job.id not in plan.drivers:
            peers = [peer for peer in sorted(plan.offers) if plan.fits(job, peer) and plan.room[peer] >= need(job)]
            if peers:
                plan.put(job, min(peers, key=lambda peer: (-plan.room[peer], peer)))
    return plan.drivers


# --- slots -----------------------------------------------------------------------


def shared(jobs: Sequence[Job], drivers: Mapping[str, str], offered: Sequence[Offer]) -> dict[str, int]:
    """How many slots each job has that has a driver; ``jobs`` in the order of submission."""
    total = sum(offer.slots for offer in offered)
    at: dict[str, list[Job]] = {offer.peer: [] for offer in offered}
    for job in jobs:
        if job.id in drivers:
            at[drivers[job.id]].append(job)
    found: dict[str, int] = {}
    for offer in offered:
        found |= shares(at[offer.peer], offer.slots, total)
    return found


def shares(jobs: Sequence[Job], slots: int, total: int) -> dict[str, int]:
    """How a peer's slots go to the jobs that it drives; ``total``: all that peers offer."""
    given = {job.id: need(job) for job in jobs}
    left = slots - sum(given.values())
    kinds = {kind: [job for job in jobs if job.scheduler == kind] for kind in SCHEDULERS}
    for job in kinds[PERCENTAGE]:
        left -= _raise(given, job, min(left, total * job.percentage // 100 - given[job.id]))
    for job in kinds[GREEDY]:
        left -= _raise(given, job, left)
    left -= _level(given, kinds[BALANCED], left)
    for job in kinds[PERCENTAGE]:
        left -= _raise(given, job, left)
    return given


def _most(job: Job) -> int:
    return max(job.max_slots, need(job)) if job.max_slots else SLOTS_MAX


def _raise(given: dict[str, int], job: Job, by: int) -> int:
    """Give a job so many more slots, as far as it can take them; how many that are."""
    more = max(0, min(by, _most(job) - given[job.id]))
    given[job.id] += more
    return more


def _level(given: dict[str, int], jobs: Sequence[Job], left: int) -> int:
    """Raise the jobs to one level, as far as ``left`` goes; how many slots that took.

    What is too little for one more each goes to the first of them.
    """
    low, high = 0, SLOTS_MAX
    while low < high:  # the highest level that ``left`` is enough for
        level = (low + high + 1) // 2
        if sum(_lifts(given, jobs, level)) <= left:
            low = level
        else:
            high = level - 1
    spent = 0
    for job, lift in zip(jobs, list(_lifts(given, jobs, low)), strict=True):
        spent += _raise(given, job, lift)
    for job in jobs:
        if spent < left and given[job.id] == low:
            spent += _raise(given, job, 1)
    return spent


def _lifts(given: Mapping[str, int], jobs: Iterable[Job], level: int) -> list[int]:
    return [max(0, min(level, _most(job)) - given[job.id]) for job in jobs]


# --- words -----------------------------------------------------------------------


def reason(job: Job, jobs: Sequence[Job], drivers: Mapping[str, str], offered: Sequence[Offer]) -> str:
    """Why a job has no driver."""
    mate = next((other.id for other in jobs if other.id == job.beside), "")
    if mate and mate not in drivers:
        return f"waits for job {mate}, beside which it runs"
    near = [offer for offer in offered if not mate or offer.peer == drivers[mate]]
    missing = _missing(job, near) or f"waits for slots: needs {need(job)} of one peer"
    return f"{missing}, and runs beside job {mate}" if mate else missing


def _missing(job: Job, offered: Sequence[Offer]) -> str:
    """What no peer has of what a job needs; empty if one has all."""
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
