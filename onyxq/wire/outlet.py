"""The sending half of a connection: frames in, few large sends out (design: wire).

Frames put during one turn of the scheduler are sent together.  `Outlet.put` never waits.  Code
that produces frames checks `Outlet.unsent` and waits with `Outlet.room`.
"""

from __future__ import annotations

import math

import anyio
from anyio.abc import ByteStream

SEND_BYTES_MAX = 1024 * 1024
"""Bytes of one send at most, so that progress is visible."""
UNSENT_BYTES_MAX = 64 * 1024 * 1024
"""Unsent bytes from which on producers must wait."""
STALL_S = 60.0
"""Seconds in which one send must end."""


class Outlet:
    """Collects frames and sends them in order."""

    def __init__(self) -> None:
        self.unsent = 0
        self.sent_at = -1.0
        """Monotonic second at which the last send ended."""
        self._frames: list[bytes] = []
        self._wake = anyio.Event()
        self._progress = anyio.Event()
        self._ending = False

    def put(self, frame: bytes) -> None:
        """Send a frame soon; after `end` it is dropped."""
        if self._ending:
            return
        if not self._frames:
            self._wake.set()
        self._frames.append(frame)
        self.unsent += len(frame)

    def end(self) -> None:
        """Let `run` return once everything put so far is sent."""
        self._ending = True
        self._wake.set()

    def abandon(self) -> None:
        """Drop unsent frames, and let all that wait for room continue."""
        self._ending = True
        self._frames.clear()
        self.unsent = 0
        self._progress.set()

    async def room(self) -> None:
        """Wait until less than `UNSENT_BYTES_MAX` is unsent."""
        while self.unsent >= UNSENT_BYTES_MAX:
            await self._progress.wait()

    async def run(self, stream: ByteStream) -> None:
        """Send until `end`; raises the stream's errors, and TimeoutError when it stalls."""
        with anyio.CancelScope() as stalled:
            await self._send_all(stream, stalled)
        if stalled.cancelled_caught:
            raise TimeoutError(f"a send did not end within {STALL_S:.0f} s")

    async def _send_all(self, stream: ByteStream, stalled: anyio.CancelScope) -> None:
        while True:
            if not self._frames:
                if self._ending:
                    return
                self._wake = anyio.Event()
                await self._wake.wait()
                continue
            frames, self._frames = self._frames, []
            data = frames[0] if len(frames) == 1 else b"".join(frames)
            for start in range(0, len(data), SEND_BYTES_MAX):
                part = data[start : start + SEND_BYTES_MAX]
                stalled.deadline = anyio.current_time() + STALL_S
                await stream.send(part)
                stalled.deadline = math.inf
                self._sent(len(part))

    def _sent(self, size: int) -> None:
        self.sent_at = anyio.current_time()
        full = self.unsent >= UNSENT_BYTES_MAX
        self.unsent -= size
        if full:  # a producer may wait for room
            self._progress.set()
            self._progress = anyio.Event()
