"""How a program reaches its cluster: the settings that the command line and an `App` share (design: interfaces)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from attrs import frozen

from onyxq.access.certificates import Certificates
from onyxq.client.asynchronous import AsyncClient, with_port
from onyxq.client.blocking import Client
from onyxq.wire.network import Network
from onyxq.wire.tcp import split_address


@frozen
class ConnectionSettings:
    """Address, credential, TLS and time limits of a program's client."""

    address: str | Sequence[str]
    token: str | None
    tls: Certificates
    timeout_ms: int
    connect_timeout_ms: int | None
    """Time in which a peer must be reached; None for the whole ``timeout_ms``."""

    @staticmethod
    def of(setting: Callable[[str], Any]) -> ConnectionSettings:
        """Return the values of ``setting(name)``, which come from a flag, a variable, ``onyxq.toml`` or a default.

        Raises `BadRequest` for a wrong address.
        """
        found = [with_port(one.strip()) for one in setting("connect").split(",")]
        for one in found:
            split_address(one, field="connect")
        return ConnectionSettings(
            address=found if len(found) > 1 else found[0],
            token=setting("token") or None,
            tls=Certificates(*(setting(name) or "" for name in ("tls_ca", "tls_cert", "tls_key"))),
            timeout_ms=setting("request_timeout_ms"),
            connect_timeout_ms=setting("connect_timeout_ms"),
        )

    def client(self, network: Network | None = None) -> Client:
        """Return a client that is not open yet."""
        return Client(self.address, network=network, **self._how())

    def asynchronous_client(self) -> AsyncClient:
        """Return a client for an event loop; enter it there."""
        return AsyncClient(self.address, **self._how())

    def _how(self) -> dict[str, Any]:
        limits = {"timeout_ms": self.timeout_ms, "connect_timeout_ms": self.connect_timeout_ms}
        return {"token": self.token, "tls": self.tls, **limits}
