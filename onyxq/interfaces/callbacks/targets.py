"""Where callbacks may go: an allow-list of addresses, against requests that others have a peer make.

Whoever may set a timer has a peer open connections.  So what a peer can reach and the
one who asks may not, such as services on loopback, in the private network, or metadata of a
cloud, is refused unless it is allowed.  An address is judged when a timer is set and once more
when the connection is opened: what a name stands for may have changed meanwhile.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from typing import TypeAlias

import trio
from attrs import frozen

from onyxq.access.loopback import is_loopback
from onyxq.core.errors import BadRequest

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

PUBLIC, LOOPBACK, ANY = "public", "loopback", "any"
SETTING = "timer_targets"
RESOLVERS = 16
"""Names that are looked up at a time; a server of names that never answers holds up no more."""
CHECK_S = 2.0
"""How long a name may take when a timer is set."""


@frozen
class Targets:
    """The addresses to which callbacks may go."""

    networks: tuple[Network, ...] = ()
    public: bool = True
    """Whatever is routed on the internet."""
    loopback: bool = False
    any: bool = False

    def check(self, address: str) -> None:
        """Raise `BadRequest` unless an IP address is allowed."""
        if not self._allows(ipaddress.ip_address(address.partition("%")[0])):
            raise BadRequest(
                f"callbacks must not go to {address}",
                field="callback.uri",
                hint=f"They go where the peers' setting {SETTING} allows it.",
            )

    def _allows(self, address: Address) -> bool:
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        if self.any or any(address in network for network in self.networks if network.version == address.version):
            return True
        if address.is_loopback:
            return self.loopback
        return self.public and is_public(address)


def is_public(address: Address) -> bool:
    """Whether an address is one of the internet's, and hides no other one."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.sixtofour or address.teredo or address.is_site_local:
            return False  # translated ones (64:ff9b::/96) are reserved
    return address.is_global and not (address.is_multicast or address.is_reserved or address.is_unspecified)


def targets(said: str, *, listens: Sequence[str], asks: bool) -> Targets:
    """Return what the setting allows; if it is empty: public addresses, and loopback for a peer without credentials.

    ``listens``: the ``HOST:PORT`` on which the process serves.  ``asks``: it asks for credentials.
    A caller who needs no credential and can only come from the machine itself reaches its loopback
    anyway.  With credentials callers may come through a proxy or tunnel.  Raises `BadRequest`.
    """
    words = [word.strip() for word in said.split(",") if word.strip()]
    if not words:
        return Targets(loopback=not asks and all(is_loopback(host_of(one)) for one in listens))
    networks = tuple(_network(word) for word in words if word not in (PUBLIC, LOOPBACK, ANY))
    return Targets(networks, public=PUBLIC in words, loopback=LOOPBACK in words, any=ANY in words)


def _network(word: str) -> Network:
    try:
        return ipaddress.ip_network(word)
    except ValueError as error:
        raise BadRequest(
            f"{SETTING}: {error}",
            field=SETTING,
            hint=f"Comma-separated words: {PUBLIC}, {LOOPBACK}, {ANY}, an address, a network 10.1.0.0/16.",
        ) from None


def host_of(place: str) -> str:
    """The host of ``HOST:PORT``."""
    return place.rpartition(":")[0].strip("[]")


class Resolver:
    """Finds the allowed addresses of hosts."""

    def __init__(self, allowed: Targets) -> None:
        self.allowed = allowed
        self._limiter = trio.CapacityLimiter(RESOLVERS)

    async def addresses(self, host: str, port: int) -> list[str]:
        """The addresses of a host, all of them allowed; raises `BadRequest`, and `OSError` where there is none."""
        try:
            found = [str(ipaddress.ip_address(host))]
        except ValueError:
            found = await self._look_up(host, port)
        for address in found:
            self.allowed.check(address)
        return found

    async def check(self, host: str, port: int) -> None:
        """Raise `BadRequest` if a host is known to stand for an address that is not allowed."""
        with trio.move_on_after(CHECK_S):
            try:
                await self.addresses(host, port)
            except OSError:
                return  # it may stand for something once the callback is due

    async def _look_up(self, host: str, port: int) -> list[str]:
        def look() -> list[str]:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            return list(dict.fromkeys(str(one[4][0]) for one in found))

        try:
            return await trio.to_thread.run_sync(look, abandon_on_cancel=True, limiter=self._limiter)
        except UnicodeError as error:
            raise OSError(f"{host[:100]!r} is no name of a host: {error}") from None
