"""Checks of what drivers of batches ask for: each names the field at fault."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgpack
from attrs import frozen

from log_entries import commit_batch
from onyxq.core.entry import Malformed, decode_args, encode_args
from onyxq.core.errors import BadRequest, TooLarge
from onyxq.core.jobs.batch_names import Share, share_of
from onyxq.core.transactions import DEADLINE_AHEAD_MS_MAX, KEEP_MS, KEEP_MS_MAX, NAME_CHARACTERS_MAX, Prepared
from onyxq.node import arguments as check
from onyxq.operations.arguments.transactions import DIGEST_BYTES, Contents, check_share, contents

ITEMS_MAX = 20_000
"""Tasks that one call may prepare, and runs that a batch may complete."""
BATCH_MAX = (1 << 31) - 1
AHEAD_MS_MAX = DEADLINE_AHEAD_MS_MAX - 60_000
"""For how long prepared parts may wait for their batch: the log's clock goes on while they are kept."""
COMPLETES = "/completes"
"""Ends the name of what a batch without a job completes."""
UNDIGESTED = bytes(DIGEST_BYTES)

PREPARE = ("job", "version", "name", "complete", "enqueue", "deadline_ms", "keep_ms")
COMMIT = ("job", "version", "batch", "offsets", "prepared", "name", "complete", "keep_ms")


@frozen
class Fence:
    """Under which version of which job something is asked for; no job: nothing fences it."""

    job: str
    version: int


@frozen(kw_only=True)
class Asked:
    """A batch that is to be committed."""

    fence: Fence
    batch: int
    offsets: bytes
    prepared: tuple[Prepared, ...]
    complete: Contents | None
    """What it completes, which is not prepared yet."""
    marker: tuple[Prepared, ...]
    """Of a batch that has no job: what it is known by."""


def fence(args: dict[str, Any]) -> Fence:
    """The job and version that a call names."""
    job = check.name(args.get("job", ""), "job", NAME_CHARACTERS_MAX)
    version = check.integer(args.get("version", -1 if not job else None), "version", -1, check.TOKEN_MAX)
    if not job and version != -1:
        raise BadRequest("a version belongs to a job", field="job")
    return Fence(job, version)


def prepare(args: dict[str, Any], partitions: int) -> tuple[Fence, Contents, int]:
    """What is to be prepared, and for how long in log time."""
    check.only(args, PREPARE)
    ahead_ms = check.integer(args.get("deadline_ms", AHEAD_MS_MAX), "deadline_ms", 1, AHEAD_MS_MAX)
    fenced, wanted = fence(args), _transaction(args, ("complete", "enqueue"), partitions, keep_ms=0)
    said = share_of(wanted.name)
    check_share(wanted.name, "name", said and Share(fenced.job, fenced.version, said.batch))
    return fenced, wanted, ahead_ms


def commit(args: dict[str, Any], partitions: int) -> Asked:
    """The batch that is to be committed."""
    check.only(args, COMMIT)
    fenced = fence(args)
    batch = check.integer(args.get("batch", 0), "batch", 0, BATCH_MAX)
    offsets = args.get("offsets", b"")
    if not isinstance(offsets, bytes):
        raise BadRequest("offsets must be bytes", field="offsets")
    if len(offsets) > commit_batch.OFFSETS_BYTES_MAX:
        raise TooLarge(f"{len(offsets)} bytes of offsets; at most {commit_batch.OFFSETS_BYTES_MAX}", field="offsets")
    marker = () if fenced.job else (_marker(args),)
    complete = None
    if args.get("complete"):
        own = {"name": f"{marker[0].name}{COMPLETES}"} if marker else {}
        complete = _transaction(args | own, ("complete",), partitions, keep_ms=KEEP_MS)
    prepared = _prepared(args.get("prepared", []))
    share = Share(fenced.job, fenced.version, batch) if fenced.job else None
    for place, one in enumerate(prepared):
        check_share(one.name, f"prepared[{place}]", share)
    for one in (*marker, *((complete,) if complete is not None else ())):
        check_share(one.name, "name", share)
    return Asked(
        fence=fenced,
        batch=batch,
        offsets=offsets,
        prepared=prepared,
        complete=complete,
        marker=marker,
    )


def _transaction(args: dict[str, Any], names: Sequence[str], partitions: int, *, keep_ms: int) -> Contents:
    said = {name: args[name] for name in ("name", *names) if name in args}
    return contents(said | {"digest": UNDIGESTED, "keep_ms": keep_ms}, partitions, most=ITEMS_MAX)


def _marker(args: dict[str, Any]) -> Prepared:
    name = check.name(args.get("name"), "name", NAME_CHARACTERS_MAX, least=1)
    keep_ms = check.integer(args.get("keep_ms", KEEP_MS), "keep_ms", 0, KEEP_MS_MAX)
    return Prepared(name, 0, (), (), (), keep_ms)


def _prepared(found: Any) -> tuple[Prepared, ...]:
    if not isinstance(found, list) or len(found) > ITEMS_MAX:
        raise BadRequest(f"prepared must be a list of at most {ITEMS_MAX}", field="prepared")
    return tuple(unpack(one, f"prepared[{place}]") for place, one in enumerate(found))


def pack(prepared: Prepared) -> bytes:
    """What whoever has something prepared is given, to have it committed with its batch."""
    return bytes(msgpack.packb(encode_args(commit_batch.Args("", 0, 0, b"", (prepared,)))[-1]))


def unpack(packed: Any, field: str) -> Prepared:
    """The reverse of `pack`; raises `BadRequest`."""
    if not isinstance(packed, bytes):
        raise BadRequest(f"{field} must be bytes", field=field)
    try:
        args: commit_batch.Args = decode_args(commit_batch.Args, ["", 0, 0, b"", msgpack.unpackb(packed)])
        (prepared,) = args.transactions
    except (Malformed, ValueError, TypeError, msgpack.UnpackException):
        raise BadRequest(f"{field} is not what preparing gave", field=field) from None
    return prepared
