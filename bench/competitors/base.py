"""What a measured system looks like to the benchmark programs.

OnyxQ and every competitor are a `System`: it starts its own servers on loopback, and opens
*lanes*.  A lane is one strand of work that enqueues, claims and completes, one call at a
time; tasks in flight come from many lanes.  Systems whose Python client is asynchronous
give `AsyncLane` objects, the others `ThreadLane` objects that live in one thread each, so
that no client pays for an adapter.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol


class Skip(Exception):
    """The system cannot be measured here; the message says what is missing."""


class Batch(NamedTuple):
    """Tasks handed to a worker. ``receipt`` is what `complete` needs to know about them."""

    payloads: Sequence[bytes]
    receipt: Any


class AsyncLane(Protocol):
    """One strand of work with an asynchronous client."""

    async def enqueue(self, payloads: Sequence[bytes]) -> None:
        """Store all payloads as ready tasks; returns once they are acknowledged."""
        ...

    async def claim(self, count: int, wait_s: float) -> Batch:
        """Take up to ``count`` tasks, waiting at most ``wait_s`` seconds for the first."""
        ...

    async def complete(self, receipt: Any) -> None:
        """Finish every task of a batch; returns once that is acknowledged."""
        ...


class ThreadLane(Protocol):
    """One strand of work with a blocking client; the calls mean the same."""

    def enqueue(self, payloads: Sequence[bytes]) -> None:
        """As `AsyncLane.enqueue`."""
        ...

    def claim(self, count: int, wait_s: float) -> Batch:
        """As `AsyncLane.claim`."""
        ...

    def complete(self, receipt: Any) -> None:
        """As `AsyncLane.complete`."""
        ...


class System(ABC):
    """A queue with its servers. ``start`` may raise `Skip`; ``stop`` is called in any case."""

    name: ClassVar[str]
    batches: ClassVar[bool] = True
    """Whether several tasks can be given or taken in one call."""
    lanes_max: ClassVar[int] = 1_000
    """More lanes than these make it slower: it is measured with at most so many."""

    @abstractmethod
    def start(self, directory: Path) -> None:
        """Start the servers with their data under ``directory``; return once they serve."""

    @abstractmethod
    def stop(self) -> None:
        """End every process that was started, also after a failed start."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """What a reader must know to repeat the measurement: versions, durability, calls used."""


class AsyncSystem(System):
    """A system with an asynchronous client. ``backend`` is the event loop it is driven on."""

    backend: ClassVar[str] = "asyncio"

    @abstractmethod
    async def open(self, queue: str, *, lanes: int, waiting: bool) -> list[AsyncLane]:
        """Make a queue and lanes onto it. ``waiting``: claims must be woken by an enqueue."""

    @abstractmethod
    async def close(self) -> None:
        """Close the connections of the lanes opened last."""


class ThreadSystem(System):
    """A system with a blocking client."""

    @abstractmethod
    def open(self, queue: str, *, lanes: int, waiting: bool) -> list[ThreadLane]:
        """As `AsyncSystem.open`."""

    @abstractmethod
    def close(self) -> None:
        """As `AsyncSystem.close`."""
