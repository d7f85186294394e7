"""Names of what is prepared for the batches of jobs: ``job/ID/VERSION/BATCH/...`` (design: jobs on Spark).

Pure.  What is named so is committed with that batch and under that version, or never: peers let
nothing else commit it (`onyxq.operations.arguments.batches`).  So the log tells of what a driver left behind
that nothing can come of it, long before its deadline.
"""

from __future__ import annotations

from typing import NamedTuple

from onyxq.core.jobs.lifetime import UNKNOWN, absence, is_id
from onyxq.core.replica import Replica
from onyxq.core.texts import whole


class Share(NamedTuple):
    """The batch that something is prepared for."""

    job: str
    version: int
    batch: int


def share_of(name: str) -> Share | None:
    """Return the batch that a name tells; None if it is not of a job's batch."""
    parts = name.split("/", 4)
    if len(parts) != 5 or parts[0] != "job" or not is_id(parts[1]):
        return None
    version, batch = whole(parts[2]), whole(parts[3])
    if version is None or batch is None:
        return None
    return Share(parts[1], version, batch)


def is_void(replica: Replica, name: str) -> bool:
    """Return whether no entry behind this replica can commit a transaction of that name any more.

    One of a version that this replica has not read of yet may come.
    """
    share = share_of(name)
    if share is None:
        return False
    gone = absence(replica, share.job)
    if gone:
        return gone != UNKNOWN
    job = replica.jobs[share.job]
    return share.version < job.version or (share.version == job.version and share.batch <= job.batch)
