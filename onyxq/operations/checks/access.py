"""The check of every call: on the TCP port before its dispatch, over HTTP before the call is made.

The queues of tasks and of periodic tasks that a call names are looked up only for callers whose roles are bound to
prefixes.  For all others, and without configured credentials, the check costs nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeAlias

import msgspec
from attrs import frozen

from onyxq.access.grants import Grants
from onyxq.core.errors import Forbidden, NotFound, TooLarge
from onyxq.core.facts import task_header, unpack_task
from onyxq.core.ids import TaskId
from onyxq.core.limits import FLOWS_QUEUE
from onyxq.operations.flow.plan import record_of
from onyxq.operations.table.access import Access, Need, Run, everywhere
from onyxq.operations.table.everything import BY_NAME, decoded
from onyxq.operations.table.operation import A, Operation, R

ARGUMENTS_BYTES_MAX = 256 * 1024
"""Bytes of a request, unless its operation takes lists of tasks, or data."""
UNKNOWN = everywhere("admin")
"""Needs of a method that does not exist: only an admin learns that."""
RUNS_AT_ONCE = 1_000
"""Most runs whose queues one request looks up."""

Ask: TypeAlias = Callable[[str, dict[str, Any]], Awaitable[Any]]


class Api(Protocol):
    """The calls of a node's service."""

    async def call(self, method: str, args: dict[str, Any]) -> Any:
        """Return the result of a method; raises `OnyxqError`."""
        ...

    async def do(self, operation: Operation[A, R], args: A) -> R:
        """Return the result of an operation with valid arguments; raises `OnyxqError`."""
        ...


@frozen
class Guarded:
    """A node's service with the permissions of one caller."""

    api: Api
    grants: Grants

    async def call(self, method: str, args: dict[str, Any]) -> Any:
        """Return the result of a method; raises `Forbidden`, and `OnyxqError` as the service does."""
        args, needs = judged(self.grants, method, args)
        await look_up(self.grants, method, needs, self.api.call)
        return await self.api.call(method, args)

    async def do(self, operation: Operation[A, R], args: A) -> R:
        """Return the result of an operation; raises `Forbidden`, and `OnyxqError` as the service does."""
        name = operation.name
        await look_up(self.grants, name, unmet(self.grants, name, args), self.api.call)
        return await self.api.do(operation, narrowed(self.grants, name, args))


def access_of(operation: str) -> Access:
    """Return the needs of an operation; any role that is higher has these too (`onyxq.access.grants`)."""
    return BY_NAME[operation].access if operation in BY_NAME else UNKNOWN


def check_size(operation: str, size: int) -> None:
    """Raise `TooLarge` if a request has more bytes than its operation needs."""
    if size > ARGUMENTS_BYTES_MAX and not (operation in BY_NAME and BY_NAME[operation].large):
        raise TooLarge(f"the request has {size} bytes; {operation[:100]} takes at most {ARGUMENTS_BYTES_MAX}")


def check_role(grants: Grants, operation: str) -> None:
    """Raise `Forbidden` if a caller may not make a call with any arguments."""
    roles = access_of(operation).roles
    if roles and not any(grants.has(role) for role in roles):
        raise _forbidden(operation, roles)


def judged(grants: Grants, operation: str, args: Any) -> tuple[Any, list[Need]]:
    """Return the decoded arguments of a call, and its needs that depend on queues to be looked up.

    Raises `Forbidden`, `BadRequest`.
    """
    if access_of(operation).by_arguments:
        args = decoded(operation, args)
        return args, unmet(grants, operation, args)
    needs = unmet(grants, operation, args)
    return narrowed(grants, operation, decoded(operation, args)), needs


def narrowed(grants: Grants, operation: str, args: Any) -> Any:
    """Return the arguments of a call, limited to queues on which the caller has one of the operation's roles."""
    access = access_of(operation)
    if not access.prefixes or any(grants.everywhere(role) for role in access.roles):
        return args
    allowed = tuple(sorted({prefix for role in access.roles for prefix in grants.prefixes.get(role, ())}))
    asked = getattr(args, access.prefixes)
    if asked is not None:
        both = [one for one in asked if one.startswith(allowed)]
        allowed = (*both, *(one for one in allowed if one.startswith(tuple(asked))))
    return msgspec.structs.replace(args, **{access.prefixes: list(allowed)})


def unmet(grants: Grants, operation: str, args: Any) -> list[Need]:
    """Return the needs of a call that depend on queues to be looked up; raises `Forbidden`.

    It may also raise `BadRequest`, if the arguments do not show their queues.
    """
    access = access_of(operation)
    if any(grants.everywhere(role) for role in access.roles):
        return []
    return [need for need in access.find(args) if not _settled(grants, operation, need)]


def _settled(grants: Grants, operation: str, need: Need) -> bool:
    if any(grants.everywhere(role) for role in need.roles):
        return True
    roles = [role for role in need.roles if grants.has(role)]
    if not roles:
        raise _forbidden(operation, need.roles, *need.queues[:1])
    if need.every:
        raise Forbidden(f"{operation} needs the role {roles[0]} on every queue", field="token")
    for queue in need.queues:
        if not _on_queue(grants, roles, queue):
            raise _forbidden(operation, roles[:1], queue)
    return not need.tasks and not need.stored and need.flow is None and need.periodic is None


def _forbidden(operation: str, roles: Sequence[str], queue: str | None = None) -> Forbidden:
    where = "" if queue is None else f" on queue {queue[:200]!r}"
    return Forbidden(f"{operation[:100]} needs the role {' or '.join(roles)}{where}", field="token")


def _on_queue(grants: Grants, roles: Sequence[str], queue: str) -> bool:
    return any(grants.on(role, queue) for role in roles)


def _check_found(grants: Grants, operation: str, roles: Sequence[str], queues: Sequence[str]) -> None:
    if not all(_on_queue(grants, roles, queue) for queue in queues):
        problem = f"{operation} needs the role {roles[0]} on the queue of everything that it names"
        raise Forbidden(problem, field="token")


async def look_up(grants: Grants, operation: str, needs: Sequence[Need], ask: Ask) -> None:
    """Check the queues of tasks, flows and periodic tasks; raises `Forbidden`, and `NotFound` for what does not exist.

    The errors do not name the queues that were found: the caller may not know them.
    """
    for need in needs:
        if need.tasks:
            await _check_tasks(grants, operation, need.roles, need.tasks, ask)
        if need.flow is not None:
            await _check_flow(grants, operation, need.roles, need.flow, ask)
        if need.stored:
            numbers = list(dict.fromkeys(need.stored))
            found = await ask("taskstore.tasks", {"ids": numbers})
            for number, task in zip(numbers, found["tasks"], strict=True):
                if task is None:  # or not known here yet: its group is unknown then
                    raise NotFound(f"there is no task {number} in the task store", field="id")
                _check_found(grants, operation, need.roles, [task[1]])
        if need.periodic is not None:
            queue = await _periodic(need.periodic, ask)
            # The arguments of a new periodic task name its queue.
            if queue is not None:
                _check_found(grants, operation, need.roles, [queue])
            elif not need.queues:
                raise NotFound(f"there is no periodic task {need.periodic[:200]!r}", field="name")


async def _check_flow(grants: Grants, operation: str, roles: Sequence[str], flow: bytes, ask: Ask) -> None:
    found = await ask("flow.get", {"id": flow, "limit": 0})
    _check_found(grants, operation, roles, found["queues"])


async def _periodic(name: str, ask: Ask) -> str | None:
    try:
        return str((await ask("periodic.get", {"name": name}))["queue"])
    except NotFound:
        return None


async def _check_tasks(grants: Grants, operation: str, roles: Sequence[str], runs: Sequence[Run], ask: Ask) -> None:
    left = [list(run) for run in dict.fromkeys(runs)]
    while left:
        part, left = left[:RUNS_AT_ONCE], left[RUNS_AT_ONCE:]
        found = await ask("tasks.bodies", {"runs": part})
        queues = {queue for first, body in found["bodies"] for queue in _queues_of(first, body)}
        _check_found(grants, operation, roles, sorted(queues))
        if found["missing"]:
            raise NotFound(f"there is no task {bytes(found['missing'][0][0]).hex()}", field="id")
        left = [*found["rest"], *left]


def _queues_of(first: TaskId, body: bytes) -> list[str]:
    """Return the queue of stored tasks; for the record of a flow also those of the flow's tasks."""
    queue: str = task_header(body)[0]["queue"]
    record = record_of(first, unpack_task(body).payload(0)) if queue == FLOWS_QUEUE else None
    return [queue] if record is None else [queue, *record.queues]
