"""The calling side of the wire protocol, and the sending half of both sides (design: wire).

Works on trio and on asyncio.  A call is answered, or fails with the error that the server sent,
or with `TimedOut`.  If the connection breaks it fails with `Unavailable`, or with `Unknown` if the
request may have been executed.  A call given up is withdrawn at the server.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable
from typing import Any

import anyio
from anyio.abc import ByteStream, SocketAttribute, SocketStream

from onyxq.core.errors import OnyxqError, ProtocolError, TimedOut, Unavailable, Unknown
from onyxq.wire.background import Spawner
from onyxq.wire.network import Network
from onyxq.wire.protocol import (
    ANSWER_BYTES_MAX,
    CANCEL,
    HELLO_BYTES_MAX,
    PING,
    Decoder,
    Hello,
    check_cluster,
    encode,
    parse_answer,
)
from onyxq.wire.waits import Wait, Waits

CALLS_MAX = 1000
"""Calls in flight on one connection (fewer than a server accepts); more wait in line."""
CONNECT_TIMEOUT_MS = 5_000
CALL_TIMEOUT_MS = 30_000
PING_AFTER_S = 5.0
"""Seconds of silence after which a ping is sent, if a call is in flight or was given up since.

After as much silence again the connection counts as broken, even if no call is in flight any more.
"""
LATE_LOOK_S = 1.0
"""A look for silence that begins this late, in seconds, is left out.

This process was busy, so its ping may not be sent, and an answer may wait to be received.
"""
RECEIVE_BYTES = 256 * 1024
LATE_MAX = 1000
"""Number of withdrawn calls whose answers are still recognised."""

SEND_BYTES_MAX = 1024 * 1024
"""Bytes of one send at most, so that progress is visible."""
UNSENT_BYTES_MAX = 64 * 1024 * 1024
"""Unsent bytes from which on producers must wait."""
STALL_S = 60.0
"""Seconds in which one send must end."""

BREAKS = (
    OSError,
    anyio.EndOfStream,
    anyio.BrokenResourceError,
    anyio.ClosedResourceError,
    anyio.BusyResourceError,
)
"""Errors that a byte stream raises at its end (TimeoutError is an OSError).

TLS raises `BusyResourceError`, and is broken then, if it must send while another task sends: the other side may
ask for new keys at any time, and a receive answers that.
"""


class Outlet:
    """The sending half of a connection: frames in, few large sends out.

    `put` never waits. Frames of one turn of the event loop are sent together: groups of calls must not break up, since
    a group costs the other side about as much as a call. Code that makes frames checks `unsent` and waits with `room`.
    """

    def __init__(self, stream: ByteStream) -> None:
        self.unsent = 0
        self.sent_at = -1.0
        """Monotonic second at which the last send ended."""
        self._stream = stream
        self._socket = stream.extra(SocketAttribute.raw_socket) if isinstance(stream, SocketStream) else None
        """Socket that takes bytes without waiting; None if the stream is encrypted or simulated."""
        self._frames: list[bytes] = []
        self._waits = Waits()
        self._wake = Wait(math.inf)
        self._for_room: dict[Wait, None] = {}
        """Those that wait in `room`."""
        self._ending = False

    def put(self, frame: bytes) -> None:
        """Send a frame soon; after `end` it is dropped."""
        if self._ending:
            return
        self._frames.append(frame)
        self.unsent += len(frame)
        if len(self._frames) == 1:
            self._wake.end()

    def end(self) -> None:
        """Let `run` return once everything put so far is sent."""
        self._ending = True
        self._wake.end()

    def abandon(self) -> None:
        """Drop unsent frames, and let all that wait for room continue."""
        self._ending = True
        self._frames.clear()
        self.unsent = 0
        self._make_room()

    def _make_room(self) -> None:
        waiting, self._for_room = self._for_room, {}
        for one in waiting:
            one.end()

    async def room(self, until: float = math.inf, waits: Waits | None = None) -> bool:
        """Wait until less than `UNSENT_BYTES_MAX` is unsent; return False if ``until`` comes first.

        ``waits``: has the deadline watched.
        """
        while self.unsent >= UNSENT_BYTES_MAX:
            turn = Wait(until)
            self._for_room[turn] = None
            try:
                if not await (waits or self._waits).wait(turn):
                    return False
            finally:
                self._for_room.pop(turn, None)
        return True

    async def run(self) -> None:
        """Send until `end`; raises the stream's errors, and TimeoutError when it stalls."""
        with anyio.CancelScope() as stalled:
            await self._send_all(stalled)
        if stalled.cancelled_caught:
            raise TimeoutError(f"a send did not end within {STALL_S:.0f} s")

    async def _send_all(self, stalled: anyio.CancelScope) -> None:
        while True:
            self._send_now()
            if not self._frames:
                if self._ending:
                    return
                self._wake = Wait(math.inf)
                await self._waits.wait(self._wake)
                continue
            data = self._taken()
            for start in range(0, len(data), SEND_BYTES_MAX):
                part = data[start : start + SEND_BYTES_MAX]
                stalled.deadline = self._waits.clock() + STALL_S
                await self._stream.send(part)
                stalled.deadline = math.inf
                self._sent(len(part))

    def _send_now(self) -> None:
        """Send what the socket takes without waiting. The stream takes the rest, and raises the socket's errors."""
        if self._socket is None or not self._frames:
            return
        data = self._taken()
        try:
            size = os.write(self._socket.fileno(), data)
        except OSError:
            size = 0
        if size < len(data):
            self._frames.append(data[size:])
        if size:
            self._sent(size)

    def _taken(self) -> bytes:
        frames, self._frames = self._frames, []
        return frames[0] if len(frames) == 1 else b"".join(frames)

    def _sent(self, size: int) -> None:
        self.sent_at = self._waits.clock()
        full = self.unsent >= UNSENT_BYTES_MAX
        self.unsent -= size
        if full:  # a producer may wait for room
            self._make_room()


class _Call(Wait):
    __slots__ = ("error", "result")

    def __init__(self, until: float) -> None:
        super().__init__(until)
        self.result: Any = None
        self.error: OnyxqError | None = None


class Connection:
    """A connection to one server; make it with `start`."""

    def __init__(self, stream: ByteStream, *, address: str) -> None:
        self.address = address
        self.peer = Hello()
        """The server's hello."""
        self.closed = anyio.Event()
        """Set when no call can be made any more."""
        self._reason = ""
        self._stream = stream
        self._outlet = Outlet(stream)
        self._decoder = Decoder(frame_bytes_max=HELLO_BYTES_MAX)
        self._calls: dict[int, _Call] = {}
        self._waits = Waits()
        self._late: dict[int, Callable[[Any], None]] = {}
        self._next = 1
        self._line: deque[Wait] = deque()
        """Callers that wait because too much is in flight, oldest first."""
        self._stop = anyio.Event()
        self._heard_at = 0.0
        self._pinged = False
        """Whether a ping was sent and the server has been silent since."""
        self._unheard = False
        """Whether a request was sent and the server has been silent since."""

    @classmethod
    async def start(
        cls,
        spawner: Spawner,
        network: Network,
        address: str,
        *,
        hello: Hello,
        timeout_ms: int = CONNECT_TIMEOUT_MS,
    ) -> Connection:
        """Connect, exchange hellos and run the connection in ``spawner`` (task group or nursery).

        Raises `Unavailable` if no server answers in time, and the server's error if it refuses.
        """
        with anyio.move_on_after(timeout_ms / 1000):
            stream = await network.connect(address, timeout_ms=timeout_ms)
            connection = cls(stream, address=address)
            try:
                await connection._greet(hello)
            except BaseException:
                await anyio.aclose_forcefully(stream)
                raise
            spawner.start_soon(connection._run)
            return connection
        raise Unavailable(f"{address} did not answer within {timeout_ms} ms")

    async def call(
        self,
        method: str,
        args: dict[str, Any],
        *,
        timeout_ms: int = CALL_TIMEOUT_MS,
        late: Callable[[Any], None] | None = None,
    ) -> Any:
        """Send a request and wait for its answer.

        ``late`` gets a result that arrived after the call was given up.  Raises
        the server's error, `Unavailable`, `Unknown`, `TimedOut`, `BadRequest` or `TooLarge`.
        """
        call, number = _Call(self._waits.clock() + timeout_ms / 1000), 0
        room = True
        try:
            if self._line or len(self._calls) >= CALLS_MAX or self._outlet.unsent >= UNSENT_BYTES_MAX:
                room = await self._room(call.until)
            if room:
                number = self._send_request(method, args, call)
                await self._waits.wait(call)
        except BaseException:
            self._give_up(number, call, late)
            raise
        if not call.over:
            self._give_up(number, call, late)
            raise TimedOut(f"{self.address} did not answer {method} within {timeout_ms} ms")
        if call.error is not None:
            raise call.error
        return call.result

    def notify(self, method: str, args: dict[str, Any]) -> None:
        """Send a one-way message; it is lost if the connection is broken or 64 MiB are unsent."""
        if not self.closed.is_set() and self._outlet.unsent < UNSENT_BYTES_MAX:
            self._outlet.put(encode([0, method, args]))

    def close(self) -> None:
        """End the connection; calls in flight fail."""
        self._fail_all("the connection was closed")
        self._stop.set()

    def _send_request(self, method: str, args: dict[str, Any], call: _Call) -> int:
        if self.closed.is_set():
            raise Unavailable(f"no connection to {self.address}: {self._reason}")
        number = self._next
        frame = encode([number, method, args])
        self._next += 1
        self._calls[number] = call
        self._unheard = True
        self._outlet.put(frame)
        return number

    async def _room(self, until: float) -> bool:
        """Wait until a call may be sent; return False if ``until`` comes first."""
        while not self.closed.is_set() and len(self._calls) >= CALLS_MAX:
            turn = Wait(until)
            self._line.append(turn)
            try:
                came = await self._waits.wait(turn)
            except BaseException:
                self._leave_line(turn)
                raise
            if not came:
                self._leave_line(turn)
                return False
        return await self._outlet.room(until, self._waits) or self.closed.is_set()

    def _leave_line(self, turn: Wait) -> None:
        if not turn.over:
            self._line.remove(turn)

    def _next_in_line(self) -> None:
        if self._line:
            self._line.popleft().end()

    def _give_up(self, number: int, call: _Call, late: Callable[[Any], None] | None) -> None:
        if not number:
            self._next_in_line()  # it was not sent, but may have been its turn
        if self._calls.pop(number, None) is not None:
            self.notify(CANCEL, {"id": number})
            if late is not None:
                self._late[number] = late
                while len(self._late) > LATE_MAX:
                    del self._late[next(iter(self._late))]
            self._next_in_line()
        elif late is not None and call.over and call.error is None:
            late(call.result)

    async def _greet(self, hello: Hello) -> None:
        try:
            await self._stream.send(encode(hello.to_message()))
        except BREAKS as error:
            raise Unavailable(f"{self.address} closed the connection: {error!r}") from None
        while True:
            try:
                self._decoder.feed(await self._stream.receive(RECEIVE_BYTES))
            except BREAKS as error:
                raise Unavailable(f"{self.address} closed the connection: {error!r}") from None
            for message, _ in self._decoder.messages():
                self.peer = Hello.from_server(message)
                check_cluster(hello, self.peer)
                self._decoder.frame_bytes_max = ANSWER_BYTES_MAX
                self._heard_at = self._waits.clock()
                return

    async def _run(self) -> None:
        try:
            async with anyio.create_task_group() as group:
                for part in (self._read, self._outlet.run, self._watch, self._waits.watch, self._until_stopped):
                    group.start_soon(self._end_all_after, part, group.cancel_scope)
        finally:
            self._fail_all("the connection was closed")
            self._outlet.abandon()
            with anyio.CancelScope(shield=True):
                await anyio.aclose_forcefully(self._stream)

    async def _end_all_after(self, part: Callable[[], Any], scope: anyio.CancelScope) -> None:
        try:
            await part()
        except BREAKS:
            self._fail_all("the connection broke")
        except OnyxqError as error:
            self._fail_all(error.message)
        scope.cancel()

    async def _until_stopped(self) -> None:
        await self._stop.wait()

    async def _read(self) -> None:
        while True:
            for message, _ in self._decoder.messages():
                self._take(message)
            data = await self._stream.receive(RECEIVE_BYTES)
            self._heard_at = self._waits.clock()
            self._pinged = self._unheard = False
            self._decoder.feed(data)

    def _take(self, message: Any) -> None:
        number, result, error = parse_answer(message)
        if number == 0:
            raise error or ProtocolError("an answer without a request")
        call = self._calls.pop(number, None)
        if call is None:
            late = self._late.pop(number, None)
            if late is not None and error is None:
                late(result)
            return
        call.result, call.error = result, error
        call.end()
        self._next_in_line()

    async def _watch(self) -> None:
        while True:
            due = self._waits.clock() + PING_AFTER_S
            await anyio.sleep(PING_AFTER_S)
            now = self._waits.clock()
            if now - due >= LATE_LOOK_S:
                continue
            uploading = self._outlet.unsent > 0 and now - self._outlet.sent_at < PING_AFTER_S
            if uploading:
                self._pinged = False
            elif self._pinged:
                raise Unavailable(f"{self.address} does not answer pings")
            elif (self._calls or self._unheard) and now - self._heard_at >= PING_AFTER_S:
                self._pinged = True
                self._outlet.put(encode([self._next, PING, {}]))
                self._next += 1

    def _fail_all(self, reason: str) -> None:
        if self.closed.is_set():
            return
        self._reason = reason
        self.closed.set()
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.error = Unknown(f"{self.address}: {reason} before the answer came")
            call.end()
        while self._line:
            self._next_in_line()
