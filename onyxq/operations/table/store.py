"""Operations on the task store: small tasks in groups, changed and claimed atomically, without queues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple, TypeAlias

from msgspec import Meta, field

from onyxq.core.limits import (
    GROUP_CHARACTERS_MAX,
    INT_MAX,
    INT_MIN,
    ITEMS_MAX,
    OWNER_MAX,
    OWNER_MIN,
    STORE_BYTES_LIMIT,
    STORED_TASK_BYTES_LIMIT,
    TIME_MS_MAX,
)
from onyxq.operations.table.access import Access, Need, everywhere
from onyxq.operations.table.operation import Args, Operation, Result

Number: TypeAlias = Annotated[int, Meta(ge=INT_MIN, le=INT_MAX)]
"""Id of a task."""
Ids: TypeAlias = Annotated[list[Number], Meta(max_length=ITEMS_MAX)]
Group: TypeAlias = Annotated[str, Meta(max_length=GROUP_CHARACTERS_MAX)]
Time: TypeAlias = Annotated[int, Meta(ge=-TIME_MS_MAX, le=TIME_MS_MAX)]
"""Time from which a task is available, in ms since the epoch; up to 0: the negated delay from now."""
Owner: TypeAlias = Annotated[
    int, Meta(ge=OWNER_MIN, le=OWNER_MAX, description="Number of the client, which owns the new tasks.")
]


class Add(NamedTuple):
    """A new task."""

    group: Group
    data: str
    time: Time


class Change(NamedTuple):
    """A task that a new one replaces."""

    id: Number
    data: str
    time: Time


class StoredTask(Result, array_like=True):
    """A task of the store."""

    id: int
    group: str
    at_ms: int
    owner: int
    data: str


class Refused(Result):
    """Why nothing changed: ids that do not exist or that another client owns, and faults of the request."""

    changes: list[int]
    deletes: list[int]
    depends: list[int]
    owned: list[int]
    bugs: list[str]


class Changed(Result, omit_defaults=True):
    """The new tasks, added ones first, or why nothing changed."""

    tasks: list[StoredTask] | None = None
    refused: Refused | None = None


class Found(Result):
    """Tasks by their ids; null for an id that does not exist."""

    tasks: list[StoredTask | None]


class GroupTasks(Result):
    """Tasks of a group by time."""

    tasks: list[StoredTask]


class GroupNames(Result):
    """Names of groups."""

    groups: list[str]


class LimitsSet(Result):
    """The outcome of a change of the limits."""

    verdict: str


class UpdateStore(Args):
    """Add, change and delete tasks of the task store, all or nothing."""

    client: Owner
    adds: Annotated[list[Add], Meta(max_length=ITEMS_MAX, description="New: group, text and time.")] = field(
        default_factory=list
    )
    changes: Annotated[list[Change], Meta(max_length=ITEMS_MAX, description="Changed: id, text and time.")] = field(
        default_factory=list
    )
    deletes: Annotated[Ids, Meta(description="Ids of tasks to delete.")] = field(default_factory=list)
    depends: Annotated[Ids, Meta(description="Ids of tasks that must exist.")] = field(default_factory=list)


class ClaimStored(Args):
    """Claim a random available task of a group of the task store."""

    client: Owner
    group: Annotated[Group, Meta(description="Name of the group.")]
    duration_ms: Annotated[
        int, Meta(ge=INT_MIN, le=TIME_MS_MAX, description="How long no other client gets the task.")
    ] = 0
    depends: Annotated[Ids, Meta(description="Ids of tasks that must exist.")] = field(default_factory=list)


class GetStored(Args):
    """Return tasks of the task store by their ids."""

    ids: Annotated[Ids, Meta(description="Ids of the tasks.")] = field(default_factory=list)


class ListGroup(Args):
    """Return the tasks of a group of the task store, the earliest first."""

    group: Annotated[Group, Meta(description="Name of the group.")]
    limit: Annotated[int, Meta(ge=INT_MIN, le=INT_MAX, description="Most tasks; up to 0: all.")] = 0
    owned: Annotated[bool, Meta(description="Include tasks that are not available now.")] = False


class ListGroups(Args):
    """Return the names of the groups of the task store that have tasks."""


class SetStoreLimits(Args):
    """Set how many bytes the tasks of the task store may have."""

    task_bytes_max: Annotated[int, Meta(ge=1, le=STORED_TASK_BYTES_LIMIT, description="Bytes of the data of one task.")]
    bytes_max: Annotated[
        int, Meta(ge=1, le=STORE_BYTES_LIMIT, description="Bytes of all tasks; at least those of one task.")
    ]


def _needs_of_update(args: UpdateStore) -> Sequence[Need]:
    """Return the needs of an update: added tasks are produced, and all tasks that exist already are consumed."""
    held = (*(change.id for change in args.changes), *args.deletes, *args.depends)
    needs = [Need(("produce",), queues=tuple(add.group for add in args.adds))] if args.adds else []
    needs += [Need(("consume",), stored=held)] if held else []
    return needs or (Need(("consume", "produce")),)


def _needs_of_claim(args: ClaimStored) -> Sequence[Need]:
    return (Need(("consume",), queues=(args.group,), stored=tuple(args.depends)),)


_LOOKING = ("read", "consume")
_SOME: dict[str, Any] = {"client": 1, "depends": [7]}

UPDATE_STORE = Operation(
    name="taskstore.update",
    args=UpdateStore,
    result=Changed,
    access=Access((), _needs_of_update),
    bounded=True,
    large=True,
    python="TaskStore.update",
    python_left_out=("client",),
    example={**_SOME, "adds": [["map", "a text", 0]]},
)
CLAIM_STORED = Operation(
    name="taskstore.claim",
    args=ClaimStored,
    result=Changed,
    access=Access(("consume",), _needs_of_claim),
    bounded=True,
    large=True,
    python="TaskStore.claim",
    python_left_out=("client",),
    python_needed=("duration_ms",),
    example={**_SOME, "group": "map", "duration_ms": 10_000},
)
GET_STORED = Operation(
    name="taskstore.tasks",
    args=GetStored,
    result=Found,
    access=Access(_LOOKING, lambda args: (Need(_LOOKING, stored=tuple(args.ids)),)),
    reads=True,
    large=True,
    python="TaskStore.tasks",
    python_needed=("ids",),
    example={"ids": [7]},
)
LIST_GROUP = Operation(
    name="taskstore.group",
    args=ListGroup,
    result=GroupTasks,
    access=Access(_LOOKING, lambda args: (Need(_LOOKING, queues=(args.group,)),)),
    reads=True,
    python="TaskStore.group",
    example={"group": "map", "owned": True},
)
LIST_GROUPS = Operation(
    name="taskstore.groups",
    args=ListGroups,
    result=GroupNames,
    access=everywhere("read"),
    reads=True,
    python="TaskStore.groups",
)
SET_STORE_LIMITS = Operation(
    name="taskstore.set_limits",
    args=SetStoreLimits,
    result=LimitsSet,
    access=everywhere("operate"),
    python="TaskStore.set_limits",
    example={"task_bytes_max": 65_536, "bytes_max": 1 << 26},
)
STORE = (UPDATE_STORE, CLAIM_STORED, GET_STORED, LIST_GROUP, LIST_GROUPS, SET_STORE_LIMITS)
