"""The host names at which HTTP answers, as a protection against DNS rebinding.

A browser lets a page read all responses from the page's own host.  An attacker can point a page's
host name at this machine.  If no credentials are required, that page could then do all that local
programs may.  Requests contain the host name that they were sent to, so a request with a foreign
name is refused.  Addresses are accepted, because no attacker can point them elsewhere.  Requests
without a host are accepted, because no browser sends them.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

from attrs import frozen

from onyxq.core.errors import BadRequest, Misdirected

ANY = "any"
SETTING = "http_hosts"
_OWN = ("localhost",)
"""Names that mean the machine itself, in every browser."""
_NAME = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*")
_HOST = re.compile(r"(?P<host>\[[^\]]*\]|[^:]*)(?::[0-9]*)?")


@frozen
class Hosts:
    """Host names that requests may be sent to."""

    names: frozenset[str] = frozenset()
    any: bool = False

    def check(self, header: str | None) -> None:
        """Raise `Misdirected` unless the header ``Host`` names this node."""
        if header is None or self.any or self._knows(header):
            return
        raise Misdirected(f"this peer is not asked by the name {header[:200]!r}", field="Host")

    def _knows(self, header: str) -> bool:
        found = _HOST.fullmatch(header.strip().lower())
        if found is None:
            return False
        host = found["host"].strip("[]").removesuffix(".")
        return is_address(host) or host in (*_OWN, *self.names) or host.endswith(".localhost")


EVERY = Hosts(any=True)
"""Every host name."""


def hosts(said: str, *, listens: Iterable[str], asks: bool) -> Hosts:
    """Return the hosts of the setting, besides ``localhost``, addresses and the names of ``listens``.

    ``asks``: credentials are required. A foreign page has none, so host names are then checked only
    if the setting has some. Raises `BadRequest`.
    """
    words = [word.strip().lower() for word in said.split(",") if word.strip()]
    if ANY in words or (asks and not words):
        return EVERY
    for word in words:
        if not _NAME.fullmatch(word):
            raise BadRequest(
                f"{SETTING}: {word[:200]!r} is not a host name",
                field=SETTING,
                hint=f"Comma-separated names without port, or {ANY}.",
            )
    own = {place.rpartition(":")[0].strip("[]").lower() for place in listens}
    return Hosts(frozenset(own | set(words)))


def is_address(host: str) -> bool:
    """Return whether a host is an IP address."""
    try:
        ipaddress.ip_address(host.replace("%25", "%"))
    except ValueError:
        return False
    return True
