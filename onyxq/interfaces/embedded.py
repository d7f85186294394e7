"""A cluster of one node inside this process: `onyxq.open`, and an `App` with a directory.

It is a full node on the embedded log, with its own store. The client runs in the same event loop and thread. It is
connected to the node in memory, or over TCP if the node also serves the command line, workers and the dashboard.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import msgspec
from attrs import evolve

from onyxq.client.asynchronous import TIMEOUT_MS, AsyncClient
from onyxq.client.blocking import Client
from onyxq.core.errors import Conflict, first_cause
from onyxq.interfaces.daemon import PeerAddresses, Platform
from onyxq.interfaces.local_cluster import LOCAL, LocalCluster
from onyxq.system.directories import write_durably
from onyxq.system.directory_lock import holder
from onyxq.system.durations import Milliseconds
from onyxq.wire.memory import HOST, MemoryNetwork
from onyxq.wire.network import Network
from onyxq.wire.tcp import TcpNetwork

STARTING_S = 20.0
"""Longest wait for another process that has the directory to serve it, in seconds."""
LOOK_EVERY_S = 0.1


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
        except BaseExceptionGroup as group:
            raise first_cause(group) from None
        return self

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
        )
        async with cluster:
            self._served = cluster.nodes[0].addresses
            self._client = AsyncClient(cluster.addresses, timeout_ms=self._timeout_ms, network=self._network)
            if self._listen is not None:
                note = _Note(os.getpid(), cluster.addresses[0])
                write_durably(Path(self._path) / NOTE, msgspec.json.encode(note))
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

    Raises `Conflict` if that process does not serve other processes.
    """
    until = time.monotonic() + STARTING_S
    while True:
        try:
            opened = open(path, listen=listen, http=http)
        except Conflict:
            found = _served_by_another(Path(path))
            if found is not None:
                return None, found
            if time.monotonic() >= until:
                raise
            time.sleep(LOOK_EVERY_S)
        else:
            return opened, str(opened.address)


NOTE = "served"
"""File with the address at which the process that has the directory open serves it."""


class _Note(msgspec.Struct):
    pid: int
    address: str


def _served_by_another(path: Path) -> str | None:
    """Return the address of the process that has a directory open; None if it has not written it yet."""
    try:
        note = msgspec.json.decode((path / NOTE).read_bytes(), type=_Note)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None
    return note.address if note.pid == holder(path / "log" / "lock") else None
