"""Planted bugs of jobs: their drivers, their slots, and their remembered outcomes."""

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
    """Return the fault that changes a job with a new driver; ``change`` takes the job before and after."""

    def fault(original: Callable[[Job, str, int, str], Job]) -> Callable[[Job, str, int, str], Job]:
        def faulty(job: Job, driver: str, position: int, why: str) -> Job:
            after = original(job, driver, position, why)
            return change(job, after) if driver and driver != job.driver else after

        return faulty

    return fault


def _accepted_if(excuse: Callable[[Job, int], bool]) -> Fault:
    """Return the fault that accepts replaced drivers; ``excuse`` takes the job and the driver's version."""

    def fault(original: Callable[[Replica, str, int], str]) -> Callable[[Replica, str, int], str]:
        def faulty(replica: Replica, name: str, version: int) -> str:
            problem = original(replica, name, version)
            return "" if problem == SUPERSEDED and excuse(replica.jobs[name], version) else problem

        return faulty

    return fault


def _offered_though_draining(peer: Peer, node: Node | None) -> bool:
    """Return whether a peer has slots."""
    return peer.slots > 0


def _any_room(plan: Plan, job: Job, peer: str) -> bool:
    """Return whether a peer has one slot left."""
    return plan.room[peer] > 0


def _unsorted(replica: Replica) -> list[Job]:
    """Return the active jobs in the order of the map."""
    return [job for job in replica.jobs.values() if not is_over(job)]


def _namesake(plan: Plan, job: Job) -> str:
    """Return the job of that name, even if it came later."""
    mate = plan.jobs.get(job.beside)
    return mate.id if mate is not None else ""


def _most_moves_first(original: Callable[..., range]) -> Callable[..., range]:
    """Try the most moves only."""
    return lambda search: range(search.moved + MOVES_MAX, search.moved + MOVES_MAX + 1)


def _only_half_full(original: Callable[[Plan, Job, str], bool]) -> Callable[[Plan, Job, str], bool]:
    """Let a job stay only if more than half of its driver's slots are free."""
    return lambda plan, job, peer: original(plan, job, peer) and 2 * plan.room[peer] > plan.offers[peer].slots


def _whole_retention(replica: Replica, job: Job) -> int:
    """Return the whole retention time, whenever the job ended."""
    return job.keep_ms


def _free_when_ended(
    original: Callable[[Replica, str], bytes | None],
) -> Callable[[Replica, str], bytes | None]:
    """Free the name of a job that ended."""
    return lambda replica, name: (
        None if name in replica.jobs and is_over(replica.jobs[name]) else original(replica, name)
    )


def _absent_if_collected(original: Callable[[Replica, str], str]) -> Callable[[Replica, str], str]:
    """Return no reason for a job that the replica still has, even if it has ended."""
    return lambda replica, name: "" if name in replica.jobs else original(replica, name)


JOB_BUGS: tuple[Planted, ...] = (
    Planted(
        "a new driver has the old version",
        "onyxq.core.jobs.allocation:_driven",
        _driven(lambda before, after: after if before.version < 0 else evolve(after, version=before.version)),
        "requests of a replaced driver cannot be told apart from those of the present one",
        "jobs",
        quick=2,
    ),
    Planted(
        "a replaced driver completes its job",
        "onyxq.core.jobs.lifetime:refusal",
        _accepted_if(lambda job, version: job.state == RUNNING),
        "a driver that missed part of a job reports it as done",
        "jobs",
        quick=2,
    ),
    Planted(
        "a waiting job accepts requests of its last driver",
        "onyxq.core.jobs.lifetime:refusal",
        _accepted_if(lambda job, version: job.version == version),
        "a driver that was stopped commits a batch",
        "jobs",
    ),
    Planted(
        "slots of a draining peer are allocated",
        "onyxq.core.jobs.allocation:_takes_jobs",
        instead(_offered_though_draining),
        "jobs move to a peer that is about to stop",
        "jobs",
    ),
    Planted(
        "jobs of a dead driver stay with it",
        "onyxq.core.ring:allocated",
        instead(lambda replica, position: replica),
        "a job does not continue until something else changes",
        "jobs",
        quick=2,
    ),
    Planted(
        "the maximum of slots is ignored",
        "onyxq.core.jobs.slots:most",
        returning(SLOTS_MAX),
        "a job gets more slots than its maximum",
        "jobs",
    ),
    Planted(
        "the minimum of slots is not reserved",
        "onyxq.core.jobs.placement:Plan.has_room",
        instead(_any_room),
        "peers promise more slots than they have",
        "jobs",
    ),
    Planted(
        "slots are allocated in the order of a map",
        "onyxq.core.jobs.lifetime:active",
        instead(_unsorted),
        "peers that loaded a snapshot allocate slots differently from other peers",
        "jobs",
    ),
    Planted(
        "a job is moved away from its companion",
        "onyxq.core.jobs.placement:Plan.is_bound",
        returning(False),
        "two jobs that must share a peer do not",
        "jobs",
    ),
    Planted(
        "a reused name binds the companion of the old job",
        "onyxq.core.jobs.placement:Plan.mate",
        instead(_namesake),
        "two jobs wait for each other for ever",
        "jobs",
    ),
    Planted(
        "more jobs are moved than necessary",
        "onyxq.core.jobs.placement:_Search._move_counts",
        _most_moves_first,
        "drivers restart for nothing",
        "jobs",
    ),
    Planted(
        "a job is moved to get more slots",
        "onyxq.core.jobs.placement:Plan.may_keep",
        _only_half_full,
        "drivers restart whenever a peer joins",
        "jobs",
    ),
    Planted(
        "a new driver forgets which inputs are sealed",
        "onyxq.core.jobs.allocation:_driven",
        _driven(lambda before, after: evolve(after, sealed=())),
        "a job that should end waits for input for ever",
        "jobs",
    ),
    Planted(
        "a new driver counts as ready before it runs",
        "onyxq.core.jobs.allocation:_driven",
        _driven(lambda before, after: evolve(after, ready=before.ready)),
        "a client that waits for the new driver continues too early",
        "jobs",
    ),
    Planted(
        "a log collection forgets outcomes of jobs",
        "onyxq.core.jobs.lifetime:remember",
        instead(lambda replica, *_, **__: replica),
        "a repeated submission runs the job twice, and its outcome is unknown",
        "jobs",
        quick=2,
    ),
    Planted(
        "the retention of an outcome begins at the log collection",
        "onyxq.core.jobs.lifetime:_left_ms",
        instead(_whole_retention),
        "names are free later than requested",
        "jobs",
    ),
    Planted(
        "the name of an ended job is free at once",
        "onyxq.core.jobs.lifetime:digest_of",
        _free_when_ended,
        "a late repeat of a submission runs the job twice",
        "jobs",
    ),
    Planted(
        "slots of a killed job are not allocated again",
        "log_entries.kill_job:allocated",
        instead(lambda replica, position: replica),
        "jobs wait while slots are idle",
        "jobs",
    ),
    Planted(
        "a replaced job continues",
        "log_entries.replace_job:ended",
        instead(lambda replica, name, state, why: replica),
        "two jobs read the same inputs, and segments count twice",
        "jobs",
    ),
    Planted(
        "an ended job is replaced",
        "log_entries.replace_job:absence",
        _absent_if_collected,
        "two requests at once start two jobs that continue after the same batch",
        "jobs",
    ),
    Planted(
        "a job that replaces another may have the id of a third",
        "log_entries.replace_job:digest_of",
        returning(None),
        "the third job is gone without an end",
        "jobs",
    ),
)
"""The planted bugs of jobs."""
