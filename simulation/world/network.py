"""An in-memory network with delays, cuts and broken connections.

`SimulatedNetwork.host` gives each host its own `onyxq.wire.network.Network`. Addresses are ``HOST:PORT`` with any host
name. Time is that of the event loop, so delays cost nothing on a clock that jumps. Only a seeded generator adds
randomness.

Faults between two hosts, in both directions:

* `part`: bytes that are sent wait until `heal`, and connecting times out, as if packets were lost and TCP repeated
  them. This fault can also be in one direction only: then requests arrive and their answers do not, or the reverse;
* `cut`: connections break at once, and both ends notice;
* `deaden`: connections carry nothing any more, and neither end notices, as if a firewall had forgotten them. New ones
  work;
* `delay`: bytes arrive later.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple, Protocol

import anyio
import anyio.lowlevel
import sniffio
from anyio.abc import ByteStream, TaskStatus
from attrs import define

from onyxq.core.errors import Unavailable
from onyxq.wire.tcp import join_address, split_address
from simulation.world.scheduling import Nap

BUFFER_BYTES_MAX = 1024 * 1024
"""Bytes on the way in one direction of a stream before the sender must wait."""
FIRST_FREE_PORT = 40_000


@define(eq=False)
class Cut:
    """A cut: no message passes between ``hosts`` and ``others``, or only from ``others`` to ``hosts``."""

    hosts: tuple[str, ...]
    others: tuple[str, ...]
    newcomers: bool = False
    """Whether hosts that are added later join ``others``."""
    lasting: bool = False
    """Whether it stays when all cuts are healed together."""
    one_way: bool = False
    """Whether ``others`` are still heard by ``hosts``."""


Handler = Callable[[ByteStream], Awaitable[None]]


class _Chunk(NamedTuple):
    arrives_at: float
    data: bytes


class _Pause(Protocol):
    """A wait of one task, until a time that may change or for an end."""

    async def wait(self) -> None: ...

    def end_at(self, until: float) -> None: ...

    def end(self) -> None: ...


class _ScopePause:
    """The pause of a task of asyncio."""

    def __init__(self, until: float) -> None:
        self._scope = anyio.CancelScope(deadline=until)

    async def wait(self) -> None:
        with self._scope:
            await anyio.sleep_forever()

    def end_at(self, until: float) -> None:
        self._scope.deadline = until

    def end(self) -> None:
        self._scope.cancel()


def _pause(until: float = math.inf) -> _Pause:
    return Nap(until) if sniffio.current_async_library() == "trio" else _ScopePause(until)


class _Pipe:
    """One direction of a stream.

    Who waits does so in a pause that ends when there is something to do: for a receiver that is when bytes arrive,
    which is known when they are sent, so a message costs one waking.
    """

    def __init__(self) -> None:
        self.chunks: deque[_Chunk] = deque()
        self.size = 0
        self.ended = False
        self.broken = False
        self.dead = False
        """Nothing arrives any more, and the sender does not notice."""
        self.abandoned = False
        """The receiving end was closed."""
        self._waiting: dict[_Pause, None] = {}
        self._receiving: _Pause | None = None

    def change(self) -> None:
        """Wake the tasks that wait on this pipe."""
        for pause in self._waiting:
            pause.end()

    async def wait(self) -> None:
        """Return at the next change."""
        await self._wait(_pause())

    async def _wait(self, pause: _Pause) -> None:
        self._waiting[pause] = None
        try:
            await pause.wait()
        finally:
            del self._waiting[pause]

    async def wait_arrival(self, arrives_at: float) -> None:
        """Return then (infinite: not before it is known), or at the next change."""
        pause = _pause(arrives_at)
        before, self._receiving = self._receiving, pause
        try:
            await self._wait(pause)
        finally:
            self._receiving = before

    def arriving(self, arrives_at: float) -> None:
        """The first bytes are on the way."""
        if self._receiving is not None:
            self._receiving.end_at(arrives_at)


class SimulatedStream(ByteStream):
    """One end of a connection between two hosts."""

    def __init__(self, network: SimulatedNetwork, hosts: tuple[str, str], incoming: _Pipe, outgoing: _Pipe) -> None:
        self.hosts = hosts
        """This end's host and the other's."""
        self._network = network
        self._incoming = incoming
        self._outgoing = outgoing
        self._closed = False

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """Bytes that arrived; raises `EndOfStream`, `BrokenResourceError` or `ClosedResourceError`."""
        pipe = self._incoming
        waited = False
        while True:
            if self._closed:
                raise anyio.ClosedResourceError
            if pipe.broken:
                raise anyio.BrokenResourceError
            parted = pipe.dead or self._network.lost(*reversed(self.hosts))
            arrives_at = pipe.chunks[0].arrives_at if pipe.chunks and not parted else math.inf
            if arrives_at <= anyio.current_time():
                if waited:
                    return self._take(pipe, max_bytes)
                await anyio.lowlevel.checkpoint()
            elif pipe.ended and not pipe.chunks and not parted:
                raise anyio.EndOfStream
            else:
                await pipe.wait_arrival(arrives_at)
            waited = True

    async def send(self, item: bytes) -> None:
        """Send bytes; waits while the buffer is full."""
        await anyio.lowlevel.checkpoint_if_cancelled()
        pipe = self._outgoing
        while True:
            if self._closed:
                raise anyio.ClosedResourceError
            parted = pipe.dead or self._network.lost(*self.hosts)
            if pipe.broken or (pipe.abandoned and not (pipe.dead or self._network.parted(*self.hosts))):
                raise anyio.BrokenResourceError
            if pipe.size < BUFFER_BYTES_MAX:
                break
            await pipe.wait()
        arrives_at = anyio.current_time() + self._network.delay_s(*self.hosts)
        if pipe.chunks:
            arrives_at = max(arrives_at, pipe.chunks[-1].arrives_at)
        elif not parted:
            pipe.arriving(arrives_at)
        pipe.chunks.append(_Chunk(arrives_at, bytes(item)))
        pipe.size += len(item)

    async def send_eof(self) -> None:
        """Say that nothing more will be sent."""
        await anyio.lowlevel.checkpoint()
        self._outgoing.ended = True
        self._outgoing.change()

    async def aclose(self) -> None:
        """Close this end; the other end reads what is on the way, then its end."""
        self._closed = True
        self._outgoing.ended = True
        self._incoming.abandoned = True
        self._outgoing.change()
        self._incoming.change()
        self._network.forget(self)
        await anyio.lowlevel.checkpoint()

    def tear(self) -> None:
        """Break the connection at both ends, at once."""
        for pipe in (self._incoming, self._outgoing):
            pipe.broken = True
            pipe.change()

    def deaden(self) -> None:
        """Let no byte and no end arrive any more, at either end."""
        self._incoming.dead = self._outgoing.dead = True
        self.stir()

    def stir(self) -> None:
        """Look again: delays or partitions changed."""
        self._incoming.change()
        self._outgoing.change()

    def _take(self, pipe: _Pipe, max_bytes: int) -> bytes:
        chunk = pipe.chunks.popleft()
        size = self._network.cut_at(min(max_bytes, len(chunk.data)))
        if size < len(chunk.data):
            pipe.chunks.appendleft(_Chunk(chunk.arrives_at, chunk.data[size:]))
        full, pipe.size = pipe.size >= BUFFER_BYTES_MAX, pipe.size - size
        if full:
            pipe.change()
        return chunk.data[:size]


class Host:
    """The network as one host sees it."""

    def __init__(self, network: SimulatedNetwork, name: str) -> None:
        self.name = name
        self._network = network

    async def connect(self, address: str, *, timeout_ms: int) -> ByteStream:
        """A stream to ``HOST:PORT``; raises `Unavailable`."""
        return await self._network.connect(self.name, address, timeout_ms)

    async def serve(
        self, address: str, handler: Handler, *, task_status: TaskStatus[str] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Accept until cancelled; reports the address (port 0: a free one)."""
        await self._network.serve(address, handler, task_status)


class _Listener:
    def __init__(self) -> None:
        self.waiting: deque[SimulatedStream] = deque()
        self.arrived = anyio.Event()


class SimulatedNetwork:
    """All hosts, their streams and the faults between them.

    ``generator``, seeded by the caller, makes receivers get bytes in odd pieces.
    """

    def __init__(self, *, delay_ms: int = 0, generator: random.Random | None = None) -> None:
        self._delay_ms = delay_ms
        self._generator = generator
        self._delays: dict[frozenset[str], int] = {}
        self.cuts: list[Cut] = []
        self._lost: set[tuple[str, str]] = set()
        """Pairs of hosts: what the first sends does not reach the second."""
        self._listeners: dict[str, _Listener] = {}
        self._streams: dict[SimulatedStream, None] = {}
        self._healed = anyio.Event()
        self._next_port = FIRST_FREE_PORT

    def host(self, name: str) -> Host:
        """Return the network as host ``name`` sees it."""
        for cut in self.cuts:
            if cut.newcomers:
                cut.others += (name,)
                self._separate(cut)
        return Host(self, name)

    # faults
    def part(
        self,
        hosts: Iterable[str],
        others: Iterable[str],
        *,
        newcomers: bool = False,
        lasting: bool = False,
        one_way: bool = False,
    ) -> Cut:
        """Let no message pass between any of ``hosts`` and any of ``others``; see `Cut`."""
        cut = Cut(tuple(hosts), tuple(others), newcomers, lasting, one_way)
        self.cuts.append(cut)
        self._separate(cut)
        self._stir_streams()
        return cut

    def _separate(self, cut: Cut) -> None:
        pairs = {(a, b) for a in cut.hosts for b in cut.others if a != b}
        self._lost |= pairs if cut.one_way else pairs | {(b, a) for a, b in pairs}

    def heal(self, cut: Cut | None = None) -> None:
        """Undo one cut, or all but the lasting ones."""
        self.cuts = [one for one in self.cuts if (one is not cut if cut else one.lasting)]
        self._lost.clear()
        for one in self.cuts:
            self._separate(one)
        self._stir()

    def delay(self, a: str, b: str, *, delay_ms: int) -> None:
        """Let bytes sent between two hosts from now on arrive so much later."""
        self._delays[frozenset((a, b))] = delay_ms

    def cut(self, a: str, b: str | None = None) -> None:
        """Break the connections between two hosts, or all of one host."""
        for stream in self._between(a, b):
            stream.tear()

    def deaden(self, a: str, b: str | None = None) -> None:
        """Let the connections between two hosts, or all of one host, carry nothing any more; new ones work."""
        for stream in self._between(a, b):
            stream.deaden()

    def _between(self, a: str, b: str | None) -> list[SimulatedStream]:
        return [one for one in self._streams if a in one.hosts and (b is None or b in one.hosts)]

    def lost(self, source: str, destination: str) -> bool:
        """Whether what one host sends does not reach another one."""
        return bool(self._lost) and (source, destination) in self._lost

    def parted(self, a: str, b: str) -> bool:
        """Whether two hosts cannot connect, and do not learn of each other's closed connections."""
        return self.lost(a, b) or self.lost(b, a)

    # used by the streams
    def delay_s(self, a: str, b: str) -> float:
        """Seconds that bytes take between two hosts."""
        if not self._delays:
            return self._delay_ms / 1000
        return self._delays.get(frozenset((a, b)), self._delay_ms) / 1000

    def cut_at(self, size: int) -> int:
        """How many of ``size`` readable bytes a receiver gets."""
        if self._generator is None or size < 2 or self._generator.random() < 0.5:
            return size
        return self._generator.randint(1, size)

    def forget(self, stream: SimulatedStream) -> None:
        """A stream was closed."""
        self._streams.pop(stream, None)

    # used by the hosts
    async def connect(self, source: str, address: str, timeout_ms: int) -> ByteStream:
        """See `Host.connect`."""
        host, _ = split_address(address)
        with anyio.move_on_after(timeout_ms / 1000):
            await anyio.sleep(2 * self.delay_s(source, host))
            while self.parted(source, host):
                await self._healed.wait()
            listener = self._listeners.get(address)
            if listener is None:
                raise Unavailable(f"cannot connect to {address}: nobody listens there")
            there, back = _Pipe(), _Pipe()
            near = SimulatedStream(self, (source, host), back, there)
            far = SimulatedStream(self, (host, source), there, back)
            self._streams |= {near: None, far: None}
            listener.waiting.append(far)
            listener.arrived.set()
            return near
        raise Unavailable(f"cannot connect to {address}: no answer in time")

    async def serve(self, address: str, handler: Handler, task_status: TaskStatus[str]) -> None:
        """See `Host.serve`."""
        host, port = split_address(address)
        if port == 0:
            port, self._next_port = self._next_port, self._next_port + 1
        address = join_address(host, port)
        if address in self._listeners:
            raise Unavailable(f"cannot listen on {address}: it is in use")
        listener = self._listeners[address] = _Listener()
        try:
            task_status.started(address)
            async with anyio.create_task_group() as group:
                while True:
                    while listener.waiting:
                        group.start_soon(self._handle, listener.waiting.popleft(), handler)
                    listener.arrived = anyio.Event()
                    await listener.arrived.wait()
        finally:
            del self._listeners[address]
            for stream in listener.waiting:
                stream.tear()

    async def _handle(self, stream: SimulatedStream, handler: Handler) -> None:
        try:
            await handler(stream)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream):
            stream.tear()
        finally:
            with anyio.CancelScope(shield=True):
                await stream.aclose()

    def _stir(self) -> None:
        self._healed.set()
        self._healed = anyio.Event()
        self._stir_streams()

    def _stir_streams(self) -> None:
        for stream in list(self._streams):
            stream.stir()
