"""Placement of jobs: which peer drives which job, with few moves of running jobs (design: jobs on Spark).

Pure; `onyxq.core.jobs.allocation` explains the rules.  Placing is a search.  A job is put at a peer
with room.  If there is none, jobs at a peer are removed and placed elsewhere, until all have a place.
The search ends after `STEPS_MAX` steps, on all peers alike.  After that, a job that finds no room at
once waits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import frozen

from onyxq.core.jobs.slots import need, shares
from onyxq.core.replica import Job

MOVES_MAX = 2
"""Most running jobs that are moved to make room for one waiting job."""
STEPS_MAX = 1_000
"""Most places that one pass tries."""
TOGETHER_MAX = 50
"""Most newly placed jobs that are placed again together with one more job."""


@frozen
class Offer:
    """What a peer offers for jobs."""

    peer: str
    slots: int
    zone: str = ""
    tags: frozenset[str] = frozenset()


def suits(offer: Offer, job: Job) -> bool:
    """Return whether a peer has the tags and the zone for a job."""
    return offer.tags.issuperset(job.tags) and (not job.zones or offer.zone in job.zones)


class Plan:
    """Drivers while they are being chosen: which jobs are at which peer, and how much room is left."""

    def __init__(self, jobs: Sequence[Job], offered: Sequence[Offer]) -> None:
        """Begin without drivers; ``jobs``: those that have not ended, in the order of submission."""
        self.jobs = {job.id: job for job in jobs}
        self.offers = {offer.peer: offer for offer in offered}
        self.drivers: dict[str, str] = {}
        self.at: dict[str, list[Job]] = {offer.peer: [] for offer in offered}
        self.room = {offer.peer: offer.slots for offer in offered}
        self._bound = {name for job in jobs if self.mate(job) for name in (job.id, job.beside)}
        self.needs = {job.id: need(job) for job in jobs}
        self.total = sum(offer.slots for offer in offered)
        self.together = dict(self.needs)
        """Slots that each job needs together with the jobs that run beside it."""
        for job in jobs:
            if self.mate(job):
                self.together[job.beside] += self.needs[job.id]

    def mate(self, job: Job) -> str:
        """Return the job that it must run beside if that has not ended; never a job that took the name later."""
        mate = self.jobs.get(job.beside)
        return mate.id if mate is not None and mate.submitted < job.submitted else ""

    def is_bound(self, job: Job) -> bool:
        """Return whether a job runs beside another, or has another beside it: it is never moved then."""
        return job.id in self._bound

    def fits(self, job: Job, peer: str) -> bool:
        """Return whether a peer may drive a job, regardless of its other jobs."""
        offer = self.offers.get(peer)
        if offer is None or not suits(offer, job) or self.needs[job.id] > offer.slots:
            return False
        mate = self.mate(job)
        return not mate or self.drivers.get(mate) == peer

    def has_room(self, job: Job, peer: str) -> bool:
        """Return whether a peer can drive a job in addition to its other jobs."""
        return self.room[peer] >= self.needs[job.id]

    def may_keep(self, job: Job, peer: str) -> bool:
        """Return whether a job can stay with its driver. It is not moved for a better share elsewhere."""
        return self.fits(job, peer) and self.has_room(job, peer)

    def put(self, job: Job, peer: str) -> None:
        """Make a peer the driver of a job that has none."""
        self.drivers[job.id] = peer
        self.at[peer].append(job)
        self.room[peer] -= self.needs[job.id]

    def take(self, job: Job) -> str:
        """Take a job from its driver, and return that driver."""
        peer = self.drivers.pop(job.id)
        self.at[peer].remove(job)
        self.room[peer] += self.needs[job.id]
        return peer


def placed(jobs: Sequence[Job], offered: Sequence[Offer]) -> dict[str, str]:
    """Return the driver of each job that gets one; ``jobs``: those that have not ended, in the order of submission.

    Passes are repeated while one finds a driver for a job, so placing again changes nothing.
    """
    drivers = {job.id: job.driver for job in jobs}
    while True:
        found = pass_over(jobs, offered, drivers)
        if len(found) <= sum(found.get(name) == driver for name, driver in drivers.items()):
            return found
        drivers = {job.id: found.get(job.id, "") for job in jobs}


def pass_over(jobs: Sequence[Job], offered: Sequence[Offer], before: Mapping[str, str]) -> dict[str, str]:
    """Return the drivers after one pass; ``before``: each job's driver until now, or an empty string.

    Drivers are kept where possible. Then the other jobs are placed one by one.
    """
    plan = Plan(jobs, offered)
    for job in jobs:
        peer = before[job.id]
        if peer and plan.may_keep(job, peer):
            plan.put(job, peer)
    search = _Search(plan)
    for job in jobs:
        if job.id not in search.kept:
            search.add(job)
    return plan.drivers


class _Search:
    """A search that places jobs one by one. Jobs that kept their driver are moved only if necessary."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.kept = dict(plan.drivers)
        self.added: list[Job] = []
        """Jobs that had no driver and have one now."""
        self.moved = 0
        self.steps = 0
        self.hopeless: set[tuple[object, ...]] = set()
        """Requirements for which no place was found since a job was last moved."""

    def add(self, job: Job) -> None:
        """Find a driver for one more job, if possible."""
        peers = self._with_room(job)
        if peers:
            self.plan.put(job, min(peers, key=lambda peer: self._preference(job, peer)))
            self.added.append(job)
            return
        asked = (self.plan.needs[job.id], job.tags, job.zones, self.plan.mate(job))
        if asked in self.hopeless or not self._may_fit(job):
            return
        if self._rearrange(job):
            self.added.append(job)
            self.hopeless.clear()
        else:
            self.hopeless.add(asked)

    def _may_fit(self, job: Job) -> bool:
        """Return whether suitable peers exist, and enough free slots if all were at one peer."""
        plan = self.plan
        mate = plan.mate(job)
        if mate in self.kept or mate not in plan.drivers:
            fit = any(plan.fits(job, peer) for peer in plan.offers)
        else:  # the job that it runs beside is placed again with it
            fit = any(suits(offer, job) and offer.slots >= plan.needs[job.id] for offer in plan.offers.values())
        return fit and sum(plan.room.values()) >= plan.needs[job.id]

    def _rearrange(self, job: Job) -> bool:
        """Place this job and all jobs added before it again, with as few moves as possible."""
        if len(self.added) > TOGETHER_MAX:
            return False  # the next pass counts them as jobs that keep their drivers
        before = dict(self.plan.drivers)
        for moves in self._move_counts():
            self._restore(self.kept)
            if self._place([*self.added, job], moves, frozenset()):
                self.moved = sum(self.plan.drivers[name] != peer for name, peer in self.kept.items())
                return True
        self._restore(before)
        return False

    def _restore(self, drivers: dict[str, str]) -> None:
        plan = self.plan
        other = [name for name in plan.jobs if plan.drivers.get(name) != drivers.get(name)]
        for name in other:
            if name in plan.drivers:
                plan.take(plan.jobs[name])
        for name in other:
            if name in drivers:
                plan.put(plan.jobs[name], drivers[name])

    def _with_room(self, job: Job) -> list[str]:
        """Return the peers that can drive a job without any moves, those with most room first."""
        plan = self.plan
        peers = [peer for peer in plan.offers if plan.has_room(job, peer) and plan.fits(job, peer)]
        return sorted(peers, key=lambda peer: (-plan.room[peer], peer))

    def _preference(self, job: Job, peer: str) -> tuple[bool, int, int, str]:
        """Return the preference among peers with room; the lowest is best.

        First come peers that also have room for the jobs beside it, then those that give it most slots.
        """
        plan = self.plan
        share = shares([*plan.at[peer], job], plan.offers[peer].slots, plan.total)[job.id]
        return plan.room[peer] < plan.together[job.id], -share, -plan.room[peer], peer

    def _place(self, todo: list[Job], moves: int, settled: frozenset[str]) -> bool:
        """Place all of ``todo`` with at most ``moves`` moves of jobs that kept their driver; return whether it worked.

        Jobs in ``settled`` are not moved again.
        """
        if not todo:
            return True
        job, rest = todo[0], todo[1:]
        home = self.kept.get(job.id, "")
        for peer in self._with_room(job):
            if peer != home:
                if self._spent():
                    return False
                self.plan.put(job, peer)
                if self._place(rest, moves, settled | {job.id}):
                    return True
                self.plan.take(job)
        for peer, other in self._pushes(job, moves, settled):
            if self._spent():
                return False
            self.plan.take(other)
            if self._place([job, other, *rest], moves - 1, settled | {other.id}):
                return True
            self.plan.put(other, peer)
        return False

    def _pushes(self, job: Job, moves: int, settled: frozenset[str]) -> list[tuple[str, Job]]:
        """Return ``(peer, job)`` of each job that could be moved away so that this job fits at that peer.

        Empty if ``moves`` is 0.
        """
        plan, home = self.plan, self.kept.get(job.id, "")
        peers = [peer for peer in sorted(plan.offers) if peer != home and moves and not plan.has_room(job, peer)]
        return [
            (peer, other)
            for peer in peers
            if plan.fits(job, peer)
            for other in self._movable(job, peer, moves, settled)
        ]

    def _move_counts(self) -> range:
        """Return how many moves of running jobs to try, the fewest first."""
        return range(self.moved, self.moved + MOVES_MAX + 1)

    def _movable(self, job: Job, peer: str, moves: int, settled: frozenset[str]) -> list[Job]:
        """Return the jobs that may be moved from a peer, the largest first.

        Empty if even ``moves`` moves would not make enough room.
        """
        plan = self.plan
        found = [other for other in plan.at[peer] if other.id not in settled and not plan.is_bound(other)]
        found.sort(key=lambda other: (-plan.needs[other.id], -other.submitted))
        freed = sum(plan.needs[other.id] for other in found[:moves])
        return found if plan.room[peer] + freed >= plan.needs[job.id] else []

    def _spent(self) -> bool:
        self.steps += 1
        return self.steps > STEPS_MAX
