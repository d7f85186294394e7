"""Connections from this node to the others, opened when needed and kept."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import trio

from onyxq.core.errors import OnyxqError, Unavailable
from onyxq.system.signal import Signal
from onyxq.wire.connection import Connection
from onyxq.wire.network import Network
from onyxq.wire.protocol import Hello

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_MS = 2_000
REFUSED_PAUSE_S = 0.25
"""Time after a failed attempt in which further calls fail at once, in seconds."""


class Link:
    """The connection to one node."""

    def __init__(
        self,
        *,
        node: str,
        network: Network,
        nursery: trio.Nursery,
        hello: Callable[[], Hello],
        address: Callable[[], str],
    ) -> None:
        self.node = node
        self._network = network
        self._nursery = nursery
        self._hello = hello
        self._address = address
        self._connection: Connection | None = None
        self._attempt: Signal | None = None
        """Fired at the end of the attempt to connect that is under way."""
        self._refused_at = -REFUSED_PAUSE_S
        self._reason = ""

    async def call(self, method: str, args: dict[str, Any], *, timeout_s: float) -> Any:
        """Call a method of the node; raises `Unavailable` if it cannot be reached."""
        connection = self._connection
        if connection is None or connection.closed.is_set():
            connection = await self._connect()
        return await connection.call(method, args, timeout_ms=int(timeout_s * 1000))

    async def _connect(self) -> Connection:
        """Return a connection once the attempt under way, or a new one, has ended; raises `Unavailable`."""
        if trio.current_time() - self._refused_at < REFUSED_PAUSE_S:
            raise Unavailable(self._reason)
        if self._attempt is None:
            attempt = Signal()
            self._nursery.start_soon(self._attempt_once, attempt)
            self._attempt = attempt
        await self._attempt.wait()
        if self._connection is None or self._connection.closed.is_set():
            raise Unavailable(self._reason)
        return self._connection

    async def _attempt_once(self, attempt: Signal) -> None:
        self._reason = f"node {self.node} closed the connection"
        try:
            self._connection = await self._open()
        except OnyxqError as error:
            self._refuse(error.message)
        except Exception as error:  # only those that wait fail, not the node
            log.error("the attempt to connect to node %s failed unexpectedly", self.node, exc_info=error)
            self._refuse(str(error))
        finally:
            self._attempt = None
            attempt.fire()

    def _refuse(self, why: str) -> None:
        self._refused_at = trio.current_time()
        self._reason = f"node {self.node} cannot be reached: {why}"

    async def _open(self) -> Connection:
        address = self._address()
        if not address:
            raise Unavailable("its address is not known")
        connection = await Connection.start(
            self._nursery, self._network, address, hello=self._hello(), timeout_ms=CONNECT_TIMEOUT_MS
        )
        if connection.peer.node != self.node:
            connection.close()
            raise Unavailable(f"{address} is another node now")
        return connection

    def close(self) -> None:
        """Drop the connection."""
        if self._connection is not None:
            self._connection.close()
