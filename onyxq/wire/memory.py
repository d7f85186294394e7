"""A network within one event loop: connections that never leave the process, without sockets."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
from anyio.abc import ByteStream, ObjectReceiveStream, ObjectSendStream, TaskStatus

from onyxq.core.errors import Unavailable
from onyxq.wire.connection import BREAKS

HOST = "memory"
CHUNKS_MAX = 64
"""Pieces that wait for the other end; at this number a sender waits."""

Handler = Callable[[ByteStream], Awaitable[None]]
_Accept = ObjectSendStream[ByteStream]


class MemoryNetwork:
    """`onyxq.wire.network.Network` in memory; addresses are ``memory:NUMBER``."""

    def __init__(self) -> None:
        self._serving: dict[str, _Accept] = {}
        self._last = 0

    async def connect(self, address: str, *, timeout_ms: int) -> ByteStream:
        """Return a stream to an address that is served; raises `Unavailable`."""
        accept = self._serving.get(address)
        if accept is None:
            await anyio.lowlevel.checkpoint()
            raise Unavailable(f"no server listens at {address}")
        there, here = _pair()
        await accept.send(there)
        return here

    async def serve(
        self,
        address: str,
        handler: Handler,
        *,
        task_status: TaskStatus[str] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        """Accept until cancelled; report the address, a new one regardless of ``address``."""
        self._last += 1
        mine = f"{HOST}:{self._last}"
        accept, accepted = anyio.create_memory_object_stream[ByteStream](CHUNKS_MAX)
        self._serving[mine] = accept
        try:
            async with accept, accepted, anyio.create_task_group() as group:
                task_status.started(mine)
                async for stream in accepted:
                    group.start_soon(_handle, stream, handler)
        finally:
            del self._serving[mine]


class MemoryStream(ByteStream):
    """One end of a connection."""

    def __init__(self, incoming: ObjectReceiveStream[bytes], outgoing: ObjectSendStream[bytes]) -> None:
        self._incoming = incoming
        self._outgoing = outgoing
        self._rest = b""

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """Return the next bytes.

        Raises `EndOfStream` when the other end is closed, `ClosedResourceError` when this one is.
        """
        data = self._rest or await self._incoming.receive()
        self._rest = data[max_bytes:]
        return data[:max_bytes]

    async def send(self, item: bytes) -> None:
        """Send bytes; wait while the other end has many pieces to receive."""
        if item:
            await self._outgoing.send(bytes(item))

    async def send_eof(self) -> None:
        """End the sending direction."""
        await self._outgoing.aclose()

    async def aclose(self) -> None:
        """Close both directions."""
        await self._outgoing.aclose()
        await self._incoming.aclose()


def _pair() -> tuple[MemoryStream, MemoryStream]:
    one_out, other_in = anyio.create_memory_object_stream[bytes](CHUNKS_MAX)
    other_out, one_in = anyio.create_memory_object_stream[bytes](CHUNKS_MAX)
    return MemoryStream(one_in, one_out), MemoryStream(other_in, other_out)


async def _handle(stream: ByteStream, handler: Handler) -> None:
    try:
        await handler(stream)
    except BREAKS:
        pass  # the other end is gone
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.aclose_forcefully(stream)
