"""Checks of what drivers of batches ask for that types cannot declare."""

from __future__ import annotations

from collections.abc import Sequence

import msgpack
from attrs import frozen

from log_entries import commit_batch
from onyxq.core.entry import Malformed, decode_args, encode_args
from onyxq.core.errors import BadRequest
from onyxq.core.jobs.batch_names import Share, share_of
from onyxq.core.limits import ITEMS_MAX, NAME_CHARACTERS_MAX, NAME_KEEP_MS
from onyxq.core.transactions import Prepared
from onyxq.jobs.letters import queue_of
from onyxq.operations.checks.transactions import Contents, check_share, checked_size
from onyxq.operations.table.enqueue import NewRun
from onyxq.operations.table.transaction import (
    DIGEST_BYTES,
    CommitBatch,
    CompletedRun,
    OfJob,
    PrepareBatch,
)

COMPLETES = "/completes"
"""Ends the name of what a batch without a job completes."""
UNDIGESTED = bytes(DIGEST_BYTES)


@frozen
class Fence:
    """Job and version under which something is asked for; no job: nothing fences it."""

    job: str
    version: int


@frozen(kw_only=True)
class Asked:
    """A batch to be committed."""

    fence: Fence
    batch: int
    offsets: bytes
    prepared: tuple[Prepared, ...]
    complete: Contents | None
    """What it completes, which is not prepared yet."""
    marker: tuple[Prepared, ...]
    """Identifies a batch that has no job."""


def fence(asked: OfJob) -> Fence:
    """Return the job and version of a call; raises `BadRequest`."""
    if not asked.job and asked.version != -1:
        raise BadRequest("a version belongs to a job", field="job")
    if asked.job and asked.version == -1:
        raise BadRequest("version is missing", field="version")
    return Fence(asked.job, asked.version)


def prepare(asked: PrepareBatch, partitions: int) -> tuple[Fence, Contents]:
    """Return what is to be prepared, and its fence; raises `BadRequest`, `TooLarge`."""
    fenced = fence(asked)
    own = queue_of(fenced.job) if fenced.job else ""
    wanted = _contents(asked.name, asked.complete, asked.enqueue, partitions, keep_ms=0, own=own)
    named = share_of(asked.name)
    check_share(asked.name, "name", named and Share(fenced.job, fenced.version, named.batch))
    return fenced, wanted


def commit(asked: CommitBatch, partitions: int) -> Asked:
    """Return the batch that is to be committed; raises `BadRequest`, `TooLarge`."""
    fenced, name = fence(asked), asked.name
    marker = () if fenced.job else (Prepared(name, 0, (), (), (), asked.keep_ms),)
    complete = None
    if asked.complete:
        own = f"{name}{COMPLETES}" if marker else name
        if len(own) > NAME_CHARACTERS_MAX:
            raise BadRequest(f"name must have at most {NAME_CHARACTERS_MAX - len(COMPLETES)} characters", field="name")
        complete = _contents(own, asked.complete, (), partitions, keep_ms=NAME_KEEP_MS)
    prepared = tuple(unpack(one, f"prepared[{place}]") for place, one in enumerate(asked.prepared))
    share = Share(fenced.job, fenced.version, asked.batch) if fenced.job else None
    for place, one in enumerate(prepared):
        check_share(one.name, f"prepared[{place}]", share)
    for named in (*marker, *((complete,) if complete is not None else ())):
        check_share(named.name, "name", share)
    return Asked(
        fence=fenced,
        batch=asked.batch,
        offsets=asked.offsets,
        prepared=prepared,
        complete=complete,
        marker=marker,
    )


def _contents(
    name: str,
    complete: Sequence[CompletedRun],
    enqueue: Sequence[NewRun],
    partitions: int,
    *,
    keep_ms: int,
    own: str = "",
) -> Contents:
    size = checked_size(complete, enqueue, partitions, counts={}, most=ITEMS_MAX, own=own)
    return Contents(name=name, complete=complete, enqueue=enqueue, digest=UNDIGESTED, keep_ms=keep_ms, size=size)


def pack(prepared: Prepared) -> bytes:
    """Return a prepared share as its commit takes it."""
    return bytes(msgpack.packb(encode_args(commit_batch.Args("", 0, 0, b"", (prepared,)))[-1]))


def unpack(packed: bytes, field: str) -> Prepared:
    """Return what `pack` packed; raises `BadRequest`."""
    try:
        args: commit_batch.Args = decode_args(commit_batch.Args, ["", 0, 0, b"", msgpack.unpackb(packed)])
        (prepared,) = args.transactions
    except (Malformed, ValueError, TypeError, msgpack.UnpackException):
        raise BadRequest(f"{field} is not an answer of jobs.prepare", field=field) from None
    return prepared
