"""What serving clients needs of its node, and the words that the operations share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from onyxq.leader.cohort.unflushed_writes import Floating
from onyxq.leader.grants.granter import Granter, GranterHost
from onyxq.leader.leader import PartitionLeader

Refused = list[Any]
"""``[first, count, error map]`` of a part of an item."""


class OperationsHost(GranterHost, Protocol):
    """What these operations need of their node."""

    node_id: str
    leaders: dict[int, PartitionLeader]
    floating: Floating
    granter: Granter

    def random(self) -> float:
        """0 <= x < 1, from the node's generator."""
        ...

    async def verdicts(self, entries: Sequence[Any]) -> tuple[int, Sequence[str]]:
        """Submit entries; position and verdicts. Raises `LogUnavailable`."""
        ...

    async def settled(self) -> None:
        """Return once what the log said of claims so far can be read from the store."""
        ...

    async def recorded(self) -> None:
        """Return once all that the log said so far is in the store."""
        ...

    async def moved(self) -> None:
        """Return at the next step of the log."""
        ...

    async def call(self, node: str, method: str, args: dict[str, Any], *, timeout_s: float) -> Any:
        """Call a method of another node; raises `Unavailable`."""
        ...

    def start_soon(self, function: Callable[..., Any], *args: Any) -> None:
        """Run something in the node's nursery."""
        ...

    def submit_lazily(self, entry: Any) -> None:
        """Submit an entry that nobody waits for; lost entries are owed again later."""
        ...
