"""The task store's methods of a node: requests become entries, reads come from the replica.

An answer to a change is that of the entry at its place in the log, whatever came behind it.
Reads are of the replica as this peer knows it, which holds all that it has answered before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onyxq.core.entry import INT_MAX, INT_MIN
from onyxq.core.errors import BadRequest, LogUnavailable, StoreFull, TooLarge, Unknown
from onyxq.core.taskstore import claim as claim_entry
from onyxq.core.taskstore import set_limits, state
from onyxq.core.taskstore import update as update_entry
from onyxq.core.taskstore.state import Numbered, Refusal
from onyxq.node import arguments as check
from onyxq.node.node import Node

IDS_MAX = 20_000
"""Of one list of a request."""
_REQUEST_BITS = 62


class TaskStore:
    """The methods ``taskstore.*`` of a node."""

    def __init__(self, node: Node, random_64: Callable[[], int]) -> None:
        self._node = node
        self._random_64 = random_64

    async def update(self, args: dict[str, Any]) -> dict[str, Any]:
        """Add, change and delete tasks: all of it or nothing."""
        check.only(args, ("client", "adds", "changes", "deletes", "depends"))
        limit = state.read(self._node.replica).limits[0]
        adds = [
            (_text(group, f"adds[{at}].group"), _data(data, f"adds[{at}].data", limit), _time(time, f"adds[{at}].time"))
            for at, (group, data, time) in enumerate(_triples(args, "adds"))
        ]
        changes = [
            (
                _number(task, f"changes[{at}].id"),
                _data(data, f"changes[{at}].data", limit),
                _time(time, f"changes[{at}].time"),
            )
            for at, (task, data, time) in enumerate(_triples(args, "changes"))
        ]
        return await self._done(
            update_entry.Args(
                request=self._request(),
                client=_client(args),
                adds=tuple(adds),
                changes=tuple(changes),
                deletes=_ids(args, "deletes"),
                depends=_ids(args, "depends"),
            )
        )

    async def claim(self, args: dict[str, Any]) -> dict[str, Any]:
        """Take one task of a group that is available, at random."""
        check.only(args, ("client", "group", "duration_ms", "depends"))
        return await self._done(
            claim_entry.Args(
                request=self._request(),
                client=_client(args),
                group=_text(args.get("group"), "group"),
                duration_ms=check.integer(args.get("duration_ms", 0), "duration_ms", INT_MIN, state.TIME_MS_MAX),
                depends=_ids(args, "depends"),
            )
        )

    async def tasks(self, args: dict[str, Any]) -> dict[str, Any]:
        """Tasks by their ids; None where there is none."""
        check.only(args, ("ids",))
        store = state.read(self._node.replica)
        found = [(number, store.get(number)) for number in _ids(args, "ids")]
        return {"tasks": [None if task is None else _shown((number, task)) for number, task in found]}

    async def group(self, args: dict[str, Any]) -> dict[str, Any]:
        """Tasks of a group by the times at which they are available; ``owned``: also those that are not yet."""
        check.only(args, ("group", "limit", "owned"))
        group = _text(args.get("group"), "group")
        limit = check.integer(args.get("limit", 0), "limit", INT_MIN, INT_MAX)
        owned = args.get("owned", False)
        if type(owned) is not bool:
            raise BadRequest("owned must be true or false", field="owned")
        store, now_ms = state.read(self._node.replica), self._node.cluster_ms()
        found: list[list[Any]] = []
        for number in store.members(group):
            task = store.get(number)
            assert task is not None, "what a group lists is there"
            if (task[1] > now_ms and not owned) or len(found) == limit > 0:
                break
            found.append(_shown((number, task)))
        return {"tasks": found}

    async def set_limits(self, args: dict[str, Any]) -> dict[str, Any]:
        """How many bytes one task may have, and all together, from now on."""
        check.only(args, ("task_bytes_max", "bytes_max"))
        task_bytes_max = check.integer(args.get("task_bytes_max"), "task_bytes_max", 1, set_limits.TASK_BYTES_LIMIT)
        bytes_max = check.integer(args.get("bytes_max"), "bytes_max", task_bytes_max, set_limits.BYTES_LIMIT)
        self._node.outbox_now()
        _, (verdict,) = await self._node.verdicts([set_limits.Args(task_bytes_max, bytes_max)])
        return {"verdict": verdict}

    async def groups(self, args: dict[str, Any]) -> dict[str, Any]:
        """Names of groups that have tasks."""
        check.only(args, ())
        return {"groups": sorted(state.read(self._node.replica).groups)}

    def _request(self) -> int:
        return self._random_64() >> (64 - _REQUEST_BITS)

    async def _done(self, entry: update_entry.Args | claim_entry.Args) -> dict[str, Any]:
        """Append an entry and tell what became of it."""
        self._node.outbox_now()
        try:
            position, _, replica = await self._node.stepped([entry])
        except LogUnavailable as error:
            hint = "Look whether the tasks that the request rests on are still there."
            raise Unknown(f"the task store: {error.message}", hint=hint) from error
        answer = state.answer_of(replica, position, entry.request)
        assert answer is not None, "the replica just behind a record has the answers of its requests"
        made, refusal = answer
        if not refusal:
            return {"tasks": [_shown(task) for task in made]}
        told = Refusal(*refusal)
        full = next((bug for bug in told.bugs if bug.startswith(state.FULL)), None)
        if full:
            raise StoreFull(full)
        return {"refused": {name: list(found) for name, found in zip(told._fields, told, strict=True)}}


def _shown(task: Numbered) -> list[Any]:
    number, (group, at_ms, owner, data) = task
    return [number, group, at_ms, owner, data]


def _client(args: dict[str, Any]) -> int:
    return check.integer(args.get("client"), "client", state.OWNER_MIN, state.OWNER_MAX)


def _triples(args: dict[str, Any], field: str) -> list[list[Any]]:
    found = args.get(field, [])
    if not isinstance(found, list) or len(found) > IDS_MAX:
        raise BadRequest(f"{field} must be a list of at most {IDS_MAX}", field=field)
    for at, item in enumerate(found):
        if not isinstance(item, list) or len(item) != 3:
            raise BadRequest(f"{field}[{at}] must be a list of 3", field=f"{field}[{at}]")
    return found


def _ids(args: dict[str, Any], field: str) -> tuple[int, ...]:
    found = args.get(field, [])
    if not isinstance(found, list) or len(found) > IDS_MAX:
        raise BadRequest(f"{field} must be a list of at most {IDS_MAX}", field=field)
    return tuple(_number(number, f"{field}[{at}]") for at, number in enumerate(found))


def _number(value: Any, field: str) -> int:
    return check.integer(value, field, INT_MIN, INT_MAX)


def _time(value: Any, field: str) -> int:
    return check.integer(value, field, -state.TIME_MS_MAX, state.TIME_MS_MAX)


def _text(value: Any, field: str) -> str:
    return _encodable(check.text(value, field, state.GROUP_CHARACTERS_MAX), field)


def _data(value: Any, field: str, limit: int) -> str:
    if not isinstance(value, str):
        raise BadRequest(f"{field} must be a string", field=field)
    size = len(_encodable(value, field).encode())
    if size > limit:
        raise TooLarge(f"{field} has {size} bytes; a task may have {limit}", field=field)
    return value


def _encodable(value: str, field: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BadRequest(f"{field} contains half of a surrogate pair, which is no character", field=field) from None
    return value
