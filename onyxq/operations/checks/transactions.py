"""Checks of transactions that types cannot declare: limits of the whole, and tasks that are named twice."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import msgpack
from attrs import frozen

from onyxq.core.errors import BadRequest, TooLarge
from onyxq.core.ids import TaskId, mask_of, partition_of, stretch_of
from onyxq.core.jobs.batch_names import Share, share_of
from onyxq.core.limits import TRANSACTION_BYTES_MAX
from onyxq.leader.transaction_parts import HeldClaim
from onyxq.operations.checks.runs import check_ids, check_new_runs, check_results, check_runs
from onyxq.operations.table.claim import Held, NewUpdate
from onyxq.operations.table.enqueue import NewRun
from onyxq.operations.table.transaction import DIGEST_BYTES, TASKS_MAX, CompletedRun, Transact


@frozen(kw_only=True)
class Contents:
    """A checked transaction."""

    name: str
    complete: Sequence[CompletedRun] = ()
    update: Sequence[NewUpdate] = ()
    enqueue: Sequence[NewRun] = ()
    require: Sequence[Held] = ()
    digest: bytes
    """The same only for the same contents."""
    made_ms: int = 0
    """Returned to repeats; 0: nothing."""
    keep_ms: int
    size: int
    """Payload bytes."""

    @property
    def note(self) -> bytes:
        """What is kept with the name."""
        return self.digest + self.made_ms.to_bytes(8, "big")

    def parts(self) -> dict[int, list[Any]]:
        """The items of each partition; see `onyxq.leader.cohort.pending_facts`."""
        items: dict[int, list[Any]] = {}
        for first, count, token, results in self.complete:
            items.setdefault(partition_of(first), []).append(["C", first, count, token, results or None])
        for task_id, token, seq, data in self.update:
            items.setdefault(partition_of(task_id), []).append(["U", task_id, token, seq, data])
        for first, body, at_ms in self.enqueue:
            items.setdefault(partition_of(first), []).append(["T", first, body, at_ms])
        return items

    def required(self) -> list[HeldClaim]:
        """Claims that must be valid and that it leaves as they are."""
        updated = [(one.id, 1, one.token) for one in self.update]
        return updated + [(one.id, one.count, one.token) for one in self.require]


def transaction(asked: Transact, partitions: int) -> Contents:
    """Return the transaction that a client asks for; raises `BadRequest`, `TooLarge` naming the field."""
    complete, update, enqueue, require = asked.complete, asked.update, asked.enqueue, asked.require
    check_ids((one.id for one in update), partitions, "update", member=".id")
    check_runs(require, partitions, "require")
    counts = {"update": len(update), "require": sum(one.count for one in require)}
    size = checked_size(complete, enqueue, partitions, counts=counts, updates=update, most=TASKS_MAX)
    check_share(asked.name, "name", None)
    packed = msgpack.packb([complete, update, enqueue, require]) if asked.digest is None else b""
    return Contents(
        name=asked.name,
        complete=complete,
        update=update,
        enqueue=enqueue,
        require=require,
        digest=asked.digest or blake2b(packed, digest_size=DIGEST_BYTES).digest(),
        made_ms=asked.made_ms,
        keep_ms=asked.keep_ms,
        size=size,
    )


def checked_size(
    complete: Sequence[CompletedRun],
    enqueue: Sequence[NewRun],
    partitions: int,
    *,
    counts: dict[str, int],
    updates: Sequence[NewUpdate] = (),
    most: int,
    own: str = "",
) -> int:
    """Return the payload bytes of what is done together, and check it.

    ``counts``: tasks that it names besides, by field.  ``most``: the limit of all tasks.  ``own``: the one of OnyxQ's
    own queues that it may write to.  Raises `BadRequest`,
    `TooLarge`.
    """
    check_runs(complete, partitions, "complete")
    for place, one in enumerate(complete):
        if one.result:
            check_results(one.result, one.count, f"complete[{place}].result")
    sizes = check_new_runs(enqueue, partitions, "enqueue", at_once=False, own=own)
    _check_distinct([(one.id, one.count) for one in complete], "complete")
    _check_distinct([(run.id, count) for run, count in zip(enqueue, sizes, strict=True)], "enqueue")
    counts = {"complete": sum(one.count for one in complete), "enqueue": sum(sizes), **counts}
    total = sum(counts.values())
    if not total:
        raise BadRequest("a transaction must do something", field="complete")
    if total > most:
        name = max(counts, key=counts.__getitem__)
        raise TooLarge(f"{total} tasks in one transaction; at most {most}", field=name)
    return _payload_bytes(complete, updates, enqueue)


def check_share(name: str, field: str, share: Share | None) -> None:
    """Raise `BadRequest` if a name names another batch of a job than the one that it is used for."""
    named = share_of(name)
    if named is not None and named != share:
        raise BadRequest(
            f"{name!r} is a name for batch {named.batch} of job {named.job} under version {named.version}",
            field=field,
            hint="Give it another name: job/ID/VERSION/BATCH/... is reserved for what these batches commit.",
        )


def _check_distinct(runs: Sequence[tuple[TaskId, int]], name: str) -> None:
    """Raise `BadRequest` for a task that is named twice."""
    seen: dict[TaskId, int] = {}
    for place, (first, count) in enumerate(runs):
        stretch, mask = stretch_of(first), mask_of(first, count)
        if seen.get(stretch, 0) & mask:
            raise BadRequest(f"{name}[{place}] names a task a second time", field=f"{name}[{place}].id")
        seen[stretch] = seen.get(stretch, 0) | mask


def _payload_bytes(complete: Sequence[CompletedRun], updates: Sequence[NewUpdate], enqueue: Sequence[NewRun]) -> int:
    sizes = {
        "complete": sum(len(result or b"") for one in complete for result in one.result or ()),
        "update": sum(len(one.data) for one in updates),
        "enqueue": sum(len(run.body) for run in enqueue),
    }
    size = sum(sizes.values())
    if size > TRANSACTION_BYTES_MAX:
        most = max(sizes, key=sizes.__getitem__)
        raise TooLarge(f"{size} payload bytes in one transaction; at most {TRANSACTION_BYTES_MAX}", field=most)
    return size
