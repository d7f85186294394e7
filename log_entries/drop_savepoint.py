"""Remove a savepoint, complete or not.

Submitted by any peer for a client that deletes it, and by the driver of its job if it cannot be made. Owed by the
ring's first peer for a savepoint that is not complete and whose job has ended. Frees the name. Hosts of Spark delete
the files of savepoints that the replica does not have. Why a savepoint was not completed is remembered for a while,
for the client that waits for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import frozen

from log_entries.begin_savepoint import Savepoint, savepoint_of, savepoints, with_savepoint
from onyxq.core.entry import APPLIED, Stamp, Verdict
from onyxq.core.jobs.lifetime import ERROR_BYTES_MAX, is_over, refusal
from onyxq.core.remembered import recall, remember
from onyxq.core.replica import Replica, first_peer

VERSION = 1

UNKNOWN = "no such savepoint"
IN_USE = "in use by job "
"""Begin of the verdict about a savepoint from which a job still has to begin; the job's id follows."""
COMPLETE = "already complete"
"""Verdict about a savepoint that only a client may remove."""
KIND = "savepoint"
"""Kind of what is remembered."""
KEEP_MS = 600_000


@frozen
class Args:
    """``position``: of the entry that began it; ``why``: the reason why it is not completed, at most 8 KiB.

    ``version``: of the allocation of the driver that cannot make it; -1: a client deletes it, or its job has ended.
    """

    name: str
    position: int
    why: str = ""
    version: int = -1


def apply(replica: Replica, args: Args, stamp: Stamp) -> tuple[Replica, Verdict]:
    """Remove the savepoint, unless a job still has to begin from it."""
    known = savepoint_of(replica, args.name)
    if known is None or known.position != args.position:
        return replica, UNKNOWN
    refused = _refusal(replica, known, args.version)
    if refused:
        return replica, refused
    if len(args.why.encode(errors="replace")) > ERROR_BYTES_MAX:
        return replica, f"why must have at most {ERROR_BYTES_MAX} bytes"
    waiting = waiting_from(replica, known)
    if waiting:
        return replica, IN_USE + waiting[0]
    if not known.complete:
        replica = remember(replica, KIND, _key(args.name, args.position), for_ms=KEEP_MS, answer=args.why)
    return with_savepoint(replica, args.name, None), APPLIED


def owed(replica: Replica, me: str) -> Sequence[Args]:
    """Return the end of each savepoint that no driver will complete."""
    lost = [(name, one) for name, one in savepoints(replica).items() if not one.complete and _is_lost(replica, one)]
    if not lost or first_peer(replica) != me:
        return ()
    return [Args(name, one.position, f"job {one.job} ended before its savepoint was complete") for name, one in lost]


def waiting_from(replica: Replica, one: Savepoint) -> list[str]:
    """Return the jobs that were submitted from a savepoint and have committed no batch yet.

    Until then they have its offsets. Another job that got such an id later has not.
    """
    found = [replica.jobs[name] for name in one.begins if name in replica.jobs]
    return [job.id for job in found if not is_over(job) and job.batch < 0 and job.offsets == one.offsets]


def why_dropped(replica: Replica, name: str, position: int) -> str | None:
    """Return why a savepoint was not completed; None if that is not known."""
    kept: Any = recall(replica, KIND, _key(name, position))
    return None if kept is None else str(kept.answer)


def _refusal(replica: Replica, one: Savepoint, version: int) -> str:
    """Return why a driver may not drop a savepoint, or an empty string."""
    if version < 0:
        return ""
    return COMPLETE if one.complete else refusal(replica, one.job, version)


def _key(name: str, position: int) -> str:
    return f"{name}/{position}"


def _is_lost(replica: Replica, one: Savepoint) -> bool:
    job = replica.jobs.get(one.job)
    return job is None or is_over(job) or job.submitted != one.submitted
