"""Checks of what clients send: each names the field at fault and stores nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from onyxq import facts
from onyxq.errors import BadRequest, TooLarge
from onyxq.ids import ID_BYTES, RUN_TASKS_MAX, STRETCH_TASKS, TaskId, offset_of, partition_of

QUEUE_CHARS_MAX = 200
WORKER_CHARS_MAX = 200
ERROR_CHARS_MAX = 64 * 1024
CLAIM_TASKS_MAX = 1_000
LEASE_MS = (1_000, 86_400_000)
WAIT_MS_MAX = 600_000
LIMIT_MAX = 1_000
ITEMS_MAX = 20_000
PRIORITY = (-(1 << 31), (1 << 31) - 1)
RETRY_MS_MAX = 366 * 86_400_000
RESULT_BYTES_MAX = 16 * 1024 * 1024
TOKEN_MAX = (1 << 63) - 1
W_MAX = 9
HEADER: dict[str, Callable[[Any], bool]] = {
    "backoff_ms": lambda value: type(value) is int and 0 <= value <= 86_400_000,
    "format": lambda value: value in ("json", "bytes"),
    "priority": lambda value: type(value) is int and PRIORITY[0] <= value <= PRIORITY[1],
    "queue": lambda value: isinstance(value, str) and 1 <= len(value) <= QUEUE_CHARS_MAX,
    "retries": lambda value: value is None or (type(value) is int and 0 <= value <= 1_000_000),
}
"""What a task run's header may say."""


def only(args: dict[str, Any], known: Iterable[str]) -> None:
    """Refuse unknown fields."""
    for name in args:
        if name not in known:
            raise BadRequest(f"there is no field {str(name)[:100]!r}", field=str(name)[:100])


def integer(value: Any, field: str, low: int, high: int) -> int:
    """A whole number within bounds; true and false are none."""
    if type(value) is not int:
        raise BadRequest(f"{field} must be an integer", field=field)
    if not low <= value <= high:
        raise BadRequest(f"{field} must be {low} to {high}, not {value}", field=field)
    return value


def text(value: Any, field: str, most: int, *, least: int = 0) -> str:
    """A string within bounds."""
    if not isinstance(value, str) or not least <= len(value) <= most:
        raise BadRequest(f"{field} must be a string of {least} to {most} characters", field=field)
    return value


def task_id(value: Any, field: str, partitions: int) -> TaskId:
    """A task id of a partition that exists."""
    if not isinstance(value, bytes) or len(value) != ID_BYTES:
        raise BadRequest(f"{field} must be {ID_BYTES} bytes", field=field)
    if partition_of(value) >= partitions:
        raise BadRequest(f"{field} names partition {partition_of(value)}, there are {partitions}", field=field)
    return TaskId(value)


def items(args: dict[str, Any], width: int, name: str = "items") -> list[list[Any]]:
    """A bounded list of lists of a fixed length."""
    only(args, (name,))
    found = args.get(name)
    if not isinstance(found, list) or len(found) > ITEMS_MAX:
        raise BadRequest(f"{name} must be a list of at most {ITEMS_MAX}", field=name)
    for place, item in enumerate(found):
        if not isinstance(item, list) or len(item) != width:
            raise BadRequest(f"{name}[{place}] must be a list of {width}", field=f"{name}[{place}]")
    return found


def run(item: list[Any], field: str, partitions: int) -> tuple[TaskId, int]:
    """First id and count of a run within one stretch."""
    first = task_id(item[0], f"{field}.id", partitions)
    count = integer(item[1], f"{field}.count", 1, RUN_TASKS_MAX)
    if offset_of(first) + count > STRETCH_TASKS:
        raise BadRequest(f"{field} crosses the border of a stretch of {STRETCH_TASKS} ids", field=f"{field}.count")
    return first, count


def token(value: Any, field: str) -> int:
    """A fencing token."""
    return integer(value, field, 0, TOKEN_MAX)


def task_run(item: list[Any], place: int, partitions: int) -> tuple[TaskId, bytes]:
    """A task run to enqueue, checked as a whole; raises `TooLarge` too."""
    field = f"runs[{place}]"
    first, body = task_id(item[0], f"{field}.id", partitions), item[1]
    if not isinstance(body, bytes):
        raise BadRequest(f"{field} must hold bytes", field=field)
    decoded = facts.unpack_task(body)
    run([first, decoded.count], field, partitions)
    facts.check_sizes(decoded)
    for name, value in decoded.header.items():
        if name not in HEADER:
            raise BadRequest(f"a task has no field {str(name)[:100]!r}", field=f"{field}.{str(name)[:100]}")
        if not HEADER[name](value):
            raise BadRequest(f"{name} is not acceptable: {str(value)[:100]!r}", field=f"{field}.{name}")
    if "queue" not in decoded.header:
        raise BadRequest("a task must name its queue", field=f"{field}.queue")
    decoded.all_payloads()
    return first, body


def results(value: Any, field: str, count: int) -> list[bytes | None]:
    """Results of a completion: none at all, or one per task."""
    if value is None:
        return []
    if not isinstance(value, list) or len(value) != count:
        raise BadRequest(f"{field} must be a list of {count}", field=field)
    if not all(one is None or isinstance(one, bytes) for one in value):
        raise BadRequest(f"{field} must hold bytes or null", field=field)
    if sum(len(one or b"") for one in value) > RESULT_BYTES_MAX:
        raise TooLarge(f"{field} is over {RESULT_BYTES_MAX} bytes", field=field)
    return value


def queues(value: Any) -> list[str]:
    """Names of queues to claim from."""
    if not isinstance(value, list) or not 1 <= len(value) <= 100:
        raise BadRequest("queues must be a list of 1 to 100 names", field="queues")
    return [text(one, f"queues[{place}]", QUEUE_CHARS_MAX, least=1) for place, one in enumerate(value)]
