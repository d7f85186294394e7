"""Checks of transactions that clients ask for and that nodes pass on: each names the field at fault."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import msgpack
from attrs import frozen

from onyxq.core.errors import BadRequest, TooLarge
from onyxq.core.facts import task_header
from onyxq.core.ids import TaskId, mask_of, partition_of, stretch_of
from onyxq.core.jobs.batch_names import Share, share_of
from onyxq.core.limits import RUN_BYTES_MAX
from onyxq.core.transactions import KEEP_MS, KEEP_MS_MAX, NAME_CHARACTERS_MAX
from onyxq.leader.transaction_parts import HeldClaim, PartRequest
from onyxq.node import arguments as check

ITEMS_MAX = 1_000
"""Tasks that one transaction may name, those to be enqueued included."""
BYTES_MAX = 4 * 1024 * 1024
"""Payload bytes of one transaction: tasks, results and updates."""
DIGEST_BYTES = 16
MADE_MS_MAX = (1 << 48) - 1

ARGUMENTS = ("name", "complete", "update", "enqueue", "require", "digest", "made_ms", "keep_ms")


@frozen(kw_only=True)
class Contents:
    """A transaction as it was asked for, checked."""

    name: str
    complete: Sequence[tuple[TaskId, int, int, list[bytes | None]]]
    """(first, count, token, results)."""
    update: Sequence[tuple[TaskId, int, int, bytes]]
    """(id, token, seq, data)."""
    enqueue: Sequence[tuple[TaskId, bytes, int | None]]
    """(first, body, due time that the user named)."""
    require: Sequence[HeldClaim]
    digest: bytes
    """The same only for the same contents."""
    made_ms: int
    """Given back to repeats; 0: nothing."""
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
        """Claims that must stand and that it leaves as they are."""
        return [*((one, 1, token) for one, token, _, _ in self.update), *self.require]


def transaction(args: dict[str, Any], partitions: int) -> Contents:
    """A transaction that a client asks for; raises `BadRequest` that names the field at fault."""
    found = contents(args, partitions)
    check_share(found.name, "name", None)
    return found


def check_share(name: str, field: str, share: Share | None) -> None:
    """Raise `BadRequest` if a name tells another batch of a job than the one that it is used for, or none."""
    said = share_of(name)
    if said is not None and said != share:
        raise BadRequest(
            f"{name!r} is a name for batch {said.batch} of job {said.job} under version {said.version}",
            field=field,
            hint="Give it another name: job/ID/VERSION/BATCH/... is kept for what these batches commit.",
        )


def contents(args: dict[str, Any], partitions: int, *, most: int = ITEMS_MAX) -> Contents:
    """What is to be done together, of so many tasks; raises `BadRequest` that names the field at fault."""
    check.only(args, ARGUMENTS)
    complete, update, enqueue, require = (
        _list(args, name, most) for name in ("complete", "update", "enqueue", "require")
    )
    completions = [_completion(item, place, partitions) for place, item in enumerate(complete)]
    updates = [_update(item, place, partitions) for place, item in enumerate(update)]
    runs = [_run(item, place, partitions) for place, item in enumerate(enqueue)]
    required = [_held(item, f"require[{place}]", 3, partitions) for place, item in enumerate(require)]
    _distinct([(one[0], one[1]) for one in completions], "complete")
    _distinct([(run[0], task_header(run[1])[1]) for run in runs], "enqueue")
    counts = {
        "complete": sum(one[1] for one in completions),
        "update": len(updates),
        "enqueue": sum(task_header(run[1])[1] for run in runs),
        "require": sum(one[1] for one in required),
    }
    if not any(counts.values()):
        raise BadRequest("a transaction must do something", field="complete")
    if sum(counts.values()) > most:
        name = max(counts, key=counts.__getitem__)
        raise TooLarge(f"{sum(counts.values())} tasks in one transaction; at most {most}", field=name)
    size = _payload_bytes(completions, updates, runs)
    digest, made_ms, keep_ms = args.get("digest"), args.get("made_ms", 0), args.get("keep_ms", KEEP_MS)
    if digest is None:
        digest = blake2b(msgpack.packb([complete, update, enqueue, require]), digest_size=DIGEST_BYTES).digest()
    elif not isinstance(digest, bytes) or len(digest) != DIGEST_BYTES:
        raise BadRequest(f"digest must be {DIGEST_BYTES} bytes", field="digest")
    return Contents(
        name=check.name(args.get("name"), "name", NAME_CHARACTERS_MAX, least=1),
        complete=completions,
        update=updates,
        enqueue=runs,
        require=required,
        digest=digest,
        made_ms=check.integer(made_ms, "made_ms", 0, MADE_MS_MAX),
        keep_ms=check.integer(keep_ms, "keep_ms", 0, KEEP_MS_MAX),
        size=size,
    )


def asked_parts(args: dict[str, Any], partitions: int) -> list[PartRequest]:
    """What another node passes on to a leader; raises `BadRequest`."""
    found = check.items(args, 5, "parts")
    asked = []
    for place, (name, deadline_ms, partition, items, require) in enumerate(found):
        where = f"parts[{place}]"
        number = check.integer(partition, f"{where}.partition", 0, partitions - 1)
        if not isinstance(items, list) or not isinstance(require, list):
            raise BadRequest(f"{where} must hold lists", field=where)
        checked = [_item(item, index, number, partitions) for index, item in enumerate(items)]
        claims = [_held(item, f"require[{index}]", 3, partitions) for index, item in enumerate(require)]
        if any(partition_of(claim[0]) != number for claim in claims):
            raise BadRequest(f"{where} holds claims of another partition", field=where)
        name = check.name(name, f"{where}.name", NAME_CHARACTERS_MAX, least=1)
        deadline_ms = check.integer(deadline_ms, f"{where}.deadline_ms", 0, 1 << 62)
        asked.append(PartRequest(name, deadline_ms, number, checked, claims))
    return asked


def _item(item: Any, place: int, partition: int, partitions: int) -> list[Any]:
    if not isinstance(item, list) or len(item) < 3 or item[0] not in ("C", "U", "T"):
        raise BadRequest(f"items[{place}] is malformed", field=f"items[{place}]")
    kind, rest = item[0], item[1:]
    if kind == "C":
        first, count, token, results = _completion(rest, place, partitions)
        checked = [kind, first, count, token, results or None]
    elif kind == "U":
        checked = [kind, *_update(rest, place, partitions)]
    else:
        checked = [kind, *_run(rest, place, partitions, from_peer=True)]
    if partition_of(checked[1]) != partition:
        raise BadRequest(f"items[{place}] is of another partition", field=f"items[{place}]")
    return checked


def _list(args: dict[str, Any], name: str, most: int) -> list[Any]:
    found = args.get(name)
    if found is None:
        return []
    if not isinstance(found, list) or len(found) > most:
        raise BadRequest(f"{name} must be a list of at most {most}", field=name)
    return found


def _held(item: Any, field: str, width: int, partitions: int) -> HeldClaim:
    if not isinstance(item, list) or len(item) != width:
        raise BadRequest(f"{field} must be a list of {width}", field=field)
    first, count = check.run(item, field, partitions)
    return first, count, check.token(item[2], f"{field}.token")


def _completion(item: Any, place: int, partitions: int) -> tuple[TaskId, int, int, list[bytes | None]]:
    field = f"complete[{place}]"
    first, count, token = _held(item, field, 4, partitions)
    return first, count, token, check.results(item[3], f"{field}.result", count)


def _update(item: Any, place: int, partitions: int) -> tuple[TaskId, int, int, bytes]:
    field = f"update[{place}]"
    if not isinstance(item, list) or len(item) != 4:
        raise BadRequest(f"{field} must be a list of 4", field=field)
    task_id, token = check.task_id(item[0], f"{field}.id", partitions), check.token(item[1], f"{field}.token")
    seq = check.integer(item[2], f"{field}.seq", 0, check.SEQ_MAX)
    if not isinstance(item[3], bytes) or len(item[3]) > RUN_BYTES_MAX:
        raise BadRequest(f"{field}.data must be at most {RUN_BYTES_MAX} bytes", field=f"{field}.data")
    return task_id, token, seq, item[3]


def _run(item: Any, place: int, partitions: int, *, from_peer: bool = False) -> tuple[TaskId, bytes, int | None]:
    field = f"enqueue[{place}]"
    if not isinstance(item, list) or not 2 <= len(item) <= 3:
        raise BadRequest(f"{field} must be a list of 2", field=field)
    try:
        return check.task_run(item, place, partitions, from_peer=from_peer)
    except BadRequest as error:
        raise _renamed(error, f"runs[{place}]", field) from None


def _renamed(error: BadRequest, before: str, after: str) -> BadRequest:
    message = error.message.replace(before, after)
    return type(error)(message, field=(error.field or before).replace(before, after), hint=error.advice)


def _distinct(runs: Sequence[tuple[TaskId, int]], name: str) -> None:
    """Refuse what names a task twice."""
    seen: dict[TaskId, int] = {}
    for place, (first, count) in enumerate(runs):
        stretch, mask = stretch_of(first), mask_of(first, count)
        if seen.get(stretch, 0) & mask:
            raise BadRequest(f"{name}[{place}] names a task a second time", field=f"{name}[{place}].id")
        seen[stretch] = seen.get(stretch, 0) | mask


def _payload_bytes(completions: Sequence[Any], updates: Sequence[Any], runs: Sequence[Any]) -> int:
    """Payload bytes; raises `TooLarge`."""
    sizes = {
        "complete": sum(len(result or b"") for *_, results in completions for result in results),
        "update": sum(len(data) for *_, data in updates),
        "enqueue": sum(len(run[1]) for run in runs),
    }
    size = sum(sizes.values())
    if size > BYTES_MAX:
        most = max(sizes, key=sizes.__getitem__)
        raise TooLarge(f"{size} payload bytes in one transaction; at most {BYTES_MAX}", field=most)
    return size
