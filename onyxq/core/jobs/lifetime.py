"""The states of a job from submission to its end, and what is remembered of it (design: jobs on Spark).

Pure.  A job is *waiting* until a peer is found that can drive it, *running* while a peer does, and
ends as *completed*, *killed* or *failed*.  The next ``gc`` takes an ended job out of the
replica.  Its outcome is remembered under the kind `KIND` for as long as the job asked for.  So
submitting it again is recognised as a repeat, and late queries still get an answer.
"""

from __future__ import annotations

from typing import Any

from attrs import evolve
from pyrsistent import pmap

from onyxq.core.remembered import recall, remember
from onyxq.core.replica import Job, Replica

KIND = "job"
WAITING, RUNNING = "waiting", "running"
COMPLETED, KILLED, FAILED = "completed", "killed", "failed"
ENDED = (COMPLETED, KILLED, FAILED)

UNKNOWN = "no such job"
OVER = "already ended"
SUPERSEDED = "superseded"

ERROR_BYTES_MAX = 8 << 10
"""Most bytes of the error with which a job failed."""
PROGRESS_BYTES_MAX = 8 << 10
"""Most bytes of a job's progress."""
KEPT_BYTES_MAX = 16 << 20
"""Most bytes of offsets and progress, and characters of errors, of all ended jobs together.

The jobs that ended first lose theirs first.
"""
_ID_CHARACTERS_MAX = 120
_ID_SIGNS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


def is_id(text: str) -> bool:
    """Return whether a text can be a job's id: 1 to 120 letters, digits, ``.``, ``_`` and ``-``.

    The first character is a letter or digit.  The id also names directories and transactions.
    """
    return 1 <= len(text) <= _ID_CHARACTERS_MAX and set(text) <= _ID_SIGNS and text[0] not in "._-"


def is_over(job: Job) -> bool:
    """Return whether the job has ended."""
    return job.state in ENDED


def active(replica: Replica) -> list[Job]:
    """Return the jobs that have not ended, in the order of submission."""
    found = [job for job in replica.jobs.values() if not is_over(job)]
    return sorted(found, key=lambda job: job.submitted)


def digest_of(replica: Replica, name: str) -> bytes | None:
    """Return the digest of the job that was submitted under an id; None if the id is free."""
    found = replica.jobs.get(name)
    if found is not None:
        return found.digest
    kept = outcome_of(replica, name)
    return kept["digest"] if kept is not None else None


def outcome_of(replica: Replica, name: str) -> Any:
    """Return the remembered outcome of a job that log collection (``gc``) removed, or None.

    The outcome is a map of ``state``, ``error`` (its ``Job.why``), ``digest``, ``submitted_ms``, ``ended_ms``,
    ``batch``, ``offsets`` and ``progress``.
    """
    kept = recall(replica, KIND, name)
    return kept.answer if kept is not None else None


def end_of(replica: Replica, name: str) -> tuple[str, int, bytes] | None:
    """Return the state, the last batch and the offsets of a job that is known; None if it is not."""
    found = replica.jobs.get(name)
    if found is not None:
        return found.state, found.batch, found.offsets
    kept = outcome_of(replica, name)
    return None if kept is None else (kept["state"], kept["batch"], kept["offsets"])


def resumable(replica: Replica) -> set[str]:
    """Return the jobs that have not completed and are still known: their state may be needed."""
    prefix = f"{KIND}/"
    known = {name: job.state for name, job in replica.jobs.items()}
    known |= {
        key.removeprefix(prefix): kept.answer["state"]
        for key, kept in replica.remembered.items()
        if key.startswith(prefix)
    }
    return {name for name, state in known.items() if state != COMPLETED}


def absence(replica: Replica, name: str) -> str:
    """Return why nothing can be done with a job that is not waiting or running, or an empty string."""
    found = replica.jobs.get(name)
    if found is None:
        return OVER if outcome_of(replica, name) is not None else UNKNOWN
    return OVER if is_over(found) else ""


def refusal(replica: Replica, name: str, version: int) -> str:
    """Return why a driver of this version may not report anything about a job, or an empty string."""
    gone = absence(replica, name)
    if gone:
        return gone
    found = replica.jobs[name]
    return "" if found.state == RUNNING and found.version == version else SUPERSEDED


def with_job(replica: Replica, job: Job) -> Replica:
    """Return the replica with one job replaced."""
    return evolve(replica, jobs=replica.jobs.set(job.id, job))


def ended(replica: Replica, name: str, state: str, why: str = "") -> Replica:
    """Return the replica with a job at its end. The caller must allocate its slots to other jobs."""
    over = evolve(
        replica.jobs[name],
        state=state,
        why=why,
        driver="",
        slots=0,
        task_slots=(),
        ready=False,
        ended_ms=replica.clock_ms,
    )
    return with_job(replica, over)


def forget_ended(replica: Replica) -> Replica:
    """Return the replica without jobs that have ended; each outcome is remembered for as long as the job asked for."""
    over = sorted(name for name, job in replica.jobs.items() if is_over(job))
    if not over:
        return replica
    jobs = replica.jobs.evolver()
    for name in over:
        job = replica.jobs[name]
        del jobs[name]
        replica = remember(replica, KIND, name, for_ms=_left_ms(replica, job), answer=_outcome(job))
    return _without_old_parts(evolve(replica, jobs=jobs.persistent()))


def _left_ms(replica: Replica, job: Job) -> int:
    """Return for how long the outcome of an ended job must still be remembered."""
    return max(0, job.ended_ms + job.keep_ms - replica.clock_ms)


def _without_old_parts(replica: Replica) -> Replica:
    """Return the replica with offsets, progress and errors of ended jobs cut to `KEPT_BYTES_MAX` in total."""
    prefix, left = f"{KIND}/", KEPT_BYTES_MAX
    kept = [(one.answer["ended_ms"], key) for key, one in replica.remembered.items() if key.startswith(prefix)]
    remembered = replica.remembered
    for _, key in sorted(kept, reverse=True):
        one = remembered[key]
        parts = {name: one.answer[name] for name in ("offsets", "progress", "error") if one.answer.get(name)}
        left -= sum(map(len, parts.values()))
        if left < 0 and parts:
            cut = {name: part[:0] for name, part in parts.items()}
            remembered = remembered.set(key, evolve(one, answer=one.answer.update(cut)))
    return evolve(replica, remembered=remembered)


def _outcome(job: Job) -> Any:
    return pmap(
        {
            "state": job.state,
            "error": job.why,
            "digest": job.digest,
            "submitted_ms": job.submitted_ms,
            "ended_ms": job.ended_ms,
            "batch": job.batch,
            "offsets": job.offsets,
            **({"progress": job.progress} if job.progress else {}),
        }
    )
