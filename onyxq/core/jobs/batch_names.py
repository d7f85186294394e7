"""Names of transactions for the batches of jobs: ``job/ID/VERSION/BATCH/...`` (design: jobs on Spark).

Pure.  A transaction with such a name is committed with that batch and under that version, or never:
peers reject all other commits of it (`onyxq.operations.checks.batches`).  So the log shows early, long
before the deadline, that a transaction left by an old driver can never be committed.
"""

from __future__ import annotations

from typing import NamedTuple

from onyxq.core.jobs.lifetime import UNKNOWN, absence, is_id
from onyxq.core.replica import Replica
from onyxq.core.texts import whole


class Share(NamedTuple):
    """The batch for which a transaction is prepared."""

    job: str
    version: int
    batch: int


def share_of(name: str) -> Share | None:
    """Return the batch in a name; None if the name is not of a job's batch."""
    parts = name.split("/", 4)
    if len(parts) != 5 or parts[0] != "job" or not is_id(parts[1]):
        return None
    version, batch = whole(parts[2]), whole(parts[3])
    if version is None or batch is None:
        return None
    return Share(parts[1], version, batch)


def is_void(replica: Replica, name: str) -> bool:
    """Return whether no later entry can commit a transaction of that name any more.

    A name with a newer version than this replica's is not void: the entry of that version may follow.
    """
    share = share_of(name)
    if share is None:
        return False
    gone = absence(replica, share.job)
    if gone:
        return gone != UNKNOWN
    job = replica.jobs[share.job]
    return share.version < job.version or (share.version == job.version and share.batch <= job.batch)
