"""Limits for all callers of a port together: connections, and memory for incomplete messages.

A caller's own limits are in `onyxq.wire.server`.  The descriptors that a process may open are
divided: clients over TCP and over HTTP have 25 % each, TLS handshakes and connections that have not
said hello 10 % each.  The rest is for peers, the store, the log and probes.  So clients, however
many, cut no node off from its cohort.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

import anyio

from onyxq.core.errors import Overloaded

OWNER: ContextVar[str] = ContextVar("owner", default="")
"""Digest of the bearer token of the connection or request that is being served; empty if none is required."""
CONNECTIONS_MAX = 4_096
"""Clients of a port at a time; fewer if the process may open too few files."""
CONNECTIONS_PERCENT = 25
NEWCOMERS_MAX = 1_024
"""Connections in their TLS handshake, and those that have not said hello; fewer as above."""
NEWCOMERS_PERCENT = 10
REQUESTS_BYTES_MAX = 512 * 1024 * 1024
"""Bytes of the requests in progress, decoded in memory, of all clients together."""
PARTIAL_BYTES_MAX = 128 * 1024 * 1024
"""Bytes of incomplete messages, of all callers together."""
PARTIAL_BYTES_FREE = 64 * 1024
"""Bytes of an incomplete message that a connection may hold without being counted."""


def share(percent: int, most: int) -> int:
    """Return that percentage of the descriptors that the process may open, at most ``most``."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if soft == resource.RLIM_INFINITY else min(most, max(8, soft * percent // 100))


def has_room(waiting: Mapping[str, int], owner: str, limit: int) -> bool:
    """Return whether one more request of a credential may wait, given the numbers of those that wait.

    One credential takes a share of the limit only. The shares leave room for one more credential.
    """
    if sum(waiting.values()) >= limit:
        return False
    owners = len(waiting) + (owner not in waiting)
    return not owner or waiting.get(owner, 0) < limit // (owners + 1)


class Newcomers:
    """Connections of callers who are not known yet; if there are too many, the oldest is closed.

    A flood of silent connections therefore keeps out no caller that speaks at once.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._scopes: dict[anyio.CancelScope, None] = {}
        """Scope of each connection, oldest first."""

    def __len__(self) -> int:
        return len(self._scopes)

    @contextmanager
    def entered(self, seconds: float) -> Iterator[anyio.CancelScope]:
        """Count a connection; its scope is cancelled after ``seconds``, or to make room."""
        while len(self._scopes) >= self._limit:
            oldest = next(iter(self._scopes))
            del self._scopes[oldest]
            oldest.cancel()
        with anyio.move_on_after(seconds) as scope:
            self._scopes[scope] = None
            try:
                yield scope
            finally:
                self._scopes.pop(scope, None)


class Bounds:
    """Counts what the connections of a port use."""

    def __init__(
        self, *, clients: int | None = None, newcomers: int | None = None, partial_bytes: int = PARTIAL_BYTES_MAX
    ) -> None:
        self._clients_max = share(CONNECTIONS_PERCENT, CONNECTIONS_MAX) if clients is None else clients
        self._partial_max = partial_bytes
        self.newcomers = Newcomers(share(NEWCOMERS_PERCENT, NEWCOMERS_MAX) if newcomers is None else newcomers)
        """Connections that have not said hello."""
        self._clients: dict[str, dict[anyio.CancelScope, None]] = {}
        """Connections by credential, oldest first."""
        self.partial = 0
        self.requests = 0
        """Bytes of the requests in progress, decoded; counted by their connections."""

    @property
    def clients(self) -> int:
        """Number of connections of clients."""
        return sum(map(len, self._clients.values()))

    @contextmanager
    def client(self) -> Iterator[None]:
        """Count a client; raises `Overloaded`, also once another credential needs its place."""
        owner = OWNER.get()
        if self.clients >= self._clients_max and not self._make_room(owner):
            raise Overloaded(
                f"{self._clients_max} clients are connected", hint="Ask another peer, or close connections."
            )
        with anyio.CancelScope() as scope:
            self._clients.setdefault(owner, {})[scope] = None
            try:
                yield
            finally:
                self._forget(owner, scope)
        if scope.cancelled_caught:
            raise Overloaded("other credentials need this connection", hint="Ask another peer, or connect less often.")

    def _make_room(self, owner: str) -> bool:
        """Close the newest connection of the credential with the most, if it has at least two more than this one."""
        most = max(self._clients, key=lambda one: len(self._clients[one]))
        if len(self._clients[most]) < len(self._clients.get(owner, ())) + 2:
            return False
        scope = next(reversed(self._clients[most]))
        self._forget(most, scope)
        scope.cancel()
        return True

    def _forget(self, owner: str, scope: anyio.CancelScope) -> None:
        if self._clients.get(owner, {}).pop(scope, self) is None and not self._clients[owner]:
            del self._clients[owner]

    def hold(self, before: int, now: int) -> int:
        """Count ``now`` bytes of a connection's message in place of ``before``; return the bytes that count."""
        counted = now if now > PARTIAL_BYTES_FREE else 0
        self.partial += counted - before
        return counted

    def check_room(self) -> None:
        """Raise `Overloaded` if no more bytes of incomplete messages can be accepted now.

        Waiting would not help: all connections with an incomplete message could wait for each other.
        """
        if self.partial >= self._partial_max:
            raise Overloaded("too many large messages are under way", hint="Send smaller or fewer requests at a time.")

    def check_requests(self, size: int) -> None:
        """Raise `Overloaded` if the requests in progress would take too much memory with another one."""
        if self.requests + size > REQUESTS_BYTES_MAX:
            raise Overloaded("too many large requests are in progress", hint="Send smaller or fewer at a time.")
