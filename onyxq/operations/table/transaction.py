"""Transactions, and the batches of jobs, which are many transactions that are committed together."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple, TypeAlias

from msgspec import Meta, field

from onyxq.core.limits import (
    DEADLINE_AHEAD_MS_MAX,
    INT_MAX,
    ITEMS_MAX,
    NAME_CHARACTERS_MAX,
    NAME_KEEP_MS,
    NAME_KEEP_MS_MAX,
    OFFSETS_BYTES_MAX,
    PLAIN,
    TIME_MS_MAX,
    Name,
    TaskIdBytes,
)
from onyxq.operations.table.access import Access, Need
from onyxq.operations.table.claim import Count, Held, NewUpdate, Token
from onyxq.operations.table.enqueue import SOME_BODY, NewRun, on_new
from onyxq.operations.table.operation import Args, Operation, Place, Result

TASKS_MAX = 1_000
"""Most tasks that one transaction names, new ones included."""
DIGEST_BYTES = 16
BATCH_MAX = (1 << 31) - 1
AHEAD_MS_MAX = DEADLINE_AHEAD_MS_MAX - 60_000
"""How long prepared parts may wait for their batch: the log's time passes while they are kept."""


class CompletedRun(NamedTuple):
    """A run of claimed tasks that are done, with a result of each or none at all."""

    id: TaskIdBytes
    count: Count  # type: ignore[assignment]  # not the method of tuples
    token: Token
    result: list[bytes | None] | None


CompletedRuns: TypeAlias = Annotated[
    list[CompletedRun], Meta(description="[first id, count, token, results or null] of claimed tasks.")
]
NewRuns: TypeAlias = Annotated[list[NewRun], Meta(description="New tasks, as `runs` of `enqueue`.")]
MANY = Meta(max_length=TASKS_MAX)
MANY_OF_BATCH = Meta(max_length=ITEMS_MAX)
Keep: TypeAlias = Annotated[int, Meta(ge=0, le=NAME_KEEP_MS_MAX, description="How long the name is remembered.")]


class Transact(Args):
    """Do all of several changes or none.

    At most 1,000 tasks and 4 MiB of payload. The error ``stale_token`` has in ``details`` each claim that is not valid.
    """

    name: Annotated[Name, Meta(description="Name of the transaction: a repeat gets the first answer.")]
    complete: Annotated[CompletedRuns, MANY] = field(default_factory=list)
    update: Annotated[
        list[NewUpdate], MANY, Meta(description="[id, token, sequence number, bytes] of claimed tasks.")
    ] = field(default_factory=list)
    enqueue: Annotated[NewRuns, MANY] = field(default_factory=list)
    require: Annotated[list[Held], MANY, Meta(description="[first id, count, token] of claims that must be valid.")] = (
        field(default_factory=list)
    )
    digest: Annotated[
        Annotated[bytes, Meta(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)] | None,
        Meta(description="Identifies the contents; default: computed from them."),
    ] = None
    made_ms: Annotated[int, Meta(ge=0, le=TIME_MS_MAX, description="A time that repeats get back.")] = 0
    keep_ms: Keep = NAME_KEEP_MS


class CommittedTransaction(Result):
    """A transaction that is committed."""

    token: Annotated[int, Meta(description="Position of its commit in the log.")]
    settled: Annotated[bool, Meta(description="Whether all of it can be read; if not, it will be soon.")]
    made_ms: int


class OfJob(Args):
    """Base of the arguments that name a job and the version of its driver."""

    job: Annotated[
        str, Meta(max_length=NAME_CHARACTERS_MAX, pattern=PLAIN, description="Id of the job; empty: no job.")
    ] = ""
    version: Annotated[int, Meta(ge=-1, le=INT_MAX, description="Version of the driver; -1 without a job.")] = -1


class PrepareBatch(OfJob, kw_only=True):
    """Store a share of a batch, invisible until its commit. For drivers."""

    name: Annotated[Name, Meta(description="Name of this share.")]
    complete: Annotated[CompletedRuns, MANY_OF_BATCH] = field(default_factory=list)
    enqueue: Annotated[NewRuns, MANY_OF_BATCH] = field(default_factory=list)
    deadline_ms: Annotated[
        int, Meta(ge=1, le=AHEAD_MS_MAX, description="How long the share waits for its commit, in time of the log.")
    ] = AHEAD_MS_MAX


class PreparedBatch(Result):
    """A share that is stored."""

    prepared: Annotated[bytes, Meta(description="What the commit takes.")]


class CommitBatch(OfJob, kw_only=True):
    """Make a batch visible, once. For drivers."""

    name: Annotated[Name, Meta(description="Name of what the batch completes. It identifies a batch without a job.")]
    prepared: Annotated[list[bytes], MANY_OF_BATCH, Meta(description="Answers of `jobs.prepare`.")] = field(
        default_factory=list
    )
    complete: Annotated[CompletedRuns, MANY_OF_BATCH] = field(default_factory=list)
    batch: Annotated[int, Meta(ge=0, le=BATCH_MAX, description="Number of the batch.")] = 0
    offsets: Annotated[
        bytes, Meta(max_length=OFFSETS_BYTES_MAX, description="Stored with the batch.", extra={"too_large": True})
    ] = b""
    keep_ms: Keep = NAME_KEEP_MS


class CommittedBatch(Result):
    """A batch that is committed."""

    position: Annotated[int, Meta(description="Position of a commit of it in the log.")]
    repeat: Annotated[bool, Meta(description="Whether it was committed before.")]
    settled: Annotated[bool, Meta(description="Whether all of it can be read; if not, it will be soon.")]


def _needs(args: Transact) -> list[Need]:
    held = [(one.id, one.count) for one in args.complete]
    held += [(one.id, one.count) for one in args.require]
    held += [(one.id, 1) for one in args.update]
    needs = [Need(("consume",), tasks=tuple(held))] if held else []
    needs += [on_new("enqueue", args.enqueue)] if args.enqueue else []
    return needs or [Need(("consume", "produce"))]


_EVERY = (Need(("consume",), every=True), Need(("produce",), every=True))
DRIVERS = Access((), lambda args: _EVERY, by_arguments=False)
"""The access of the drivers of jobs, which read and write any queue."""
_SOME_ID = bytes.fromhex("0196f0c5a1b20007d4c3b2a19080706000000000")
_NEW: list[Any] = [bytes.fromhex("0196f0c5a1b20007d4c3b2a19080706100000000"), SOME_BODY]

TRANSACT = Operation(
    name="transact",
    args=Transact,
    result=CommittedTransaction,
    access=Access((), _needs),
    place=Place.LEADER,
    bounded=True,
    large=True,
    python="transact",
    python_chosen=("name",),
    python_left_out=("digest", "made_ms", "keep_ms"),
    example={"name": "order 17", "complete": [[_SOME_ID, 1, 4711, [b"done"]]], "enqueue": [_NEW]},
)
PREPARE_BATCH = Operation(
    name="jobs.prepare",
    args=PrepareBatch,
    result=PreparedBatch,
    access=DRIVERS,
    place=Place.LEADER,
    bounded=True,
    large=True,
    python="prepare_batch",
    example={"name": "share 1", "enqueue": [_NEW]},
)
COMMIT_BATCH = Operation(
    name="jobs.commit",
    args=CommitBatch,
    result=CommittedBatch,
    access=DRIVERS,
    place=Place.LEADER,
    bounded=True,
    large=True,
    python="commit_batch",
    example={"name": "batch 1", "prepared": [b"..."]},
)
TRANSACTIONS = (TRANSACT,)
BATCHES = (PREPARE_BATCH, COMMIT_BATCH)
