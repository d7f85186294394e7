"""What the leader's operations need of their node."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from onyxq.leader.cohort.unflushed_writes import UnflushedWrites
from onyxq.leader.grants.granter import Granter, GranterHost
from onyxq.leader.leader import PartitionLeader


class OperationsHost(GranterHost, Protocol):
    """What these operations need of their node."""

    node_id: str
    leaders: dict[int, PartitionLeader]
    unflushed_writes: UnflushedWrites
    granter: Granter

    def random(self) -> float:
        """Return a random number, 0 <= x < 1, from the node's generator."""
        ...

    async def verdicts(self, entries: Sequence[Any]) -> tuple[int, Sequence[str]]:
        """Submit entries and return their position and verdicts; raises `LogUnavailable`."""
        ...

    async def settled(self) -> None:
        """Wait until the log's events about claims so far can be read from the store."""
        ...

    async def recorded(self) -> None:
        """Wait until everything that the log has recorded so far is in the store."""
        ...

    async def moved(self, timeout_s: float = math.inf) -> None:
        """Wait for the next step of the log, up to ``timeout_s``."""
        ...

    async def call(self, node: str, method: str, args: dict[str, Any], *, timeout_s: float) -> Any:
        """Call a method of another node; raises `Unavailable`."""
        ...

    def start_soon(self, function: Callable[..., Any], *args: Any) -> None:
        """Run something in the node's nursery."""
        ...

    def submit_lazily(self, entry: Any) -> None:
        """Submit an entry without waiting for it; a lost entry is owed again later."""
        ...
