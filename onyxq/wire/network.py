"""The network as nodes and clients see it: real TCP here, a simulated one in tests.

Other code uses only `Network` and its `anyio` byte streams, so a simulated network needs to
give nothing but streams.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from anyio.abc import ByteStream, TaskStatus


class Network(Protocol):
    """Opens and accepts byte streams."""

    async def connect(self, address: str, *, timeout_ms: int) -> ByteStream:
        """Return a stream to ``HOST:PORT``; raises `Unavailable`."""

    async def serve(
        self,
        address: str,
        handler: Callable[[ByteStream], Awaitable[None]],
        *,
        task_status: TaskStatus[str],
    ) -> None:
        """Accept until cancelled; report the bound ``HOST:PORT`` (port 0: a free one)."""
