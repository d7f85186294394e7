"""All operations of the table, by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from onyxq.operations.table import (
    claim,
    cluster,
    dead,
    enqueue,
    flow,
    job,
    log,
    periodic,
    queue,
    savepoint,
    store,
    task,
    timer,
    transaction,
)
from onyxq.operations.table.operation import Operation, unpacked

GROUPS: Mapping[str, tuple[Operation[Any, Any], ...]] = MappingProxyType(
    {
        "Queues": (queue.LIST_QUEUES, queue.PAGE_QUEUES, queue.GET_QUEUE, queue.SET_QUEUE),
        "Periodic tasks": (
            periodic.LIST_PERIODIC,
            periodic.GET_PERIODIC,
            periodic.SET_PERIODIC,
            periodic.REMOVE_PERIODIC,
        ),
        "Tasks": (enqueue.ENQUEUE, enqueue.REMEMBER_REQUEST, *task.TASKS),
        "Flows": flow.FLOWS,
        "Claims": claim.CLAIMS,
        "Transactions": transaction.TRANSACTIONS,
        "Dead letters": dead.DEAD,
        "Timers": timer.TIMERS,
        "Jobs": (*job.JOBS, *savepoint.SAVEPOINTS, *transaction.BATCHES),
        "Cluster": cluster.CLUSTER,
        "Log": log.LOG,
        "Extensions": log.EXTENSIONS,
        "Backups": log.BACKUPS,
        "Task store": store.STORE,
    }
)
"""All operations by subject."""
OPERATIONS = tuple(operation for group in GROUPS.values() for operation in group)
BY_NAME: Mapping[str, Operation[Any, Any]] = MappingProxyType({one.name: one for one in OPERATIONS})


def decoded(method: str, given: Any) -> Any:
    """Return the arguments of a method: a struct if it is in the table, else as they came; raises `BadRequest`."""
    operation = BY_NAME.get(method)
    if operation is None:
        return unpacked(given) if isinstance(given, msgspec.Raw) else given
    return given if isinstance(given, operation.args) else operation.decode(given)
