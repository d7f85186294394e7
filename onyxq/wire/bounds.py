"""What all callers of a port may take together: connections, and memory for messages that are not whole yet.

A caller's own bounds are in `onyxq.wire.server`.  Peers are let in beyond the number of
connections: clients, however many, cut no node off from its cohort.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager

from onyxq.errors import Overloaded

CONNECTIONS_MAX = 4_096
"""Clients at a time; fewer where the process may not open so many files."""
GREETINGS_MAX = 8_192
"""Connections that have not said yet who they are, and those that have, together."""
PARTIAL_BYTES_MAX = 128 * 1024 * 1024
"""Of messages of which a part is here, all callers together."""
PARTIAL_BYTES_FREE = 64 * 1024
"""What a connection may have of such a message without it being counted."""


def connections_max() -> int:
    """How many clients at a time the process has files for."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return CONNECTIONS_MAX if soft == resource.RLIM_INFINITY else max(16, min(CONNECTIONS_MAX, soft // 2))


class Bounds:
    """Counts what the connections of a port take."""

    def __init__(self, *, clients: int | None = None, partial_bytes: int = PARTIAL_BYTES_MAX) -> None:
        self._clients_max = connections_max() if clients is None else clients
        self._partial_max = partial_bytes
        self.connections = 0
        self.clients = 0
        self.partial = 0

    @contextmanager
    def connected(self) -> Iterator[None]:
        """Count a connection; raises `Overloaded`."""
        if self.connections >= GREETINGS_MAX:
            raise Overloaded(f"{GREETINGS_MAX} connections are open")
        self.connections += 1
        try:
            yield
        finally:
            self.connections -= 1

    @contextmanager
    def client(self) -> Iterator[None]:
        """Count a client; raises `Overloaded`."""
        if self.clients >= self._clients_max:
            raise Overloaded(
                f"{self._clients_max} clients are connected", hint="Ask another peer, or close connections."
            )
        self.clients += 1
        try:
            yield
        finally:
            self.clients -= 1

    def hold(self, before: int, now: int) -> int:
        """Count that a connection has ``now`` bytes of a message, after ``before`` that counted; gives what counts."""
        counted = now if now > PARTIAL_BYTES_FREE else 0
        self.partial += counted - before
        return counted

    def check_room(self) -> None:
        """Raise `Overloaded` if no more of such messages can be taken now.

        To wait would be no help: all who have begun one could wait for each other.
        """
        if self.partial >= self._partial_max:
            raise Overloaded("too many large messages are under way", hint="Send smaller or fewer requests at a time.")
