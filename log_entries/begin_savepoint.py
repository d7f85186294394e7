"""Begin a savepoint of a running job: give it a name, until it is complete or dropped.

Submitted by any peer for a client. Keeps the job's definition and the number of its last batch under the name. The
job's driver then copies what the job needs to continue after that batch or a later one, and submits `keep_savepoint`.
The copy is a folder of files beside the job's checkpoint: none of it passes through the log.

A savepoint stays until `drop_savepoint` removes it, also after its job has ended. All savepoints are one map in
``extensions``, under a name that no extension can have.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from attrs import frozen
from pyrsistent import PMap

from onyxq.core.entry import APPLIED, Stamp, Verdict
from onyxq.core.extensions import NOTHING, state_of, with_state
from onyxq.core.jobs.lifetime import RUNNING, absence, is_id
from onyxq.core.limits import NAME_CHARACTERS_MAX, OFFSETS_BYTES_MAX
from onyxq.core.replica import Job, Replica

VERSION = 1

STATE = "job.savepoints"
"""Key of the savepoints in ``extensions``; the names of extensions have no dot."""
REPEAT = "repeat"
TAKEN = "name is taken"
NO_DRIVER = "no driver"
NO_BATCH = "no batch"
SAVEPOINTS_MAX = 1_000
"""Maximum of savepoints in a cluster, because the replica holds them."""
BYTES_MAX = 32 << 20
"""Maximum of the definitions and offsets of all savepoints together, in bytes.

The offsets of a savepoint that is not complete count as `OFFSETS_BYTES_MAX`.
"""


class Savepoint(NamedTuple):
    """A savepoint in the replica, which keeps it as a plain tuple."""

    job: str
    submitted: int
    """``Job.submitted`` of its job: another job may get the same id later."""
    body: bytes
    """The job as its submitter packed it."""
    position: int
    """Position of the entry that began it. With the name it identifies the savepoint."""
    request: str
    """Name of the request, by which a repeat is recognised."""
    batch: int
    """The batch after which it continues; until it is complete: the first one after which it may."""
    at_ms: int
    """``Replica.clock_ms`` when it was begun, later when it became complete."""
    offsets: bytes = b""
    """How far that batch had read."""
    place: str = ""
    """Path or URI of its folder; empty until it is complete."""
    size_bytes: int = 0
    """Size of its files."""
    begins: tuple[str, ...] = ()
    """Jobs that were submitted from it, the last ones that had committed no batch by then."""

    @property
    def complete(self) -> bool:
        """Whether a job can begin from it."""
        return bool(self.place)


_KINDS = (str, int, bytes, int, str, int, int, bytes, str, int, tuple)


@frozen
class Args:
    """``request``: a name for this request, or empty."""

    name: str
    job: str
    request: str = ""


def apply(replica: Replica, args: Args, stamp: Stamp) -> tuple[Replica, Verdict]:
    """Begin the savepoint, unless its name is taken or its job cannot have one now."""
    known = savepoint_of(replica, args.name)
    if known is not None and _is_repeat(known, args):
        return replica, REPEAT
    problem = _problem(replica, args) if known is None else TAKEN
    if problem:
        return replica, problem
    job = replica.jobs[args.job]
    begun = Savepoint(
        job.id, job.submitted, job.body, stamp.position, args.request, batch=job.batch, at_ms=replica.clock_ms
    )
    return with_savepoint(replica, args.name, begun), APPLIED


def _is_repeat(known: Savepoint, args: Args) -> bool:
    """Return whether this asks for a savepoint that is being made, or was made for the same request."""
    return known.job == args.job and (not known.complete or known.request == args.request != "")


def _problem(replica: Replica, args: Args) -> str:
    if not is_id(args.name):
        return "name must have 1 to 120 letters, digits, '.', '_' or '-', and begin with a letter or digit"
    if len(args.request) > NAME_CHARACTERS_MAX:
        return f"request must have at most {NAME_CHARACTERS_MAX} characters"
    return absence(replica, args.job) or _unready(replica.jobs[args.job]) or _too_much(replica, replica.jobs[args.job])


def _unready(job: Job) -> str:
    if job.state != RUNNING:
        return NO_DRIVER
    return NO_BATCH if job.batch < 0 else ""


def _too_much(replica: Replica, job: Job) -> str:
    others = savepoints(replica)
    if len(others) >= SAVEPOINTS_MAX:
        return f"name is one too many: there are {len(others)} savepoints"
    held = sum(len(one.body) + (len(one.offsets) or OFFSETS_BYTES_MAX) for one in others.values())
    if held + len(job.body) + OFFSETS_BYTES_MAX > BYTES_MAX:
        return f"name is one too many: the definitions of all savepoints together may have {BYTES_MAX} bytes"
    return ""


# --- savepoints in the replica ---------------------------------------------------


def savepoints(replica: Replica) -> dict[str, Savepoint]:
    """Return all savepoints by name, sorted. What is malformed, in a replica from a damaged file, is left out."""
    names = sorted(name for name in _state(replica) if isinstance(name, str))
    return {name: one for name in names if (one := savepoint_of(replica, name)) is not None}


def savepoint_of(replica: Replica, name: str) -> Savepoint | None:
    """Return a savepoint, or None."""
    found = _state(replica).get(name)
    if (
        type(found) is not tuple
        or tuple(map(type, found)) != _KINDS
        or not all(isinstance(one, str) for one in found[-1])
    ):
        return None
    return Savepoint(*found)


def with_savepoint(replica: Replica, name: str, one: Savepoint | None) -> Replica:
    """Return the replica with a savepoint added or replaced, or without it if it is None."""
    state = _state(replica)
    return with_state(replica, STATE, state.discard(name) if one is None else state.set(name, tuple(one)))


def _state(replica: Replica) -> PMap[Any, Any]:
    found = state_of(replica, STATE)
    return found if isinstance(found, PMap) else NOTHING
