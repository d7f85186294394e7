"""The client's calls to the task store: groups of small tasks, changed and claimed atomically (docs/taskstore.rst).

Every client of the store has a number, which marks the tasks that it owns. By default `AsyncTaskStore` picks a
random one. Times are milliseconds of the cluster's clock; values up to 0 are relative to now.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar

from onyxq.core.errors import StoreRefused
from onyxq.system.durations import Milliseconds, as_milliseconds

P = ParamSpec("P")
T = TypeVar("T")

Ask = Callable[[str, dict[str, Any]], Awaitable[Any]]
"""Function that calls a method of the node."""
Add = tuple[str, str] | tuple[str, str, int]
"""Group, data and optionally the time from which the task is available; default: now."""
Change = tuple[int, str] | tuple[int, str, int]
"""Id, new data and optionally the time from which the task is available; default: now."""


class StoredTask(NamedTuple):
    """A task of the store. It never changes: a change replaces it with a new task under a higher id."""

    id: int
    group: str
    at_ms: int
    """Time from which the task is available to all; until then it belongs to its owner."""
    owner: int
    data: str


class AsyncTaskStore:
    """The store's calls, on trio and asyncio; see `AsyncClient.task_store`.

    Calls are repeated until a peer answers. A call with a lost answer may run twice. A deletion or change still
    takes effect once, and a lost claim ends with its lease.
    """

    def __init__(self, ask: Ask, client_id: int) -> None:
        self._ask = ask
        self.client_id = client_id

    async def update(
        self,
        *,
        adds: Iterable[Add] = (),
        changes: Iterable[Change] = (),
        deletes: Iterable[int] = (),
        depends: Iterable[int] = (),
    ) -> list[StoredTask]:
        """Apply all changes or none, and return the new tasks, adds first.

        Raises `StoreRefused`, `BadRequest` or `StoreFull`.
        """
        args = {
            "client": self.client_id,
            "adds": [[group, data, *(at or (0,))] for group, data, *at in adds],
            "changes": [[number, data, *(at or (0,))] for number, data, *at in changes],
            "deletes": list(deletes),
            "depends": list(depends),
        }
        return _tasks(await self._ask("taskstore.update", args))

    async def claim(self, group: str, duration_ms: Milliseconds, *, depends: Iterable[int] = ()) -> StoredTask | None:
        """Claim a random available task of the group for ``duration_ms``; return None if there is none.

        Raises `StoreRefused` if an id of ``depends`` does not exist.
        """
        lasts_ms = as_milliseconds(duration_ms, "duration_ms")
        args = {"client": self.client_id, "group": group, "duration_ms": lasts_ms, "depends": list(depends)}
        found = _tasks(await self._ask("taskstore.claim", args))
        return found[0] if found else None

    async def tasks(self, ids: Sequence[int]) -> list[StoredTask | None]:
        """Return tasks by their ids; None for an id that does not exist."""
        found = (await self._ask("taskstore.tasks", {"ids": list(ids)}))["tasks"]
        return [None if task is None else StoredTask(*task) for task in found]

    async def group(self, group: str, *, limit: int = 0, owned: bool = False) -> list[StoredTask]:
        """Return a group's tasks by time.

        ``limit``: the largest number to return; 0 for all. ``owned``: include tasks that are not available now.
        """
        return _tasks(await self._ask("taskstore.group", {"group": group, "limit": limit, "owned": owned}))

    async def groups(self) -> list[str]:
        """Return the names of groups that have tasks."""
        found: list[str] = (await self._ask("taskstore.groups", {}))["groups"]
        return found

    async def set_limits(self, *, task_bytes_max: int, bytes_max: int) -> None:
        """Set the largest size of one task's data and of all tasks together, in bytes; for operators."""
        await self._ask("taskstore.set_limits", {"task_bytes_max": task_bytes_max, "bytes_max": bytes_max})


class Run(Protocol):
    """Function that runs a call in the client's thread."""

    def __call__(self, call: Callable[[], Coroutine[Any, Any, T]], /) -> T:
        """Return the result of the call; raise `Unavailable` once the client is closed."""
        ...


def _blocking(
    method: Callable[Concatenate[AsyncTaskStore, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[TaskStore, P], T]:
    @functools.wraps(method)
    def call(self: TaskStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._run(functools.partial(method, self._store, *args, **kwargs))

    return call


class TaskStore:
    """The calls of `AsyncTaskStore` for plain threads; see `Client.task_store`."""

    def __init__(self, run: Run, store: AsyncTaskStore) -> None:
        self._run = run
        self._store = store
        self.client_id = store.client_id

    update = _blocking(AsyncTaskStore.update)
    claim = _blocking(AsyncTaskStore.claim)
    tasks = _blocking(AsyncTaskStore.tasks)
    group = _blocking(AsyncTaskStore.group)
    groups = _blocking(AsyncTaskStore.groups)
    set_limits = _blocking(AsyncTaskStore.set_limits)


def _tasks(answer: dict[str, Any]) -> list[StoredTask]:
    refused = answer.get("refused")
    if refused is not None:
        raise StoreRefused(refused)
    return [StoredTask(*task) for task in answer["tasks"]]
