"""TLS of the two ports, from files: a certificate with its key, and the authorities that are trusted.

Peers trust each other by the same authorities, both ways.  Callers who are no peers need no
certificate: they have tokens.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from attrs import field, frozen

from onyxq.core.errors import BadRequest

if TYPE_CHECKING:
    from onyxq.wire.tcp import TcpNetwork


@frozen
class Contexts:
    """TLS as a peer speaks it, with the files as they were when they were read."""

    connecting: ssl.SSLContext
    peers: ssl.SSLContext
    """For connections that peers may be at the other end of."""
    callers: ssl.SSLContext
    """For those of others only, over HTTP."""


@frozen
class Certificates:
    """Files in PEM; without any, nothing is encrypted."""

    ca: str = ""
    """Of the authorities by whom others' certificates are checked."""
    cert: str = ""
    key: str = field(default="", repr=False)
    """Of one's own certificate, with what leads to the authority, and of its key."""

    def __bool__(self) -> bool:
        return bool(self.ca or self.cert or self.key)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Certificates:
        """What ``ONYXQ_TLS_CA``, ``ONYXQ_TLS_CERT`` and ``ONYXQ_TLS_KEY`` name."""
        return cls(*(environment.get(f"ONYXQ_TLS_{name}", "") for name in ("CA", "CERT", "KEY")))

    def to_environment(self) -> dict[str, str]:
        """The variables that `from_environment` reads, for programs that are started."""
        said = {"CA": self.ca, "CERT": self.cert, "KEY": self.key}
        return {f"ONYXQ_TLS_{name}": path for name, path in said.items() if path}

    def check_complete(self) -> None:
        """Raise `BadRequest` unless a peer can use them: it needs all three files, or none."""
        for name in ("ca", "cert", "key"):
            if self and not getattr(self, name):
                raise BadRequest(f"a peer with TLS needs tls_{name} too", field=f"tls_{name}")
        self.contexts()

    def contexts(self) -> Contexts | None:
        """What a peer needs, read now; None without TLS. Raises `BadRequest`."""
        if not self:
            return None
        callers = self.serving()
        callers.set_alpn_protocols(["http/1.1"])
        return Contexts(self.connecting(), self.serving_peers(), callers)

    def connecting(self) -> ssl.SSLContext:
        """For connections to others, whose name or address their certificate must have; raises `BadRequest`."""
        context = ssl.create_default_context()
        if self.ca:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            with _reading("tls_ca", self.ca):
                context.load_verify_locations(self.ca)
        if self.cert:
            self._show(context)
        return context

    def serving_peers(self) -> ssl.SSLContext:
        """For connections of peers, who show a certificate, and of others, who need not; raises `BadRequest`."""
        context = self.serving()
        with _reading("tls_ca", self.ca):
            context.load_verify_locations(self.ca)
        context.verify_mode = ssl.CERT_OPTIONAL
        return context

    def serving(self) -> ssl.SSLContext:
        """For connections of whoever it is; raises `BadRequest`."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._show(context)
        return context

    def network(self, *, serves: bool = False) -> TcpNetwork:
        """Connections with these, and those that are accepted if it ``serves``; raises `BadRequest`."""
        from onyxq.wire.tcp import TcpNetwork  # not for those who only read settings

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
"""Nothing is encrypted."""
