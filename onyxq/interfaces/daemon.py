"""A running node: one per process with ZooKeeper, or alone on the embedded log.

A `RunningNode` opens the data directory and serves TCP and HTTP.  If its peer ends, it starts a new one.  It
ends when it is stopped, or for a reason that a new peer would meet again: a wrong clock, data of another
cluster, an older version than the cluster's, an extension with a bug.
"""

from __future__ import annotations

import logging
import random
import secrets
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio
from anyio.abc import ByteStream, TaskStatus
from anyio.streams.tls import TLSAttribute
from attrs import field, frozen

from onyxq.access.grants import Access
from onyxq.access.renewal import Renewal
from onyxq.core.duties import Drive
from onyxq.core.entry import Entries
from onyxq.core.errors import LogUnavailable, LogWentBack, OnyxqError, StoreFailed, causes, first_cause
from onyxq.core.log.interface import LogBackend, SessionLost
from onyxq.history.archive import Archive
from onyxq.history.parquet.records import RecordTable
from onyxq.interfaces.callbacks.delivery import Delivering, delivering
from onyxq.interfaces.callbacks.transports import Deliver
from onyxq.interfaces.callbacks.transports import installed as installed_transports
from onyxq.interfaces.job_hosts import JobHosts
from onyxq.interfaces.peer_config import (
    PeerConfig,
    check_config,
    cluster_settings,
    http_hosts,
    make_directories,
    node_settings,
    spark_settings,
)
from onyxq.interfaces.wire_server import Caller
from onyxq.log.backends import opened
from onyxq.node.jobs.driver import Driving
from onyxq.node.jobs.host_process import launch
from onyxq.node.jobs.hosts import Launch
from onyxq.node.membership import Evicted, Joiner, Peer, writes
from onyxq.node.node import Node
from onyxq.node.record_archive import Archiver
from onyxq.node.world import World
from onyxq.operations.service import Service
from onyxq.store.integrity.lmdb_check import fatal_signals_noted
from onyxq.store.interface import NODE_META, STORE_META, Batch
from onyxq.store.lmdb_store import LmdbStore
from onyxq.store.store import Store
from onyxq.system.clock import Clock, RingClock, SystemClock, WallClock
from onyxq.system.extensions import installed
from onyxq.wire.bounds import Bounds
from onyxq.wire.network import Network
from onyxq.wire.server import serve
from onyxq.wire.tcp import TcpNetwork

if TYPE_CHECKING:
    from onyxq.interfaces.http.app import App
    from onyxq.interfaces.http.endpoint import Endpoint
    from onyxq.interfaces.http.server import Places

SESSION_RETRY_S = 1.0
STORE_RETRY_S = 1.0
REJOIN_PAUSE_S = 0.2
WENT_BACK_RETRY_S = 2.0
"""Pause after which a node without a peer looks again for the log that it has read, in seconds."""

log = logging.getLogger(__name__)


@frozen
class PeerAddresses:
    """Ids and addresses of a node that serves."""

    peer: str
    node: str
    address: str
    http: str
    taskstore: str = ""


def _open_lmdb(path: str, clock: WallClock) -> Store:
    return LmdbStore.open_or_begin_anew(path, now_ms=clock.wall_ms)


@frozen
class Platform:
    """Parts of the machine that a running node uses. Tests and simulations replace some of them."""

    network: Network | None = None
    """None: TCP, with TLS if the settings name certificates."""
    clock: Clock = field(factory=SystemClock)
    open_store: Callable[[str, WallClock], Store] = _open_lmdb
    """Opens the store in a data directory."""
    offload: Callable[..., Awaitable[Any]] = trio.to_thread.run_sync
    """Calls a slow function in a thread; in simulations, in the event loop."""
    launch_host: Launch = launch
    """Starts the process that hosts Spark."""


MACHINE = Platform()
"""The machine that this process runs on."""


class RunningNode:
    """One running node; see the beginning of the module."""

    def __init__(
        self,
        config: PeerConfig,
        backend: LogBackend,
        *,
        platform: Platform = MACHINE,
        seed: int | None = None,
        entries: Entries | None = None,
        transports: Mapping[str, Deliver] | None = None,
    ) -> None:
        """``transports``: transports of callbacks besides HTTP and TCP. None: this node makes no callbacks."""
        self.config = config
        self.stop = trio.Event()
        """Set it to drain and stop the node."""
        self.addresses: PeerAddresses | None = None
        self.ready = trio.Event()
        self.service: Service | None = None
        self.node: Node | None = None
        self._backend = backend
        self._platform = platform
        self._network: Network = platform.network or config.certificates.network(serves=True)
        self._clock = RingClock(platform.clock)
        self._random = random.Random(secrets.randbits(64) if seed is None else seed)
        self._entries = installed() if entries is None else entries
        self._transports = transports
        self._delivering: Delivering | None = None
        self._peer: Peer | None = None
        self._contexts = config.certificates.contexts()
        self._callers: set[Caller] = set()
        self._apps: list[App] = []
        self._places: Places | None = None
        """Limit on connections that all HTTP ports share."""
        self._taskstore = ""
        """Address of the port whose root is the task store."""

    async def run(self) -> None:
        """Serve until stopped; raises errors that a new peer would meet again."""
        store = self._platform.open_store(self.config.data, self._clock)
        try:
            await self._run_on(store)
        except BaseException as error:
            if any(not isinstance(one, OnyxqError) for one in causes(error)):
                store.doubt()  # A bug, or damaged contents of the store.
            if store.condition.fatal is None:
                raise
        finally:
            with trio.CancelScope(shield=True):
                await store.aclose()
        if store.condition.fatal is not None:
            raise store.condition.fatal

    async def _run_on(self, store: Store) -> None:
        """Serve a store until stopped, or until the store fails."""
        node_id = await self._node_id(store)
        async with trio.open_nursery() as nursery:
            store.condition.on_end(nursery.cancel_scope.cancel)
            world = World(
                store=store,
                network=self._network,
                clock=self._clock,
                random=self._random.random,
                nursery=nursery,
                offload=self._platform.offload,
            )
            node = self.node = Node(world, node_settings(self.config, node_id, self._entries))
            driver = hosts = None
            if self.config.spark:
                spark = spark_settings(self.config)
                hosts = JobHosts(node, spark, self._platform.launch_host)
                driver = Driving(node, spark, hosts.launch)
            service = self.service = Service(
                node,
                random_64=lambda: self._random.getrandbits(64),
                backend=self._backend,
                driver=driver,
                serve_host=None if hosts is None else hosts.serve,
            )
            if self.config.archive:
                archive = Archive(Path(self.config.archive), node_id)
                node.archivers.append(Archiver(archive, node, service.log_view))
            if self.config.record_archive:
                table = RecordTable(Path(self.config.record_archive), node_id)
                node.archivers.append(Archiver(table, node, service.log_view))
            nursery.start_soon(node.run)
            nursery.start_soon(service.run)
            address = await nursery.start(self._serve_wire, node, service)
            if driver is not None:
                node.duty_runners[Drive] = driver.drive
                nursery.start_soon(driver.run, address)
            if self._transports is not None:
                self._delivering = delivering(
                    node,
                    service.timers,
                    self._transports,
                    allowed=self.config.timer_targets,
                    listens=(self.config.listen, self.config.http, self.config.taskstore),
                    asks=bool(self.config.access),
                    timeout_ms=self.config.timer_timeout_ms,
                )
                nursery.start_soon(self._delivering.run)
            http = await nursery.start(self._serve_http, service) if self.config.http else ""
            if self.config.taskstore:
                self._taskstore = await nursery.start(self._serve_taskstore, service)
            await self._peers(node, service, address, http)
            nursery.cancel_scope.cancel()

    def renew(self, access: Access) -> None:
        """Use the tokens of ``access``, and read the certificates again; raises `BadRequest` and then changes nothing.

        TCP connections and waiting requests end if their token was removed or changed.  Certificates apply to
        new connections.
        """
        contexts = self.config.certificates.contexts()
        self.config.access.renew(access)
        self._contexts = contexts
        if contexts is not None and isinstance(self._network, TcpNetwork):
            self._network.use(connecting=contexts.connecting, serving=contexts.peers)
        for caller in list(self._callers):
            caller.judge_again()
        for app in self._apps:
            app.answer_waiting()

    async def _node_id(self, store: Store) -> str:
        """Return the node id. A new store gets a store id, and a new node id if it has none."""
        stored = store.meta(NODE_META)
        if stored is not None and store.meta(STORE_META) is not None:
            return stored.decode()
        node_id, store_id = (f"{self._random.getrandbits(48):012x}".encode() for _ in range(2))
        node_id = stored or node_id
        await store.write(Batch(meta=((NODE_META, node_id), (STORE_META, store_id))))
        return node_id.decode()

    async def _serve_wire(
        self, node: Node, service: Service, *, task_status: TaskStatus[str] = trio.TASK_STATUS_IGNORED
    ) -> None:
        handler = partial(self._serve_caller, node, service, Bounds())
        await self._network.serve(self.config.listen, handler, task_status=task_status)

    async def _serve_caller(self, node: Node, service: Service, bounds: Bounds, stream: ByteStream) -> None:
        """Serve one TCP connection; requests of callers that need no check go straight to the service."""
        access, encrypted = self.config.access, bool(self.config.certificates)
        if not access and not encrypted:
            await serve(stream, hello=node.welcome, dispatch=service.dispatch, bounds=bounds, admit=service.screen)
            return
        caller = Caller(
            access,
            certified=not encrypted or stream.extra(TLSAttribute.peer_certificate_binary, None) is not None,
            welcome=node.welcome,
            dispatch=service.dispatch,
            screen=service.screen,
            ask=service.call,
            start_soon=node.start_soon,
        )
        self._callers.add(caller)
        try:
            with caller.scope:
                await serve(stream, hello=caller.welcome, dispatch=caller.dispatch, bounds=bounds, admit=caller.admit)
        finally:
            self._callers.discard(caller)

    async def _serve_http(
        self, service: Service, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED
    ) -> None:
        assert self.config.http
        from onyxq.interfaces.http.app import (
            ENDPOINTS,  # A third of the modules of a peer. Without HTTP, they are not needed.
        )

        await self._serve_app(service, ENDPOINTS, self.config.http, task_status)

    async def _serve_taskstore(
        self, service: Service, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED
    ) -> None:
        assert self.config.taskstore
        from onyxq.interfaces.http.routes import taskstore

        endpoints = taskstore.endpoints("", unit=self.config.taskstore_unit)
        await self._serve_app(service, endpoints, self.config.taskstore, task_status)

    async def _serve_app(
        self, service: Service, endpoints: Sequence[Endpoint], address: str, task_status: trio.TaskStatus[str]
    ) -> None:
        from onyxq.interfaces.http.app import create_app
        from onyxq.interfaces.http.server import Places, serve_http

        self._places = self._places or Places()
        app = create_app(
            service,
            access=self.config.access,
            hosts=http_hosts(self.config),
            endpoints=endpoints,
            admission=service.admission,
            now_ms=service.node.wall_ms,
        )
        app.kit.settings = self.config.given
        app.kit.past.archive = Path(self.config.archive) if self.config.archive else None
        self._apps.append(app)
        tls = self._callers_tls if self.config.certificates else None
        await serve_http(app, address, task_status=task_status, shutdown=self.stop, tls=tls, places=self._places)

    def _callers_tls(self) -> ssl.SSLContext:
        assert self._contexts is not None
        return self._contexts.callers

    async def _peers(self, node: Node, service: Service, address: str, http: str) -> None:
        while not (self.stop.is_set() or service.operating.leave_wanted.is_set()):
            if not await self._can_write(node.store):
                continue
            peer_id = f"{node.node_id}-{self._random.getrandbits(32):08x}"
            slots = self.config.slots if self.config.spark else 0
            peer = self._peer = service.peer = Peer(
                node,
                Joiner(peer_id, address, http, self.config.zone, slots, self.config.tags),
                settings=cluster_settings(self.config),
                new_cluster_id=lambda: f"{self._random.getrandbits(64):016x}",
                look=self._backend.look,
            )
            self.addresses = PeerAddresses(peer_id, node.node_id, address, http, self._taskstore)
            try:
                await self._one_peer(peer, service)
            except* LogWentBack as group:
                if not self.ready.is_set():
                    raise  # At the start, an operator watches and sees the error.
                await self._stay(node, group)
            except* (SessionLost, LogUnavailable, StoreFailed, Evicted) as group:
                log.warning("peer %s ended: %s", peer_id, first_cause(group))
            await trio.sleep(REJOIN_PAUSE_S)

    async def _can_write(self, store: Store) -> bool:
        """Return whether the store can be written. If not, wait first: a peer cannot start without its disk."""
        if not store.condition.refusal:
            return True
        with trio.move_on_after(STORE_RETRY_S):
            await self.stop.wait()
        return await writes(store)

    async def _stay(self, node: Node, group: BaseExceptionGroup[LogWentBack]) -> None:
        """Serve without a peer after the log went back, and return after a pause to look at the log again.

        The facts are still served, so that acknowledged tasks stay available. No claims are granted.
        """
        if node.went_back is None:
            error = first_cause(group)
            assert isinstance(error, LogWentBack)
            node.went_back = error
            log.error("no claims are granted: %s. %s", node.went_back.message, node.went_back.advice)
        with trio.move_on_after(WENT_BACK_RETRY_S):
            await self.stop.wait()

    async def _one_peer(self, peer: Peer, service: Service) -> None:
        try:
            session = await self._backend.session()
        except LogUnavailable:
            with trio.move_on_after(SESSION_RETRY_S):
                await self.stop.wait()
            raise
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._announce, peer)
                nursery.start_soon(self._leave_on_request, peer, service)
                await peer.run(session)
                nursery.cancel_scope.cancel()
        finally:
            with trio.move_on_after(2, shield=True):
                await session.aclose()

    async def _announce(self, peer: Peer) -> None:
        await peer.joined.wait()
        self.ready.set()

    async def _leave_on_request(self, peer: Peer, service: Service) -> None:
        async with trio.open_nursery() as nursery:

            async def first(event: trio.Event) -> None:
                await event.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(first, self.stop)
            nursery.start_soon(first, service.operating.leave_wanted)
            nursery.start_soon(self._retire_on_request, peer, service)
        if self._delivering is not None:
            await self._delivering.drain()
        await service.claiming.drain()
        await peer.leave()
        with trio.move_on_after(2.0):
            await trio.sleep_forever()  # The peer ends when it reads its own leave.
        raise LogUnavailable("the log did not accept the leave in time")

    async def _retire_on_request(self, peer: Peer, service: Service) -> None:
        """On request, move the copies of the node to other nodes, then leave.

        If the peer ends meanwhile, the next peer starts again.
        """
        await service.operating.retire_wanted.wait()
        await service.operating.move_away(peer.id)
        service.operating.leave_wanted.set()


async def run_peer(
    config: PeerConfig,
    *,
    ready: Callable[[PeerAddresses], None],
    stop: trio.Event,
    renewal: Renewal | None = None,
) -> None:
    """Run one node until ``stop``; call ``ready`` when it is in the ring and serves.

    ``renewal``: gets the function that applies new tokens and certificates.  Raises `BadRequest` for a setting
    that is out of range.
    """
    check_config(config)
    make_directories(config)
    with fatal_signals_noted(Path(config.data)):
        backend = opened(
            config.zookeeper,
            config.cluster,
            Path(config.data),
            credentials=config.zookeeper_credentials,
            session_timeout_ms=config.session_timeout_ms,
        )
        async with backend as chosen:
            running = RunningNode(config, chosen, transports=installed_transports())
            if renewal is not None:
                renewal.take = running.renew

            async def announce() -> None:
                await running.ready.wait()
                assert running.addresses is not None
                ready(running.addresses)

            async def pass_stop() -> None:
                await stop.wait()
                running.stop.set()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(announce)
                nursery.start_soon(pass_stop)
                await running.run()
                nursery.cancel_scope.cancel()


__all__ = ["PeerAddresses", "Platform", "RunningNode", "run_peer"]
