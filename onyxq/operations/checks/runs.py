"""Checks of runs that types cannot declare: they depend on a run's contents, or on the cluster's settings.

Only the peer that a client's request reaches makes them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeAlias

from msgspec import UNSET

from onyxq.core import facts
from onyxq.core.errors import BadRequest, Corrupt, TooLarge
from onyxq.core.ids import STRETCH_TASKS, TaskId, is_callback, mask_of, offset_of, partition_of, stretch_of
from onyxq.core.queue_settings import check_writable
from onyxq.core.task_headers import ON_CONFLICT, UNIQUE_PERIOD_MS, UNIQUE_UNTIL
from onyxq.operations.table.claim import Completion
from onyxq.operations.table.enqueue import NewRun, TaskHeader, header_of

CallbackCheck: TypeAlias = Callable[[Sequence[NewRun], str], Awaitable[None]]
"""Checks the callbacks of new runs, the argument of that name; raises `BadRequest` if one cannot be made."""
RESULT_BYTES_MAX = 16 * 1024 * 1024


def write_level(wanted: int | None, copies: int) -> int | None:
    """Return ``w``; raises `BadRequest` if it is more than the cluster's ``copies``."""
    if wanted is not None and wanted > copies:
        raise BadRequest(
            f"w must be 1 to {copies}, not {wanted}: the cluster keeps {copies} {'copy' if copies == 1 else 'copies'}",
            field="w",
            hint=f"Ask for {copies} at most, or leave it out: a majority then has it.",
        )
    return wanted


def check_ids(ids: Iterable[TaskId], partitions: int, name: str = "ids", *, member: str = "") -> None:
    """Raise `BadRequest` for an id of a partition that does not exist."""
    for place, one in enumerate(ids):
        if partition_of(one) >= partitions:
            check_id(one, partitions, f"{name}[{place}]{member}")


def check_id(task_id: TaskId, partitions: int, field: str = "id") -> None:
    """Raise `BadRequest` if an id is of a partition that does not exist."""
    if partition_of(task_id) >= partitions:
        there = f"{field} names partition {partition_of(task_id)}; the cluster has partitions 0 to {partitions - 1}"
        raise BadRequest(there, field=field, hint="Ids are valid only in the cluster that made them.")


def check_runs(items: Sequence[tuple[Any, ...]], partitions: int, name: str = "items") -> None:
    """Raise `BadRequest` for a run, first id and count, of no partition or across the border of a stretch."""
    for place, item in enumerate(items):
        if partition_of(item[0]) >= partitions or offset_of(item[0]) + item[1] > STRETCH_TASKS:
            check_run(item[0], item[1], partitions, f"{name}[{place}]")


def check_run(first: TaskId, count: int, partitions: int, field: str) -> None:
    """Raise `BadRequest` if a run is of no partition or crosses the border of a stretch."""
    if partition_of(first) >= partitions:
        check_id(first, partitions, f"{field}.id")
    if offset_of(first) + count > STRETCH_TASKS:
        raise BadRequest(f"{field} crosses the border of a stretch of {STRETCH_TASKS} ids", field=f"{field}.count")


def check_completions(items: Sequence[Completion], partitions: int) -> None:
    """Raise `BadRequest`, `TooLarge` for an item of ``complete`` whose run or results do not fit."""
    check_runs(items, partitions)
    for place, item in enumerate(items):
        if results := item.result:
            check_results(results, item.count, f"items[{place}].result")


def check_results(results: Sequence[bytes | None], count: int, field: str) -> None:
    """Raise `BadRequest`, `TooLarge` unless there is a result for each task of a run, or none at all."""
    if results and len(results) != count:
        raise BadRequest(f"{field} must be a list of {count}, not of {len(results)}", field=field)
    if sum(len(one or b"") for one in results) > RESULT_BYTES_MAX:
        raise TooLarge(f"{field} has more than {RESULT_BYTES_MAX} bytes", field=field)


def check_new_runs(
    runs: Sequence[NewRun], partitions: int, name: str = "runs", *, at_once: bool = True, own: str = ""
) -> list[int]:
    """Return the number of tasks of each new run; raises `BadRequest`, `TooLarge` for one that does not fit.

    ``at_once``: whether the answer waits until they are stored. ``own``: the one of OnyxQ's own queues that the caller
    may write to.
    """
    return [_new_run(run, f"{name}[{place}]", partitions, at_once=at_once, own=own) for place, run in enumerate(runs)]


def _new_run(run: NewRun, field: str, partitions: int, *, at_once: bool, own: str) -> int:
    first, body = run.id, run.body
    try:
        packed, lengths, checksums = facts.task_table(body)
        facts.check_payloads(body, lengths, checksums)
    except TooLarge as error:
        raise TooLarge(f"{field}.data: {error.message}", field=f"{field}.data") from None
    except (BadRequest, Corrupt) as error:
        raise BadRequest(f"{field}: {error.message}", field=field) from None
    count = len(lengths)
    check_run(first, count, partitions, field)
    header = header_of(packed, field)
    if header.queue != own:
        check_writable(header.queue, f"{field}.queue")
    if header.depends is not UNSET:
        _check_dependencies(first, count, header.depends, field, partitions)
    if header.ordering_key is not UNSET or header.unique_key is not UNSET:
        _check_key(first, count, header, field, partitions)
    if header.callback is not UNSET:
        _check_callback(first, count, f"{field}.callback")
    _check_unique(header, field, at_once=at_once)
    return count


def _check_unique(header: TaskHeader, field: str, *, at_once: bool) -> None:
    """Raise `BadRequest` for options of a unique key without such a key, and for a refusal that would come late."""
    for name in (UNIQUE_UNTIL, UNIQUE_PERIOD_MS, ON_CONFLICT):
        if getattr(header, name) is not UNSET and header.unique_key is UNSET:
            raise BadRequest(f"{field}.{name} needs a unique_key", field=f"{field}.{name}")
    if header.on_conflict == "refuse" and not at_once:
        raise BadRequest(
            f"{field}.on_conflict cannot be refuse in a transaction: its tasks are stored after it is committed",
            field=f"{field}.{ON_CONFLICT}",
            hint="Choose keep, replace or extend.",
        )


def _check_dependencies(first: TaskId, count: int, depends: Sequence[TaskId], field: str, partitions: int) -> None:
    if len(set(depends)) != len(depends):
        raise BadRequest(f"{field}.depends names a task twice", field=f"{field}.depends")
    for one in depends:
        check_id(one, partitions, f"{field}.depends")
        if stretch_of(one) == stretch_of(first) and mask_of(one, 1) & mask_of(first, count):
            raise BadRequest("a task cannot depend on itself", field=f"{field}.depends")


def _check_callback(first: TaskId, count: int, field: str) -> None:
    """Raise `BadRequest` unless a run with a callback has one task, whose callback's id is free."""
    if count != 1:
        raise BadRequest("a run of tasks with a callback holds one task", field=field)
    if is_callback(first):
        raise BadRequest(
            f"the id {first.hex()} is reserved for callbacks", field=field, hint="Use an id from `GET /v1/ids`."
        )


def _check_key(first: TaskId, count: int, header: TaskHeader, field: str, partitions: int) -> None:
    """Raise `BadRequest` unless a run with a key has one task, whose id is of the partition of that key."""
    name, key = ("ordering_key", header.ordering_key) if header.ordering_key else ("unique_key", header.unique_key)
    if count != 1:
        raise BadRequest(f"a run of tasks with an {name} holds one task", field=f"{field}.{name}")
    wanted = facts.partition_of_keys(header.queue, str(key), partitions)
    if partition_of(first) != wanted:
        raise BadRequest(
            f"a task of this {name} must have an id of partition {wanted}, not {partition_of(first)}",
            field=f"{field}.{name}",
        )
