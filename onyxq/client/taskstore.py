"""The task store as a client has it: groups of small tasks, changed and claimed atomically (docs/taskstore.rst).

Every client of the store is a number, its owner of tasks; by default a random one for each
`AsyncTaskStore`.  Times are milliseconds of the cluster's clock; up to 0 they are told from now.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from onyxq.core.errors import StoreRefused

T = TypeVar("T")

Ask = Callable[[str, dict[str, Any]], Awaitable[Any]]
"""Calls a method of the node."""
Add = tuple[str, str] | tuple[str, str, int]
"""Group, data and, if it is not now, the time from which on the task is available."""
Change = tuple[int, str] | tuple[int, str, int]
"""Id, new data and time likewise."""


class StoredTask(NamedTuple):
    """A task of the store. It never changes: what changes it makes another, under a higher id."""

    id: int
    group: str
    at_ms: int
    """When it is available to all; until then it is its owner's."""
    owner: int
    data: str


class AsyncTaskStore:
    """The store's calls, on trio and asyncio; see `AsyncClient.task_store`.

    Calls are repeated until a peer answers, so one whose answer is lost may be carried out twice:
    whatever deletes or changes a task has effect once, and a claim that got lost ends with its lease.
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
        """Do all of it or nothing: the new tasks, adds first. Raises `StoreRefused`, `BadRequest`, `StoreFull`."""
        args = {
            "client": self.client_id,
            "adds": [[group, data, *(at or (0,))] for group, data, *at in adds],
            "changes": [[number, data, *(at or (0,))] for number, data, *at in changes],
            "deletes": list(deletes),
            "depends": list(depends),
        }
        return _tasks(await self._ask("taskstore.update", args))

    async def claim(self, group: str, duration_ms: int, *, depends: Iterable[int] = ()) -> StoredTask | None:
        """One of the group's available tasks at random, this client's for so long; None if there is none.

        Raises `StoreRefused` if an id of ``depends`` is not there.
        """
        args = {"client": self.client_id, "group": group, "duration_ms": duration_ms, "depends": list(depends)}
        found = _tasks(await self._ask("taskstore.claim", args))
        return found[0] if found else None

    async def tasks(self, ids: Sequence[int]) -> list[StoredTask | None]:
        """Tasks by their ids; None where there is none."""
        found = (await self._ask("taskstore.tasks", {"ids": list(ids)}))["tasks"]
        return [None if task is None else StoredTask(*task) for task in found]

    async def group(self, group: str, *, limit: int = 0, owned: bool = False) -> list[StoredTask]:
        """A group's tasks by time, at most ``limit`` if given; ``owned``: also those that are not available now."""
        return _tasks(await self._ask("taskstore.group", {"group": group, "limit": limit, "owned": owned}))

    async def groups(self) -> list[str]:
        """Names of groups that have tasks."""
        found: list[str] = (await self._ask("taskstore.groups", {}))["groups"]
        return found

    async def set_limits(self, *, task_bytes_max: int, bytes_max: int) -> None:
        """How many bytes one task's data may have, and all tasks together; for operators."""
        await self._ask("taskstore.set_limits", {"task_bytes_max": task_bytes_max, "bytes_max": bytes_max})


class Run(Protocol):
    """Runs a call in the thread that the client is in."""

    def __call__(self, call: Callable[[], Coroutine[Any, Any, T]], /) -> T:
        """What it gives; raises `Unavailable` once the client is closed."""
        ...


class TaskStore:
    """The calls of `AsyncTaskStore` for plain threads; see `Client.task_store`."""

    def __init__(self, run: Run, store: AsyncTaskStore) -> None:
        self._run = run
        self._store = store
        self.client_id = store.client_id

    def update(
        self,
        *,
        adds: Iterable[Add] = (),
        changes: Iterable[Change] = (),
        deletes: Iterable[int] = (),
        depends: Iterable[int] = (),
    ) -> list[StoredTask]:
        """See `AsyncTaskStore.update`."""
        given = {"adds": adds, "changes": changes, "deletes": deletes, "depends": depends}
        return self._run(lambda: self._store.update(**given))  # type: ignore[arg-type]

    def claim(self, group: str, duration_ms: int, *, depends: Iterable[int] = ()) -> StoredTask | None:
        """See `AsyncTaskStore.claim`."""
        return self._run(lambda: self._store.claim(group, duration_ms, depends=depends))

    def tasks(self, ids: Sequence[int]) -> list[StoredTask | None]:
        """See `AsyncTaskStore.tasks`."""
        return self._run(lambda: self._store.tasks(ids))

    def group(self, group: str, *, limit: int = 0, owned: bool = False) -> list[StoredTask]:
        """See `AsyncTaskStore.group`."""
        return self._run(lambda: self._store.group(group, limit=limit, owned=owned))

    def groups(self) -> list[str]:
        """See `AsyncTaskStore.groups`."""
        return self._run(self._store.groups)

    def set_limits(self, *, task_bytes_max: int, bytes_max: int) -> None:
        """See `AsyncTaskStore.set_limits`."""
        self._run(lambda: self._store.set_limits(task_bytes_max=task_bytes_max, bytes_max=bytes_max))


def _tasks(answer: dict[str, Any]) -> list[StoredTask]:
    refused = answer.get("refused")
    if refused is not None:
        raise StoreRefused(refused)
    return [StoredTask(*task) for task in answer["tasks"]]
