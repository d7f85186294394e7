"""The interface of a measured system.

OnyxQ and every competitor are a `System`. A system starts its own servers on loopback, and opens
*lanes*. A lane enqueues, claims and completes, one call at a time. Many lanes have tasks in flight
at the same time. If the Python client of a system is asynchronous, its lanes are `AsyncLane`
objects. Otherwise they are `ThreadLane` objects, each with a thread of its own. So no client pays
for an adapter.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol


class Skip(Exception):
    """The system cannot be measured here; the message says what is missing."""


class Batch(NamedTuple):
    """Tasks given to a worker. ``receipt`` is what `complete` needs to know about them."""

    payloads: Sequence[bytes]
    receipt: Any


class AsyncLane(Protocol):
    """A lane with an asynchronous client."""

    async def enqueue(self, payloads: Sequence[bytes]) -> None:
        """Store all payloads as ready tasks; return once they are acknowledged."""
        ...

    async def claim(self, count: int, wait_s: float) -> Batch:
        """Claim up to ``count`` tasks, waiting at most ``wait_s`` seconds for the first."""
        ...

    async def complete(self, receipt: Any) -> None:
        """Complete every task of a batch; return once that is acknowledged."""
        ...


class ThreadLane(Protocol):
    """A lane with a blocking client; the methods are those of `AsyncLane`."""

    def enqueue(self, payloads: Sequence[bytes]) -> None:
        """Enqueue as `AsyncLane.enqueue` does."""
        ...

    def claim(self, count: int, wait_s: float) -> Batch:
        """Claim as `AsyncLane.claim` does."""
        ...

    def complete(self, receipt: Any) -> None:
        """Complete as `AsyncLane.complete` does."""
        ...


class System(ABC):
    """A queue with its servers. ``start`` may raise `Skip`; ``stop`` is called in any case."""

    name: ClassVar[str]
    batches: ClassVar[bool] = True
    """Whether one call can enqueue or claim several tasks."""
    lanes_max: ClassVar[int] = 1_000
    """Most lanes with which it is measured, because more make it slower."""

    @abstractmethod
    def start(self, directory: Path) -> None:
        """Start the servers with their data under ``directory``; return once they serve."""

    @abstractmethod
    def stop(self) -> None:
        """End every process that was started, also after a failed start."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Return what is needed to repeat the measurement: versions, durability, calls used."""


class AsyncSystem(System):
    """A system with an asynchronous client. ``backend`` is its event loop."""

    backend: ClassVar[str] = "asyncio"

    @abstractmethod
    async def open(self, queue: str, *, lanes: int, waiting: bool) -> list[AsyncLane]:
        """Make a queue and lanes for it. ``waiting``: an enqueue must wake waiting claims."""

    @abstractmethod
    async def close(self) -> None:
        """Close the connections of the last opened lanes."""


class ThreadSystem(System):
    """A system with a blocking client."""

    @abstractmethod
    def open(self, queue: str, *, lanes: int, waiting: bool) -> list[ThreadLane]:
        """Open lanes as `AsyncSystem.open` does."""

    @abstractmethod
    def close(self) -> None:
        """Close connections as `AsyncSystem.close` does."""
