"""The inputs of a node at its start: the world it runs in, and its settings."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import trio
from attrs import field, frozen

from log_entries.registry import ENTRIES
from onyxq.core.entry import Entries
from onyxq.core.log.interface import Origin
from onyxq.core.replica import Cluster
from onyxq.jobs.function_imports import ANY_FUNCTION, Allowed
from onyxq.leader.cohort.copy_pace import BYTES_PER_S
from onyxq.leader.purge import Plan
from onyxq.store.interface import KeptLog
from onyxq.store.store import Store
from onyxq.system.clock import RingClock
from onyxq.wire.network import Network


@frozen
class World:
    """The parts that reach outside the node's memory.

    A simulation replaces all of them.
    """

    store: Store
    network: Network
    clock: RingClock
    random: Callable[[], float]
    """Returns a number from 0 up to, but not including, 1."""
    nursery: trio.Nursery
    """Runs the node's background work."""
    offload: Callable[..., Awaitable[Any]] = trio.to_thread.run_sync
    """Calls a slow function outside the event loop (in simulations: on it)."""


@frozen
class NodeSettings:
    """Settings of one node, in contrast to those that the whole cluster shares."""

    node_id: str
    cluster_name: str
    sync_bytes_per_s: int = BYTES_PER_S
    """Limit for copying rows, in bytes per second; it holds for each direction."""
    purging: Plan = field(factory=Plan)
    """How old tasks are purged."""
    credential: str | None = None
    """The credential that the node shows to other nodes."""
    job_functions: Allowed = ANY_FUNCTION
    """The functions that jobs may bring."""
    entries: Entries = ENTRIES
    """The log entries that this program knows, extensions included."""


class RecordKeeper(Protocol):
    """Keeps records of the log before they are gone; see `onyxq.node.record_archive`."""

    async def keep(self, old: Origin | None, upto: int) -> None:
        """Wait until every record after the origin ``old`` up to ``upto`` is kept: then they are trimmed."""
        ...

    async def keep_copy(self, copy: KeptLog, cluster: Cluster | None) -> None:
        """Keep the records of a node's own copy of the log, which is about to be replaced."""
        ...
