"""NATS JetStream: a work-queue stream with three replicas on three servers of this machine.

A publish is acknowledged by a majority of the replicas; the servers of this version write
without syncing each message.  Completions are confirmed acknowledgements (``ack_sync``),
because a plain one may be lost with the connection.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.competitors.base import AsyncLane, AsyncSystem, Batch, Skip
from bench.competitors.servers import START_SECONDS_MAX, Servers, find_program, free_port, version_of

SERVERS = 3
ELECTION_TIMEOUT_S = 2.0
CALL_TIMEOUT_S = 30.0

CONFIGURATION = """
server_name: bench-{number}
listen: "127.0.0.1:{port}"
jetstream {{ store_dir: "{directory}" }}
cluster {{ name: bench, listen: "127.0.0.1:{route}", routes: [{routes}] }}
"""


class JetStreamLane:
    """One pull subscription on the shared consumer, over the shared connection."""

    def __init__(self, stream: Any, subject: str, subscription: Any) -> None:
        self._stream = stream
        self._subject = subject
        self._subscription = subscription
        self._more: list[Any] = []
        """Tasks of a fetch beyond those requested: a server may answer an abandoned request."""

    async def enqueue(self, payloads: Sequence[bytes]) -> None:
        """Publish all at once and wait for every acknowledgement."""
        if len(payloads) == 1:
            await self._stream.publish(self._subject, payloads[0])
        else:
            await asyncio.gather(*(self._stream.publish(self._subject, each) for each in payloads))

    async def claim(self, count: int, wait_s: float) -> Batch:
        """Fetch once."""
        from nats.errors import TimeoutError as NothingCame

        messages = self._more
        try:
            messages = messages or await self._subscription.fetch(count, timeout=max(0.05, wait_s))
        except NothingCame:
            pass
        messages, self._more = messages[:count], messages[count:]
        return Batch([message.data for message in messages], messages)

    async def complete(self, receipt: Any) -> None:
        """Send confirmed acknowledgements, all at once."""
        if len(receipt) == 1:
            await receipt[0].ack_sync(timeout=CALL_TIMEOUT_S)
        else:
            await asyncio.gather(*(message.ack_sync(timeout=CALL_TIMEOUT_S) for message in receipt))


class NatsJetStream(AsyncSystem):
    """Three nats-servers; stream and consumer with three replicas."""

    name = "nats-jetstream"

    def __init__(self) -> None:
        self._servers = Servers()
        self._ports: list[int] = []
        self._connection: Any = None
        self._version = "unknown"

    def start(self, directory: Path) -> None:
        """Start the servers and wait until they have a JetStream leader."""
        try:
            import nats  # noqa: F401
        except ImportError:
            raise Skip("the Python package nats-py is not installed") from None
        program = find_program("nats-server", package="nats-server")
        self._version = version_of([program, "--version"])
        self._ports = [free_port() for _ in range(SERVERS)]
        routes = [free_port() for _ in range(SERVERS)]
        for number in range(SERVERS):
            configuration = directory / f"nats-{number}.conf"
            configuration.write_text(
                CONFIGURATION.format(
                    number=number,
                    port=self._ports[number],
                    directory=directory / f"store-{number}",
                    route=routes[number],
                    routes=", ".join(f'"nats://127.0.0.1:{route}"' for route in routes),
                )
            )
            self._servers.run([program, "-c", str(configuration)], directory=directory, name=f"nats-{number}")
        for port in self._ports:
            self._servers.wait_port(port)

    def stop(self) -> None:
        """Stop all servers."""
        self._servers.stop()

    def settings(self) -> dict[str, Any]:
        """Return version and durability."""
        return {
            "server": self._version,
            "servers": SERVERS,
            "durability": f"file storage, {SERVERS} replicas, acknowledged by a majority; not synced at every write",
            "calls": "publish, fetch, ack_sync; gathered in batches",
            "client": "nats-py, one connection, one pull subscription per lane",
        }

    async def open(self, queue: str, *, lanes: int, waiting: bool) -> list[AsyncLane]:
        """Open a stream, a durable consumer, and a pull subscription per lane."""
        import nats
        from nats.js.api import AckPolicy, ConsumerConfig

        urls = [f"nats://127.0.0.1:{port}" for port in self._ports]
        self._connection = await nats.connect(servers=urls)
        stream = self._connection.jetstream(timeout=CALL_TIMEOUT_S, publish_async_max_pending=100_000)
        await self._add_stream(self._connection.jetstream(timeout=ELECTION_TIMEOUT_S), queue)
        consumer = ConsumerConfig(
            durable_name="workers", ack_policy=AckPolicy.EXPLICIT, ack_wait=60, max_ack_pending=100_000
        )
        await stream.add_consumer(queue, consumer)
        opened: list[AsyncLane] = []
        for _ in range(lanes):
            subscription = await stream.pull_subscribe_bind("workers", queue)
            opened.append(JetStreamLane(stream, queue, subscription))
        return opened

    async def _add_stream(self, stream: Any, queue: str) -> None:
        """Add the stream; repeat until the servers have elected a leader. A repeat has no further effect."""
        from nats.errors import Error
        from nats.js.api import RetentionPolicy, StorageType, StreamConfig

        configuration = StreamConfig(
            name=queue,
            subjects=[queue],
            retention=RetentionPolicy.WORK_QUEUE,
            storage=StorageType.FILE,
            num_replicas=SERVERS,
        )
        until = time.monotonic() + START_SECONDS_MAX
        while True:
            try:
                await stream.add_stream(configuration)
                return
            except (TimeoutError, Error):
                if time.monotonic() > until:
                    raise
                await asyncio.sleep(0.2)

    async def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            await self._connection.close()
