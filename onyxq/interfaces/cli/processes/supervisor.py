"""Reports of a daemon to systemd: it is ready, it stops, and its event loop still runs.

A report is a datagram to the socket in ``NOTIFY_SOCKET`` (``man sd_notify``); without that socket, nothing
is sent.  A task in the event loop reports to the watchdog.  If the loop hangs, no report arrives, and systemd
restarts the process.
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
    """The supervisor that started this process, and the reports that it wants."""

    address: str = ""
    """Path of its socket, or ``@`` and an abstract name; empty: there is no supervisor."""
    watchdog_s: float = 0.0
    """Silence after which it ends the process, in seconds; 0: never."""

    @staticmethod
    def of(environment: Mapping[str, str]) -> Supervisor:
        """Return the supervisor that the environment names; ignore a watchdog of another process."""
        address = environment.get("NOTIFY_SOCKET", "")
        mine = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        limit = whole(environment.get("WATCHDOG_USEC", "")) or 0
        return Supervisor(address if address[:1] in ("/", "@") else "", limit / 1e6 if mine else 0.0)

    def tell(self, *states: str) -> None:
        """Send states; continue if the supervisor cannot be reached."""
        if self.address:
            name = "\0" + self.address[1:] if self.address.startswith("@") else self.address
            with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.setblocking(False)
                sender.sendto("\n".join(states).encode(), name)

    async def keep_telling(self) -> None:
        """Report that the event loop runs, twice in each watchdog interval; return at once without a watchdog."""
        while self.address and self.watchdog_s:
            self.tell(ALIVE)
            await trio.sleep(self.watchdog_s / 2)
