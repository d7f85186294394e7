"""A whole cluster in one process: several nodes on one embedded log, for ``onyxq dev``, the demo and tests."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import trio

from onyxq.access.certificates import PLAIN, Certificates
from onyxq.access.grants import OPEN, Access
from onyxq.interfaces.callbacks.transports import installed as installed_transports
from onyxq.interfaces.daemon import PeerAddresses, PeerConfig, RunningNode, check_config, make_directories
from onyxq.log.embedded import EmbeddedBackend
from onyxq.node.jobs.host_process import launch
from onyxq.node.jobs.hosts import Launch
from onyxq.system.directories import usable
from onyxq.wire.network import Network


class LocalCluster:
    """Several nodes in this process on one embedded log; use ``async with``.

    ``data``: directory of the log and of one data directory per node; without it a
    temporary one, deleted in the end.  ``spark``: what of `PeerConfig` is about jobs, ``timers``:
    what of it is about callbacks.  ``first``: other settings of `PeerConfig`, of the first node alone.
    """

    def __init__(
        self,
        *,
        peers: int = 3,
        data: str | None = None,
        listen: str = "127.0.0.1:0",
        http: str | None = None,
        partitions: int = 64,
        archive: str | None = None,
        spark: Mapping[str, Any] | None = None,
        first: Mapping[str, Any] | None = None,
        network: Network | None = None,
        launch_host: Launch = launch,
        access: Access = OPEN,
        allow_anyone: bool = False,
        http_hosts: str = "",
        certificates: Certificates = PLAIN,
        timers: Mapping[str, Any] | None = None,
    ) -> None:
        self.nodes: list[RunningNode] = []
        self._peers = peers
        self._data = data
        self._listen = listen
        self._http = http
        self._partitions = partitions
        self._archive = archive
        self._spark = spark or {}
        self._first = first or {}
        self._network = network
        self._timers = timers or {}
        self._launch_host = launch_host
        self._access = access
        self._allow_anyone = allow_anyone
        self._http_hosts = http_hosts
        self._certificates = certificates
        self._stack = contextlib.AsyncExitStack()
        self._nursery: trio.Nursery | None = None
        self._ended: dict[int, trio.Event] = {}

    @property
    def addresses(self) -> list[str]:
        """``HOST:PORT`` of every node that runs."""
        return [node.addresses.address for node in self.nodes if node.addresses and not node.stop.is_set()]

    @property
    def http_addresses(self) -> list[str]:
        """``HOST:PORT`` of HTTP of every node that runs."""
        return [node.addresses.http for node in self.nodes if node.addresses and not node.stop.is_set()]

    async def __aenter__(self) -> LocalCluster:
        try:
            await self._start()
        except BaseException:
            # What was entered already, a nursery among it, must be left in order.
            if self._nursery is not None:
                self._nursery.cancel_scope.cancel()
            await self._stack.__aexit__(*sys.exc_info())
            raise
        return self

    async def _start(self) -> None:
        root = self._data
        if root is None:
            root = tempfile.mkdtemp(prefix="onyxq-")
            self._stack.callback(shutil.rmtree, root, ignore_errors=True)
        usable(root, "data")
        backend = EmbeddedBackend.open(str(Path(root) / "log"))
        self._stack.push_async_callback(backend.aclose)
        self._nursery = await self._stack.enter_async_context(trio.open_nursery())
        for number in range(self._peers):
            config = PeerConfig(
                data=str(Path(root) / f"node-{number}"),
                listen=self._listen if number == 0 else "127.0.0.1:0",
                http=self._http if number == 0 or self._http is None else "127.0.0.1:0",
                partitions=self._partitions,
                archive=self._archive,
                replicas=min(3, self._peers),
                access=self._access,
                allow_anyone=self._allow_anyone,
                http_hosts=self._http_hosts,
                certificates=self._certificates,
                **self._spark,
                **self._timers,
                **(self._first if number == 0 else {}),
            )
            check_config(config)
            make_directories(config)
            node = RunningNode(
                config,
                backend,
                network=self._network,
                launch_host=self._launch_host,
                transports=installed_transports(),
            )
            self.nodes.append(node)
            self._ended[number] = trio.Event()
            self._nursery.start_soon(self._run, number)
            if number == 0:
                await node.ready.wait()
        for node in self.nodes:
            await node.ready.wait()

    async def _run(self, number: int) -> None:
        try:
            await self.nodes[number].run()
        finally:
            self._ended[number].set()

    async def stop_peer(self, number: int) -> None:
        """Drain one node and let it leave; returns when it has ended."""
        self.nodes[number].stop.set()
        await self._ended[number].wait()

    async def __aexit__(self, *exc: object) -> None:
        assert self._nursery is not None
        self._nursery.cancel_scope.cancel()
        await self._stack.__aexit__(*exc)  # type: ignore[arg-type]


async def run_dev(*, ready: Callable[[list[PeerAddresses]], None], stop: trio.Event, **how: Any) -> None:
    """A whole cluster in this process on the embedded log until ``stop``; raises `BadRequest`.

    ``how``: as `LocalCluster` has it.
    """
    async with LocalCluster(**how) as cluster:
        ready([node.addresses for node in cluster.nodes if node.addresses is not None])
        await stop.wait()
