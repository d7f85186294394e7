"""TLS of the two ports, from files: a certificate with its key, and the trusted authorities.

Peers trust each other by the same authorities, both ways.  Other callers need no certificate:
they have bearer tokens.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from attrs import field, frozen

from onyxq.core.errors import BadRequest

if TYPE_CHECKING:
    from onyxq.wire.tcp import TcpNetwork


@frozen
class Contexts:
    """TLS contexts of a peer, with the files as they were when they were read."""

    connecting: ssl.SSLContext
    peers: ssl.SSLContext
    """For connections whose other end may be a peer."""
    callers: ssl.SSLContext
    """For connections of other callers only, over HTTP."""


@frozen
class Certificates:
    """TLS files in PEM; without any, nothing is encrypted."""

    ca: str = ""
    """File of the authorities that check the certificates of others."""
    cert: str = ""
    key: str = field(default="", repr=False)
    """Files of one's own certificate, with its chain to the authority, and of its key."""

    def __bool__(self) -> bool:
        return bool(self.ca or self.cert or self.key)

    @classmethod
    def from_environment(cls) -> Certificates:
        """Return the files that ``ONYXQ_TLS_CA``, ``ONYXQ_TLS_CERT`` and ``ONYXQ_TLS_KEY`` name."""
        return cls(*(os.environ.get(f"ONYXQ_TLS_{name}", "") for name in ("CA", "CERT", "KEY")))

    def to_environment(self) -> dict[str, str]:
        """Return the variables that `from_environment` reads, for programs that are started."""
        said = {"CA": self.ca, "CERT": self.cert, "KEY": self.key}
        return {f"ONYXQ_TLS_{name}": path for name, path in said.items() if path}

    def check_complete(self) -> None:
        """Raise `BadRequest` unless a peer can use them: it needs all three files, or none."""
        for name in ("ca", "cert", "key"):
            if self and not getattr(self, name):
                raise BadRequest(f"a peer with TLS needs tls_{name} too", field=f"tls_{name}")
        self.contexts()

    def contexts(self) -> Contexts | None:
        """Return a peer's contexts, read now; None without TLS. Raises `BadRequest`."""
        if not self:
            return None
        callers = self.serving()
        callers.set_alpn_protocols(["http/1.1"])
        return Contexts(self.connecting(), self.serving_peers(), callers)

    def connecting(self) -> ssl.SSLContext:
        """Return the context for outgoing connections; raises `BadRequest`.

        The other side's certificate must have the name or address that was connected to.
        """
        context = ssl.create_default_context()
        if self.ca:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            with _reading("tls_ca", self.ca):
                context.load_verify_locations(self.ca)
        if self.cert:
            self._show(context)
        return context

    def serving_peers(self) -> ssl.SSLContext:
        """Return the context for connections of peers and others; raises `BadRequest`.

        Peers present a certificate; others need not.
        """
        context = self.serving()
        with _reading("tls_ca", self.ca):
            context.load_verify_locations(self.ca)
        context.verify_mode = ssl.CERT_OPTIONAL
        return context

    def serving(self) -> ssl.SSLContext:
        """Return the context for incoming connections that checks no client certificate; raises `BadRequest`."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._show(context)
        return context

    def network(self, *, serves: bool = False) -> TcpNetwork:
        """Return the network for connections with these files, and for accepted ones if it ``serves``.

        Raises `BadRequest`.
        """
        from onyxq.wire.tcp import TcpNetwork  # not for code that only reads settings

        if not self:
            return TcpNetwork()
        return TcpNetwork(connecting=self.connecting(), serving=self.serving_peers() if serves else None)

    def _show(self, context: ssl.SSLContext) -> None:
        with _reading("tls_cert", self.cert):
            context.load_cert_chain(self.cert, self.key or None)


@contextmanager
def _reading(name: str, path: str) -> Iterator[None]:
    try:
        yield
    except ssl.SSLError as error:
        raise BadRequest(f"{name}: {path} does not hold what it should: {error.reason}", field=name) from None
    except OSError as error:
        raise BadRequest(f"{name}: {path}: {error.strerror}", field=name) from None


PLAIN = Certificates()
"""No encryption."""
