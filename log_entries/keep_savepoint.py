"""Complete a savepoint: its files are all at their place.

Submitted by the peer that drives the job under this version, after its Spark host has copied the files. From then on
jobs can begin from the savepoint (`restore_job`). The offsets are those that `commit_batch` recorded for the batch. A
replaced driver completes nothing: the verdict is ``superseded``, and its copy is deleted.
"""

from __future__ import annotations

from attrs import frozen

from log_entries.begin_savepoint import Savepoint, savepoint_of, with_savepoint
from onyxq.core.entry import APPLIED, Stamp, Verdict
from onyxq.core.jobs.lifetime import SUPERSEDED, refusal
from onyxq.core.limits import OFFSETS_BYTES_MAX
from onyxq.core.replica import Replica

VERSION = 1

REPEAT = "repeat"
GONE = "no such savepoint is being made"
PLACE_CHARACTERS_MAX = 4_096


@frozen
class Args:
    """``position``: of the entry that began it; ``version``: of the driver's allocation."""

    name: str
    position: int
    version: int
    batch: int
    offsets: bytes
    place: str
    size_bytes: int


def apply(replica: Replica, args: Args, stamp: Stamp) -> tuple[Replica, Verdict]:
    """Complete the savepoint, if it is still being made."""
    known = savepoint_of(replica, args.name)
    if known is None or known.position != args.position:
        return replica, GONE
    if known.complete:
        return replica, REPEAT if known.place == args.place else GONE
    problem = _problem(replica, known, args)
    if problem:
        return replica, problem
    complete = known._replace(
        batch=args.batch, offsets=args.offsets, place=args.place, size_bytes=args.size_bytes, at_ms=replica.clock_ms
    )
    return with_savepoint(replica, args.name, complete), APPLIED


def _problem(replica: Replica, known: Savepoint, args: Args) -> str:
    """Return why the report does not count; empty if it does."""
    refused = refusal(replica, known.job, args.version)
    if refused:
        return refused
    job = replica.jobs[known.job]
    if job.submitted != known.submitted:
        return SUPERSEDED
    if not known.batch <= args.batch <= job.batch:
        return f"batch must be {known.batch} to {job.batch}"
    if not 1 <= len(args.offsets) <= OFFSETS_BYTES_MAX:
        return f"offsets must have 1 to {OFFSETS_BYTES_MAX} bytes"
    if not 1 <= len(args.place) <= PLACE_CHARACTERS_MAX or args.size_bytes < 0:
        return f"place must have 1 to {PLACE_CHARACTERS_MAX} characters, and size_bytes must not be negative"
    return ""
