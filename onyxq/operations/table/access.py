"""Who may call an operation: roles, and the queues, tasks and other things on which a caller needs one of them.

The needs of a call follow from its arguments.  `onyxq.operations.checks.access` compares them with
what a caller's token permits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from attrs import frozen

from onyxq.core.limits import FLOW_JOINS_QUEUE, FLOWS_QUEUE

Run: TypeAlias = tuple[bytes, int]
"""First id and count of consecutive tasks."""

LOOKING = ("read", "produce", "consume")
"""Roles that may see what belongs to no queue."""


@frozen
class Need:
    """A need: one of the roles on all these queues, on those of these tasks, and on that of the periodic task."""

    roles: tuple[str, ...]
    queues: tuple[str, ...] = ()
    tasks: tuple[Run, ...] = ()
    periodic: str | None = None
    stored: tuple[int, ...] = ()
    """Ids of the task store's tasks, whose groups count as queues."""
    flow: bytes | None = None
    """Id of a flow, whose tasks' queues count too."""
    every: bool = False
    """Whether the role is needed on every queue."""


@frozen
class Access:
    """The needs of an operation."""

    roles: tuple[str, ...]
    """A caller with one of them on every queue may make any call; none: the arguments decide."""
    find: Callable[[Any], Sequence[Need]]
    """Returns the needs of a call by its arguments; raises `BadRequest`."""
    by_arguments: bool = True
    """Whether the needs depend on the arguments; else they are checked before the arguments are decoded."""
    prefixes: str = ""
    """Argument that limits the answer to queues with these prefixes: at most those on which the caller has a role."""


def anywhere(*roles: str) -> Access:
    """Return the access to something that belongs to no queue: a role on any queue is enough."""
    need = (Need(roles),)
    return Access(roles, lambda args: need, by_arguments=False)


def everywhere(*roles: str) -> Access:
    """Return the access to something about all queues."""
    need = (Need(roles, every=True),)
    return Access(roles, lambda args: need, by_arguments=False)


def on_queue(*roles: str) -> Access:
    """Return the access to the queue that the argument ``queue`` names; to all queues if it is None."""

    def find(args: Any) -> Sequence[Need]:
        return (Need(roles, every=True) if args.queue is None else Need(roles, queues=(args.queue,)),)

    return Access(roles, find)


def on_all_of_queue(*roles: str) -> Access:
    """Return the access to all tasks of the queue that the argument ``queue`` names; to all queues if it is None.

    The queues of flows have the records and joins of all callers, so for them the role is needed on every queue.
    """

    def find(args: Any) -> Sequence[Need]:
        if args.queue in (None, FLOWS_QUEUE, FLOW_JOINS_QUEUE):
            return (Need(roles, every=True),)
        return (Need(roles, queues=(args.queue,)),)

    return Access(roles, find)


def on_periodic(*roles: str) -> Access:
    """Return the access to the queue of the periodic task that the argument ``name`` names."""
    return Access(roles, lambda args: (Need(roles, periodic=args.name),))
