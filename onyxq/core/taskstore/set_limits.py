"""Set the maximum size of one task of the task store, and of all tasks together, in bytes.

Submitted by peers for operators. Applies only if both limits are within their bounds. Existing
tasks stay.
"""

from __future__ import annotations

from attrs import frozen

from onyxq.core.entry import APPLIED, Stamp, Verdict
from onyxq.core.limits import STORE_BYTES_LIMIT, STORED_TASK_BYTES_LIMIT
from onyxq.core.replica import Replica
from onyxq.core.taskstore import state

VERSION = 1


@frozen
class Args:
    """``task_bytes_max``: of one task's data; ``bytes_max``: of all tasks."""

    task_bytes_max: int
    bytes_max: int


def apply(replica: Replica, args: Args, stamp: Stamp) -> tuple[Replica, Verdict]:
    """Set the limits for new tasks; existing tasks stay."""
    if not 0 < args.task_bytes_max <= STORED_TASK_BYTES_LIMIT:
        return replica, f"task_bytes_max must be 1 to {STORED_TASK_BYTES_LIMIT}"
    if not args.task_bytes_max <= args.bytes_max <= STORE_BYTES_LIMIT:
        return replica, f"bytes_max must be task_bytes_max to {STORE_BYTES_LIMIT}"
    store = state.read(replica)._replace(limits=(args.task_bytes_max, args.bytes_max))
    return state.kept(replica, store), APPLIED
