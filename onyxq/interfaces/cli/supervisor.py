"""What systemd is told of a daemon: ready, stopping, and that its event loop still turns.

A datagram to the socket in ``NOTIFY_SOCKET`` says it (``man sd_notify``); where there is none nothing happens, so
a daemon says it whoever started it.  The watchdog is told by a task of the event loop: a loop that hangs tells
nothing, and systemd ends and restarts the process.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import suppress

import trio
from attrs import frozen

from onyxq.core.texts import whole

READY, STOPPING, ALIVE = "READY=1", "STOPPING=1", "WATCHDOG=1"


@frozen
class Supervisor:
    """Who started this process, as far as it wants to be told."""

    address: str = ""
    """Path of its socket, or ``@`` and an abstract name; empty: nobody."""
    watchdog_s: float = 0.0
    """Silence after which it ends the process; 0: never."""

    @staticmethod
    def of(environment: Mapping[str, str]) -> Supervisor:
        """As systemd names itself; what is meant for another process counts for nothing."""
        address = environment.get("NOTIFY_SOCKET", "")
        mine = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        limit = whole(environment.get("WATCHDOG_USEC", "")) or 0
        return Supervisor(address if address[:1] in ("/", "@") else "", limit / 1e6 if mine else 0.0)

    def tell(self, *states: str) -> None:
        """Say something; a supervisor that cannot be reached is no reason to stop."""
        if self.address:
            name = "\0" + self.address[1:] if self.address.startswith("@") else self.address
            with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.setblocking(False)
                sender.sendto("\n".join(states).encode(), name)

    async def keep_telling(self) -> None:
        """Say that the event loop turns, twice as often as has to be; returns at once if nobody listens."""
        while self.address and self.watchdog_s:
            self.tell(ALIVE)
            await trio.sleep(self.watchdog_s / 2)
