"""Tasks as tests read them."""

from __future__ import annotations

import json
from typing import Any

from attrs import field, frozen

from onyxq.client.values import ClaimRecord, Task
from onyxq.core.ids import TaskId
from onyxq.operations.table.task import State


@frozen(kw_only=True)
class FoundTask:
    """A task as it is stored; ``name``, ``args`` and ``kwargs`` are those of an `App`'s call, otherwise empty."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    queue: str
    state: State
    attempts: int
    """Number of attempts that failed or lost their lease."""
    result: Any = None
    """The handler's result; bytes if that is not JSON."""
    error: str | None = None
    priority: int = 0
    ordering_key: str | None = None
    unique_key: str | None = None
    depends: tuple[TaskId, ...] = ()
    """Tasks that this task depends on."""
    expires_ms: int | None = None
    due_ms: int = field(repr=False)
    """When it is (or was) due, in milliseconds since the epoch by the cluster's clock."""
    id: TaskId = field(repr=lambda value: value.hex())
    data: bytes = field(repr=False)
    claims: tuple[ClaimRecord, ...] = field(repr=False)

    @staticmethod
    def of(task: Task) -> FoundTask:
        """Return the task that a client read."""
        call = _json(task.data)
        if not (isinstance(call, dict) and {"task", "args", "kwargs"} <= call.keys()):
            call = {"task": "", "args": [], "kwargs": {}}
        return FoundTask(
            name=call["task"],
            args=tuple(call["args"]),
            kwargs=call["kwargs"],
            queue=task.queue,
            state=task.state,
            attempts=task.attempts,
            result=None if task.result is None else _json(task.result),
            error=task.error,
            priority=task.priority,
            ordering_key=task.ordering_key,
            unique_key=task.unique_key,
            depends=task.depends,
            expires_ms=task.expires_ms,
            due_ms=task.at_ms,
            id=task.id,
            data=task.data,
            claims=task.claims,
        )

    @property
    def call(self) -> str:
        """The call in words, ``send(to='a')``; the start of the data if the task is not a call."""
        if not self.name:
            return f"data {self.data[:40]!r}"
        said = [repr(one) for one in self.args] + [f"{name}={one!r}" for name, one in self.kwargs.items()]
        return f"{self.name}({', '.join(said)})"


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return data
