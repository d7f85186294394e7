"""A whole cluster in one process: several nodes on one embedded log, for ``onyxq dev``, the demo and tests."""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import trio
from attrs import evolve

from onyxq.core.errors import BadRequest
from onyxq.interfaces.callbacks.transports import installed as installed_transports
from onyxq.interfaces.daemon import MACHINE, Platform, RunningNode
from onyxq.interfaces.peer_config import PeerConfig, check_config, is_node, make_directories, nodes_in
from onyxq.log.embedded import EmbeddedBackend
from onyxq.system.directories import create, open_regular, usable
from onyxq.wire.tcp import join_address, split_address

LOCAL = PeerConfig(data="", listen="127.0.0.1:0", http=None)
"""Settings of a cluster in one process: free ports on this machine, no HTTP."""
NOTE = "served"
"""File in a directory with the address at which the process that has it open serves others.

The process keeps the file locked. A file without a lock was left by a process that was killed.
"""
COPIES = 3
"""Most copies of each task that a new cluster keeps; with fewer nodes, one at each."""


def served_at(directory: Path) -> str | None:
    """Return the address at which the process that has a directory open serves others; empty while it starts.

    Returns None if the process serves no others.
    """
    try:
        with open_regular(directory / NOTE) as note:
            try:
                fcntl.flock(note, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return note.read().decode()
    except FileNotFoundError:
        pass
    return None


@contextlib.contextmanager
def findable_in(directory: Path) -> Iterator[Callable[[str], None]]:
    """Let `served_at` find this process inside the context; yield the function that gets its address once it serves."""
    with create(directory / NOTE) as note:
        fcntl.flock(note, fcntl.LOCK_EX)

        def serve(address: str) -> None:
            note.write(address.encode())
            note.flush()

        try:
            yield serve
        finally:
            (directory / NOTE).unlink(missing_ok=True)


class LocalCluster:
    """Several nodes in this process on one embedded log; use ``async with``.

    ``data``: directory of the log and of the data directories of the nodes, by default a temporary directory, which is
    deleted at the end.  ``config``: settings of all nodes.  The first node has the given ports and the others have
    those after them; port 0 is a free one.  ``first``: settings of `PeerConfig` for the first node only.
    ``findable``: whether an `App` with the directory may find the cluster there.
    """

    def __init__(
        self,
        *,
        peers: int = 3,
        data: str | None = None,
        config: PeerConfig = LOCAL,
        first: Mapping[str, Any] | None = None,
        platform: Platform = MACHINE,
        findable: bool = False,
    ) -> None:
        self.nodes: list[RunningNode] = []
        self._peers = peers
        self._data = data
        self._config = config
        self._first = first or {}
        self._platform = platform
        self._findable = findable
        self._stack = contextlib.AsyncExitStack()
        self._nursery: trio.Nursery | None = None
        self._ended: dict[int, trio.Event] = {}

    @property
    def addresses(self) -> list[str]:
        """``HOST:PORT`` of each running node."""
        return [node.addresses.address for node in self.nodes if node.addresses and not node.stop.is_set()]

    @property
    def copies(self) -> int:
        """Number of copies of each task that the cluster keeps if it has enough nodes; decided when it was created."""
        node = self.nodes[0].node
        assert node is not None
        return node.replica.settings.replicas

    @property
    def http_addresses(self) -> list[str]:
        """``HOST:PORT`` of HTTP of each running node."""
        return [node.addresses.http for node in self.nodes if node.addresses and not node.stop.is_set()]

    async def __aenter__(self) -> LocalCluster:
        try:
            await self._start()
        except BaseException:
            # Contexts that were entered, for example the nursery, must be left.
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
        self._check_peers(nodes_in(root), root)
        backend = EmbeddedBackend.open(str(Path(root) / "log"))
        self._stack.push_async_callback(backend.aclose)
        serve = self._stack.enter_context(findable_in(Path(root))) if self._findable else None
        self._nursery = await self._stack.enter_async_context(trio.open_nursery())
        for number in range(self._peers):
            config = self._config_of(number, root)
            check_config(config)
            make_directories(config)
            node = RunningNode(config, backend, platform=self._platform, transports=installed_transports())
            self.nodes.append(node)
            self._ended[number] = trio.Event()
            self._nursery.start_soon(self._run, number)
            if number == 0:
                await node.ready.wait()
        for node in self.nodes:
            await node.ready.wait()
        if serve is not None:
            serve(self.addresses[0])

    def _check_peers(self, made: int, root: str) -> None:
        if is_node(root):
            raise BadRequest(
                f"{root} is the directory of one peer, and not of a cluster in one process",
                field="data",
                hint=f"Start this peer: onyxq peer start --data {root}. Or name another directory.",
            )
        if self._peers < made:
            raise BadRequest(
                f"{root} has {made} nodes, and without {made - self._peers} of them some of its tasks have no leader",
                field="data",
                hint=f"Start them all: onyxq dev --data {root} --peers {made}",
            )

    def _config_of(self, number: int, root: str) -> PeerConfig:
        config = evolve(self._config, data=str(Path(root) / f"node-{number}"), replicas=min(COPIES, self._peers))
        if number == 0:
            return evolve(config, **self._first)
        return evolve(
            config,
            listen=address_after(config.listen, number),
            http=address_after(config.http, number) if config.http is not None else None,
        )

    async def _run(self, number: int) -> None:
        try:
            await self.nodes[number].run()
        finally:
            self._ended[number].set()

    async def stop_peer(self, number: int) -> None:
        """Drain and stop one node; return when it has ended."""
        self.nodes[number].stop.set()
        await self._ended[number].wait()

    async def __aexit__(self, *exc: object) -> None:
        assert self._nursery is not None
        self._nursery.cancel_scope.cancel()
        await self._stack.__aexit__(*exc)  # type: ignore[arg-type]


def address_after(address: str, number: int) -> str:
    """Return the address whose port is ``number`` greater; a free port stays one. Raises `BadRequest`."""
    host, port = split_address(address)
    if port and port + number >= 1 << 16:
        raise BadRequest(f"there is no port {number} after {port}", field="peers", hint="Choose lower ports.")
    return join_address(host, port + number if port else 0)
