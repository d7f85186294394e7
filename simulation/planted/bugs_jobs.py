"""Planted bugs of jobs: who drives them, with how many slots, and what is known of them at the end."""

from __future__ import annotations

from collections.abc import Callable

from attrs import evolve

from onyxq.core.jobs.lifetime import RUNNING, SUPERSEDED, is_over
from onyxq.core.jobs.placement import MOVES_MAX, Plan
from onyxq.core.jobs.slots import SLOTS_MAX
from onyxq.core.replica import Job, Node, Peer, Replica
from simulation.planted.planted import Planted
from simulation.planted.seams import Fault, instead, returning


def _driven(change: Callable[[Job, Job], Job]) -> Fault:
    """Return the fault that changes a job which got a new driver; ``change`` takes it from before and after."""

    def fault(original: Callable[[Job, str, int, str], Job]) -> Callable[[Job, str, int, str], Job]:
        def faulty(job: Job, driver: str, position: int, why: str) -> Job:
            after = original(job, driver, position, why)
            return change(job, after) if driver and driver != job.driver else after

        return faulty

    return fault


def _heard_if(excuse: Callable[[Job, int], bool]) -> Fault:
    """Return the fault that hears drivers that were replaced; ``excuse`` takes the job and the driver's version."""

    def fault(original: Callable[[Replica, str, int], str]) -> Callable[[Replica, str, int], str]:
        def faulty(replica: Replica, name: str, version: int) -> str:
            problem = original(replica, name, version)
            return "" if problem == SUPERSEDED and excuse(replica.jobs[name], version) else problem

        return faulty

    return fault


def _offered_though_draining(peer: Peer, node: Node | None) -> bool:
    """Whether a peer has slots."""
    return peer.slots > 0


def _any_room(plan: Plan, job: Job, peer: str) -> bool:
    """Whether a peer has one slot left."""
    return plan.room[peer] > 0


def _unsorted(replica: Replica) -> list[Job]:
    """The jobs in the order of the map."""
    return [job for job in replica.jobs.values() if not is_over(job)]


def _namesake(plan: Plan, job: Job) -> str:
    """The job of that name, even if it came later."""
    mate = plan.jobs.get(job.beside)
    return mate.id if mate is not None else ""


def _most_moves_first(original: Callable[..., range]) -> Callable[..., range]:
    """Try the most moves only."""
    return lambda search: range(search.moved + MOVES_MAX, search.moved + MOVES_MAX + 1)


def _only_half_full(original: Callable[[Plan, Job, str], bool]) -> Callable[[Plan, Job, str], bool]:
    """A job stays with a driver of whose slots more than half are free."""
    return lambda plan, job, peer: original(plan, job, peer) and 2 * plan.room[peer] > plan.offers[peer].slots


def _whole_retention(replica: Replica, job: Job) -> int:
    """All of the time that was asked for, whenever the job ended."""
    return job.keep_ms


def _free_when_ended(
    original: Callable[[Replica, str], bytes | None],
) -> Callable[[Replica, str], bytes | None]:
    """The name of a job that ended is free."""
    return lambda replica, name: (
        None if name in replica.jobs and is_over(replica.jobs[name]) else original(replica, name)
    )


JOB_BUGS: tuple[Planted, ...] = (
    Planted(
        "a new driver under the old version",
        "onyxq.core.jobs.allocation:_driven",
        _driven(lambda before, after: after if before.version < 0 else evolve(after, version=before.version)),
        "nobody can tell what a driver that was replaced still says from what the present one does",
        "jobs",
        quick=2,
    ),
    Planted(
        "a replaced driver completes its job",
        "onyxq.core.jobs.lifetime:refusal",
        _heard_if(lambda job, version: job.state == RUNNING),
        "a job is called done by who has not seen all of it",
        "jobs",
        quick=2,
    ),
    Planted(
        "a job that waits hears its last driver",
        "onyxq.core.jobs.lifetime:refusal",
        _heard_if(lambda job, version: job.version == version),
        "a driver that had to stop commits a batch all the same",
        "jobs",
    ),
    Planted(
        "a draining peer's slots are given out",
        "onyxq.core.jobs.allocation:_takes_jobs",
        instead(_offered_though_draining),
        "jobs move to a peer that is about to stop",
        "jobs",
    ),
    Planted(
        "jobs of a dead driver stay with it",
        "onyxq.core.ring:allocated",
        instead(lambda replica, position: replica),
        "a job stands still until something else changes",
        "jobs",
        quick=2,
    ),
    Planted(
        "the maximum ignored",
        "onyxq.core.jobs.slots:most",
        returning(SLOTS_MAX),
        "a job takes slots that it asked not to have",
        "jobs",
    ),
    Planted(
        "a minimum that others eat into",
        "onyxq.core.jobs.placement:Plan.has_room",
        instead(_any_room),
        "peers promise more slots than they have",
        "jobs",
    ),
    Planted(
        "jobs in the order of a map",
        "onyxq.core.jobs.lifetime:active",
        instead(_unsorted),
        "peers that loaded an origin give slots to others than peers that did not",
        "jobs",
    ),
    Planted(
        "who leaves a job beside him is moved",
        "onyxq.core.jobs.placement:Plan.is_bound",
        returning(False),
        "two jobs that were to share a peer do not",
        "jobs",
    ),
    Planted(
        "a name that is taken again binds who ran beside the last",
        "onyxq.core.jobs.placement:Plan.mate",
        instead(_namesake),
        "two jobs wait for each other for ever",
        "jobs",
    ),
    Planted(
        "two moved where one was enough",
        "onyxq.core.jobs.placement:_Search._move_counts",
        _most_moves_first,
        "drivers start anew for nothing",
        "jobs",
    ),
    Planted(
        "a job moved for a better share",
        "onyxq.core.jobs.placement:Plan.may_keep",
        _only_half_full,
        "every peer that comes has drivers start anew",
        "jobs",
    ),
    Planted(
        "what is sealed is forgotten by the next driver",
        "onyxq.core.jobs.allocation:_driven",
        _driven(lambda before, after: evolve(after, sealed=())),
        "a job that was to end waits for more for ever",
        "jobs",
    ),
    Planted(
        "ready before it runs",
        "onyxq.core.jobs.allocation:_driven",
        _driven(lambda before, after: evolve(after, ready=before.ready)),
        "who waits for the new driver goes ahead too early",
        "jobs",
    ),
    Planted(
        "a collection forgets how a job ended",
        "onyxq.core.jobs.lifetime:remember",
        instead(lambda replica, *_, **__: replica),
        "submitting again runs a job a second time, and who asks late is told nothing",
        "jobs",
        quick=2,
    ),
    Planted(
        "an outcome kept from the collection on",
        "onyxq.core.jobs.lifetime:_left_ms",
        instead(_whole_retention),
        "names are free again later than was asked",
        "jobs",
    ),
    Planted(
        "an ended job can be submitted again",
        "onyxq.core.jobs.lifetime:digest_of",
        _free_when_ended,
        "a submission that is repeated late runs the job twice",
        "jobs",
    ),
    Planted(
        "slots of a killed job go to nobody",
        "log_entries.kill_job:allocated",
        instead(lambda replica, position: replica),
        "jobs wait while slots are idle",
        "jobs",
    ),
)
"""Planted bugs about these."""
