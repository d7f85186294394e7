"""Without credentials, servers listen on loopback only, unless the user allows more explicitly."""

from __future__ import annotations

import ipaddress
import socket

from onyxq.core.errors import BadRequest
from onyxq.wire.tcp import split_address


def check_listening(address: str, *, field: str, asks: bool, allow_anyone: bool) -> None:
    """Raise `BadRequest` if other machines can reach an address and no credentials are required.

    ``asks``: credentials are required.  A name counts as loopback if all its addresses are.
    """
    if asks or allow_anyone or is_loopback(split_address(address)[0]):
        return
    raise BadRequest(
        f"{address} can be reached from other machines, but this peer does not ask for credentials",
        field=field,
        hint="Configure tokens with --access FILE, listen on 127.0.0.1, or add --allow-anyone.",
    )


def is_loopback(host: str) -> bool:
    """Return whether only programs of this machine reach a host."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return bool(found) and all(ipaddress.ip_address(str(place[0]).partition("%")[0]).is_loopback for *_, place in found)
