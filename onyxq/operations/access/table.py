"""What each operation needs: the role, and which of its arguments name queues or tasks.

HTTP and the TCP port share the table.  An operation that is not in it needs ``admin``.  Arguments are read only for
callers that have a role on some queues but not on all. Malformed ones are refused, because they do not show their
queues.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from onyxq.core.errors import BadRequest
from onyxq.core.facts import unpack_task
from onyxq.core.ids import ID_BYTES, STRETCH_TASKS, offset_of
from onyxq.operations.table.access import Access as Rule
from onyxq.operations.table.access import Need, Run, everywhere
from onyxq.operations.table.everything import OPERATIONS


def _on_queues(*roles: str) -> Rule:
    def find(args: dict[str, Any]) -> Sequence[Need]:
        queues = _list(args, "queues")
        return (Need(roles, queues=tuple(_text(one, "queues") for one in queues), every=not queues),)

    return Rule(roles, find)


def _on_new(*roles: str) -> Rule:
    def find(args: dict[str, Any]) -> Sequence[Need]:
        return (Need(roles, queues=tuple(_new(args, "runs"))),)

    return Rule(roles, find)


def _transact(args: dict[str, Any]) -> Sequence[Need]:
    held = (*_runs(args, "complete"), *_singles(args, "update"), *_runs(args, "require"))
    new = tuple(_new(args, "enqueue"))
    needs = [Need(("consume",), tasks=held)] if held else []
    needs += [Need(("produce",), queues=new)] if new else []
    return needs or (Need(("consume", "produce")),)


def _batches(args: dict[str, Any]) -> Sequence[Need]:
    return (Need(("consume",), every=True), Need(("produce",), every=True))


RULES: Mapping[str, Rule] = {
    **{one.name: one.access for one in OPERATIONS},
    "claim": _on_queues("consume"),
    "enqueue": _on_new("produce"),
    "jobs.commit": Rule((), _batches),
    "jobs.prepare": Rule((), _batches),
    "transact": Rule((), _transact),
}
"""Operation -> its needs; higher roles include lower ones (`onyxq.access.grants`)."""

LARGE = frozenset(
    (
        *(one.name for one in OPERATIONS if one.large),
        "enqueue",
        "jobs.commit",
        "jobs.prepare",
        "transact",
    )
)
"""Operations whose arguments may have more than `ARGUMENTS_BYTES_MAX`: lists of tasks, and data."""
ARGUMENTS_BYTES_MAX = 256 * 1024
"""Bytes of a request of any other operation."""

UNKNOWN = everywhere("admin")
"""Needs of any other operation."""


# --- arguments


def _text(value: Any, field: str) -> str:
    if not isinstance(value, str):
        raise BadRequest(f"{field} must be text", field=field)
    return value


def _id(value: Any, field: str) -> bytes:
    if not isinstance(value, bytes) or len(value) != ID_BYTES:
        raise BadRequest(f"{field} must be {ID_BYTES} bytes", field=field)
    return value


def _list(args: dict[str, Any], name: str) -> list[Any]:
    found = args.get(name)
    if found is None:
        return []
    if not isinstance(found, list):
        raise BadRequest(f"{name} must be a list", field=name)
    return found


def _items(args: dict[str, Any], name: str) -> Iterator[tuple[str, list[Any]]]:
    for place, item in enumerate(_list(args, name)):
        if not isinstance(item, list) or len(item) < 2:
            raise BadRequest(f"{name}[{place}] is malformed", field=f"{name}[{place}]")
        yield f"{name}[{place}]", item


def _runs(args: dict[str, Any], name: str) -> Iterator[Run]:
    for field, (first, count, *_) in _items(args, name):
        start = offset_of(_id(first, f"{field}.id"))
        if type(count) is not int or not 1 <= count <= STRETCH_TASKS - start:
            raise BadRequest(f"{field}.count is out of range", field=f"{field}.count")
        yield first, count


def _singles(args: dict[str, Any], name: str) -> Iterator[Run]:
    for field, item in _items(args, name):
        yield _id(item[0], f"{field}.id"), 1


def _new(args: dict[str, Any], name: str) -> Iterator[str]:
    for field, item in _items(args, name):
        if not isinstance(item[1], bytes):
            raise BadRequest(f"{field} must hold bytes", field=field)
        yield _text(unpack_task(item[1]).header.get("queue"), f"{field}.queue")
