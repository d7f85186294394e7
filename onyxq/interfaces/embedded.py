"""A cluster of one node inside this process, without a server: `onyxq.open`.

It is a full node on the embedded log, with its own store.  The client runs in the same event loop and thread
and is connected to the node in memory.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from os import PathLike, fspath
from typing import Any

from attrs import evolve

from onyxq.client.asynchronous import TIMEOUT_MS, AsyncClient
from onyxq.client.blocking import Client
from onyxq.core.errors import first_cause
from onyxq.interfaces.daemon import Platform
from onyxq.interfaces.local_cluster import LOCAL, LocalCluster
from onyxq.system.durations import Milliseconds
from onyxq.wire.memory import HOST, MemoryNetwork


class Embedded(Client):
    """A `Client` of a cluster in a directory. Only one process at a time can open it."""

    def __init__(self, path: str | PathLike[str], *, timeout_ms: Milliseconds = TIMEOUT_MS) -> None:
        self._path = fspath(path)
        self._network = MemoryNetwork()
        super().__init__(f"{HOST}:1", timeout_ms=timeout_ms, network=self._network, backend="trio")

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
        cluster = LocalCluster(
            peers=1,
            data=self._path,
            config=evolve(LOCAL, listen=f"{HOST}:0", allow_anyone=True),  # No other process can reach it.
            platform=Platform(network=self._network),
        )
        async with cluster, self._client as client:
            yield client


def open(path: str | PathLike[str], *, timeout_ms: Milliseconds = TIMEOUT_MS) -> Embedded:
    """Open the cluster in a directory, or create it; close it, or use it with ``with``.

    Raises `OnyxqError` if another process has it open.
    """
    return Embedded(path, timeout_ms=timeout_ms).open()
