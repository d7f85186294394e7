"""A cluster of one node inside this process: `onyxq.open`, and an `App` with a directory.

It is a full node on the embedded log, with its own store. The client runs in the same event loop and thread. It is
connected to the node in memory, or over TCP if the node also serves the command line, workers and the dashboard.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from attrs import evolve

from onyxq.client.asynchronous import TIMEOUT_MS, AsyncClient
from onyxq.client.blocking import Client
from onyxq.core.errors import Conflict, OnyxqError, first_cause
from onyxq.interfaces.daemon import PeerAddresses, Platform
from onyxq.interfaces.local_cluster import LOCAL, LocalCluster, served_at
from onyxq.system.durations import Milliseconds
from onyxq.wire.memory import HOST, MemoryNetwork
from onyxq.wire.network import Network
from onyxq.wire.tcp import TcpNetwork

STARTING_S = 20.0
"""Longest wait for another process that has the directory to serve it, in seconds."""
NOTE_S = 5.0
"""Longest wait for the note that says so, in seconds; a process that serves no others writes none.

The process reads its log before it writes the note, which takes a moment on a busy machine.
"""
LOOK_EVERY_S = 0.1
PORT_IN_USE = "If it is a peer, such as `onyxq dev`, connect to it. Otherwise choose another port; 0 is a free one."
IN_USE = {
    "data": "Only one process can have a directory open. Use the address at which it serves, or another directory.",
    "listen": PORT_IN_USE,
    "http": PORT_IN_USE,
}
"""Hints for what another process uses, by the argument that names it."""
APPS_PORT_IN_USE = (
    "If it is a peer, such as `onyxq dev`, use it: App('{}') instead of App(data=...). "
    "Otherwise choose another address with ONYXQ_{}; port 0 is a free one."
)


class Embedded(Client):
    """A `Client` of a cluster in a directory. Only one process at a time can open it."""

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        timeout_ms: Milliseconds = TIMEOUT_MS,
        listen: str | None = None,
        http: str | None = None,
    ) -> None:
        self._path = fspath(path)
        self._listen = listen
        self._http = http
        self._network: Network = MemoryNetwork() if listen is None else TcpNetwork()
        self._served: PeerAddresses | None = None
        self._timeout_ms = timeout_ms
        super().__init__(listen or f"{HOST}:1", timeout_ms=timeout_ms, network=self._network, backend="trio")

    @property
    def address(self) -> str | None:
        """``HOST:PORT`` for other clients while it is open; None without ``listen``."""
        return self._served.address if self._served and self._listen else None

    @property
    def http_address(self) -> str | None:
        """``HOST:PORT`` of HTTP and the dashboard while it is open; None without ``http``."""
        return (self._served.http or None) if self._served else None

    def open(self) -> Embedded:
        """Start the node and wait until it serves."""
        try:
            super().open()
            return self
        except (BaseExceptionGroup, OnyxqError) as error:
            cause = first_cause(error)
        if isinstance(cause, OnyxqError):
            # The frames of the other thread's event loop say nothing to the caller.
            cause = cause.with_traceback(None)
            if isinstance(cause, Conflict) and cause.field in IN_USE:
                cause = Conflict(cause.message, field=cause.field, hint=IN_USE[cause.field])
        raise cause from None

    def __enter__(self) -> Embedded:
        return self.open()

    def _entered(self) -> AbstractAsyncContextManager[Any]:
        return self._serving()

    @asynccontextmanager
    async def _serving(self) -> AsyncIterator[AsyncClient]:
        here = {"listen": f"{HOST}:0", "allow_anyone": True}  # No other process can reach it.
        cluster = LocalCluster(
            peers=1,
            data=self._path,
            config=evolve(LOCAL, http=self._http, **(here if self._listen is None else {"listen": self._listen})),
            platform=Platform(network=self._network),
            findable=self._listen is not None,
        )
        async with cluster:
            self._served = cluster.nodes[0].addresses
            self._client = AsyncClient(cluster.addresses, timeout_ms=self._timeout_ms, network=self._network)
            try:
                async with self._client as client:
                    yield client
            finally:
                self._served = None


def open(
    path: str | PathLike[str],
    *,
    timeout_ms: Milliseconds = TIMEOUT_MS,
    listen: str | None = None,
    http: str | None = None,
) -> Embedded:
    """Open the cluster in a directory, or create it; close it, or use it with ``with``.

    ``listen``, ``http``: ``HOST:PORT`` at which workers and the command line, and HTTP with the dashboard, reach it;
    port 0 is a free one. Default: only this process reaches it. Raises `OnyxqError` if another process has it open.
    """
    return Embedded(path, timeout_ms=timeout_ms, listen=listen, http=http).open()


def open_or_find(path: str | PathLike[str], *, listen: str, http: str | None) -> tuple[Embedded | None, str]:
    """Open the cluster in a directory, or find the process that has it open; return its address in both cases.

    Raises `Conflict` if that process does not serve other processes, or if a port is in use.
    """
    began_at = time.monotonic()
    while True:
        try:
            opened = open(path, listen=listen, http=http)
        except Conflict as error:
            if error.field in ("listen", "http"):
                hint = APPS_PORT_IN_USE.format(listen, error.field.upper())
                raise Conflict(error.message, field=error.field, hint=hint) from None
            address = served_at(Path(path)) if error.field == "data" else None
            if address:
                return None, address
            if time.monotonic() >= began_at + (NOTE_S if address is None else STARTING_S):
                raise
            time.sleep(LOOK_EVERY_S)
        else:
            return opened, str(opened.address)
