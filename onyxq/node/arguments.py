"""Checks of arguments from clients and peers.

Each error names the wrong field. The functions at the end build the whole work list of a method. A leader builds it
again from what another node passed on, so no malformed value reaches an entry or a row, from any sender.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from attrs import frozen

from onyxq.core import facts
from onyxq.core.claims import AHEAD_MS_MAX
from onyxq.core.errors import BadRequest, Corrupt, TooLarge
from onyxq.core.ids import (
    ID_BYTES,
    PARTITIONS_MAX,
    RUN_TASKS_MAX,
    STRETCH_TASKS,
    TaskId,
    mask_of,
    offset_of,
    partition_of,
    stretch_of,
)
from onyxq.operations.table.claim import (
    Complete,
    Completion,
    Fail,
    NewUpdate,
    Release,
    Renew,
    UpdateTasks,
)
from onyxq.system.tracing import is_traceparent

QUEUE_CHARS_MAX = 200
WORKER_CHARS_MAX = 200
CLAIM_TASKS_MAX = 1_000
LEASE_MS = (1_000, 86_400_000)
WAIT_MS_MAX = 600_000
ITEMS_MAX = 20_000
PRIORITY = (-(1 << 31), (1 << 31) - 1)
RESULT_BYTES_MAX = 16 * 1024 * 1024
TOKEN_MAX = (1 << 63) - 1
W_MAX = 9
SEQ_MAX = 1 << 31
DEPENDS_MAX = 100
TIME_MS_MAX = (1 << 48) - 1
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@frozen
class _Rule:
    """What a field of a task must be: a test, and its expectation in words."""

    fits: Callable[[Any], bool]
    expected: str


def _number(low: int, high: int, *, or_none: bool = False) -> _Rule:
    def fits(value: Any) -> bool:
        return (or_none and value is None) or (type(value) is int and low <= value <= high)

    return _Rule(fits, f"an integer from {low} to {high}" + (", or null" if or_none else ""))


def _one_of(*words: str) -> _Rule:
    return _Rule(lambda value: value in words, " or ".join(words))


def _is_queue(value: Any) -> bool:
    return isinstance(value, str) and 1 <= len(value) <= QUEUE_CHARS_MAX and not _CONTROL.search(value)


def _is_dependencies(value: Any) -> bool:
    alike = isinstance(value, list) and all(isinstance(one, bytes) and len(one) == ID_BYTES for one in value)
    return alike and 1 <= len(value) <= DEPENDS_MAX and len(set(value)) == len(value)


_NAME = _Rule(_is_queue, f"a string of 1 to {QUEUE_CHARS_MAX} characters without control characters (tab, line break)")

HEADER: dict[str, _Rule] = {
    "backoff_ms": _number(0, 86_400_000),
    "depends": _Rule(_is_dependencies, f"a list of 1 to {DEPENDS_MAX} different task ids"),
    "expires_ms": _number(1, TIME_MS_MAX),
    "format": _one_of("json", "bytes"),
    "on_dependency_failed": _one_of("fail", "cancel", "run"),
    "ordering_key": _NAME,
    "priority": _number(*PRIORITY),
    "queue": _NAME,
    "retries": _number(0, 1_000_000, or_none=True),
    "trace": _Rule(is_traceparent, "a W3C traceparent of version 00, in lower case"),
    "unique_key": _NAME,
}
"""Field of a task run's header -> its rule."""


def only(args: dict[str, Any], known: Iterable[str]) -> None:
    """Raise `BadRequest` for a field that is not known."""
    for name in args:
        if name not in known:
            raise BadRequest(f"there is no field {str(name)[:100]!r}", field=str(name)[:100])


def integer(value: Any, field: str, low: int, high: int) -> int:
    """Return a whole number within bounds.

    True and false are refused.
    """
    if type(value) is not int:
        raise BadRequest(f"{field} must be an integer", field=field)
    if not low <= value <= high:
        raise BadRequest(f"{field} must be {low} to {high}, not {value}", field=field)
    return value


def text(value: Any, field: str, most: int, *, least: int = 0) -> str:
    """Return a string within bounds."""
    if not isinstance(value, str) or not least <= len(value) <= most:
        raise BadRequest(f"{field} must be a string of {least} to {most} characters", field=field)
    return value


def name(value: Any, field: str, most: int, *, least: int = 0) -> str:
    """Return a string within bounds and without control characters."""
    if _CONTROL.search(text(value, field, most, least=least)):
        raise BadRequest(f"{field} must not contain control characters", field=field)
    return str(value)


def task_id(value: Any, field: str, partitions: int) -> TaskId:
    """Return a task id of a partition that exists."""
    if not isinstance(value, bytes) or len(value) != ID_BYTES:
        raise BadRequest(f"{field} must be {ID_BYTES} bytes", field=field)
    if partition_of(value) >= partitions:
        raise BadRequest(f"{field} names partition {partition_of(value)}, there are {partitions}", field=field)
    return TaskId(value)


def items(args: dict[str, Any], width: int, name: str = "items", *, most: int = 0) -> list[list[Any]]:
    """Return a bounded list of lists that have ``width`` elements, or up to ``most``."""
    only(args, (name,))
    found = args.get(name)
    if not isinstance(found, list) or len(found) > ITEMS_MAX:
        raise BadRequest(f"{name} must be a list of at most {ITEMS_MAX}", field=name)
    for place, item in enumerate(found):
        if not isinstance(item, list) or not width <= len(item) <= max(width, most):
            raise BadRequest(f"{name}[{place}] must be a list of {width}", field=f"{name}[{place}]")
    return found


def run(item: list[Any], field: str, partitions: int) -> tuple[TaskId, int]:
    """Return the first id and count of a run within one stretch."""
    first = task_id(item[0], f"{field}.id", partitions)
    count = integer(item[1], f"{field}.count", 1, RUN_TASKS_MAX)
    if offset_of(first) + count > STRETCH_TASKS:
        raise BadRequest(f"{field} crosses the border of a stretch of {STRETCH_TASKS} ids", field=f"{field}.count")
    return first, count


def token(value: Any, field: str) -> int:
    """Return a fencing token."""
    return integer(value, field, 0, TOKEN_MAX)


def task_run(
    item: list[Any], place: int, partitions: int, *, from_peer: bool = False
) -> tuple[TaskId, bytes, int | None]:
    """Return a task run to enqueue, and the due time that the user set; may also raise `TooLarge`.

    The node that the client calls checks the payloads' checksums; its peers need not repeat that.
    """
    field = f"runs[{place}]"
    first, body = task_id(item[0], f"{field}.id", partitions), item[1]
    at_ms = None if len(item) == 2 or item[2] is None else integer(item[2], f"{field}.at_ms", 0, TIME_MS_MAX)
    if not isinstance(body, bytes):
        raise BadRequest(f"{field} must hold bytes", field=field)
    try:
        decoded = facts.unpack_task(body)
        facts.check_sizes(decoded)
        if not from_peer:
            decoded.all_payloads()
    except (BadRequest, Corrupt) as error:
        kind, part = (TooLarge, f"{field}.data") if isinstance(error, TooLarge) else (BadRequest, field)
        raise kind(f"{part}: {error.message}", field=part) from None
    run([first, decoded.count], field, partitions)
    for key, value in decoded.header.items():
        if key not in HEADER:
            raise BadRequest(f"a task has no field {str(key)[:100]!r}", field=f"{field}.{str(key)[:100]}")
        if not HEADER[key].fits(value):
            raise BadRequest(f"{key} must be {HEADER[key].expected}, not {value!r:.100}", field=f"{field}.{key}")
    if "queue" not in decoded.header:
        raise BadRequest("a task must name its queue", field=f"{field}.queue")
    if not RELATED.isdisjoint(decoded.header):
        _related(first, decoded, field, partitions)
    return first, body, at_ms


RELATED = frozenset({"depends", "ordering_key", "unique_key"})
"""Fields that tie a task to others."""


def _related(first: TaskId, decoded: facts.TaskRun, field: str, partitions: int) -> None:
    """Raise `BadRequest` unless the fields that tie a run to other tasks are valid."""
    header = decoded.header
    for one in header.get("depends", ()):
        if partition_of(one) >= partitions:
            raise BadRequest(f"{one.hex()} names no partition that there is", field=f"{field}.depends")
        if stretch_of(one) == stretch_of(first) and mask_of(one, 1) & mask_of(first, decoded.count):
            raise BadRequest("a task cannot depend on itself", field=f"{field}.depends")
    name = "ordering_key" if "ordering_key" in header else "unique_key"
    if name not in header:
        return
    if decoded.count != 1:
        raise BadRequest(f"a run of tasks with an {name} holds one task", field=f"{field}.{name}")
    wanted = facts.partition_of_keys(header["queue"], header[name], partitions)
    if partition_of(first) != wanted:
        raise BadRequest(
            f"a task of this {name} must have an id of partition {wanted}, not {partition_of(first)}",
            field=f"{field}.{name}",
        )


def results(value: Any, field: str, count: int) -> list[bytes | None]:
    """Return the results of a completion: none at all, or one per task."""
    if value is None or value == []:
        return []
    if not isinstance(value, list) or len(value) != count:
        raise BadRequest(f"{field} must be a list of {count}", field=field)
    if not all(one is None or isinstance(one, bytes) for one in value):
        raise BadRequest(f"{field} must hold bytes or null", field=field)
    if sum(len(one or b"") for one in value) > RESULT_BYTES_MAX:
        raise TooLarge(f"{field} is over {RESULT_BYTES_MAX} bytes", field=field)
    return value


def queues(value: Any) -> list[str]:
    """Return the names of queues to claim from."""
    if not isinstance(value, list) or not 1 <= len(value) <= 100:
        raise BadRequest("queues must be a list of 1 to 100 names", field="queues")
    return [name(one, f"queues[{place}]", QUEUE_CHARS_MAX, least=1) for place, one in enumerate(value)]


# --- whole work lists


def write_level(args: dict[str, Any], copies: int) -> int | None:
    """Return ``w``, the number of nodes that must have a write; None: a majority of the cluster's ``copies``."""
    wanted = args.get("w")
    if wanted is None:
        return None
    if integer(wanted, "w", 1, W_MAX) > copies:
        raise BadRequest(
            f"w must be 1 to {copies}, not {wanted}: the cluster keeps {copies} {'copy' if copies == 1 else 'copies'}",
            field="w",
            hint=f"Ask for {copies} at most, or leave it out: a majority then has it.",
        )
    return int(wanted)


def task_runs(
    args: dict[str, Any], partitions: int, copies: int, *, from_peer: bool = False
) -> tuple[list[tuple[TaskId, bytes, int | None]], int | None]:
    """Return runs to enqueue, and how many nodes must have them (None: a majority), at most ``copies``."""
    only(args, ("runs", "w"))
    wanted = write_level(args, copies)
    found = items({"runs": args.get("runs")}, 2, "runs", most=3)
    return [task_run(item, place, partitions, from_peer=from_peer) for place, item in enumerate(found)], wanted


def runs_exist(items: Sequence[tuple[Any, ...]], partitions: int) -> None:
    """Raise `BadRequest` for an item whose id names no partition, or whose run crosses the border of a stretch."""
    for place, item in enumerate(items):
        if partition_of(item[0]) >= partitions or offset_of(item[0]) + item[1] > STRETCH_TASKS:
            run([item[0], item[1]], f"items[{place}]", partitions)


def completions(asked: Complete, partitions: int) -> list[Completion]:
    """Return the items of ``complete`` whose results fit; raises `BadRequest`, `TooLarge`."""
    runs_exist(asked.items, partitions)
    for place, item in enumerate(asked.items):
        if found := item[4]:
            if len(found) != 1 or item[1] != 1 or len(found[0] or b"") > RESULT_BYTES_MAX:
                results(found, f"items[{place}].result", item[1])
    return asked.items


def held(asked: Fail | Renew | Release, partitions: int) -> Sequence[Any]:
    """Return the items of an operation on claimed tasks; raises `BadRequest`."""
    runs_exist(asked.items, partitions)
    return asked.items


def updates(asked: UpdateTasks, partitions: int, copies: int) -> tuple[list[NewUpdate], int | None]:
    """Return the items of ``update``, and how many nodes must have them; see `write_level`."""
    for place, item in enumerate(asked.items):
        task_id(item.id, f"items[{place}].id", partitions)
    return asked.items, write_level({"w": asked.w}, copies)


def outcomes(args: dict[str, Any], partitions: int) -> tuple[list[TaskId], str]:
    """Return the ids of tasks whose outcome a node asks for, and that node."""
    only(args, ("ids", "watcher"))
    return task_ids({"ids": args.get("ids")}, partitions), text(args.get("watcher"), "watcher", WORKER_CHARS_MAX)


def stretches(args: dict[str, Any]) -> list[bytes]:
    """Return the first ids of stretches that a node asks about."""
    only(args, ("stretches",))
    found = args.get("stretches")
    if not isinstance(found, list) or len(found) > ITEMS_MAX:
        raise BadRequest(f"stretches must be a list of at most {ITEMS_MAX}", field="stretches")
    return [task_id(one, f"stretches[{place}]", PARTITIONS_MAX) for place, one in enumerate(found)]


def cancels(args: dict[str, Any], partitions: int) -> tuple[list[TaskId], bool]:
    """Return the ids to ``cancel``, and whether claimed tasks are cancelled too."""
    only(args, ("ids", "claimed"))
    claimed = args.get("claimed", False)
    if type(claimed) is not bool:
        raise BadRequest("claimed must be true or false", field="claimed")
    return task_ids({"ids": args.get("ids")}, partitions), claimed


def task_ids(args: dict[str, Any], partitions: int) -> list[TaskId]:
    """Return the task ids in a list ``ids``."""
    only(args, ("ids",))
    ids = args.get("ids")
    if not isinstance(ids, list) or len(ids) > ITEMS_MAX:
        raise BadRequest(f"ids must be a list of at most {ITEMS_MAX}", field="ids")
    return [task_id(one, f"ids[{place}]", partitions) for place, one in enumerate(ids)]


def claim_terms(queue_names: Any, most: Any, lease_ms: Any, worker: Any) -> tuple[list[str], int, int, str]:
    """Return the terms of one claimer.

    Without a lease, or with 0, that of each queue applies.
    """
    return (
        queues(queue_names),
        integer(most, "max", 1, CLAIM_TASKS_MAX),
        0 if lease_ms is None else integer(lease_ms, "lease_ms", *LEASE_MS),
        name(worker, "worker", WORKER_CHARS_MAX),
    )


def claims(args: dict[str, Any]) -> tuple[list[tuple[list[str], int, int, str, int]], int]:
    """Return the terms of another node's claimers, and the number of tasks that the heads should list.

    Each claimer names queues, the maximum number of tasks, the lease, the worker, and how long it would hold a
    task that is not due yet.
    """
    only(args, ("requests", "wanted"))
    requests = items({"requests": args.get("requests")}, 5, "requests")
    asked = [(*claim_terms(*item[:4]), integer(item[4], "ahead_ms", 0, AHEAD_MS_MAX)) for item in requests]
    return asked, integer(args.get("wanted"), "wanted", 0, 1 << 53)
