"""Allowed targets of callbacks: a client must not reach addresses through a peer that it cannot reach itself.

A client that may set timers can make a peer open connections.  Services on loopback, in the private network
or in the metadata of a cloud are therefore refused unless the setting allows them.  An address is checked
when a timer is set, and again when the connection is opened, because a name may resolve to another address.
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
"""Most names that are resolved in parallel, for checks and for callbacks each.

So a name server that never answers blocks a bounded number.
"""
CHECK_S = 2.0
"""Longest time to resolve a name when a timer is set, in seconds."""


@frozen
class Targets:
    """The addresses that callbacks may reach."""

    networks: tuple[Network, ...] = ()
    public: bool = True
    """Whether all addresses of the internet are allowed."""
    loopback: bool = False
    any: bool = False

    def check(self, address: str) -> None:
        """Raise `BadRequest` unless an IP address is allowed."""
        if not self._allows(ipaddress.ip_address(address.partition("%")[0])):
            raise BadRequest(
                f"callbacks to {address} are not allowed",
                field="callback.uri",
                hint=f"Use another address, or allow this one in the setting {SETTING} of all peers.",
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
    """Return whether an address is a public one that contains no other address."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.sixtofour or address.teredo or address.is_site_local:
            return False  # Translated addresses (64:ff9b::/96) are reserved, so they are not global.
    return address.is_global and not (address.is_multicast or address.is_reserved or address.is_unspecified)


def targets(said: str, *, listens: Sequence[str], asks: bool) -> Targets:
    """Return the targets of the setting; raises `BadRequest`.

    An empty setting means public addresses.  It also means loopback if the peer serves on loopback only and
    without credentials: its clients reach loopback anyway.  With credentials, clients may come through a proxy.

    ``listens``: each ``HOST:PORT`` on which the process serves.  ``asks``: it asks for credentials.
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
            hint=f"Give a comma-separated list: {PUBLIC}, {LOOPBACK}, {ANY}, addresses, networks like 10.1.0.0/16.",
        ) from None


def host_of(place: str) -> str:
    """Return the host of ``HOST:PORT``."""
    return place.rpartition(":")[0].strip("[]")


class Resolver:
    """A resolver of host names that refuses addresses that are not allowed."""

    def __init__(self, allowed: Targets) -> None:
        self.allowed = allowed
        self._delivering = trio.CapacityLimiter(RESOLVERS)
        self._checking = trio.CapacityLimiter(RESOLVERS)
        """Another one, so that requests with names that are slow to resolve delay no callback that is due."""

    async def addresses(self, host: str, port: int) -> list[str]:
        """Return the addresses of a host; raises `BadRequest` if one is not allowed, and `OSError` if there is none."""
        return await self._allowed(host, port, self._delivering)

    async def _allowed(self, host: str, port: int, limiter: trio.CapacityLimiter) -> list[str]:
        try:
            found = [str(ipaddress.ip_address(host))]
        except ValueError:
            found = await self._look_up(host, port, limiter)
        for address in found:
            self.allowed.check(address)
        return found

    async def check(self, host: str, port: int) -> None:
        """Raise `BadRequest` if a host resolves to an address that is not allowed."""
        with trio.move_on_after(CHECK_S):
            try:
                await self._allowed(host, port, self._checking)
            except OSError:
                return  # The name may resolve when the callback is due.

    async def _look_up(self, host: str, port: int, limiter: trio.CapacityLimiter) -> list[str]:
        def look() -> list[str]:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            return list(dict.fromkeys(str(one[4][0]) for one in found))

        try:
            return await trio.to_thread.run_sync(look, abandon_on_cancel=True, limiter=limiter)
        except UnicodeError as error:
            raise OSError(f"{host[:100]!r} is not a host name: {error}") from None
