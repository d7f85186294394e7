"""Claims of jobs, as the replica has them: which to renew, and which are useless.

A job's driver claims tasks as the worker ``job/<id>/<version>``. The commit of their batch completes the
tasks. Otherwise the claims are useless: Spark plans one batch after the other, and loses its plans when it
restarts. So claims of other versions are released, and claims that a later commit of the same version has
not completed.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import NamedTuple

from onyxq.core.ids import TaskId, id_at
from onyxq.core.replica import HELD_MS, Replica
from onyxq.core.texts import whole

LEASE_MS = 60_000
"""Lease of the claims that a job's source makes, in ms."""
RENEW_BELOW_MS = 45_000
"""Remaining lease below which a claim is renewed, in ms."""


class Held(NamedTuple):
    """Consecutive tasks that a version of a job has claimed."""

    version: int
    first: TaskId
    count: int  # type: ignore[assignment]  # shadows the tuple's method
    token: int
    deadline_ms: int
    """In log time."""


def worker_name(job: str, version: int) -> str:
    """Return the worker name of a job's claims."""
    return f"job/{job}/{version}"


def held(replica: Replica, jobs: Container[str]) -> dict[str, list[Held]]:
    """Return the claims of jobs, by job, without those that a transaction is completing.

    Iterates over all claims of the replica.
    """
    found: dict[str, list[Held]] = {}
    for number in sorted(replica.claims):
        for stretch, pieces in sorted(replica.claims[number].items()):
            for offset, count, token, worker, deadline_ms in pieces:
                if worker[:4] == "job/" and deadline_ms != HELD_MS:
                    _, job, version = worker.split("/", 2) if worker.count("/") == 2 else ("", "", "")
                    if job in jobs and (number_of := whole(version)) is not None:
                        one = Held(number_of, id_at(stretch, offset), count, token, deadline_ms)
                        found.setdefault(job, []).append(one)
    return found


def useless(claims: Iterable[Held], *, version: int, floor: int) -> list[Held]:
    """Return the claims of other versions, and those that were granted up to the position ``floor``."""
    return [one for one in claims if one.version != version or one.token <= floor]


def to_renew(claims: Iterable[Held], *, version: int, floor: int, log_time_ms: int) -> list[Held]:
    """Return the claims in use whose remaining lease is short."""
    late_ms = log_time_ms + RENEW_BELOW_MS
    return [one for one in claims if one.version == version and one.token > floor and one.deadline_ms < late_ms]


def parts(claims: Sequence[Held], size: int) -> Iterable[Sequence[Held]]:
    """Return the claims in slices of ``size``."""
    return (claims[start : start + size] for start in range(0, len(claims), size))
