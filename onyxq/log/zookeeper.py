"""The log in ZooKeeper, which many nodes share.

Below ``/onyxq/<cluster>/``: ``log/<segment>/e-<sequence>`` (records only),
``pulse/<peer>`` (ephemeral), ``origin/<position>-<writer>-<n>`` (chunks) and
``origin/pointer``. The log's directory is never listed while the cluster is in use.

`kazoo_client` is the bridge to kazoo, `zookeeper_reader` reads, `zookeeper_origin` keeps the
origin.  This module holds the session that connects them.
"""

from __future__ import annotations

from typing import Any

import trio
from attrs import define, field
from kazoo.exceptions import KazooException, NodeExistsError, NoNodeError
from kazoo.protocol.states import EventType

from onyxq.access.credentials import ANONYMOUS, ZookeeperCredentials
from onyxq.core.cluster_settings import DEFAULTS
from onyxq.core.entry import RECORD_BYTES_MAX
from onyxq.core.errors import BadRequest, LogUnavailable, TooLarge
from onyxq.core.log.interface import (
    SEGMENT_RECORDS,
    AppendUnknown,
    Origin,
    Record,
    Trimmed,
    segment_of,
    segment_start,
)
from onyxq.log.kazoo_client import BROKEN, Link, append, children, create, delete, exists, get, give, replace, sync
from onyxq.log.zookeeper_access import NOTHING, REFUSED, Shown, shown
from onyxq.log.zookeeper_origin import Origins, position_of
from onyxq.log.zookeeper_reader import Layout, Reader
from onyxq.log.zookeeper_segments import Segments

OPEN_TIMEOUT_S = 15.0
_DESTROY_BATCH_RECORDS = 500


class ZookeeperBackend:
    """Sessions with one cluster's log in the ZooKeeper at ``hosts`` (``HOST:PORT,...``)."""

    def __init__(
        self,
        hosts: str,
        cluster: str,
        *,
        session_timeout_ms: int = DEFAULTS.session_timeout_ms,
        open_timeout_s: float = OPEN_TIMEOUT_S,
        segment_records: int = SEGMENT_RECORDS,
        credentials: ZookeeperCredentials = ANONYMOUS,
    ) -> None:
        if not cluster or "/" in cluster or cluster in (".", ".."):
            raise BadRequest(f"{cluster!r} cannot be a cluster's name", field="cluster")
        self.hosts = hosts
        self.cluster = cluster
        self._session_timeout_ms = session_timeout_ms
        self._open_timeout_s = open_timeout_s
        self._segment_records = segment_records
        self._shown = shown(credentials)

    async def session(self) -> ZookeeperSession:
        """Return a new ZooKeeper session; raises `LogUnavailable` if there is none in time.

        Raises `BadRequest` if the cluster belongs to another credential, or if a credential is given
        and the cluster is open to all clients.
        """
        session = await self._session()
        try:
            await session.check_owner()
        except BaseException:
            await session.aclose()
            raise
        return session

    async def look(self, position: int) -> Record | Trimmed | None:
        session = self._new_session()
        try:
            await session.open(timeout_s=self._open_timeout_s)
            return await session.look(position)
        finally:
            await session.aclose()

    def _new_session(self) -> ZookeeperSession:
        link = Link(self.hosts, session_timeout_ms=self._session_timeout_ms, options=self._shown.options)
        return ZookeeperSession(link, Layout(self.cluster), segment_records=self._segment_records, shown=self._shown)

    async def _session(self) -> ZookeeperSession:
        session = self._new_session()
        try:
            await session.open(timeout_s=self._open_timeout_s)
            await session.prepare()
        except BaseException:
            await session.aclose()
            raise
        return session

    async def protect(self) -> int:
        """Restrict all znodes of a cluster that was open to all clients to the credential; return their number."""
        session = await self._session()
        try:
            return await session.protect()
        finally:
            await session.aclose()

    async def destroy(self) -> None:
        """Delete the cluster's log, origin, pulses and all else below its directory."""
        session = await self.session()
        try:
            await session.destroy()
        finally:
            await session.aclose()


@define(eq=False)
class _PulseWatch:
    """Waiters for one pulse, woken by the next event about it."""

    gone: bool = False
    event: trio.Event = field(factory=trio.Event)


class _Flight:
    """An append on its way, as the reader knows of it.

    The reader gets the record as soon as the answer arrives, not when the appending task runs again.
    Under load that task runs later, after all other ready tasks, and would delay the record's verdicts.
    """

    def __init__(self, reader: Reader) -> None:
        self.record: Record | None = None
        self._reader = reader
        self._over = False
        reader.depart()

    def end(self, record: Record | None) -> None:
        """Report the end of the append, with the record if it is known to have landed; only the first call counts."""
        if not self._over:
            self._over, self.record = True, record
            self._reader.arrive(record)


class ZookeeperSession:
    """One ZooKeeper session; see `LogSession`."""

    def __init__(
        self,
        link: Link,
        layout: Layout,
        *,
        segment_records: int = SEGMENT_RECORDS,
        shown: Shown = NOTHING,
    ) -> None:
        self._link = link
        self._shown = shown
        self._layout = layout
        self._reader = Reader(link, layout, origin_position=position_of)
        self._origins = Origins(link, layout)
        self._segments = Segments(link, layout, records=segment_records, origin_position=self._origins.position)
        self._pulse_watches: dict[str, _PulseWatch] = {}
        link.on_end.append(lambda: self._wake_pulse(None, False))

    @property
    def connected(self) -> bool:
        """Whether ZooKeeper answers, as far as is known."""
        return self._link.connected and not self._link.suspected

    @property
    def connections(self) -> int:
        return self._link.connections

    @property
    def session_id(self) -> tuple[int, bytes] | None:
        """ZooKeeper's id and password of the session; None while disconnected."""
        found: tuple[int, bytes] | None = self._link.client.client_id
        return found

    async def wait_lost(self) -> None:
        await self._link.lost.wait()

    async def open(self, *, timeout_s: float) -> None:
        """Connect; raises `LogUnavailable`."""
        await self._link.open(timeout_s=timeout_s)

    async def prepare(self) -> None:
        """Create the cluster's directories if they are missing."""
        layout = self._layout
        root = layout.root.rpartition("/")[0]
        for path in (root, layout.root, layout.log, layout.pulses, layout.origins):
            try:
                await self._link.insist(create(path, acl=self._shown.root_acl if path == root else None))
            except NodeExistsError:
                continue
            except REFUSED:
                raise BadRequest(
                    f"{path} in ZooKeeper belongs to another credential than this", field="zookeeper_auth"
                ) from None
            except NoNodeError:
                raise LogUnavailable(f"the parent of {path} does not exist in ZooKeeper") from None
        await self._segments.open()

    async def check_owner(self) -> None:
        """Raise `BadRequest` if a credential is given and the cluster is open to all clients."""
        if not self._shown.owned:
            return
        acl, _ = await self._link.insist(lambda client: client.get_acls_async(self._layout.log))
        if list(acl) != list(self._shown.acl):
            raise BadRequest(
                f"the znodes of {self._layout.root} in ZooKeeper do not belong to zookeeper_auth alone",
                field="zookeeper_auth",
                hint="Stop the cluster's peers, and run: onyxq cluster protect NAME --zookeeper HOSTS",
            )

    async def protect(self) -> int:
        """Set the session's own access list on every znode from the cluster's root down; return their number."""
        found = [self._layout.root]
        for path in found:
            found += [f"{path}/{child}" for child in sorted(await self._link.insist(children(path)))]
        for path in found:
            await self._link.insist(give(path, self._shown.acl))
        return len(found)

    # --- records --------------------------------------------------------------------

    async def append(self, data: bytes) -> int:
        """Append a record; see `LogSession.append`.

        Waits at most two thirds of the session timeout for a connection, and as long for an answer
        while ZooKeeper is silent. Then it raises `AppendUnknown`.
        """
        if len(data) > RECORD_BYTES_MAX:
            raise TooLarge(f"a record of {len(data)} bytes; at most {RECORD_BYTES_MAX}")
        self._link.check()
        with trio.move_on_after(self._link.patience_s) as waiting:
            await self._link.wait_connected()
        if waiting.cancelled_caught:
            raise AppendUnknown("there is no connection to ZooKeeper")
        while True:
            record = await self._append(self._segments.present, data)
            if record is not None:
                return record.position

    async def _append(self, segment: int, data: bytes) -> Record | None:
        """Create the record in a segment; None if the segment closed before.

        `Segments.present` is then a later one.
        """
        path = f"{self._layout.segment(segment)}/e-"
        flight = _Flight(self._reader)

        def landed(answer: Any) -> None:
            created, stat = answer
            if not self._segments.may_be_behind(int(created[-10:])):
                flight.end(Record(self._layout.position(segment, created), stat.ctime, data))

        try:
            created, stat = await self._link.call_patiently(append(path, data), landed)
            if flight.record is None:
                if await self._segments.is_behind(segment, stat):
                    await self._segments.look()
                    return None
                flight.end(Record(self._layout.position(segment, created), stat.ctime, data))
            return flight.record
        except NoNodeError:  # it is closed, and trimmed altogether
            if not await self._segments.look():
                raise LogUnavailable(f"the log of {self._layout.root} is gone") from None
            return None
        except BROKEN:
            raise AppendUnknown("the connection to ZooKeeper broke, or was silent, during an append") from None
        except KazooException as error:
            raise LogUnavailable(f"ZooKeeper refuses the record: {error!r}") from None
        finally:
            flight.end(None)

    async def read(self, position: int) -> Record | Trimmed:
        """Return the record at a position; see `LogSession.read`. Only one call at a time."""
        return await self._reader.read(position)

    async def look(self, position: int) -> Record | Trimmed | None:
        await self._link.insist(sync(self._layout.root))
        try:
            data, stat = await self._link.insist(get(self._layout.record(position)))
            return Record(position, stat.ctime, data)
        except NoNodeError:
            # The pointer moves before records are deleted, so it is read after the record.
            origin = await self._origins.position()
            return Trimmed(origin) if position <= origin else None

    async def tail(self) -> int:
        """Return the position of the last record written, exact as of the call; see `LogSession.tail`."""
        return await self._segments.tail()

    # --- pulses ---------------------------------------------------------------------

    async def set_pulse(self, peer: str, data: bytes) -> None:
        path = self._pulse_path(peer)
        while True:
            await self._link.wait_connected()
            try:
                await self._link.call(lambda client: client.create_async(path, data, ephemeral=True))
                return
            except NodeExistsError:
                if await self._take_over_pulse(path, data):
                    return
            except BROKEN:
                await self._link.pause()

    async def _take_over_pulse(self, path: str, data: bytes) -> bool:
        """Set our own pulse's data, or delete another session's pulse; return whether it is set."""
        try:
            stat = await self._link.call(exists(path))
            if stat is None:
                return False
            identity = self.session_id
            if identity is not None and stat.ephemeralOwner == identity[0]:
                await self._link.call(replace(path, data))
                return True
            await self._link.call(delete(path))
        except NoNodeError:
            return False
        except BROKEN:
            await self._link.pause()
        return False

    async def pulses(self) -> dict[str, bytes]:
        await self._link.insist(sync(self._layout.pulses))
        found = {}
        for peer in sorted(await self._link.insist(lambda client: client.get_children_async(self._layout.pulses))):
            path = self._pulse_path(peer)
            try:
                found[peer], _ = await self._link.insist(get(path))
            except NoNodeError:
                continue
        return found

    async def wait_pulse_gone(self, peer: str) -> None:
        path = self._pulse_path(peer)
        # A server that lags behind could report a new pulse as absent.
        await self._link.insist(sync(path))
        while True:
            watch = self._pulse_watches.setdefault(path, _PulseWatch())
            stat = await self._link.insist(lambda client: client.exists_async(path, watch=self._on_pulse))
            if stat is None:
                return
            await watch.event.wait()
            self._link.check()
            if watch.gone:
                return

    def _pulse_path(self, peer: str) -> str:
        return f"{self._layout.pulses}/{peer}"

    def _on_pulse(self, event: Any) -> None:
        """Pass on an event about a pulse, or about the connection (no path then), from kazoo's thread."""
        self._link.post(self._wake_pulse, event.path, event.type == EventType.DELETED)

    def _wake_pulse(self, path: str | None, gone: bool) -> None:
        for key in [path] if path is not None else list(self._pulse_watches):
            watch = self._pulse_watches.pop(key, None)
            if watch is not None:
                watch.gone = gone
                watch.event.set()

    # --- origin ---------------------------------------------------------------------

    async def origin(self) -> Origin | None:
        return await self._origins.read()

    async def store_origin(self, position: int, data: bytes, *, expected_version: int) -> bool:
        """Replace the origin; see `LogSession.store_origin`.

        Returns False also unless ``position`` is above the present origin's.
        """
        return await self._origins.store(position, data, expected_version=expected_version)

    async def trim(self, upto: int) -> int:
        return await self._origins.trim(upto, self._segments)

    async def rotate(self) -> bool:
        return await self._segments.rotate()

    async def destroy(self) -> None:
        """Delete the cluster's directory.

        The records are deleted first, in batches, because there may be more than one list can hold.
        Also works if the origin is damaged.
        """
        first = await self._origins.trimmed() + 1
        await self._segments.look()
        for segment in range(segment_of(first), self._segments.present + 1):
            start = segment_start(segment)
            end = start + await self._segments.written(segment)
            for batch in range(max(start, first), end, _DESTROY_BATCH_RECORDS):
                positions = range(batch, min(end, batch + _DESTROY_BATCH_RECORDS))
                await self._delete([self._layout.record(position) for position in positions])
        client = self._link.client
        await trio.to_thread.run_sync(lambda: client.delete(self._layout.root, recursive=True), abandon_on_cancel=True)

    async def _delete(self, paths: list[str]) -> None:
        for reply in [self._link.start(delete(path)) for path in paths]:
            try:
                await reply.wait()
            except NoNodeError:
                continue
            except BROKEN:
                raise LogUnavailable("the connection to ZooKeeper broke; repeat it") from None

    async def aclose(self) -> None:
        await self._link.close()
