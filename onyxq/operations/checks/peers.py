"""Arguments of the calls that nodes make to the leaders of partitions.

Their types are checked as they are decoded. All else was checked by the node that makes the call.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, NamedTuple, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from onyxq.core.ids import PARTITIONS_MAX
from onyxq.core.limits import LeaseMs, Name, TaskIdBytes
from onyxq.leader.transaction_parts import PartRequest
from onyxq.operations.handlers import Handler
from onyxq.operations.table.claim import CLAIM_TASKS_MAX
from onyxq.operations.table.operation import converted

A = TypeVar("A", bound=msgspec.Struct)

WANTED_MAX = 1 << 16
"""Largest number of tasks that waiting claimers ask for together."""
Partition: TypeAlias = Annotated[int, Meta(ge=0, lt=PARTITIONS_MAX)]
HeldRun: TypeAlias = tuple[TaskIdBytes, int, int]
HEAD_TIMEOUT_MS_MAX = 10_000


class OneTask(msgspec.Struct):
    """One task."""

    id: TaskIdBytes


class Offer(msgspec.Struct):
    """Rows that a partition's leader may lack."""

    partition: Partition
    rows: list[Any]


class Ids(msgspec.Struct):
    """Tasks."""

    ids: list[TaskIdBytes]


class Watched(Ids):
    """Tasks whose outcome a node asks for, and that node."""

    watcher: str


class TimerRuns(msgspec.Struct):
    """New tasks of timers: id and body of each."""

    runs: list[tuple[TaskIdBytes, bytes]]
    replace: bool


class Records(msgspec.Struct):
    """New tasks that are finished when they are stored: id and body of each."""

    runs: list[tuple[TaskIdBytes, bytes]]


class TimerNames(msgspec.Struct):
    """Timers that are looked for, each after an id of its partition."""

    timers: list[tuple[TaskIdBytes, Name]]


class Stretches(msgspec.Struct):
    """First ids of stretches."""

    stretches: list[TaskIdBytes]


class Claimer(NamedTuple):
    """One claimer: queues, most tasks, lease (null: that of each queue), worker, and how long it claims ahead."""

    queues: list[Name]
    maximum: Annotated[int, Meta(ge=1, le=CLAIM_TASKS_MAX)]
    lease_ms: LeaseMs | None
    worker: str
    ahead_ms: int


class Claims(msgspec.Struct):
    """Claimers of another node, and the number of tasks that the heads should list."""

    requests: list[Claimer]
    wanted: int


class Head(msgspec.Struct):
    """A question for the best ready task of a queue, if it is better than the known one."""

    queue: Name
    known: tuple[int, int] | None
    timeout_ms: Annotated[int, Meta(ge=0, le=HEAD_TIMEOUT_MS_MAX)]
    wanted: Annotated[int, Meta(ge=0, le=WANTED_MAX)] = 1
    ahead: bool = False


class Parts(msgspec.Struct):
    """Parts of transactions."""

    parts: list[tuple[str, int, Partition, list[Any], list[HeldRun]]]

    def asked(self) -> list[PartRequest]:
        """Return the parts as the leader prepares them."""
        return [PartRequest(*one) for one in self.parts]


def taking(kind: type[A], work: Callable[[A], Awaitable[Any]]) -> Handler:
    """Return a handler that decodes its arguments; raises `BadRequest`."""

    async def handler(args: dict[str, Any]) -> Any:
        return await work(converted(kind, args))

    return handler
